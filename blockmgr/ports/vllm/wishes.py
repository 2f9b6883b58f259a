"""The retention that a request asks for in ``vllm_xargs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr import Priority

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager
    from blockmgr.ports.vllm.held import Held

__all__ = ["expects_reuse", "retain"]

PRIORITIES = {p.name.lower(): p for p in Priority if p is not Priority.PINNED}


def _said(request: Request, name: str) -> Any:
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    return (extra or {}).get(f"blockmgr_{name}")


def retain(manager: BlockManager, held: Held, request: Request) -> None:
    """Keeps the prompt as long as the request asks for; ignores invalid values.

    Requests are untrusted input: an invalid one must not stop the engine.
    """
    priority = PRIORITIES.get(_said(request, "priority"))
    stop = min(request.num_prompt_tokens, held.num_known, held.num_slots)
    ttl = _said(request, "ttl")
    if priority is None or stop < 1:
        return
    is_time = isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0
    manager.retain(held.handle, 0, stop, priority=priority, ttl=float(ttl) if is_time else None)


def expects_reuse(request: Request) -> bool | None:
    """Whether the conversation will continue, if the request has a hint."""
    said = _said(request, "expect_reuse")
    return bool(said) if isinstance(said, bool | int) else None
