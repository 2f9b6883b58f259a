"""Runs one model on the engine: the tokens of its ``generate``, a refusal, or an error."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from blockmgr.errors import UnsupportedModelError
from blockmgr.kv import HybridShape
from blockmgr.ports.engine import Engine, Sampling
from blockmgr.ports.transformers import check_config
from tests.models_sweep.tiny import VOCAB, tiny_config

if TYPE_CHECKING:
    from blockmgr.ports.engine import Generation

__all__ = ["Outcome", "judge"]

Verdict = Literal["equal", "refused", "wrong", "foreign", "unknown"]
Tokens = list[list[int]]

NEW_TOKENS: Final = 10
BLOCK_SIZE: Final = 4
"""Larger if the state of a recurrent layer takes more."""

MOST_WEIGHTS: Final = 20_000_000
"""A larger model has fields that ``tiny`` does not know; it is not built."""

CLOSE: Final = 1e-3
"""Rounding may change the order of logits that are this close."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on a model.

    Attributes:
        verdict: ``equal`` and ``refused`` are correct. ``wrong``: other tokens. ``foreign``: an
            exception that is not a refusal. ``unknown``: nothing to compare with, because
            transformers itself cannot create or run the model with these settings.
        why: What is missing for a refusal; otherwise the error, or where tokens diverge.
        truth: The tokens of ``generate``, if it has run.
    """

    verdict: Verdict
    why: str = ""
    truth: Tokens | None = None


def judge(config_class: type[PretrainedConfig], setting: str = "plain", **changes: Any) -> Outcome:
    """Runs a tiny model of a class with ``generate`` and with the engine.

    Args:
        config_class: The config class of a causal language model.
        setting: A name in ``tiny.SETTINGS``.
        **changes: Further fields of the config to set.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = tiny_config(config_class, setting, **changes)
        except Exception as error:
            return _without_sizes(config_class, error)
        try:
            shape = check_config(config, windows=None)
        except UnsupportedModelError as error:
            return Outcome("refused", error.missing)
        except Exception as error:
            return Outcome("foreign", _line(error))
        size = shape.block_size_for(BLOCK_SIZE) if isinstance(shape, HybridShape) else BLOCK_SIZE
        return _compared(config, size)


def _without_sizes(config_class: type[PretrainedConfig], error: Exception) -> Outcome:
    """For a class whose sizes cannot be set this way: whether it is refused unchanged."""
    try:
        config = config_class()
    except Exception:
        return Outcome("unknown", f"no config at all: {_line(error)}")
    try:
        check_config(config)
    except UnsupportedModelError as refusal:
        return Outcome("refused", refusal.missing)
    except Exception as other:
        return Outcome("foreign", _line(other))
    return Outcome("unknown", f"no tiny config: {_line(error)}")


def _compared(config: PretrainedConfig, block_size: int) -> Outcome:
    prompts = _prompts()
    try:
        model = _model(config)
        truth = [_generated(model, prompt) for prompt in prompts]
    except Exception as error:
        return Outcome("unknown", f"transformers fails: {_line(error)}")
    how = Sampling(max_new_tokens=NEW_TOKENS, stop_token_ids=())
    try:
        engine = Engine(model, num_blocks=600, block_size=block_size, max_seqs=8, chunk_size=13)
        found = [_tokens(engine.generate(prompts, how)) for _ in range(2)]  # cold, then warm
    except UnsupportedModelError as error:
        return Outcome("refused", error.missing, truth)
    except Exception as error:
        return Outcome("foreign", _line(error), truth)
    for tokens in found:
        for prompt, ours, theirs in zip(prompts, tokens, truth, strict=True):
            if ours != theirs and not _is_tie(model, prompt, ours, theirs):
                return Outcome("wrong", f"{ours} for {theirs} after {len(prompt)} tokens", truth)
    return Outcome("equal", "", truth)


def _prompts() -> Tokens:
    """Two prompts with a common prefix, one shorter than any window, one longer than a chunk."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(10, VOCAB, (n,), generator=generator).tolist() for n in (34, 21, 3)]
    return [*rows, [*rows[0][:19], 11, 12]]


def _model(config: PretrainedConfig) -> PreTrainedModel:
    """Seeded weights with so large a variance that logits differ clearly."""
    with torch.device("meta"):
        count = AutoModelForCausalLM.from_config(copy.deepcopy(config)).num_parameters()
    if count > MOST_WEIGHTS:
        raise ValueError(f"{count} weights are too many for a tiny model")
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=2.4 / weight.shape[-1] ** 0.5)
    model.generation_config.eos_token_id = None
    return model


def _generated(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    row = torch.tensor([prompt])
    arguments: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False}
    with torch.no_grad():
        rows = model.generate(row, attention_mask=torch.ones_like(row), pad_token_id=0, **arguments)
    tokens: list[int] = rows[0, len(prompt) :].tolist()
    return tokens


def _tokens(generations: list[Generation]) -> Tokens:
    return [generation.tokens for generation in generations]


def _is_tie(model: PreTrainedModel, prompt: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Whether the first tokens that differ have equal logits except for rounding."""
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *theirs[:at]]])).logits[0, -1]
    return bool((logits[ours[at]] - logits[theirs[at]]).abs() < CLOSE)


def _line(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {error}".split("\n")[0]
