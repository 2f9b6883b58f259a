"""An optional progress bar for long runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["token_bar"]


@contextmanager
def token_bar(total: int, *, wanted: bool) -> Iterator[Callable[[int], None] | None]:
    """Shows a bar on stderr, if that is a terminal; yields a function that sets it.

    Args:
        total: Number of tokens at the end of the bar.
        wanted: Whether to show a bar; if not, rich is not needed.

    Raises:
        MissingExtraError: A bar is wanted, and rich is not installed.
    """
    if not wanted:
        yield None
        return
    try:
        from rich import console, progress  # noqa: PLC0415  (an extra that few callers need)
    except ImportError as error:
        raise MissingExtraError("cli", "a progress bar") from error
    stderr = console.Console(stderr=True)
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    with progress.Progress(
        "tokens", *columns, console=stderr, transient=True, disable=not stderr.is_terminal
    ) as bar:
        task = bar.add_task("tokens", total=total)
        yield lambda done: bar.update(task, completed=done)
