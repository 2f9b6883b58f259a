"""The programs in the guide of events run unchanged, except for the port numbers.

Interpreter sessions in guides run as doctests (``.ci/run``); these are whole programs.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra 'index'")
pytest.importorskip("zmq", reason="the extra 'index'")
pytest.importorskip("starlette", reason="the extra 'index'")
pytest.importorskip("uvicorn", reason="the extra 'index'")
httpx2 = pytest.importorskip("httpx2", reason="a client for HTTP")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "events.md"
MOST_LINES = 10
PROMPT = list(range(70))
PATIENCE = 5000  # polls of ten milliseconds


@pytest.fixture
def guide() -> str:
    """The page, with its two port numbers replaced by free ones."""
    text = PAGE.read_text(encoding="utf-8")
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for old, each in zip((5557, 5558), sockets, strict=True):
            each.bind(("127.0.0.1", 0))
            assert str(old) in text
            text = text.replace(str(old), str(each.getsockname()[1]))
    return text


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


class Engine:
    """Computes one prompt, then idles until a reader has received its events."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.done = threading.Event()

    def has_work(self) -> bool:
        return not self.done.wait(0.002)

    def step(self, manager: Any) -> None:
        if self.manager is None:
            self.manager = manager
            with manager.sequence(manager.admit(PROMPT)) as sequence:
                sequence.commit(len(PROMPT))


class Routing:
    """True until a line with the prompt's place is printed, or the time limit is reached."""

    def __init__(self, printed: io.StringIO) -> None:
        self.printed, self.left = printed, PATIENCE

    def __bool__(self) -> bool:
        self.left -= 1
        assert self.left, self.printed.getvalue()[-500:]
        return "engine-0 4 1.0" not in self.printed.getvalue()


@pytest.fixture
def published(guide: str) -> Iterator[Engine]:
    """Runs the publishing program in a separate thread."""
    engine = Engine()
    publish = compile(programs(guide)[0], str(PAGE), "exec")
    thread = threading.Thread(target=exec, args=(publish, {"engine": engine}))
    thread.start()
    while engine.manager is None:
        assert thread.is_alive()
    yield engine
    engine.done.set()
    thread.join()


def test_the_guide_has_ten_lines_that_publish_and_ten_that_read(guide: str) -> None:
    shown = programs(guide)
    assert len(shown) == 2
    for program in shown:
        assert len([line for line in program.splitlines() if line]) <= MOST_LINES


def test_what_one_program_publishes_the_other_reads(guide: str, published: Engine) -> None:
    printed = io.StringIO()
    names = {"manager": published.manager, "prompt": PROMPT, "routing": Routing(printed)}
    with contextlib.redirect_stdout(printed):
        exec(compile(programs(guide)[1], str(PAGE), "exec"), names)
    assert printed.getvalue().splitlines()[-1] == "engine-0 4 1.0"


def test_the_command_that_serves_answers_where_a_prompt_is(guide: str, published: Engine) -> None:
    [command] = re.findall(r"^    blockmgr (index serve .*)$", guide, flags=re.MULTILINE)
    arguments = [sys.executable, "-m", "blockmgr", *shlex.split(command), "--port", "0"]
    digests = [digest.hex() for digest in published.manager.block_digests(PROMPT)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            url = process.stderr.readline().split()[-1]
            best: dict[str, Any] = {}
            for _ in range(PATIENCE):
                answer = httpx2.post(f"{url}/place", json={"digests": digests}).json()
                [best] = answer["workers"]
                if best["num_blocks"] == 4 or published.done.wait(0.01):
                    break
            assert (best["worker"], best["num_blocks"]) == ("engine-0", 4)
        finally:
            process.terminate()
