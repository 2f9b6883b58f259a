"""The families that run unmodified, and their requirements on attention."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    beam_truth,
    config_of,
    engine_of,
    greedy_truth,
    model_of,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)
import transformers  # isort: skip

from blockmgr import FullAttention, RecurrentState, UnsupportedModelError
from blockmgr.kv import HybridShape, ModelShape, PagedKVCache
from blockmgr.ports.engine import Engine, Sampling
from blockmgr.ports.transformers import PagedBatch, PagedModel, check_config, load_model
from blockmgr.ports.transformers.try_out import TryOut

GREEDY = Sampling(max_new_tokens=NEW_TOKENS)
FAMILIES = ("Qwen2", "Mistral", "Gemma", "Gemma2", "Gemma3Text", "GPT2", "Mixtral")
SPECIAL = ("GptOss", "DeepseekV3", "FalconH1")


@pytest.mark.parametrize("name", FAMILIES)
def test_other_families_say_what_generate_says(name: str) -> None:
    """They include sliding windows of 7, capped scores, learned positions and experts."""
    engine = engine_of(name, block_size=4, chunk_size=11)
    for _ in range(2):
        assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth(name, MIXED)
    found = engine.beam_search(MIXED, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    assert tokens_of(found) == beam_truth(name, MIXED, 4)


@pytest.mark.parametrize("name", SPECIAL)
def test_sinks_latents_and_states_beside_attention_say_what_generate_says(name: str) -> None:
    size = None if name == "FalconH1" else 4
    engine = engine_of(name, block_size=size, chunk_size=11)
    for _ in range(2):
        assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth(name, MIXED)
        engine.manager.check_invariants()
    found = engine.beam_search(MIXED, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    assert tokens_of(found) == beam_truth(name, MIXED, 4)
    assert engine.manager.stats().hit_tokens > 0


def test_sinks_and_latents_decide_what_is_said() -> None:
    """Otherwise the comparison would prove nothing."""
    model = copy.deepcopy(model_of("GptOss"))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(-1e9)
    tokens = torch.tensor([MIXED[2]])
    with torch.no_grad():
        with_sinks, without = (each(tokens).logits for each in (model_of("GptOss"), model))
    assert not torch.allclose(with_sinks, without, atol=1e-2)


def test_a_layer_with_latents_keeps_them_and_no_heads() -> None:
    config = config_of("DeepseekV3")
    shape = check_config(config)
    assert isinstance(shape, ModelShape)
    assert shape.latent_dim == config.kv_lora_rank + config.qk_rope_head_dim == 32
    assert shape.bytes_per_token == 2 * 32 * 4
    engine = engine_of("DeepseekV3")
    assert isinstance(engine.model.cache, PagedKVCache)
    assert engine.model.cache.layout == "MLA"


def test_a_layer_with_attention_and_a_state_has_a_place_for_each() -> None:
    shape = check_config(config_of("FalconH1"))
    assert isinstance(shape, HybridShape)
    kinds = [layer.kind for layer in shape.layers if layer is not None]
    assert kinds == 2 * [FullAttention()] + 2 * [RecurrentState()]
    assert shape == HybridShape.from_config(config_of("FalconH1"), torch.float32)


def test_latents_that_are_changed_after_they_were_expanded_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shapes are right, so only the weights show it."""
    attention = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention
    plain, calls = attention.expand_kv, []

    def changing(self: Any, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> Any:
        calls.append(1)
        key, value = plain(self, kv_nope, k_rot)
        return key * len(calls), value

    monkeypatch.setattr(attention, "expand_kv", changing)
    with pytest.raises(UnsupportedModelError, match="other K/V than its latents expand to"):
        engine_of("DeepseekV3")


def test_sinks_that_are_not_one_score_a_head_are_refused() -> None:
    config = config_of("Llama")
    trial = TryOut(config, config)
    one, layer = torch.zeros(1, 2, 3, 16), torch.nn.Identity()
    layer.layer_idx = 0  # type: ignore[assignment]
    with pytest.raises(UnsupportedModelError, match="sinks of layer 0 are not one score for each"):
        trial.attend(layer, one, one, one, mask=None, s_aux=torch.zeros(3))
    trial = TryOut(config, config)
    with pytest.raises(UnsupportedModelError, match="sinks beside scores that are capped"):
        trial.attend(layer, one, one, one, mask=None, s_aux=torch.zeros(2), softcap=5.0)


@pytest.mark.parametrize("layout", ["NHD", "HND", "KV_NHD", "BLOCK_KV_HND", "FUSED_NHD"])
def test_the_layout_of_the_tensors_does_not_matter(layout: str) -> None:
    engine = engine_of(layout=layout)
    assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth("Llama", MIXED)
    found = engine.beam_search(MIXED, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    assert tokens_of(found) == beam_truth("Llama", MIXED, 4)


def test_the_model_is_left_as_it_was() -> None:
    model = model_of("Gemma2")
    before = model.config._attn_implementation
    weights = copy.deepcopy(model.state_dict())
    engine = engine_of("Gemma2")
    engine.generate(MIXED[:2], GREEDY)
    assert model.config._attn_implementation == before != "blockmgr"
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_logits_are_those_of_the_model_for_every_token() -> None:
    model = model_of("Mistral")
    shape = check_config(model.config)
    paged = PagedModel(model, PagedKVCache(16, 4, shape))
    tokens = torch.tensor([MIXED[1]])
    with torch.no_grad():
        expected = model(tokens).logits[0]
    count = tokens.shape[1]
    table = torch.randperm(16, generator=torch.Generator().manual_seed(0))[:5].int().numpy()
    positions = torch.arange(count).numpy()
    rows = []
    for start, stop in ((0, 7), (7, 8), (8, count)):
        part = positions[start:stop]
        rows.append(
            paged.forward(
                PagedBatch(
                    tokens=tokens[0, start:stop].numpy(),
                    positions=part,
                    slots=table[part // 4].astype("int64") * 4 + part % 4,
                    query_lens=part[:1] * 0 + (stop - start),
                    context_lens=part[:1] * 0 + stop,
                    block_tables=table[None],
                    outputs=part - start,
                )
            )
        )
    assert torch.allclose(torch.cat(rows), expected, atol=1e-4)


def test_a_batch_whose_arrays_do_not_fit_is_refused() -> None:
    one = torch.ones(1, dtype=torch.int64).numpy()
    good: dict[str, Any] = dict.fromkeys(
        ("tokens", "positions", "slots", "query_lens", "context_lens", "outputs"), one
    )
    good["block_tables"] = one[None].astype("int32")
    PagedBatch(**good)
    for name, value in (
        ("slots", one.repeat(2)),
        ("context_lens", one.repeat(2)),
        ("query_lens", one * 0),
        ("context_lens", one * 0),
    ):
        with pytest.raises(ValueError, match="must"):
            PagedBatch(**{**good, name: value})


# Unsupported models, and when they are refused.

UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("DeepseekV32Config", {}, "layers of type indexed_attention"),
    ("MambaConfig", {}, "no layer has attention"),
    ("FalconMambaConfig", {}, "no layer has attention"),
    ("T5Config", {}, "cross attention"),
    ("BartConfig", {}, "cross attention"),
    ("BertConfig", {}, "not causal"),
    ("BloomConfig", {}, "cannot be chosen"),
    ("Gemma3nTextConfig", {}, "share another layer's K/V"),
    ("Gemma3TextConfig", {"use_bidirectional_attention": True}, "not causal"),
    ("ViTConfig", {}, "no causal language model"),
    ("PhimoeConfig", {"sliding_window": 6}, "the mask of layer 0 hides tokens"),
    ("PhimoeConfig", {"sliding_window": 131072}, "the mask of layer 0 hides tokens"),
    (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "rotary embedding of type dynamic",
    ),
]


def tiny(config_class: str, **changes: Any) -> transformers.PretrainedConfig:
    sizes = {
        "vocab_size": 128,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pad_token_id": 0,
    }
    made: transformers.PretrainedConfig = getattr(transformers, config_class)(**sizes, **changes)
    return made


@pytest.mark.parametrize("config_class", ["ModernBertDecoderConfig", "Emu3Config"])
def test_a_config_that_must_have_a_padding_token_is_accepted(config_class: str) -> None:
    """The trial keeps the padding token, without which such a config cannot be created."""
    config = getattr(transformers, config_class)()
    assert check_config(config).num_layers == config.get_text_config().num_hidden_layers


def test_whatever_a_model_raises_in_its_trial_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaMLP, "forward", fail)
    with pytest.raises(UnsupportedModelError, match="AttributeError: no such thing"):
        check_config(config_of("Llama"))


@pytest.mark.parametrize(("config_class", "changes", "missing"), UNSUPPORTED)
def test_what_is_not_supported_is_named(
    config_class: str, changes: dict[str, Any], missing: str
) -> None:
    config = tiny(config_class, **changes)
    with pytest.raises(UnsupportedModelError, match=missing) as caught:
        check_config(config)
    assert caught.value.model == config.model_type
    assert missing in caught.value.missing


@pytest.mark.parametrize(
    ("keys", "values", "said"),
    [
        ((2, 16), (2, 8), "values of layer 1 have 2 heads of 8, its keys 2 of 16"),
        ((4, 16), (2, 16), "values of layer 1 have 2 heads of 16, its keys 4 of 16"),
    ],
)
def test_heads_that_differ_are_named_with_both_shapes(
    keys: tuple[int, int], values: tuple[int, int], said: str
) -> None:
    def heads(shape: tuple[int, int]) -> torch.Tensor:
        return torch.zeros(1, shape[0], 3, shape[1])

    config = config_of("Llama")
    trial = TryOut(config, config)
    one = heads((2, 16))
    first, second = torch.nn.Identity(), torch.nn.Identity()
    first.layer_idx, second.layer_idx = 0, 1  # type: ignore[assignment]
    trial.attend(first, one, one, one, mask=None)
    with pytest.raises(UnsupportedModelError, match=said):
        trial.attend(second, one, heads(keys), heads(values), mask=None)


def test_it_is_said_before_any_weights_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory has only a config, so loading weights would fail with another error."""
    tiny("MambaConfig").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="mamba"):
        Engine.from_pretrained(tmp_path)
    config_of("Llama").save_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"safetensors|weights|file"):
        Engine.from_pretrained(tmp_path)


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        load_model(tmp_path)


def test_a_saved_model_runs(tmp_path: Path) -> None:
    model_of("Llama").save_pretrained(tmp_path)
    engine = Engine.from_pretrained(tmp_path, num_blocks=64)
    assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth("Llama", MIXED)


@pytest.mark.parametrize(
    ("shape", "match"),
    [({"head_dim": 8}, "shape"), ({"num_layers": 3}, "shape"), ({"dtype": torch.float16}, "shape")],
)
def test_a_cache_of_another_shape_is_refused(shape: dict[str, Any], match: str) -> None:
    right = check_config(model_of("Llama").config)
    fields = ("num_layers", "num_kv_heads", "head_dim", "dtype")
    wrong = ModelShape(**{**{name: getattr(right, name) for name in fields}, **shape})
    with pytest.raises(ValueError, match=match):
        PagedModel(model_of("Llama"), PagedKVCache(4, 4, wrong))
