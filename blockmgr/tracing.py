"""OpenTelemetry spans around the waits of a request: admission, resumption, loads.

The extra ``tracing`` installs OpenTelemetry's API. Without an SDK, a span costs one or two function
calls.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from blockmgr.errors import MissingExtraError

try:
    from opentelemetry import trace
    from opentelemetry.trace import Status, StatusCode
except ImportError as error:
    raise MissingExtraError("tracing", "blockmgr.tracing") from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.manager import BlockManager

__all__ = ["TracedManager"]


class TracedManager:
    """A manager whose admissions are spans; all other attributes are the manager's own.

    A span has the number of tokens of the prompt, the number found, and the error if the call
    raised one. It has neither tokens nor namespaces, which may be secrets.

    Args:
        manager: The manager to wrap.
        tracer: Creates the spans; None for the tracer of the global provider.

    >>> from blockmgr import BlockManager
    >>> traced = TracedManager(BlockManager(num_blocks=8, block_size=4))
    >>> handle = traced.admit([1, 2, 3, 4, 5])
    >>> traced.commit(handle, 5)
    >>> traced.sequence(handle).num_computed_tokens
    5
    """

    def __init__(self, manager: BlockManager, tracer: trace.Tracer | None = None) -> None:
        self._manager = manager
        self._tracer = tracer or trace.get_tracer("blockmgr")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def admit(self, tokens: Any, **key: Any) -> int:
        """As ``BlockManager.admit``, in a span ``blockmgr.admit``."""
        with self.span("admit") as span:
            handle = self._manager.admit(tokens, **key)
            self._tell(span, handle)
            return handle

    def resume(self, handle: int, **key: Any) -> None:
        """As ``BlockManager.resume``, in a span ``blockmgr.resume``."""
        with self.span("resume") as span:
            self._manager.resume(handle, **key)
            self._tell(span, handle)

    def resume_together(self, handles: Any, **key: Any) -> None:
        """As ``BlockManager.resume_together``, in a span ``blockmgr.resume_together``."""
        with self.span("resume_together", num_sequences=len(handles)):
            self._manager.resume_together(handles, **key)

    @contextmanager
    def span(self, name: str, **attributes: str | int | float | bool) -> Iterator[trace.Span]:
        """A span for the caller's own work, such as a load of K/V from another tier.

        The span records only the type of an exception, because its message may contain data that
        should not leave the process.

        Args:
            name: The kind of work; the span is called ``blockmgr.NAME``.
            **attributes: Recorded as ``blockmgr.ATTRIBUTE``.
        """
        with self._tracer.start_as_current_span(
            f"blockmgr.{name}", record_exception=False, set_status_on_exception=False
        ) as span:
            for attribute, value in attributes.items():
                span.set_attribute(f"blockmgr.{attribute}", value)
            try:
                yield span
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def _tell(self, span: trace.Span, handle: int) -> None:
        if not span.is_recording():
            return
        view = self._manager.sequence(handle)
        span.set_attribute("blockmgr.num_tokens", view.num_tokens)
        span.set_attribute("blockmgr.num_cached_tokens", view.num_cached_tokens)
        span.set_attribute("blockmgr.num_blocks", view.num_blocks)
