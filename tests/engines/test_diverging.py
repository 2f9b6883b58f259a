"""A prompt that diverges early from a long one finds what every group of layers still reads there.

Both managers get the same groups and the same pool. Run where vLLM is installed
(``tests/engines/run``); elsewhere it is skipped.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

from blockmgr.ports.vllm import Options
from blockmgr.ports.vllm.manager import KVCacheManager as Ours
from blockmgr.ports.vllm.support import reasons_against
from tests.engines.layers import FULL, Layers, group_specs

LONG, DIVERGES, CHUNK = 32_768, 3_000, 8_192
# Smallest block, groups with their multiples of it, and tokens found in whole blocks and with parts
# of blocks.
SHAPES = {
    "Gemma 3": (64, (*FULL, *[Layers("window", 1024)] * 5), 2_944, DIVERGES),
    "Gemma 4": (16, (Layers("full", 0, 2), *[Layers("window", 1024)] * 5), 2_976, DIVERGES),
    "DeepSeek-V4": (
        4,
        (
            Layers("full", 0, 64, is_latent=True),
            Layers("window", 128, 16, is_latent=True),
            Layers("window", 128, 16, is_latent=True),
            Layers("window", 8, is_latent=True),
            Layers("window", 128, 2, is_latent=True),
        ),
        2_816,
        None,
    ),
}
HASH = get_hash_fn_by_name("sha256")


def arguments(base: int, layers: tuple[Layers, ...], interval: int | None) -> dict[str, Any]:
    sizes = [base * each.scale for each in layers]
    return {
        "kv_cache_config": KVCacheConfig(
            # Room for all groups of both prompts.
            num_blocks=3 * sum(LONG // size for size in sizes),
            kv_cache_tensors=[],
            kv_cache_groups=group_specs(layers, base),
            prefix_cache_retention_interval=interval,
        ),
        "max_model_len": 1 << 17,
        "scheduler_block_size": math.lcm(*sizes),
        "hash_block_size": math.gcd(*sizes),
        "max_in_flight_tokens": CHUNK,
    }


def found_by(manager: Any, unit: int) -> int:
    """Tokens that the second prompt finds."""
    init_none_hash(HASH)
    hasher = get_request_block_hasher(unit, HASH)
    first = list(range(LONG))
    prompts = (first, [*first[:DIVERGES], *range(LONG, LONG + 1_000)])
    for number, tokens in enumerate(prompts):
        params = SamplingParams(max_tokens=1)
        request = Request(str(number), tokens, params, None, block_hasher=hasher)
        blocks, found, _ = manager.get_computed_blocks(request)
        for start, end in pairwise([*range(found, len(tokens), CHUNK), len(tokens)]):
            manager.new_step_starts()
            is_first = start == found
            taken = manager.allocate_slots(
                request, end - start, found if is_first else 0, blocks if is_first else None
            )
            assert taken is not None
            manager.take_kv_cache_block_copies()
            request.num_computed_tokens = end
        manager.free(request)
    return int(found)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("least", [0, 1])
def test_an_early_divergence_is_found_to_the_last_block(shape: str, least: int) -> None:
    base, layers, whole, partly = SHAPES[shape]
    named = arguments(base, layers, None)
    options = Options(min_partial_tokens=least, debug=1)
    config = SimpleNamespace(
        kv_transfer_config=None, cache_config=SimpleNamespace(use_replayssm=False)
    )
    against = reasons_against(options, config, named)
    if least and partly is None:
        assert against == [
            "min_partial_tokens does not go together with layers that compress tokens"
        ]
        return
    assert against == []
    ours = found_by(Ours(options, 8, **named), named["hash_block_size"])
    theirs = {
        interval: found_by(
            KVCacheManager(**arguments(base, layers, interval)), named["hash_block_size"]
        )
        for interval in (0, None)
    }
    assert ours == (partly if least else whole)
    # Its default keeps windows where a prompt ended; None keeps them everywhere.
    assert theirs == {0: 0, None: whole}
