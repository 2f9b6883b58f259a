"""How do the same operations compare with vLLM's and SGLang's? ``python -m benchmarks.peers``.

Each peer does the same work through one interface, in this process, in turns with ours; ratios
say how many times longer it takes. A peer that cannot be imported here is left out with a reason;
none is a dependency.

Timed is what the engine calls for the operation, no more: vLLM's ``Request`` (it hashes there) and
``KVCacheManager``, SGLang's Rust tree through its binding, without the Python adapter around it.
Not timed: schedulers, GPU work, and SGLang's slot allocator.
"""

from __future__ import annotations

import argparse
import json
from array import array
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.table import Table

from benchmarks import cases
from benchmarks.measure import machine, machine_name, repeat_command, time_side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

RESULTS = Path(__file__).with_name("results")
BLOCK_SIZE = 16

OURS: Mapping[str, Callable[[], cases.Case]] = {
    "warm match": cases.Match,
    "warm match from a list": lambda: cases.Match(as_list=True),
    "warm admit": cases.Admit,
    "warm admit from a list": lambda: cases.Admit(as_list=True),
    "cold admit + commit": cases.ColdAdmit,
    "free": cases.Free,
    "decode of 1,024": cases.DecodeStep,
}


class Peer(Protocol):
    """Another block manager, driven through the cases it has a counterpart for."""

    name: str

    def cases(self) -> Mapping[str, Callable[[], cases.Case]]:
        """The peer's way of doing some operations of ``OURS``."""


class VllmPeer:
    """vLLM's ``KVCacheManager`` with one group of full-attention layers."""

    def __init__(self, hash_name: str) -> None:
        # All that the cases need is imported here, so that what is missing shows at once.
        from vllm import SamplingParams
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_manager, kv_cache_utils
        from vllm.v1.request import Request

        self.name = f"vLLM {version('vllm')}, {hash_name}"
        hash_function = get_hash_fn_by_name(hash_name)
        kv_cache_utils.init_none_hash(hash_function)
        self._manager = kv_cache_manager.KVCacheManager
        self._hasher = kv_cache_utils.get_request_block_hasher(BLOCK_SIZE, hash_function)
        self._request = Request
        self._sampling = SamplingParams(max_tokens=1 << 20)
        self._num_requests = 0

    def cases(self) -> Mapping[str, Callable[[], cases.Case]]:
        """A request hashes its tokens from a list, so both forms of ours face the same."""
        return {
            "warm admit": lambda: _VllmAdmit(self),
            "warm admit from a list": lambda: _VllmAdmit(self),
            "cold admit + commit": lambda: _VllmColdAdmit(self),
            "free": lambda: _VllmFree(self),
            "decode of 1,024": lambda: _VllmDecode(self),
        }

    def manager(self, num_blocks: int) -> Any:
        """A ``KVCacheManager`` over that many blocks."""
        import torch
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )

        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float16
        )
        config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        return self._manager(
            config,
            max_model_len=1 << 20,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
        )

    def admit(self, manager: Any, prompt: list[int]) -> Any:
        """Hashes a prompt, finds what is cached, references it and takes the rest."""
        self._num_requests += 1
        request = self._request(
            str(self._num_requests), prompt, self._sampling, None, block_hasher=self._hasher
        )
        found, num_computed, _ = manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_computed
        slots = manager.allocate_slots(request, num_new, num_computed, found)
        assert slots is not None
        request.num_computed_tokens = request.num_tokens
        return request


class _VllmWarm:
    count = cases.PROMPT_TOKENS // BLOCK_SIZE

    def __init__(self, peer: VllmPeer) -> None:
        self._peer = peer
        self._manager = peer.manager(cases.POOL_BLOCKS)
        self._prompt = cases.Prompts().draw(cases.PROMPT_TOKENS + 1).tolist()
        self._request: Any = peer.admit(self._manager, self._prompt)
        self._free()

    def _free(self) -> None:
        if self._request is not None:
            self._manager.free(self._request)
            self._request = None


