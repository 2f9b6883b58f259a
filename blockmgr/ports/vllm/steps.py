"""The start and the end of planning in the steps of vLLM's scheduler."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager
    from blockmgr.ports.vllm.blocks import Block, BlockPool
    from blockmgr.ports.vllm.held import Held
    from blockmgr.ports.vllm.hinting import RequestHints
    from blockmgr.ports.vllm.options import Options
    from blockmgr.ports.vllm.report import Report

__all__ = ["Steps"]


class Steps:
    """Calls at the start and the end of a step: a part of the manager."""

    manager: BlockManager
    options: Options
    block_pool: BlockPool
    block_size: int
    _held: dict[str, Held]
    report: Report
    hints: RequestHints | None
    _zeroes: bool
    _in_step: bool
    _committed_late: bool
    _leaving: list[int]
    _new_block_ids: list[int]

    def _ids_from(self, held: Held, start: int) -> list[int]:
        """The ids of a request's blocks behind those of its first slots."""
        return self.manager.block_ids(held.handle, -(-start // self.block_size))

    def new_step_starts(self) -> None:
        """Begins the planning of a step."""
        self._close_late_commits()
        self._in_step = True
        self.report.now_and_then()
        if self.options.retention:
            self.manager.set_time(time.monotonic())
        if self.hints is not None:
            self.hints.expire()

    def _close_late_commits(self) -> None:
        """Ends the commits made between steps: an earlier step wrote their blocks."""
        if not self._committed_late or self._in_step:
            return
        plan = self.manager.take_copies()
        if len(plan):  # only in a step: later copies would run too late
            self.manager.copies_aborted(plan.ticket)
            return
        self.manager.copies_applied(plan.ticket)
        self._committed_late = False

    def take_kv_cache_block_copies(self) -> tuple[list[KVCacheBlockCopy], list[Block]]:
        """The copies to run before this step's forward.

        No block must be held until the copies have run, because later writes are launched after
        them.
        """
        plan = self.manager.take_copies()
        self.manager.copies_applied(plan.ticket)
        self._in_step = self._committed_late = False
        for handle in self._leaving:
            self.manager.free(handle)
        self._leaving.clear()
        if not len(plan):
            return [], []
        return [KVCacheBlockCopy(copy.source, copy.destination) for copy in plan], []

    def take_new_block_ids(self) -> list[int]:
        """Blocks handed out since the last call, if workers zero them."""
        ids, self._new_block_ids = self._new_block_ids, []
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Makes the workers zero the request's blocks from a token on."""
        if self._zeroes:
            start = start_token - start_token % self.block_size
            self._new_block_ids += self._ids_from(self._held[request_id], start)

    def take_events(self) -> list[Any]:
        """The events since the last call, in vLLM's form."""
        return self.block_pool.take_events()

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """None, because there are no states, only keys and values."""
        return {}

    def finalize_partial_tail_offloads(self, request: Request) -> list[tuple[int, int, int]]:
        """None: there are no states."""
        return []
