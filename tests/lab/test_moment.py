"""A stopped replay has the state that a full replay has at that time."""

from __future__ import annotations

import pytest

from blockmgr.lab.replay import ReplayConfig, replay, replay_until
from blockmgr.lab.workloads import generate
from tests.lab.conftest import MakeRequest, MakeTrace

CONFIG = ReplayConfig(block_size=2, min_service_ms=10, service_ms_per_token=0)


def test_each_step_shows_who_runs_then(make_request: MakeRequest, make_trace: MakeTrace) -> None:
    trace = make_trace(
        make_request([1, 2, 3], arrival_ms=0),  # ends at 10
        make_request([4, 5, 6], arrival_ms=0),  # ends at 10
        make_request([7, 8, 9], arrival_ms=4),  # ends at 14
        make_request([1] * 99, arrival_ms=5),  # never fits
        make_request([1, 2, 3], arrival_ms=9),  # waits until 10, ends at 20
    )
    seen = []
    for step in range(1, 6):
        moment = replay_until(trace, 6, CONFIG, step)
        assert moment.step == step
        moment.manager.check_invariants()
        seen.append((moment.time_ms, list(moment.names.values()), moment.waiting))
    assert seen == [
        (0, ["request 1", "request 2"], 0),
        (4, ["request 1", "request 2", "request 3"], 0),
        (10, ["request 3", "request 5"], 0),
        (14, ["request 5"], 0),
        (20, [], 0),
    ]


def test_requests_that_wait_are_counted(make_request: MakeRequest, make_trace: MakeTrace) -> None:
    trace = make_trace(*(make_request([base, base, base]) for base in range(5)))
    moment = replay_until(trace, 2, CONFIG, 1)
    assert list(moment.names.values()) == ["request 1"]
    assert moment.waiting == 4


def test_samples_of_one_request_are_told_apart(
    make_request: MakeRequest, make_trace: MakeTrace
) -> None:
    trace = make_trace(make_request([1, 2, 3], outputs=[[4], [5, 6]]))
    moment = replay_until(trace, 10, CONFIG, 1)
    assert list(moment.names.values()) == ["request 1, sample 1", "request 1, sample 2"]
    assert sorted(moment.names) == moment.manager.handles()


@pytest.mark.parametrize("workload", ["shared-prompt", "parallel-sampling"])
def test_the_last_step_has_counted_what_the_replay_counts(workload: str) -> None:
    small = {"shared-prompt": {"requests": 60}, "parallel-sampling": {"requests": 20}}
    trace = generate(workload, 3, **small[workload])
    whole = replay(trace, 500, ReplayConfig())
    moment = replay_until(trace, 500, ReplayConfig(), whole.steps)
    stats = moment.manager.stats()
    assert stats.num_sequences == len(moment.names) == 0
    assert (stats.hit_tokens, stats.query_tokens) == (whole.hit_tokens, whole.query_tokens)
    assert stats.evicted_blocks == whole.evictions
    assert stats.peak_used_blocks == whole.peak_used_blocks


def test_time_grows_from_step_to_step() -> None:
    trace = generate("chat", 0, conversations=6)
    steps = replay(trace, 300, ReplayConfig()).steps
    times = [replay_until(trace, 300, ReplayConfig(), step).time_ms for step in range(1, steps + 1)]
    assert times == sorted(set(times))
    assert times[0] == trace.requests[0].arrival_ms


def test_progress_is_told_of_each_request_that_is_reached(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3], [4, 5, 6], [7, 8, 9])
    calls: list[None] = []
    replay_until(trace, 10, CONFIG, 2, progress=lambda: calls.append(None))
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("step", "bound"), [(0, "at least 1"), (-3, "at least 1"), (3, "at most 2")]
)
def test_a_step_the_replay_does_not_have_is_refused(
    make_trace: MakeTrace, step: int, bound: str
) -> None:
    with pytest.raises(ValueError, match=f"step must be {bound}.*got {step}$"):
        replay_until(make_trace([1, 2, 3]), 10, CONFIG, step)
