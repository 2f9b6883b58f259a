"""The entry point of ``python -m blockmgr`` and of the ``blockmgr`` command."""

from __future__ import annotations

import io
import os
import sys

from blockmgr import interrupt
from blockmgr.errors import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its extra, say in one line how to get it."""
    interrupt.end_at_once()
    _check_streams()
    try:
        from blockmgr import cli  # noqa: PLC0415  (needs click, which is an extra)
    except MissingExtraError as error:
        sys.exit(_refuse(str(error), 2))
    interrupt.raise_once()
    try:
        cli.main()
    except KeyboardInterrupt:  # between the places that turn it into a line
        sys.exit(_refuse(interrupt.LINE.removeprefix("error: "), interrupt.EXIT_CODE))
    finally:
        interrupt.end_at_once()


def _check_streams() -> None:
    """Refuse a closed stdout, and make sure that no file gets the descriptor of a stream."""
    closed = sys.stdout is None
    # A file gets the lowest free descriptor: writes to stderr must not end up in a trace.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if closed:
        sys.exit(_refuse("stdout is closed, but results are written to it", 3))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that a terminal cannot show, instead of failing.
        sys.stdout.reconfigure(errors="backslashreplace")


def _refuse(message: str, code: int) -> int:
    sys.stderr.write(f"error: {message}\n")
    return code


if __name__ == "__main__":
    main()
