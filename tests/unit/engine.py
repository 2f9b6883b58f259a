"""The small engine of the unit tests: a whole step in one call."""

from __future__ import annotations

from blockmgr import BlockCopy, BlockManager, Sequence


def step(manager: BlockManager, *handles: int) -> list[BlockCopy]:
    """Runs copies, forward and commit of these (or all) sequences; returns the copies."""
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    for handle in handles or manager.handles():
        seq = manager.sequence(handle)
        if not seq.is_preempted:
            manager.commit(handle, min(seq.num_tokens, seq.num_slots))
    return list(plan)


def serve(manager: BlockManager, tokens: list[int], **key: object) -> Sequence:
    """Admits a prompt and computes it."""
    handle = manager.admit(tokens, **key)  # type: ignore[arg-type]
    step(manager, handle)
    return manager.sequence(handle)


def cache(manager: BlockManager, tokens: list[int], **key: object) -> list[int]:
    """Computes and frees a prompt; returns its blocks."""
    seq = serve(manager, tokens, **key)
    blocks = ids(seq)
    seq.free()
    return blocks


def ids(seq: Sequence) -> list[int]:
    return [int(block) for block in seq.block_ids]
