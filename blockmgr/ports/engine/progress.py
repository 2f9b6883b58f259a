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
        from rich.console import Console  # noqa: PLC0415  (an extra that few callers need)
        from rich.progress import (  # noqa: PLC0415
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError as error:
        raise MissingExtraError("cli", "a progress bar") from error
    console = Console(stderr=True)
    columns = (TextColumn("tokens"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("tokens", total=total)
        yield lambda done: bar.update(task, completed=done)