class _VllmAdmit(_VllmWarm):
    def prepare(self) -> None:
        self._free()

    def run(self) -> None:
        self._request = self._peer.admit(self._manager, self._prompt)

    def check(self) -> None:
        self._free()
        request = self._peer.admit(self._manager, self._prompt)
        _, num_computed, _ = self._manager.get_computed_blocks(request)
        assert num_computed == cases.PROMPT_TOKENS
        self._manager.free(request)


class _VllmFree(_VllmWarm):
    def prepare(self) -> None:
        self._request = self._peer.admit(self._manager, self._prompt)

    def run(self) -> None:
        self._free()

    def check(self) -> None:
        assert self._manager.block_pool.get_num_free_blocks() == cases.POOL_BLOCKS - 1


class _VllmColdAdmit:
    count = cases.PROMPT_TOKENS // BLOCK_SIZE

    def __init__(self, peer: VllmPeer) -> None:
        self._peer = peer
        self._prompts = cases.Prompts()
        self._manager: Any = None
        self._request: Any = None
        self._left = 0

    def prepare(self) -> None:
        if self._request is not None:
            self._manager.free(self._request)
        if not self._left:  # before the free blocks run out, so that none is evicted
            self._manager = self._peer.manager(cases.POOL_BLOCKS)
            self._left = cases.POOL_BLOCKS // self.count - 1
        self._left -= 1
        self._prompt = self._prompts.draw(cases.PROMPT_TOKENS).tolist()

    def run(self) -> None:
        self._request = self._peer.admit(self._manager, self._prompt)

    def check(self) -> None:
        blocks = self._manager.get_block_ids(self._request.request_id)[0]
        assert len(set(blocks)) == self.count


