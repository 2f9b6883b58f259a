"""How the ``blockmgr`` command ends when it is interrupted: one line on stderr, exit code 130.

Importing the library takes almost a tenth of a second, and an exception raised inside an import may
be printed and swallowed there. So a command that is still starting ends at once: it has nothing to
clean up. A running command gets a ``KeyboardInterrupt``, like any program, and can remove what it
was writing; a second interrupt ends it at once.

Until ``end_at_once`` is called, an interrupt ends in a traceback. So this module imports only
``signal``, and modules that the interpreter has loaded already.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # avoids the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Final, NoReturn

__all__ = ["EXIT_CODE", "LINE", "end_at_once", "is_command", "raise_once"]

EXIT_CODE: Final = 130
LINE: Final = "error: interrupted"


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """Whether this process is ``blockmgr`` or ``python -m blockmgr``.

    Args:
        argv: ``sys.argv``; its first item is ``-m`` while the packages of a module are imported.
        original: ``sys.orig_argv``.

    >>> is_command(["/usr/bin/blockmgr", "sweep"], ["python", "/usr/bin/blockmgr", "sweep"])
    True
    >>> is_command(["-m", "sweep"], ["python", "-m", "blockmgr", "sweep"])
    True
    >>> is_command(["my_engine.py"], ["python", "my_engine.py", "-m", "blockmgr"])
    False
    """
    if not argv or argv[0] != "-m":
        return bool(argv) and os.path.basename(argv[0]) == "blockmgr"
    return "-m" in original and list(original[original.index("-m") + 1 :][:1]) == ["blockmgr"]


def end_at_once() -> None:
    """Makes SIGINT end this process at once: work has not begun, or is done.

    Leaves SIGINT alone if it is ignored, as in background jobs of a shell, and in any thread but
    the main one, since only that one may set a handler.
    """
    _handle(_end)


def raise_once() -> None:
    """Makes the first SIGINT raise ``KeyboardInterrupt``, and the second end the process."""
    _handle(_raise)


def _handle(handler: object) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        return
    try:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
    except ValueError:
        return  # not the main thread: only that may set a handler


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    # No Python code may run from here on: the interrupted code could be in any state.
    os.write(2, f"{LINE}\n".encode())
    os._exit(EXIT_CODE)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, _end_with_children)
    raise KeyboardInterrupt


def _end_with_children(number: int, frame: FrameType | None) -> NoReturn:
    """Ends this process and the worker processes that it started."""
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    _end(number, frame)
