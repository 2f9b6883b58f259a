"""How the ``blockmgr`` command ends when it is interrupted: one line on stderr, exit code 130.

Importing the library takes most of a tenth of a second, and an exception that is raised inside an
import may be printed and lost there. So a command that is still starting ends at once: it has
nothing to clean up. A command at work gets a ``KeyboardInterrupt``, like any program, and can
remove what it was writing; if it is interrupted again, it ends at once.

Until ``end_at_once`` is called, an interrupt ends in a traceback. So this module imports nothing
that the interpreter has not loaded by itself, but for ``signal``.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Final, NoReturn

__all__ = ["EXIT_CODE", "LINE", "end_at_once", "is_command", "raise_once"]

EXIT_CODE: Final = 130
LINE: Final = "error: interrupted"


def is_command(argv: Sequence[str], original: Sequence[str]) -> bool:
    """Whether this process is ``blockmgr`` or ``python -m blockmgr``, and no other program.

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
    """From here on SIGINT ends this process at once: nothing has begun, or all is done.

    Leaves SIGINT alone where it is ignored, as in what a shell runs in the background, and outside
    the main thread, which alone may change it.
    """
    _handle(_end)


def raise_once() -> None:
    """From here on the first SIGINT raises ``KeyboardInterrupt``, and the next ends the process."""
    _handle(_raise)


def _handle(handler: object) -> None:
    if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        return
    try:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
    except ValueError:
        return  # not the main thread, whose owner decides


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    # Nothing of Python may run any more: it could be in the middle of anything.
    os.write(2, f"{LINE}\n".encode())
    os._exit(EXIT_CODE)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, _end_with_children)
    raise KeyboardInterrupt


def _end_with_children(number: int, frame: FrameType | None) -> NoReturn:
    """End, and whatever processes were started for the work as well."""
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    _end(number, frame)
