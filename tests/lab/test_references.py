"""Paths through the forest of prefixes: equal numbers mean equal prefixes, for any runs."""

from __future__ import annotations

from itertools import islice
from random import Random

import numpy as np
import pytest

from blockmgr.lab.references import NO_RUN, References, references
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.runs import COLUMNS
from tests.lab.conftest import MakeTrace
from tests.lab.worlds import as_tokens, conversations, hashed, nodes


def node_paths(stream: References) -> list[list[list[int]]]:
    """The blocks of each request: looked up, in the prompt, and in each sample at its end."""
    columns = (stream.column(name).tolist() for name in ("limit", "prompt"))
    ends = iter(stream.ends.tolist())
    samples = (list(islice(ends, count)) for count in stream.column("num_samples").tolist())
    return [
        [nodes(stream, run) for run in (limit, prompt, *last)]
        for limit, prompt, last in zip(*columns, samples, strict=True)
    ]


def test_numbers_are_equal_exactly_where_whole_prefixes_are() -> None:
    random = Random(1)
    for _ in range(300):
        trace = conversations(random, 8)
        size = random.choice((1, 2, 3))
        stream = references(trace, ReplayConfig(block_size=size, outputs="none"))
        prefixes: dict[int, tuple[object, ...]] = {}
        for request, paths in zip(trace.requests, node_paths(stream), strict=True):
            prompt = request.tokens().tolist()
            texts = [[*prompt, *output.tolist()[:-1]] for output in request.outputs]
            for text, path in zip((prompt[:-1], prompt, *(texts or [prompt])), paths, strict=True):
                assert len(path) == len(text) // size
                for depth, node in enumerate(path, start=1):
                    prefix = (request.namespace, *text[: depth * size])
                    assert prefixes.setdefault(node, prefix) == prefix
        assert sorted(prefixes) == list(range(stream.num_nodes))
        assert len(set(prefixes.values())) == len(prefixes)


@pytest.mark.parametrize("rule", ["manager", "served", "ids"])
@pytest.mark.parametrize("block_size", [64, 128, 512])
def test_ids_and_the_tokens_they_stand_for_give_the_same_blocks(rule: str, block_size: int) -> None:
    random = Random(2)
    for _ in range(40):
        trace = hashed(
            *(
                # With rule "ids", a partial block counts as a block.
                (ids, 512 * (len(ids) - 1) + (512 if rule == "ids" else random.randint(1, 512)))
                for ids in (
                    [random.randrange(3) for _ in range(random.randint(1, 3))] for _ in range(6)
                )
            )
        )
        config = ReplayConfig(block_size=block_size)
        by_ids = references(trace, config, rule)  # type: ignore[arg-type]
        by_tokens = references(as_tokens(trace), config, rule)  # type: ignore[arg-type]
        assert _renumbered(by_ids) == _renumbered(by_tokens)
        assert by_ids.query_blocks == by_tokens.query_blocks
        for name in set(COLUMNS) - {"limit", "prompt"}:
            assert np.array_equal(by_ids.column(name), by_tokens.column(name))


def _renumbered(stream: References) -> list[list[list[int]]]:
    """Node paths with numbers in order of appearance, which does not depend on runs."""
    numbers: dict[int, int] = {}
    return [
        [[numbers.setdefault(node, len(numbers)) for node in path] for path in paths]
        for paths in node_paths(stream)
    ]


def test_rules_differ_in_the_last_block_alone(make_trace: MakeTrace) -> None:
    trace = make_trace([1, 2, 3, 4], [1, 2, 3], [1])
    config = ReplayConfig(block_size=2)
    lengths = {
        rule: [
            [len(path) for path in paths] for paths in node_paths(references(trace, config, rule))
        ]
        for rule in ("manager", "served", "ids")
    }
    assert lengths == {
        "manager": [[1, 2, 2], [1, 1, 1], [0, 0, 0]],
        "served": [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
        "ids": [[2, 2, 2], [2, 2, 2], [1, 1, 1]],
    }


def test_a_partial_id_is_the_id_that_begins_alike() -> None:
    stream = references(hashed(([1, 2], 700), ([1, 2], 1024)), ReplayConfig(block_size=512), "ids")
    (short, _, _), (long, _, _) = node_paths(stream)
    assert short == long
    assert stream.column("last_tokens").tolist() == [188, 512]


def test_runs_do_not_grow_with_the_blocks_of_a_prompt() -> None:
    trace = hashed(([1, 2, 3], 1536), ([1, 2, 4], 1300), ([1, 2, 3, 5], 2048))
    for block_size in (512, 16, 1):
        stream = references(trace, ReplayConfig(block_size=block_size), "served")
        # The runs are [1 2], [3] without its end, that end with [5], and [4]; at 512 tokens per
        # block, where no prompt is served its last id, they are [1 2] and [3].
        assert len(stream.length) == (4 if block_size < 512 else 2)
        assert stream.num_nodes == len({n for p in node_paths(stream) for q in p for n in q})


def test_an_empty_prefix_is_no_run(make_trace: MakeTrace) -> None:
    stream = references(make_trace([1], [2]), ReplayConfig(block_size=4))
    assert (len(stream.length), stream.num_nodes) == (0, 0)
    assert stream.column("limit").tolist() == [NO_RUN, NO_RUN]


def test_an_unknown_rule_and_a_block_size_ids_cannot_be_cut_into_are_refused() -> None:
    trace = hashed(([1], 5))
    with pytest.raises(ValueError, match=r"rule must be one of manager, served, ids, got 'all'"):
        references(trace, ReplayConfig(), "all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_size must divide 512"):
        references(trace, ReplayConfig(block_size=48))
