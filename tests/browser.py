"""Headless Chromium, driven through its DevTools protocol over a pair of pipes.

``python -m tests.browser PAGE PICTURE`` takes a screenshot of a page for the docs.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# As root in a container, the sandbox does not work, and /dev/shm is small.
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
)
# On a busy machine, a page takes tens of seconds.
PATIENCE_S = 240
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowRight": 39}


class SilentError(Exception):
    """The browser has ended, or does not answer."""


class Browser:
    """One page: its errors are in ``complaints``, its requests in ``asked``."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._commands = os.pipe()
        self._answers, to_write = os.pipe()
        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={self._profile.name}"]
        # The protocol wants descriptors 3 and 4.
        line = f"exec {shlex.join(command)} 3<&{to_read} 4>&{to_write}"
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self._loaded = False
        self.complaints: list[str] = []
        self.asked: list[str] = []
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise

    def _begin(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        # Otherwise a page gets focus events only while a window has the focus.
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._commands)  # at which it ends by itself
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come before the answer are noted."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, page: Path, width: int = 1000, *, dark: bool = False) -> None:
        """Load a page from disk and wait until it is ready."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._next()

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, like a user."""
        code = KEYS[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code
            )

    def picture(self, height: int | None = None) -> bytes:
        """A PNG of the whole page, or of its top part."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "scale": 1, "width": size["width"]}
        clip["height"] = height or size["height"]
        answer = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], PATIENCE_S)
            read = os.read(self._answers, 1 << 16) if ready else b""
            if not read:
                self._process.kill()  # the next call fails at once
                raise SilentError("the browser ended or did not answer in time")
            self._buffer += read
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, facts: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.asked.append(facts["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(facts["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(facts["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(str(facts["entry"]))


def main(page: str, picture: str, width: str = "960", height: str = "1180") -> None:
    try:
        with Browser() as browser:
            browser.open(Path(page), int(width))
            Path(picture).write_bytes(browser.picture(int(height)))
    except SilentError as error:
        print(f"no picture: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
