"""Export in Mooncake's format: the same hits, and only the documented parts are lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import attainable
from blockmgr.lab.trace import Request, Trace, read_trace, write_mooncake
from blockmgr.lab.workloads import WORKLOADS, generate

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = ReplayConfig(block_size=512)


def without_outputs(trace: Trace) -> Trace:
    return Trace(trace.name, tuple(replace(r, outputs=()) for r in trace.requests))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_read_back_has_the_same_hits_at_512_tokens_a_block(
    name: str, tmp_path: Path
) -> None:
    trace = generate(name, 5)
    write_mooncake(trace, tmp_path / "out.jsonl")
    back = read_trace(tmp_path / "out.jsonl")
    prompts = without_outputs(trace)

    best = attainable(prompts, CONFIG)
    assert attainable(back, CONFIG) == best
    blocks = best.working_set_blocks // 3
    assert replay(back, blocks, CONFIG) == replay(prompts, blocks, CONFIG)
    for one, other in zip(trace.requests, back.requests, strict=True):
        assert one.arrival_ms == other.arrival_ms
        assert one.num_prompt_tokens == other.num_prompt_tokens
        assert one.num_output_tokens == other.num_output_tokens


def test_hits_are_found_at_all(tmp_path: Path) -> None:
    write_mooncake(generate("shared-prompt", 5), tmp_path / "out.jsonl")
    back = read_trace(tmp_path / "out.jsonl")
    assert attainable(back, CONFIG).hit_rate > 0.5


def test_equal_tokens_under_another_namespace_or_after_another_prefix_get_other_ids(
    tmp_path: Path,
) -> None:
    one, two = np.full(512, 1, dtype=np.uint32), np.full(512, 2, dtype=np.uint32)

    def request(*parts: np.ndarray, namespace: bytes = b"") -> Request:
        return Request(
            arrival_ms=0,
            prompt=np.concatenate(parts),
            num_output_tokens=0,
            namespace=namespace,
        )

    trace = Trace(
        "t", (request(one, two), request(two, two), request(one, two, namespace=b"tenant"))
    )
    write_mooncake(trace, tmp_path / "out.jsonl")

    ids = [set(r.prompt.ids.tolist()) for r in read_trace(tmp_path / "out.jsonl").requests]
    assert len(set.union(*ids)) == 6


def test_too_many_ids_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockmgr.lab.trace.MOST_IDS", 3)
    with pytest.raises(ValueError, match="at most 3 distinct runs"):
        write_mooncake(generate("chat", 5, conversations=2), tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())
