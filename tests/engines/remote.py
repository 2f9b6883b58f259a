"""A KV connector for the worlds of this folder: it claims K/V of any prompt, the world loads it.

The scheduler creates it by name, as it creates any other; it has no worker. It stores each state
that the manager hands over, as late as it may: when the block is given to others, or at random.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.utils import yield_req_data
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.v1.request import RequestStatus

__all__ = ["Remote", "Store"]


@dataclass(eq=False)
class Store:
    """A state that was handed over.

    Attributes:
        name: The request.
        group: The group of layers.
        block: The block that has it.
        stop: The number of tokens that it includes.
        prefix: What they are, once the step has run.
    """

    name: str
    group: int
    block: int
    stop: int
    prefix: int | None = None


class Remote(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM's are untyped here
    """Has a prefix of about half of all requests, by a coin that their name decides.

    Attributes:
        stores: States that were handed over and not stored yet.
        flushed: Those of them whose blocks the next step may write, which it must wait for.
        loads: Loads that were begun, by request: the tokens before and behind, and whether the
            request waits for it.
        sending: Requests that have ended, and the blocks that were handed over to be sent.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._seed, self._unit, self._states = extra["seed"], extra["unit"], extra["states"]
        self._sends, self._unsure = extra["sends"], extra["unsure"]
        self._waits, self._stores, self._slow = extra["waits"], extra["stores"], extra["slow"]
        self._luck = random.Random(f"sends {self._seed}")
        self.sending: dict[str, tuple[list[int], ...]] = {}
        self.stores: list[Store] = []
        self.flushed: list[Store] = []
        self._taken: set[int] = set()  # blocks that requests got in this step
        self.loads: dict[str, tuple[int, int, bool]] = {}

    def _has(self, request: Any) -> tuple[int, bool]:
        rng = random.Random(f"{self._seed} {request.request_id} {request.num_tokens}")
        units = request.num_tokens // self._unit
        if self._states:  # a state cannot go back to the token before, which is computed
            units = (request.num_tokens - 1) // self._unit
        has = rng.randint(0, units) * self._unit if rng.random() < 0.6 else 0
        return has, rng.random() < 0.5 or self._waits

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._unsure and self._luck.random() < 0.3:
            return None, False
        has, waits = self._has(request)
        # One that does not wait computes at least one token in the same step.
        more = (has if waits else min(has, request.num_tokens - 1)) - num_computed_tokens
        return (more, waits) if more > 0 else (0, False)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._taken.update(block for ids in blocks.get_block_ids() for block in ids)
        if num_external_tokens:
            has, waits = self._has(request)
            stop = has if waits else min(has, request.num_tokens - 1)
            self.loads[request.request_id] = stop - num_external_tokens, stop, waits

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        taken, self._taken = self._taken, set()
        for _, ids, _ in yield_req_data(scheduler_output):
            taken.update(block for group in ids or () for block in group)
        taken.update(copy.dst_block_id for copy in scheduler_output.kv_cache_block_copies or ())
        self.flushed = [store for store in self.stores if store.block in taken]
        self.stores = [store for store in self.stores if store.block not in taken]
        offers = scheduler_output.kv_connector_block_state.boundary_state_offloads or {}
        if self._stores:
            self.stores += [Store(name, *offer) for name, some in offers.items() for offer in some]
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return self._keeps(request, (block_ids,)), None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return self._keeps(request, block_ids), None

    def _keeps(self, request: Any, block_ids: tuple[list[int], ...]) -> bool:
        """Whether the blocks of a request that has ended stay until they are sent."""
        ends = RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR
        has_all = request.status not in ends  # it may be loading
        is_kept = self._sends and has_all and self._luck.random() < 0.5
        if is_kept:
            self.sending[request.request_id] = block_ids
        return is_kept

    def has_pending_block_frees(self) -> bool:
        return self._slow and bool(self.sending)

    def reset_cache(self) -> bool:
        self.stores.clear()
        return True

    def start_load_kv(self, forward_context: Any, **named: Any) -> None:
        raise NotImplementedError("the world loads")

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise NotImplementedError("the world loads")

    def save_kv_layer(self, *arguments: Any, **named: Any) -> None:
        raise NotImplementedError("nothing is stored")

    def wait_for_save(self) -> None:
        raise NotImplementedError("nothing is stored")
