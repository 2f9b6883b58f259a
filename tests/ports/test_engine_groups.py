"""Hybrid models give the tokens of ``model.generate``, with a table for each group.

Windows (Gemma 3), chunks (Llama 4) and recurrent states (Bamba, Jamba, Qwen3-Next), greedy and with
beams, in pools so small that windows drop, boundaries are evicted and jobs are preempted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    STOPS,
    Prompts,
    beam_truth,
    config_of,
    engine_of,
    greedy_truth,
    model_of,
    prompts_of,
    sampled_truth,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)
import transformers  # isort: skip

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    CopyPlan,
    FullAttention,
    NeverFitsError,
    PageSizeError,
    RecurrentState,
    SlidingWindow,
    UnsupportedModelError,
)
from blockmgr.groups import tokens_per_block
from blockmgr.kv import GroupedKVCache, HybridShape, ModelShape
from blockmgr.ports.engine import Engine, Sampling
from blockmgr.ports.engine.room import blocks_needed
from blockmgr.ports.transformers import GroupTables, PagedBatch, PagedModel, check_config, model
from blockmgr.ports.transformers.needs import Needs
from blockmgr.ports.transformers.parts import parts_of

GREEDY = Sampling(max_new_tokens=NEW_TOKENS)
SOME = [MIXED[1], MIXED[3], MIXED[4]]
FULL, STATE = FullAttention(), RecurrentState()
GROUPS = {
    "Gemma3Text": (FULL, *[SlidingWindow(7)] * 5),
    "Gemma4Text": (FullAttention(2), *[SlidingWindow(7, 4)] * 5),
    "Llama4Text": (FULL, *[ChunkedAttention(8)] * 3),
    "Bamba": (FULL, *[STATE] * 3),
    "Jamba": (FULL, STATE),
    "Qwen3Next": (FULL, *[STATE] * 3),
}
WITH_STATES = ("Bamba", "Jamba", "Qwen3Next")


def hybrid(name: str, **options: Any) -> Engine:
    """An engine with blocks of 4 tokens, or of the size of a state."""
    size = None if name in WITH_STATES else 4
    return engine_of(name, **{"block_size": size, **options})


@cache
def smallest_pool(name: str, num_beams: int) -> int:
    """The blocks of the largest prompt and its beams when they run alone, and the null block."""
    config = hybrid(name).manager.config
    lengths = [len(prompt) for prompt in MIXED]
    return 1 + max(blocks_needed(config, n, n + NEW_TOKENS - 1, num_beams) for n in lengths)


def smallest(name: str, num_beams: int, **options: Any) -> Engine:
    return hybrid(name, num_blocks=smallest_pool(name, num_beams), **options)


def says_what_generate_says(engine: Engine, name: str, prompts: Prompts = SOME) -> None:
    assert tokens_of(engine.generate(prompts, GREEDY)) == greedy_truth(name, prompts)
    found = engine.beam_search(prompts, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    assert tokens_of(found) == beam_truth(name, prompts, 4)
    engine.manager.check_invariants()
    assert engine.manager.handles() == []


@pytest.mark.parametrize("name", GROUPS)
def test_tokens_are_those_of_generate(name: str) -> None:
    engine = hybrid(name)
    assert engine.manager.config.groups == engine.model.groups == GROUPS[name]
    assert tokens_of(engine.generate(SOME, GREEDY)) == greedy_truth(name, SOME)
    before = engine.report().hit_tokens
    says_what_generate_says(engine, name)
    assert engine.report().hit_tokens > before


@pytest.mark.parametrize("name", GROUPS)
def test_in_a_pool_so_small_that_it_preempts_all_the_time(name: str) -> None:
    engine = smallest(name, 4, chunk_size=9)
    says_what_generate_says(engine, name, [MIXED[2], MIXED[4]])
    report = engine.report()
    assert report.preemptions > 0
    assert report.evicted_blocks > 0


@pytest.mark.parametrize("name", GROUPS)
def test_a_second_prompt_finds_the_prefix_that_it_shares(name: str) -> None:
    """In a pool of two prompts, where boundaries are evicted and windows drop unread blocks."""
    engine = hybrid(name, num_blocks=2 * smallest_pool(name, 1))
    size = engine.manager.config.block_size
    [base, *ends] = prompts_of(41, 5, 7, seed=5)
    first, second = ([*base[: 40 if size < 32 else 39], *end][:40] for end in ends)
    for prompt in (first, *SOME, MIXED[2], first, second):
        [found] = engine.generate([prompt], GREEDY)
        assert [[found.tokens]] == greedy_truth(name, [prompt])
    assert found.num_cached_tokens >= size
    assert engine.report().evicted_blocks > 0
    engine.manager.check_invariants()


@pytest.mark.parametrize("name", GROUPS)
def test_without_sharing(name: str) -> None:
    for prompt in MIXED[3:5]:
        engine = hybrid(name, chunk_size=9)
        assert tokens_of(engine.generate([prompt], GREEDY)) == greedy_truth(name, [prompt])
        assert engine.report().hit_tokens == 0


@pytest.mark.parametrize(
    ("name", "chunk_size"), [("Gemma3Text", 3), ("Llama4Text", 8), ("Llama4Text", 3), ("Jamba", 3)]
)
def test_prefill_in_chunks_of_any_size(name: str, chunk_size: int) -> None:
    engine = hybrid(name, chunk_size=chunk_size)
    assert tokens_of(engine.generate(SOME, GREEDY)) == greedy_truth(name, SOME)


@pytest.mark.parametrize(
    "options",
    [
        {"early_commit": True},
        {"min_partial_tokens": 1},
        {"wait_for_computing": True},
        {"dedup": "append_only", "min_partial_tokens": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["Gemma3Text", "Qwen3Next"])
def test_options_of_the_manager(name: str, options: dict[str, Any]) -> None:
    twins = [MIXED[4], MIXED[4], MIXED[4][:37]]
    engine = hybrid(name, max_rollback_tokens=3, **options)
    assert tokens_of(engine.generate(twins, GREEDY)) == greedy_truth(name, twins)
    found = engine.beam_search(twins, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
    assert tokens_of(found) == beam_truth(name, twins, 4)
    assert engine.report().hit_tokens > 0


@pytest.mark.parametrize("name", ["Gemma3Text", "Bamba"])
def test_a_conversation_continues_where_its_turn_ended(name: str) -> None:
    engine = hybrid(name, min_partial_tokens=1)
    [history, *turns] = prompts_of(21, 5, 6, seed=4)
    for turn in turns:
        [found] = engine.generate([history], GREEDY)
        assert [[found.tokens]] == greedy_truth(name, [history])
        history = [*history, *found.tokens, *turn]
    # The whole previous turn except its last token, which was sampled but never written.
    assert found.num_cached_tokens == 21 + NEW_TOKENS - 1


@pytest.mark.parametrize("name", ["Llama4Text", "Bamba"])
@pytest.mark.parametrize("pool", [400, None])
def test_samples_fork_from_their_prompt(name: str, pool: int | None) -> None:
    """Each has its own state; without a block for it, a sample starts like a new prompt."""
    how = Sampling(max_new_tokens=NEW_TOKENS, temperature=0.9, top_k=30, top_p=0.95, seed=3, n=3)
    engine = hybrid(name) if pool else smallest(name, 1)
    found = engine.generate(MIXED[:5], how)
    assert [each.samples[0].tokens for each in found] == [
        tokens for [tokens] in sampled_truth(name, MIXED[:5])
    ]
    assert all(len(each.samples) == 3 for each in found)
    assert engine.manager.handles() == []


def test_a_window_keeps_what_it_reads_and_nothing_else() -> None:
    [prompt] = prompts_of(64)
    held = {}
    for windows in ("masks", "groups"):
        engine = engine_of("Gemma3Text", windows=windows)
        assert tokens_of(engine.generate([prompt], GREEDY)) == greedy_truth("Gemma3Text", [prompt])
        held[windows] = engine.report().peak_blocks * engine.model.cache.num_bytes // 400
    page = 4 * 2 * 2 * 16 * 4  # bytes of a block of one layer
    last = 64 + NEW_TOKENS - 1
    assert held["masks"] == -(-last // 4) * 6 * page
    with_chunks = engine_of("Gemma3Text", chunk_size=4)
    with_chunks.generate([prompt], GREEDY)
    # One layer of full attention, and five windows of 7 tokens plus a chunk.
    assert with_chunks.report().peak_blocks <= -(-last // 4) + 5 * 4
    assert with_chunks.model.cache.num_bytes == 400 * page


@pytest.mark.parametrize(("name", "size"), [("Gemma3Text", 16), ("Qwen3Next", 16), ("Bamba", 32)])
def test_a_block_has_16_tokens_or_holds_a_state(name: str, size: int) -> None:
    engine = engine_of(name, block_size=None)
    assert engine.manager.config.block_size == size
    shape = engine.model.cache.shape
    assert isinstance(shape, HybridShape)
    assert size == shape.block_size_for(16)


def test_masks_take_every_option() -> None:
    engine = engine_of("Gemma3Text", windows="masks", dedup="append_only", prefix_caching=True)
    assert engine.manager.config.groups == ()
    assert tokens_of(engine.generate(SOME, GREEDY)) == greedy_truth("Gemma3Text", SOME)


# Planted bugs, each of which changes some token.


def copy_after_the_forward(patch: pytest.MonkeyPatch) -> None:
    copy, forward = GroupedKVCache.copy, PagedModel.forward
    late: list[tuple[GroupedKVCache, CopyPlan]] = []

    def run(self: PagedModel, batch: PagedBatch) -> torch.Tensor:
        logits = forward(self, batch)
        while late:
            copy(*late.pop())
        return logits

    patch.setattr(GroupedKVCache, "copy", lambda self, plan: late.append((self, plan)))
    patch.setattr(PagedModel, "forward", run)


def shift_tables(patch: pytest.MonkeyPatch) -> None:
    table = BlockManager.group_table

    def shifted(self: BlockManager, group: int) -> Any:
        found = table(self, group)
        narrow = found.shape[1] == 1 or group == 0
        return found if narrow else np.roll(found, 1, axis=1)

    patch.setattr(BlockManager, "group_table", shifted)


def write_to_the_slots_of_full_attention(patch: pytest.MonkeyPatch) -> None:
    slots = BlockManager.slot_mapping

    def wrong(self: BlockManager, handle: int, start: int, stop: int, *, group: Any = None) -> Any:
        del group
        return slots(self, handle, start, stop)

    patch.setattr(BlockManager, "slot_mapping", wrong)


def forget_the_chunks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Needs, "chunks", {})


def count_tokens_from_the_row(patch: pytest.MonkeyPatch) -> None:
    """Llama 4 scales its scores by the number of earlier tokens, which it gets from its cache."""
    past = model.Past
    patch.setattr(model, "Past", lambda config, ahead: past(config, ahead * 0))


def resume_by_several_tokens(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "resumes", lambda *_: True)


def start_from_what_a_block_holds(patch: pytest.MonkeyPatch) -> None:
    load = model.StateMemory.load
    patch.setattr(
        model.StateMemory, "load", lambda self, batch, is_fresh: load(self, batch, is_fresh=False)
    )


def leave_states_where_they_were(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model.StateMemory, "store", lambda *_: None)


def run_past_the_stops(patch: pytest.MonkeyPatch) -> None:
    """The engine ignores stops: its forwards run past them, so no state is kept there."""
    patch.setattr(BlockManager, "stops", lambda *_: ())


BUGS: list[tuple[str, Callable[[pytest.MonkeyPatch], None]]] = [
    ("Gemma3Text", copy_after_the_forward),
    ("Gemma3Text", shift_tables),
    ("Gemma3Text", write_to_the_slots_of_full_attention),
    ("Llama4Text", forget_the_chunks),
    ("Llama4Text", count_tokens_from_the_row),
    ("Bamba", copy_after_the_forward),
    ("Bamba", start_from_what_a_block_holds),
    ("Bamba", leave_states_where_they_were),
    ("Jamba", resume_by_several_tokens),
    ("Qwen3Next", copy_after_the_forward),
]


@pytest.mark.parametrize(("name", "plant"), BUGS)
def test_a_planted_bug_is_seen(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    engine = hybrid(name, chunk_size=16)
    equal = all(
        tokens_of(engine.generate(SOME, GREEDY)) == greedy_truth(name, SOME) for _ in range(2)
    )
    if equal:
        found = engine.beam_search(SOME, 4, NEW_TOKENS, num_return=4, stop_token_ids=STOPS)
        equal = tokens_of(found) == beam_truth(name, SOME, 4)
    assert not equal


def test_an_engine_that_ignores_stops_finds_less(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [MIXED[4], MIXED[2]]
    hits = []
    for plant in (lambda _: None, run_past_the_stops):
        plant(monkeypatch)
        engine = hybrid("Qwen3Next")
        for _ in range(2):
            assert tokens_of(engine.generate(prompts, GREEDY)) == greedy_truth("Qwen3Next", prompts)
        hits.append(engine.report().hit_tokens)
    assert hits[0] > hits[1]


# Shapes, by trial and by config.

CONFIGS: dict[str, dict[str, Any]] = {
    **{name: {} for name in GROUPS},
    "GraniteMoeHybrid": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "mamba_n_heads": 8,
        "mamba_d_state": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "Lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 2, "num_hidden_layers": 6},
    "NemotronH": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "num_hidden_layers": 4,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "OlmoHybrid": {"num_hidden_layers": 4},
}


def config_with(name: str) -> transformers.PretrainedConfig:
    if name in GROUPS:
        return config_of(name)
    made: transformers.PretrainedConfig = getattr(transformers, f"{name}Config")(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        **CONFIGS[name],
    )
    return made


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_what_the_trial_sees(name: str) -> None:
    """Kinds of layers, their groups, and every tensor of a state."""
    config = config_with(name)
    seen = check_config(config, dtype=torch.bfloat16, windows="groups")
    assert seen == HybridShape.from_config(config, torch.bfloat16)
    assert isinstance(seen, HybridShape)
    if name == "Gemma4Text":
        assert seen.groups == (FullAttention(16), *[SlidingWindow(7, 32)] * 5)
    elif name in GROUPS:
        assert seen.groups == GROUPS[name]


def test_layers_whose_heads_differ_keep_all_tokens_in_groups_of_their_own() -> None:
    engine = hybrid("Gemma4Text", windows="masks")
    assert engine.manager.config.groups == (*[FullAttention(4)] * 5, FullAttention(2))
    assert tokens_of(engine.generate(SOME, GREEDY)) == greedy_truth("Gemma4Text", SOME)
    engine.manager.check_invariants()
    again = PagedModel(model_of("Gemma4Text"), engine.model.cache)
    assert again.groups == engine.manager.config.groups
    with pytest.raises(UnsupportedModelError, match="block_size must be a multiple of 2"):
        hybrid("Gemma4Text", block_size=3)


def test_windows_are_masks_unless_groups_are_asked_for() -> None:
    config = config_of("Gemma3Text")
    masks, groups = (check_config(config, windows=windows) for windows in ("masks", "groups"))
    assert isinstance(masks, ModelShape)
    assert (check_config(config), masks.num_layers) == (masks, 6)
    assert check_config(config, windows=None) == groups
    assert isinstance(check_config(config_of("Mistral"), windows=None), ModelShape)
    with pytest.raises(UnsupportedModelError, match=r"no layer has full attention.*'masks'"):
        check_config(config_of("Mistral"), windows="groups")


# The model alone.


Span = tuple[int, int, int]
"""Tokens ``[start, stop)`` of the prompt with that number."""


def grouped_batch(paged: PagedModel, prompts: Prompts, spans: list[Span]) -> PagedBatch:
    """A batch whose prompts always have the same blocks."""
    ids = iter((1 + np.random.default_rng(0).permutation(paged.cache.num_blocks - 1)).tolist())
    longest = max(map(len, prompts))
    rows = [row for row, *_ in spans]
    positions = np.concatenate([np.arange(start, stop) for _, start, stop in spans])
    owners = np.repeat(np.arange(len(spans)), [stop - start for _, start, stop in spans])
    groups = []
    for kind in paged.groups:
        size = tokens_per_block(kind, paged.cache.block_size)
        width = 1 if kind == STATE else -(-longest // size)
        drawn = [[next(ids) for _ in range(width)] for _ in prompts]
        table = np.array(drawn, np.int32)[rows]
        slots = None
        if kind != STATE:
            slots = table[owners, positions // size].astype(np.int64) * size + positions % size
        groups.append(GroupTables(slots=slots, block_tables=table))
    assert groups[0].slots is not None
    return PagedBatch(
        tokens=np.array([prompts[row][p] for row, a, b in spans for p in range(a, b)]),
        positions=positions,
        slots=groups[0].slots,
        query_lens=np.array([stop - start for _, start, stop in spans]),
        context_lens=np.array([stop for *_, stop in spans]),
        block_tables=groups[0].block_tables,
        outputs=np.arange(len(positions)),
        groups=tuple(groups),
    )


@pytest.mark.parametrize("name", GROUPS)
def test_logits_are_those_of_the_model_for_every_token(name: str) -> None:
    paged = PagedModel.with_cache(model_of(name), 128, None)
    prompts = [MIXED[2], MIXED[1], MIXED[0]]
    with torch.no_grad():
        due = [model_of(name)(torch.tensor([prompt])).logits[0] for prompt in prompts]
    steps: list[list[Span]] = [
        [(0, 0, 11), (1, 0, 3), (2, 0, 1)],
        [(2, 1, 2), (0, 11, 19)],
        [(0, 19, 20), (1, 3, 4), (2, 2, 3)],
        [(1, 4, 17), (0, 20, 33), (2, 3, 5)],
    ]
    for spans in steps:
        logits = paged.forward(grouped_batch(paged, prompts, spans))
        assert torch.allclose(logits, torch.cat([due[i][a:b] for i, a, b in spans]), atol=1e-3)


def test_parts_have_as_many_tokens_of_each_sequence() -> None:
    paged = PagedModel.with_cache(model_of("Bamba"), 64, None)
    [prompt] = prompts_of(20)
    lens = [(0, 4), (3, 5), (7, 8), (0, 4), (2, 3), (9, 11)]
    spans = [(row, start, stop) for row, (start, stop) in enumerate(lens)]
    batch = grouped_batch(paged, [prompt] * 6, spans)
    for resumes, due in (
        (True, [([4, 4], True), ([2, 2], False), ([1, 1], False)]),
        (False, [([4, 4], True), ([1, 1, 1, 1], False), ([1, 1], False)]),
    ):
        parts = [*parts_of(batch, resumes=resumes, by_start=False)]
        assert [(part.batch.query_lens.tolist(), part.is_fresh) for part in parts] == due
        assert sorted(row for part in parts for row in part.rows) == list(range(len(batch.tokens)))
        for part in parts:
            assert (part.batch.tokens == batch.tokens[part.rows]).all()
            assert (part.batch.positions == batch.positions[part.rows]).all()
    apart = [*parts_of(batch, resumes=True, by_start=True)]
    assert len(apart) == 5


# Wrong calls.


def wrong_batch(name: str, **changes: Any) -> torch.Tensor:
    paged = PagedModel.with_cache(model_of(name), 64, None)
    batch = grouped_batch(paged, [MIXED[1]], [(0, 0, 5)])
    fields = {field: getattr(batch, field) for field in PagedBatch.__slots__}
    return paged.forward(PagedBatch(**{**fields, **changes}))


SHORT = GroupTables(slots=np.arange(3), block_tables=np.zeros((1, 4), np.int32))
WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: hybrid("Jamba", groups=(FULL,)), ValueError, "groups must be those of the model"),
    (lambda: hybrid("Jamba", windows="all"), ValueError, "windows must be"),
    (lambda: hybrid("Mistral", windows="groups"), UnsupportedModelError, "no layer has full"),
    (lambda: hybrid("Gemma3Text", ghost_blocks=4), ValueError, "ghost_blocks must be 0"),
    (lambda: hybrid("Gemma3Text", null_block=False), ValueError, "null_block must be True"),
    (lambda: hybrid("Bamba", block_size=4), PageSizeError, r"group 1, RecurrentState\(\)"),
    (lambda: hybrid("Bamba", layout="NHD"), ValueError, r"group 1, RecurrentState\(\); got 'NHD'"),
    (lambda: wrong_batch("Bamba", groups=()), ValueError, "tables for 4 groups, got 0"),
    (lambda: wrong_batch("Bamba", groups=(SHORT,) * 4), ValueError, r"groups\[0\] must have"),
]


@pytest.mark.parametrize(("call", "kind", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_wrong_calls_are_named(
    call: Callable[[], object], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        call()


@pytest.mark.parametrize("name", GROUPS)
def test_what_never_fits_is_refused_before_it_runs(name: str) -> None:
    """The pool has one block less than a prompt and its continuation need when they run alone."""
    engine = smallest(name, 1)
    assert tokens_of(engine.generate([MIXED[4]], GREEDY)) == greedy_truth(name, [MIXED[4]])
    engine = hybrid(name, num_blocks=smallest_pool(name, 1) - 1)
    with pytest.raises(NeverFitsError, match=r"prompts\[0\] of 40 tokens and 12 to follow"):
        engine.generate([MIXED[4]], GREEDY)
    assert engine.report().steps == 0


def test_a_state_that_changes_its_shape_is_an_error() -> None:
    engine = hybrid("Bamba")
    narrow = model.StateMemory.store

    def cut(self: Any, batch: PagedBatch, past: Any) -> None:
        layer = past.layers[0]
        layer.conv_states[0] = layer.conv_states[0][..., 1:]
        narrow(self, batch, past)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.StateMemory, "store", cut)
        with pytest.raises(UnsupportedModelError, match="layer 0 has left the state"):
            engine.generate([MIXED[1]], GREEDY)
    assert tokens_of(engine.generate([MIXED[1]], GREEDY)) == greedy_truth("Bamba", [MIXED[1]])
