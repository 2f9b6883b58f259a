"""The compiled code of the write kernel for real devices."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton", reason="needs triton")

from triton import compile as triton_compile
from triton import next_power_of_2
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from blockmgr.kv import write_triton

POINTERS = ("k", "v", "k_cache", "v_cache")
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
WIDE = {"cuda": {"ld.global.v2.b64", "st.global.v2.b64"}, "hip": {"load_dwordx4", "store_dwordx4"}}


def accesses(target: GPUTarget, heads: int, head_words: int) -> set[str]:
    """Instructions that access K/V; words have 8 bytes, and all pointers are aligned."""
    kernel = write_triton.write_kernel
    if not isinstance(kernel, JITFunction):  # other tests of the process run it interpreted
        kernel = JITFunction(kernel.fn)
    tile = min(write_triton.MOST_WORDS, next_power_of_2(heads * head_words))
    constants = {
        "BLOCK_STRIDE": 16 * heads * head_words,
        "TOKEN_STRIDE": head_words,
        "HEAD_STRIDE": 16 * head_words,
        "BLOCK_SIZE": 16,
        "HEAD_WORDS": head_words,
        "TOKEN_WORDS": heads * head_words,
        "TILE": tile,
        "HAS_V": True,
    }
    names = kernel.arg_names
    types = {"num_slots": "i64", "mapping": "*i64", **dict.fromkeys(POINTERS, "*i64")}
    signature = {n: "constexpr" if n in constants else types.get(n, "i32") for n in names}
    unaligned = {"num_slots", *constants}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n not in unaligned}
    source = ASTSource(
        kernel, signature, {(names.index(n),): c for n, c in constants.items()}, aligned
    )
    made = triton_compile(source, target=target, options=write_triton.launch_options(tile)).asm
    if target.backend == "hip":
        return set(re.findall(r"(?:global|buffer|flat)_((?:load|store)_\w+)", made["amdgcn"]))
    loads_and_stores = re.findall(r"(?:ld|st)\.global[\w.:]*", made["ptx"])
    assert loads_and_stores[0] == "ld.global.b64"  # the slot
    return set(loads_and_stores[1:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("heads", "head_words"), [(8, 32), (4, 32), (8, 16), (1, 144)])
def test_tokens_move_16_bytes_at_a_time(target: str, heads: int, head_words: int) -> None:
    """No access is narrower. 144 words are the 576 elements of MLA."""
    gpu = TARGETS[target]
    assert accesses(gpu, heads, head_words) == WIDE[gpu.backend]


@pytest.mark.parametrize("target", TARGETS)
def test_a_single_head_moves_at_least_8_bytes_at_a_time(target: str) -> None:
    """A head of 256 bytes is less than a warp moves with 16-byte accesses."""
    gpu = TARGETS[target]
    narrow = {name.replace(".v2", "").replace("x4", "x2") for name in WIDE[gpu.backend]}
    assert accesses(gpu, 1, 32) == narrow
