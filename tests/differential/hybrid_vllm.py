"""vLLM's side of a stream with groups of layers."""

from __future__ import annotations

from typing import Any

from benchmarks.hybrid.vllm_side import Setting, VllmManager
from blockmgr.groups import Group
from tests.differential.hybrid import SIZE, Request

SETTINGS = (Setting(0), Setting(None), Setting(0, 1), Setting(None, 1))


class Theirs:
    """``KVCacheManager``, in chunks that its scheduler cuts."""

    def __init__(self, groups: tuple[Group, ...], num_blocks: int, setting: Setting) -> None:
        self.side = VllmManager(groups, SIZE, num_blocks, setting)
        self.kept: dict[tuple[int, ...], str] = {}
        self.requests: dict[int, Any] = {}
        self.evicts = False
        pool = self.side.manager.block_pool
        evict = pool._maybe_evict_cached_block

        def noted(block: Any) -> bool:
            gone = bool(evict(block))
            self.evicts |= gone
            return gone

        pool._maybe_evict_cached_block = noted

    def admit(self, request: Request, target: int) -> int | None:
        mine = self.side.request(request.tokens)
        blocks, found = self.side.look_up(mine)
        self.requests[request.name] = mine
        if found < target or found < len(request.tokens):
            num_new = self.side.chunk(mine, max(1, target - found), found)
            if not self.side.allocate(mine, num_new or 1, found, blocks):
                del self.requests[request.name]
                self.side.free(mine)
                return None
            self._note(request, mine)
        return found if self.prefill(request, target) else None

    def prefill(self, request: Request, target: int) -> bool:
        mine = self.requests[request.name]
        while mine.num_computed_tokens < target:
            num_new = self.side.chunk(mine, target - mine.num_computed_tokens)
            if not self.side.allocate(mine, num_new):
                return False
            self._note(request, mine)
        return True

    def decode(self, request: Request) -> bool:
        mine = self.requests[request.name]
        mine.append_output_token_ids(request.tokens[-1])
        if not self.side.allocate(mine, 1):
            return False
        self._note(request, mine)
        return True

    def _note(self, request: Request, mine: Any) -> None:
        end = mine.num_computed_tokens
        kind = "unit end" if end % SIZE else "page end"
        self.kept.setdefault(tuple(request.tokens[:end]), kind)

    def release(self, name: int, *, preempted: bool) -> None:
        del preempted  # it frees a preempted request and looks it up again
        self.side.free(self.requests.pop(name))
