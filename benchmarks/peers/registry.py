"""The systems compared, blockmgr first. One that cannot be imported is reported by name."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.peers.adapter import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.adapter import Peer

__all__ = ["PEERS", "load"]

_AS_XXHASH = dict.fromkeys(
    (Operation.SCATTERED, Operation.GROWTH, Operation.REPLAY),
    "only timed with xxhash, which is faster",
)


def _make(module: str, name: str, *arguments: object) -> Peer:
    """Imports a system only when it is asked for."""
    peer: Peer = getattr(import_module(f"benchmarks.peers.{module}"), name)(*arguments)
    return peer


PEERS: dict[str, Callable[[], Peer]] = {
    "blockmgr": partial(_make, "ours", "FromArrays"),
    "blockmgr from lists": partial(_make, "ours", "FromLists"),
    "vLLM, xxhash": partial(_make, "vllm", "Vllm", "xxhash"),
    "vLLM, sha256": partial(_make, "vllm", "Vllm", "sha256", _AS_XXHASH),
    "SGLang, Rust tree": partial(_make, "sglang_trees", "SglangRust"),
    "SGLang, Rust tree alone": partial(_make, "sglang_trees", "SglangTreeAlone"),
    "SGLang, Python tree": partial(_make, "sglang_trees", "SglangPython"),
    "mini-sglang, as it is": partial(_make, "mini_sglang_tensors", "MiniSglangTensors"),
    "mini-sglang, tuned": partial(_make, "mini_sglang", "MiniSglang"),
    "nano-vllm, as it is": partial(_make, "nano_vllm", "NanoVllm", "as it is"),
    "nano-vllm, tuned": partial(_make, "nano_vllm", "NanoVllm", "tuned"),
    "transformers": partial(_make, "transformers_cb", "TransformersBatching"),
}
"""Name, as ``--peers`` and a line about a failed import have it, to maker."""


def load(names: list[str]) -> Iterator[tuple[str, Peer | ImportError]]:
    """Each of these systems, or the reason why it cannot be imported."""
    for name in names:
        try:
            yield name, PEERS[name]()
        except ImportError as error:
            yield name, error
