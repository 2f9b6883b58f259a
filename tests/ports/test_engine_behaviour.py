"""Behaviour of the engine beyond the tokens: streams, stops, forks, counts, recovery."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.ports.engine_models import (
    MIXED,
    NEW_TOKENS,
    VOCAB,
    cut,
    engine_of,
    greedy_truth,
    model_of,
    prompts_of,
    sampled_truth,
    tokens_of,
)

import torch  # isort: skip  (engine_models skips this file where there is none)

from blockmgr import NeverFitsError, ReentrancyError
from blockmgr.ports.engine import BeamConfig, Engine, Sampling, StreamedToken

GREEDY = Sampling(max_new_tokens=NEW_TOKENS)
SAMPLED = Sampling(max_new_tokens=NEW_TOKENS, temperature=0.9, top_k=30, top_p=0.95, seed=3, n=3)


@pytest.mark.parametrize("options", [{}, {"num_blocks": 15}, {"chunk_size": 2}], ids=str)
def test_every_token_is_streamed_once_and_in_order(options: dict[str, Any]) -> None:
    """Also the tokens of a sample that is preempted and recomputed."""
    engine = engine_of(**options)
    streamed: defaultdict[tuple[int, int], list[StreamedToken]] = defaultdict(list)
    found = engine.generate(
        MIXED, SAMPLED, on_token=lambda each: streamed[each.prompt, each.sample].append(each)
    )
    for i, generation in enumerate(found):
        for j, sample in enumerate(generation.samples):
            tokens = streamed[i, j]
            assert [each.token for each in tokens] == sample.tokens
            assert [each.finish_reason for each in tokens[:-1]] == [None] * (len(tokens) - 1)
            assert tokens[-1].finish_reason == sample.finish_reason == "length"


@pytest.mark.parametrize("options", [{}, {"num_blocks": 15}, {"prefix_caching": False}], ids=str)
def test_each_of_several_samples_is_what_its_seed_gives(options: dict[str, Any]) -> None:
    engine = engine_of(**options)
    found = tokens_of(engine.generate(MIXED, SAMPLED))
    for i in range(SAMPLED.n):
        assert [[each[i]] for each in found] == sampled_truth("Llama", MIXED, seed=3 + i)
    engine.manager.check_invariants()
    assert engine.manager.stats().forks == 2 * len(MIXED)


def test_several_samples_share_the_prompt() -> None:
    [prompt] = prompts_of(64, seed=5)
    engine = engine_of(block_size=16)
    engine.generate([prompt], Sampling(max_new_tokens=8, temperature=1.0, seed=0, n=8))
    report = engine.report()
    assert report.peak_blocks == 64 // 16 + 8
    assert report.peak_unshared_blocks == 8 * 5
    assert report.computed_tokens == 64 + 8 * 7
    assert report.peak_saved_blocks == 28


def test_stop_tokens_end_a_sample_and_are_part_of_it() -> None:
    truths = greedy_truth("Llama", MIXED)
    stops = (truths[0][0][3], truths[1][0][5])
    found = engine_of().generate(MIXED, Sampling(max_new_tokens=NEW_TOKENS, stop_token_ids=stops))
    assert tokens_of(found) == [[cut(each[0], stops)] for each in truths]
    reasons = [each.samples[0].finish_reason for each in found]
    assert reasons[:2] == ["stop", "stop"]


def test_the_models_own_stop_tokens_count_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    first = greedy_truth("Llama", MIXED[:1])[0][0]
    monkeypatch.setattr(model_of("Llama").generation_config, "eos_token_id", [first[2], VOCAB - 1])
    assert engine_of().generate(MIXED[:1], GREEDY)[0].tokens == cut(first, (first[2],))
    ignoring = Sampling(max_new_tokens=NEW_TOKENS, stop_token_ids=())
    assert engine_of().generate(MIXED[:1], ignoring)[0].tokens == first
    [beams] = engine_of().beam_search(MIXED[:1], 2, NEW_TOKENS, early_stopping=True, num_return=2)
    assert all(s.finish_reason == "length" or s.tokens[-1] == first[2] for s in beams.samples)


def test_logprobs_are_those_of_the_model() -> None:
    [prompt] = MIXED[1:2]
    [found] = engine_of().generate([prompt], Sampling(max_new_tokens=3, logprobs=4))
    [sample] = found.samples
    assert sample.logprobs is not None
    assert [each[0][0] for each in sample.logprobs] == sample.tokens
    with torch.no_grad():
        logits = model_of("Llama")(torch.tensor([[*prompt, *sample.tokens[:2]]])).logits[0]
    expected = logits[-3:].log_softmax(-1).topk(4)
    assert [[i for i, _ in each] for each in sample.logprobs] == expected.indices.tolist()
    values = torch.tensor([[p for _, p in each] for each in sample.logprobs])
    assert torch.allclose(values, expected.values, atol=1e-4)


def test_without_a_seed_samples_differ() -> None:
    how = Sampling(max_new_tokens=20, temperature=5.0, n=4)
    [found] = engine_of().generate(MIXED[:1], how)
    assert len({tuple(sample.tokens) for sample in found.samples}) == 4


def test_the_report_adds_up() -> None:
    engine = engine_of()
    engine.generate(MIXED, GREEDY)
    engine.generate(MIXED, SAMPLED)
    report, stats = engine.report(), engine.manager.stats()
    assert report.generated_tokens == len(MIXED) * NEW_TOKENS * 4
    assert report.query_tokens == 2 * sum(map(len, MIXED)) == stats.query_tokens
    assert report.hit_tokens == stats.hit_tokens > 0
    assert report.copies == stats.planned_copies - stats.cancelled_copies > 0
    assert report.copied_tokens >= report.copies
    assert report.peak_blocks <= stats.peak_used_blocks
    assert report.host_s > 0
    assert report.device_s > 0


def test_a_progress_bar_shows_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    engine = engine_of()
    assert engine.generate(MIXED[:2], GREEDY, progress=True)
    assert engine.beam_search(MIXED[:2], 2, 4, progress=True)
    assert capsys.readouterr() == ("", "")


# After an exception, the engine still works and holds nothing.


def check_alive(engine: Engine) -> None:
    assert engine.manager.handles() == []
    assert engine.manager.stats().used_blocks == 0
    engine.manager.check_invariants()
    assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth("Llama", MIXED)


@pytest.mark.parametrize("early_commit", [False, True])
def test_an_error_in_a_callback_ends_the_call_alone(early_commit: bool) -> None:
    engine = engine_of(early_commit=early_commit)

    def fail(streamed: StreamedToken) -> None:
        if streamed.prompt == 2:
            raise RuntimeError("the client has left")

    with pytest.raises(RuntimeError, match="the client has left"):
        engine.generate(MIXED, SAMPLED, on_token=fail)
    check_alive(engine)


@pytest.mark.parametrize("early_commit", [False, True])
@pytest.mark.parametrize("failing", ["copy", "forward"])
def test_an_error_on_the_device_forgets_the_cache(
    monkeypatch: pytest.MonkeyPatch, failing: str, early_commit: bool
) -> None:
    """The writes of a failed forward are unknown, so none of its blocks may be found."""
    engine = engine_of(early_commit=early_commit)
    part = engine.model.cache if failing == "copy" else engine.model
    works = getattr(part, failing)
    calls = iter(range(100))

    def fail(argument: Any) -> Any:
        if next(calls) == 3:
            raise MemoryError("out of device memory")
        return works(argument)

    monkeypatch.setattr(part, failing, fail)
    with pytest.raises(MemoryError):
        engine.generate(MIXED, SAMPLED)
    assert engine.manager.match(MIXED[4]).num_cached_tokens == 0
    monkeypatch.undo()
    check_alive(engine)


def test_the_report_keeps_what_was_counted_before_the_device_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(num_blocks=24)

    def counted() -> list[int]:
        report = engine.report()
        return [
            report.query_tokens,
            report.hit_tokens,
            report.evicted_blocks,
            report.deduplicated_blocks,
        ]

    twins = [MIXED[1], MIXED[1]]  # computed in one step, so that neither finds the other
    for _ in range(2):
        engine.generate([*MIXED, *twins, *MIXED], GREEDY)
        before = counted()
        assert all(before)
        with monkeypatch.context() as patch:
            patch.setattr(engine.model, "forward", lambda _: exec("raise MemoryError"))
            with pytest.raises(MemoryError):
                engine.generate(MIXED[:1], GREEDY)
        after = counted()
        assert after[0] == before[0] + len(MIXED[0])
        assert all(a >= b for a, b in zip(after[1:], before[1:], strict=True))
    assert engine.manager.stats().query_tokens == 0


def test_a_model_whose_settings_are_not_applied_is_warned_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = model_of("Llama").generation_config
    for name, value in (("no_repeat_ngram_size", 3), ("min_p", 0.2), ("repetition_penalty", 1.0)):
        monkeypatch.setattr(config, name, value)
    with pytest.warns(UserWarning, match=r"sets min_p=0\.2, no_repeat_ngram_size=3, which is not"):
        engine_of()


@pytest.mark.parametrize(
    "call", [lambda e: e.generate(MIXED[:1]), lambda e: e.reset()], ids=["generate", "reset"]
)
def test_a_call_inside_a_call_is_refused(call: Callable[[Engine], object]) -> None:
    engine = engine_of()
    with pytest.raises(ReentrancyError):
        engine.generate(MIXED, GREEDY, on_token=lambda _: call(engine))
    check_alive(engine)


def refused(engine: Engine, error: type[Exception], match: str, *args: Any, **options: Any) -> None:
    before = engine.manager.stats(), engine.report()
    call = engine.beam_search if "num_beams" in options else engine.generate
    with pytest.raises(error, match=match):
        call(*args, **options)
    assert (engine.manager.stats(), engine.report()) == before


def test_what_never_fits_names_the_sizes() -> None:
    engine = engine_of(num_blocks=8, block_size=4)
    refused(engine, NeverFitsError, r"40 tokens and 12 to follow need 13 .* has 8", [MIXED[4]],
            GREEDY)  # fmt: skip
    refused(engine, NeverFitsError, r"in 8 beams need", [MIXED[3]], num_beams=8, max_new_tokens=12)
    narrow = engine_of(num_blocks=100, max_blocks_per_seq=5)
    refused(narrow, NeverFitsError, "a row 5", [MIXED[4]], GREEDY)
    high = engine_of(num_blocks=13, watermark_blocks=6)
    refused(high, NeverFitsError, "7 blocks that the watermark leaves", [MIXED[4]], GREEDY)
    assert engine.generate([MIXED[0]], GREEDY)[0].tokens == greedy_truth("Llama", MIXED)[0][0]


def test_one_prompt_that_never_fits_stops_the_others_before_they_start() -> None:
    engine = engine_of(num_blocks=8, block_size=4)
    refused(engine, NeverFitsError, r"prompts\[1\]", [MIXED[0], MIXED[4]], GREEDY)


@pytest.mark.parametrize(
    ("prompts", "error", "match"),
    [
        ([[]], ValueError, r"prompts\[0\] must have at least one token"),
        ([[1], [VOCAB]], ValueError, rf"prompts\[1\] .* \[0, {VOCAB}\), got {VOCAB}"),
        ([[-1]], ValueError, "got -1"),
        ([1, 2], TypeError, r"prompts\[0\] must be a sequence"),
        (["ab"], TypeError, r"prompts\[0\] must be a sequence"),
        ([[1.5]], TypeError, r"prompts\[0\] must be an int, got 1.5"),
        ([[1] * 1020], ValueError, "1024 positions"),
    ],
)
def test_bad_prompts(prompts: Any, error: type[Exception], match: str) -> None:
    refused(engine_of(), error, match, prompts, GREEDY)
    refused(engine_of(), error, match, prompts, num_beams=2, max_new_tokens=12)


def test_samplings_must_be_as_many_as_prompts() -> None:
    refused(engine_of(), ValueError, "one for each of 2 prompts, got 1", [[1], [2]], [GREEDY])


def test_more_samples_or_beams_than_rows() -> None:
    engine = engine_of(max_seqs=4)
    many = Sampling(temperature=1.0, n=5)
    refused(engine, ValueError, "max_seqs, 4, got 5", [[1]], many)
    refused(engine, ValueError, "max_seqs, 4, got 5", [[1]], num_beams=5, max_new_tokens=3)


SETTINGS: list[tuple[type, type[Exception], dict[str, list[Any]]]] = [
    (
        Sampling, ValueError,
        {
            "max_new_tokens": [0], "temperature": [-0.1, float("nan")], "top_k": [-1],
            "top_p": [0.0, 1.1], "seed": [-1], "n": [0, 2], "logprobs": [-1],
        },
    ),
    (
        Sampling, TypeError,
        {
            "max_new_tokens": [2.5], "n": [True], "temperature": ["1"], "top_p": [None],
            "seed": [1.0],
        },
    ),
    (
        BeamConfig, ValueError,
        {
            "num_beams": [0], "max_new_tokens": [0], "num_return": [0, 5],
            "early_stopping": ["always"], "length_penalty": [1e10, float("nan")],
        },
    ),
    (
        BeamConfig, TypeError,  # an unreachable count would never end
        {
            "num_beams": [True, "2", None, 2.5], "max_new_tokens": [True, "2", None, 2.5],
            "num_return": [True, "2", None, 2.5], "length_penalty": [True, "2", None],
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "error", "wrong"), SETTINGS)
def test_settings_that_make_no_sense_are_refused_by_name(
    kind: type, error: type[Exception], wrong: dict[str, list[Any]]
) -> None:
    others = {"num_beams": 4, "max_new_tokens": 4} if kind is BeamConfig else {}
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(error, match=f"{name} must be"):
                kind(**{**others, name: value})


def test_stops_that_are_no_token_ids_are_refused() -> None:
    for stops in (5, "5", ("5",)):
        with pytest.raises(TypeError, match="stop_token_ids must be"):
            Sampling(stop_token_ids=stops)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="stop_token_ids must be"):
            engine_of().beam_search([[1, 2]], 2, 2, stop_token_ids=stops)  # type: ignore[arg-type]


def test_every_prompt_needs_a_sampling() -> None:
    with pytest.raises(TypeError, match="sampling must be Sampling, got NoneType"):
        engine_of().generate([[1], [2]], [Sampling(), None])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "options",
    [{}, {"chunk_size": 3}, {"num_blocks": 15}, {"early_commit": True, "chunk_size": 5}],
    ids=str,
)
def test_a_beginning_that_another_computes_can_be_waited_for(options: dict[str, Any]) -> None:
    """The tokens are the same, and each shared block is computed once."""
    prompts = [[7] * 32 + [n, n + 1] for n in range(11, 16)]
    hurried = engine_of(**options)
    patient = engine_of(wait_for_computing=True, **options)
    expected = tokens_of(hurried.generate(prompts, GREEDY))
    assert tokens_of(patient.generate(prompts, GREEDY)) == expected
    assert patient.report().computed_tokens <= hurried.report().computed_tokens
    if "num_blocks" in options:  # preempted ones are recomputed
        return
    once = 34 + 4 * 2 + len(prompts) * (NEW_TOKENS - 1)
    assert patient.report().computed_tokens == once
    if not options.get("early_commit"):
        assert hurried.report().computed_tokens == once + 4 * 32


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ({"max_batch_tokens": 31}, "max_batch_tokens must be at least max_seqs, 32, got 31"),
        ({"steps_in_flight": 1}, "steps_in_flight must be 0"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"dedup": "never"}, "dedup"),
    ],
)
def test_bad_engine_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        engine_of(**options)


@pytest.mark.parametrize("absent", ["torch", "transformers"])
def test_missing_packages_name_the_extra(absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None\n"
        "try:\n    import blockmgr.ports.engine\n"
        "except ImportError as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtraError blockmgr.ports")
    assert "pip install '.[transformers]'" in done.stdout


def test_after_a_change_of_weights_a_reset_engine_says_what_the_model_says() -> None:
    """Without it, the prompt is found with K/V of the earlier weights."""
    model = copy.deepcopy(model_of("Llama"))
    engine = Engine(model, num_blocks=64, block_size=4)
    assert tokens_of(engine.generate(MIXED, GREEDY)) == greedy_truth("Llama", MIXED)
    before = engine.report()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    engine.reset()
    fresh = Engine(copy.deepcopy(model), num_blocks=64, block_size=4)
    truth = tokens_of(fresh.generate(MIXED, GREEDY))
    assert tokens_of(engine.generate(MIXED, GREEDY)) == truth != greedy_truth("Llama", MIXED)
    after = engine.report()
    assert after.query_tokens == 2 * before.query_tokens
    assert after.hit_tokens == 2 * before.hit_tokens
    engine.manager.check_invariants()
