"""The engine for unmodified models on a device: kernels, grouped tables and forks together.

The truth is ``model.generate`` on the same device, one prompt at a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.world import Place, torch
from tests.ports.engine_models import (
    CONFIGS,
    MIXED,
    NEW_TOKENS,
    STOPS,
    config_of,
    cut,
    tokens_of,
)

from transformers import AutoModelForCausalLM, PreTrainedModel  # isort: skip

from blockmgr.ports.engine import Engine, Sampling

WITH_STATES = ("Bamba", "Jamba", "FalconH1", "Qwen3Next")


def model_on(device: str, name: str) -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config_of(name))
    return model.eval().to(device)


def engine_of(model: PreTrainedModel, name: str) -> Engine:
    size = None if name in WITH_STATES else 4
    return Engine(model, num_blocks=400, block_size=size, max_seqs=32)


def generated(model: PreTrainedModel, prompt: list[int], **options: Any) -> list[list[int]]:
    row = torch.tensor([prompt], device=model.device)
    arguments = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0, **options}
    with torch.no_grad():
        rows = model.generate(row, attention_mask=torch.ones_like(row), **arguments)
    return [cut(each[len(prompt) :], options.get("eos_token_id", ())) for each in rows.tolist()]


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_an_engine_on_a_device_gives_the_tokens_of_generate(name: str, cuda: Place) -> None:
    model = model_on(cuda.device, name)
    engine = engine_of(model, name)
    found = tokens_of(engine.generate(MIXED, Sampling(max_new_tokens=NEW_TOKENS)))
    again = tokens_of(engine.generate(MIXED, Sampling(max_new_tokens=NEW_TOKENS)))
    assert found == again == [generated(model, prompt) for prompt in MIXED]
    engine.manager.check_invariants()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Llama", "Gemma3Text", "DeepseekV3", "Qwen3Next"])
def test_beams_on_a_device_are_those_of_generate(name: str, cuda: Place) -> None:
    """Beams fork at every step, so this copies parts of blocks, and states, all the time."""
    model = model_on(cuda.device, name)
    engine = engine_of(model, name)
    found = engine.beam_search(MIXED, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    options = {"num_beams": 4, "num_return_sequences": 4, "eos_token_id": list(STOPS)}
    assert tokens_of(found) == [generated(model, prompt, **options) for prompt in MIXED]
    engine.manager.check_invariants()