class _VllmDecode:
    count = 1
    num_requests = 1024

    def __init__(self, peer: VllmPeer) -> None:
        self._manager = peer.manager(cases.POOL_BLOCKS)
        self._prompts = cases.Prompts()
        self._requests = [
            peer.admit(self._manager, self._prompts.draw(4 * BLOCK_SIZE + i % BLOCK_SIZE).tolist())
            for i in range(self.num_requests)
        ]

    def prepare(self) -> None:
        self._tokens = self._prompts.draw(self.num_requests).tolist()

    def run(self) -> None:
        manager = self._manager
        for request, token in zip(self._requests, self._tokens, strict=True):
            request.append_output_token_ids(token)
            manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1

    def check(self) -> None:
        request = self._requests[0]
        blocks = self._manager.get_block_ids(request.request_id)[0]
        assert len(blocks) == -(-request.num_tokens // BLOCK_SIZE)


class SglangPeer:
    """SGLang's radix tree in Rust, alone: no allocator, no adapter."""

    def __init__(self) -> None:
        from sglang.srt.mem_cache.rust_tree_core import extension

        self.name = f"SGLang {version('sglang')}, Rust tree"
        self.binding = extension

    def cases(self) -> Mapping[str, Callable[[], cases.Case]]:
        """Its tree takes ``array('q')`` only."""
        return {
            "warm match": lambda: _SglangMatch(self),
            "warm admit": lambda: _SglangAdmit(self),
        }


class _SglangMatch:
    """The whole prompt is one node of the tree, which is the best case for it."""

    count = cases.PROMPT_TOKENS // BLOCK_SIZE

    def __init__(self, peer: SglangPeer) -> None:
        import torch

        self._binding = peer.binding
        full_attention = 0
        self._tree = peer.binding.RustUnifiedTreeCoreBinding(
            peer.binding.TreeCoreInitParamsBinding(
                eviction_policy="lru", page_size=BLOCK_SIZE, device="cpu"
            ),
            [full_attention],
        )
        self._root = self._tree.root_node_handle()
        prompt = cases.Prompts().draw(cases.PROMPT_TOKENS + 1).tolist()
        self._prompt = array("q", prompt)
        self._tree.insert(
            peer.binding.InsertParamsBinding(
                key=self._prompt[:-1], value=torch.arange(cases.PROMPT_TOKENS)
            )
        )

    def _match(self) -> Any:
        return self._tree.match_prefix(self._binding.MatchParamsBinding(key=self._prompt))

    def prepare(self) -> None:
        pass

    def run(self) -> None:
        self._found = self._match()

    def check(self) -> None:
        assert self._found.device_prefix_len == cases.PROMPT_TOKENS


class _SglangAdmit(_SglangMatch):
    """What an admission asks of the tree: the match, a lock on it, and the slots it stands for."""

    _lock: Any = None

    def prepare(self) -> None:
        if self._lock is not None:
            node = self._found.last_device_node_id
            self._tree.dec_lock_ref(
                node,
                self._binding.DecLockRefParamsBinding(
                    node_id=self._lock.node_id,
                    skipped_lock_components=self._lock.skipped_lock_components,
                    component_lock_uuids=self._lock.component_lock_uuids,
                    component_host_lock_uuids=self._lock.component_host_lock_uuids,
                ),
                False,
            )

    def run(self) -> None:
        self._found = self._match()
        node = self._found.last_device_node_id
        self._lock = self._tree.inc_lock_ref(node, [])
        self._slots = self._tree.collect_full_device_indices(node, self._root)

    def check(self) -> None:
        super().check()
        assert len(self._slots) == cases.PROMPT_TOKENS


PEERS: tuple[Callable[[], Peer], ...] = (
    lambda: VllmPeer("sha256"),
    lambda: VllmPeer("xxhash"),
    SglangPeer,
)


def compare(peer: Peer, rounds: int, burst: int) -> Iterator[dict[str, Any]]:
    """Times every operation that the peer has, ours and the peer's in turns."""
    for operation, build in peer.cases().items():
        pair = {"ours": OURS[operation](), "peer": build()}
        timings = time_side_by_side(pair, rounds=rounds, burst=burst)
        ours, theirs = timings["ours"], timings["peer"]
        yield {
            "peer": peer.name,
            "operation": operation,
            "unit": "block" if pair["ours"].count > 1 else "step",
            "ours_ns": ours.minimum * 1e9,
            "peer_ns": theirs.minimum * 1e9,
            "ratio_of_minima": theirs.minimum / ours.minimum,
            "ratio_of_medians": theirs.median / ours.median,
            "repetitions": ours.repetitions,
        }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("operation", "peer", "ns for a"):
        table.add_column(heading, no_wrap=True)
    for heading in ("blockmgr", "peer", "ratio of minima", "of medians"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["operation"],
            row["peer"],
            row["unit"],
            f"{row['ours_ns']:,.1f}",
            f"{row['peer_ns']:,.1f}",
            f"{row['ratio_of_minima']:,.1f}",
            f"{row['ratio_of_medians']:,.1f}",
        )
    return table


def main() -> None:
    """Compares with every peer that can be imported, prints a table, writes the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each side")
    parser.add_argument("--burst", type=int, default=5, help="timed runs in a turn")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON result")
    arguments = parser.parse_args()

    rows: list[dict[str, Any]] = []
    absent: list[str] = []
    for build in PEERS:
        try:
            peer = build()
        except ImportError as error:
            absent.append(f"{error.__class__.__name__}: {error}")
            continue
        rows += compare(peer, arguments.rounds, arguments.burst)

    about = machine()
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for reason in absent:
        console.print(f"left out: {reason}", markup=False)
    if not rows:
        return
    console.print(_table(rows))
    document = {
        "command": repeat_command("benchmarks.peers"),
        "machine": about,
        "results": rows,
        "left_out": absent,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    blockmgr_version = about["versions"]["blockmgr"]
    path = arguments.results / f"{machine_name(about)}-{blockmgr_version}-peers.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
