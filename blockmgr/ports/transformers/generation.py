"""Finds settings of a model's generation config that the engine does not apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["ignored_settings"]

# Settings with their neutral values; None is always neutral. Settings that ``Sampling`` or
# ``BeamConfig`` cover are not in this table.
OF_EVERY_TOKEN: Final[dict[str, Any]] = {
    "bad_words_ids": [],
    "begin_suppress_tokens": [],
    "constraints": [],
    "diversity_penalty": 0,
    "dola_layers": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "force_words_ids": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "max_time": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "penalty_alpha": 0,
    "renormalize_logits": False,
    "repetition_penalty": 1,
    "sequence_bias": None,
    "stop_strings": [],
    "suppress_tokens": [],
    "token_healing": False,
    "watermarking_config": None,
}
OF_DRAWN_TOKENS: Final[dict[str, Any]] = {
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "min_p": 0,
    "top_h": None,
    "typical_p": 1,
}


def ignored_settings(config: GenerationConfig, *, draws: bool = True) -> dict[str, Any]:
    """The settings that ``model.generate`` would apply and the engine does not.

    Args:
        config: A model's generation config.
        draws: Whether tokens are sampled; some settings only affect sampling.

    Returns:
        Values by name, sorted by name.
    """
    neutral = OF_EVERY_TOKEN | (OF_DRAWN_TOKENS if draws else {})
    found = {name: getattr(config, name, None) for name in sorted(neutral)}
    return {n: value for n, value in found.items() if value is not None and value != neutral[n]}
