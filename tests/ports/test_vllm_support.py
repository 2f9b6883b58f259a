"""Why the vLLM port refuses a configuration, and the defaults that depend on the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.ports.vllm import Options
from tests.ports.vllm_modules import KINDS, options_and_reasons, spec

WINDOW = spec(KINDS.SLIDING_WINDOW, sliding_window=128)
STATE = spec(KINDS.MAMBA, 544, mamba_cache_mode="align", num_speculative_blocks=0)


def test_several_groups_with_the_same_reason_give_it_once(vllm: None) -> None:
    more = spec(KINDS.SLIDING_WINDOW, sliding_window=128, extra_retained_tokens=1)
    _, reasons = options_and_reasons(spec(), more, more)
    assert reasons == ["sliding windows that keep more than the window are not supported"]


def test_layers_of_a_kind_without_a_name_are_named_by_their_spec(vllm: None) -> None:
    other = type("OtherSpec", (SimpleNamespace,), {})(**vars(spec(KINDS.UNKNOWN, 8)))
    _, reasons = options_and_reasons(spec(), other)
    assert reasons == ["layers of vLLM's OtherSpec are not supported"]


def test_parts_of_blocks_are_reused_by_default_with_states_only(vllm: None) -> None:
    assert options_and_reasons(spec(block_size=544), STATE)[0].min_partial_tokens == 16
    assert options_and_reasons(spec(), WINDOW)[0].min_partial_tokens == 0


def test_with_eagle_half_of_the_smallest_block_is_worth_a_copy(vllm: None) -> None:
    window = spec(KINDS.SLIDING_WINDOW, 8, sliding_window=128)
    for full in (8, 24):
        chosen, reasons = options_and_reasons(spec(block_size=full), window, use_eagle=True)
        assert (chosen.min_partial_tokens, reasons) == (4, [])
        assert options_and_reasons(spec(block_size=full), window)[0].min_partial_tokens == 0


@pytest.mark.parametrize(
    ("full", "change"),
    [
        (spec(block_size=544, tokens_per_state=4), {}),
        (spec(block_size=544), {"enable_caching": False}),
    ],
    ids=["layers that compress", "no prefix caching"],
)
def test_a_default_is_never_the_reason_to_refuse(
    vllm: None, full: Any, change: dict[str, Any]
) -> None:
    chosen, reasons = options_and_reasons(full, STATE, **change)
    assert (chosen.min_partial_tokens, reasons) == (0, [])
    asked = Options.read({"min_partial_tokens": 8})
    refused = options_and_reasons(full, STATE, options=asked, **change)[1]
    assert any("min_partial_tokens" in reason for reason in refused)


@pytest.mark.parametrize("drafts", [0, 3])
def test_states_of_several_sizes_are_refused_where_a_request_has_several(
    vllm: None, drafts: int
) -> None:
    states = [
        spec(KINDS.MAMBA, size, mamba_cache_mode="align", num_speculative_blocks=drafts)
        for size in (272, 544)
    ]
    _, reasons = options_and_reasons(spec(block_size=544), *states)
    assert any("several block sizes" in reason for reason in reasons) is (drafts > 0)
