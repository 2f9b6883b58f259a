"""What clients write into the fields of a request to the engine never costs a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ports.engine_models import engine_of
from tests.ports.hostile import Life, all_values

from blockmgr.ports.engine import Sampling  # isort: skip  (engine_models skips without torch)

PROMPT = [3, 4, 5, 6, 7]
BEAMS = {"num_beams": 2, "max_new_tokens": 2}
SAMPLED = {"max_new_tokens": 2, "temperature": 0.7}


def generating(**fields: Any) -> Callable[[Any], None]:
    return lambda engine: engine.generate([PROMPT], Sampling(**{**SAMPLED, **fields}))


def searching(**fields: Any) -> Callable[[Any], None]:
    return lambda engine: engine.beam_search([PROMPT], **{**BEAMS, **fields})


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "prompts": lambda engine, value: engine.generate(value, Sampling(max_new_tokens=2)),
    "prompts[0]": lambda engine, value: engine.generate([value], Sampling(max_new_tokens=2)),
    "sampling": lambda engine, value: engine.generate([PROMPT], value),
    "sampling of one": lambda engine, value: engine.generate([PROMPT], [value]),
    **{
        field: lambda engine, value, field=field: generating(**{field: value})(engine)  # type: ignore[misc]
        for field in (
            "max_new_tokens", "temperature", "top_k", "top_p", "seed", "n", "stop_token_ids",
            "logprobs",
        )
    },
    **{
        f"beam {field}": lambda engine, value, field=field: searching(**{field: value})(engine)  # type: ignore[misc]
        for field in (
            "num_beams", "max_new_tokens", "length_penalty", "early_stopping", "num_return",
            "stop_token_ids",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_engine_takes_a_field_or_refuses_it_by_name_and_keeps_no_block(name: str) -> None:
    engine = engine_of(num_blocks=64)

    def make() -> Life:
        engine.reset()
        return Life(
            engine.manager,
            lambda: None,
            lambda _, value: CALLS[name](engine, value),
            lambda _, __: None,
        )

    field = name.removeprefix("beam ").removesuffix(" of one")
    all_values(make, {field, f"a token of {field}"})
    assert not engine.manager.handles()
    assert len(engine.generate([PROMPT], Sampling(max_new_tokens=2))[0].tokens) == 2


@pytest.mark.parametrize(
    "value", [True, 0, 1.5, "text", b"", [], {}, object()], ids=lambda value: type(value).__name__
)
def test_what_cannot_be_called_with_tokens_is_refused_before_anything_runs(value: Any) -> None:
    engine = engine_of(num_blocks=64)
    with pytest.raises(TypeError, match="on_token must be callable"):
        engine.generate([PROMPT], on_token=value)
    assert engine.report().steps == 0


def test_numbers_of_other_types_mean_the_same_as_plain_ones() -> None:
    """transformers refuses some of them in a step, which would end all requests."""
    plain = Sampling(max_new_tokens=6, temperature=2.0, top_k=30, top_p=1.0, seed=5, n=2)
    other = Sampling(
        max_new_tokens=np.int64(6), temperature=2, top_k=np.int32(30), top_p=1, seed=np.uint8(5),
        n=np.array(2),
    )  # type: ignore[arg-type]  # fmt: skip
    assert other == plain
    engine = engine_of(num_blocks=64)
    drawn = [engine.generate([PROMPT], each)[0].samples for each in (plain, other)]
    assert drawn[0] == drawn[1]
