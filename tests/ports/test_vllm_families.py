"""What vLLM's planner makes of each family of models, and what the port says to that.

``python -m tests.engines.families`` keeps the plans in a file; here vLLM is not needed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.families import table
from tests.ports.vllm_modules import KINDS, CircularBufferSpec, options_and_reasons, spec

ROWS = [row for row in table.plans()["families"] if "failed" not in row]


def planned(group: dict[str, Any]) -> Any:
    """The spec of a group, as the port reads it."""
    facts = {
        "tokens_per_state": 1,
        "mamba_cache_mode": "none",
        "num_speculative_blocks": 0,
        "prefix_cacheable": group["is_cached"],
        "prefix_replay_tokens": 0 if group["is_cached"] else group.get("sliding_window", 0),
        **group,
        "kind": getattr(KINDS, group["kind"].upper()),
    }
    made = spec(**facts)
    if group["spec"] == "CircularBufferSpec":
        return CircularBufferSpec(**vars(made))
    named: type = type(group["spec"], (SimpleNamespace,), {})
    return named(**vars(made))


def test_the_page_has_the_table_of_the_plans_that_are_kept() -> None:
    assert table.main(["--check"]) == 0


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_a_family_is_taken_or_refused_as_the_table_says(vllm: None, row: dict[str, Any]) -> None:
    _, reasons = options_and_reasons(*map(planned, row["groups"]))
    assert reasons == row["refused"]


@pytest.mark.parametrize(
    "name",
    [
        "Llama 3", "Qwen3", "Gemma 3", "Gemma 4", "gpt-oss", "Llama 4", "Qwen3-Next", "Qwen3.5",
        "Nemotron-H", "Jamba", "Granite 4, hybrid", "LFM2", "Kimi K2", "Kimi Linear", "MiniMax-M2",
        "DeepSeek-V3.2", "DeepSeek-V4", "DeepSeek-V4.1 (sizes of V4, order of layers assumed)",
        "GLM-5", "GLM-5.3",
    ],
)  # fmt: skip
def test_the_models_that_people_ask_for_are_taken(name: str) -> None:
    [row] = [row for row in ROWS if row["name"] == name]
    assert row["refused"] == []
