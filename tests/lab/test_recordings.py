"""Recorded KV events: the requests that they become, and the counts of blocks left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.formats import kv_events as reader
from blockmgr.lab.formats import recorded_engine
from blockmgr.lab.formats.recorded_engine import UNKNOWN
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import Trace, read_trace
from tests.lab.conftest import WriteLines
from tests.lab.worlds import facts
from tests.lab.worlds import prompts_of as prompts

pytest.importorskip("msgspec", reason="the extra 'events'")

from tests import fuzz_recordings, recordings

TRACES = Path(__file__).parent / "traces"
PAUSE: list[list[Any]] = [[], [], []]


def found(trace: Trace, block_size: int = 4) -> int:
    return unbounded(trace, ReplayConfig(block_size=block_size)).hit_tokens


def batches(*events: Any, rank: int | None = None) -> list[str]:
    """One batch of events a second."""
    return [json.dumps([number, list(batch), rank]) for number, batch in enumerate(events)]


def block(name: Any, parent: Any, tokens: list[int], **more: Any) -> dict[str, Any]:
    return stored([name], parent, tokens, **more)


def stored(names: list[Any], parent: Any, tokens: list[int], **more: Any) -> dict[str, Any]:
    return {
        **{"type": "BlockStored", "block_hashes": names, "parent_block_hash": parent},
        **{"token_ids": tokens, "block_size": len(tokens) // len(names), **more},
    }


def removed(*names: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names), **more}


CLEARED: dict[str, Any] = {"type": "AllBlocksCleared"}


# Requests


def test_kv_events_become_the_prompts_that_were_stored() -> None:
    trace = read_trace(TRACES / "kv_events.jsonl")
    first, second, third = trace.requests
    # Two chunks of a prompt, then a block that decoding filled.
    assert facts(first) == (0, 16, 5)
    assert first.tokens().tolist() == list(range(100, 116))
    assert [output.tolist() for output in first.outputs] == [[116, 117, 118, 119, UNKNOWN]]
    # A block stored later, after another parent: a prompt with everything before it.
    assert facts(second) == (9_500, 20, 0)
    assert second.tokens().tolist() == [*range(100, 116), *range(120, 124)]
    assert facts(third) == (12_000, 4, 0)
    assert third.namespace != second.namespace == b""


def test_single_blocks_of_one_batch_are_one_chunk_as_engines_with_small_pages_write(
    write_lines: WriteLines,
) -> None:
    pages = [block(n, n - 1 if n else None, [n]) for n in range(5)]
    trace = read_trace(write_lines(*batches(pages, [block(5, 4, [5])])))
    assert [facts(request) for request in trace.requests] == [(0, 5, 2)]


def test_two_requests_that_store_the_same_blocks_are_two(write_lines: WriteLines) -> None:
    twice = [stored([1, 2], None, [1, 2]), stored([1, 2], None, [1, 2])]
    trace = read_trace(write_lines(*batches(twice, [block(3, 2, [3])])))
    assert prompts(trace) == [[1, 2], [1, 2]]
    assert [request.num_output_tokens for request in trace.requests] == [0, 2]


def test_an_answer_that_sglang_stores_when_it_ends_is_no_request(write_lines: WriteLines) -> None:
    turns: list[list[Any]] = [[stored([-1, 2], None, [1, 2])], *PAUSE, [stored([3, -4], 2, [3, 4])]]
    lines = batches(*turns, *PAUSE, [stored([5, 6], -4, [5, 6])])
    assert [facts(r) for r in read_trace(write_lines(*lines)).requests] == [(0, 2, 3), (8000, 6, 0)]
    # Hashes without a sign are vLLM's, whose requests that come later are other ones.
    lines = [line.replace("-", "9") for line in lines]
    assert len(read_trace(write_lines(*lines)).requests) == 3


def test_an_answer_of_sglang_waits_only_so_long(
    write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_engine, "UNANSWERED", 1)
    first = [stored([-1], None, [1]), stored([-2], None, [2])]
    lines = batches(first, *PAUSE, [stored([-3], -1, [3]), stored([-4], -2, [4])])
    found_facts = [facts(request) for request in read_trace(write_lines(*lines)).requests]
    assert found_facts == [(0, 1, 0), (0, 1, 2), (4000, 2, 0)]


# Malformed events


@pytest.mark.parametrize(
    ("event", "field", "found"),
    [
        (block(2, 9.5, [1]), "parent_block_hash", "parent_block_hash 9.5"),
        (block(2, None, [-1]), "token_ids", "-1 in token_ids"),
        (block(2, None, [2**64]), "token_ids", "18446744073709551616 in token_ids"),
        ({**block(2, None, [1]), "token_ids": 5}, "token_ids", "5 in token_ids"),
        ({**block(2, None, [1]), "block_size": 2}, "token_ids", "1 token_ids for 1 blocks of 2"),
        ({**block(2, None, [1]), "block_size": True}, "block_size", "block_size true"),
        (block(2, None, [1], extra_keys=[]), "extra_keys", "extra_keys []"),
        (block(2, None, [1], extra_keys=["a"]), "extra_keys", '"a" in extra_keys'),
        (block(2, None, [1], group_idx="0"), "group_idx", 'group_idx "0"'),
        (removed(None), "block_hashes", "block_hashes [null]"),
        ({"type": "Other"}, "type", 'event {"type": "Other"}'),
        (["BlockRemoved", [1], "GPU", 0, 1], "BlockRemoved", "4 fields of BlockRemoved"),
        (block(1, None, [5]), "block_hashes", "block 1 with another prompt than before"),
        (block(2, 1, [5], lora_name="x"), "lora_name", "another adapter or salt than that of the"),
        (stored([2, 2], 1, [5, 6]), "block_hashes", "block 2 with another prompt than before"),
    ],
)
def test_a_malformed_event_is_named(
    write_lines: WriteLines, event: Any, field: str, found: str
) -> None:
    lines = batches([block(1, None, [1])], [event])
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(*lines))
    assert (caught.value.line, caught.value.column) == (2, lines[1].index(f'"{field}"') + 1)
    assert caught.value.found.startswith(found)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ([1, [], [0]], "rank [0]"),
        ([1, [], -1], "rank -1"),
        ([1, [], 0, 5], "5 after the rank"),
        ([1, [], 0, {"epoch": 1, "groups": [5]}], "groups [5]"),
        ([1], "[1]"),
        ({"ts": 1, "events": [], "data_parallel_rank": "a"}, 'rank "a"'),
    ],
)
def test_a_malformed_batch_is_named(write_lines: WriteLines, batch: Any, found: str) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(*batches([block(1, None, [1])]), json.dumps(batch)))
    assert (caught.value.line, caught.value.found) == (2, found)


def test_fields_that_are_not_read_are_named(write_lines: WriteLines, notes: Any) -> None:
    event = block(1, None, [1], block_offsets=[0], session_id="s", locality="LOCAL")
    batch = {"ts": 1, "events": [event], "topic": "kv", "attn_dp_rank": 0, "seq": None}
    extra = {**batch, "about": {"epoch": 5, "sequence": 8, "block_size": 1}}
    path = write_lines(json.dumps(batch), json.dumps(extra))
    assert notes(path).unread == {"about.sequence": 1, "block_offsets": 2, "topic": 2}
    assert notes(write_lines(*batches([event]))).unread == {"block_offsets": 1}


def test_what_is_assumed_is_told(write_lines: WriteLines, notes: Any) -> None:
    plain, signed = (notes(write_lines(*batches([block(n, None, [1])]))) for n in (1, -1))
    assert list(plain.assumed) == ["requests", "prompts that were found whole"]
    assert list(signed.assumed) == [*plain.assumed, "answers"]


# Ranks


def test_each_rank_has_a_cache_and_a_clock(write_lines: WriteLines) -> None:
    ranks = [json.dumps([n, [block(n, None, [n])], n]) for n in range(3)]
    for lines in (ranks, ranks[::-1]):
        trace = read_trace(write_lines(*lines))
        assert [(r.arrival_ms, *r.tokens().tolist()) for r in trace.requests] == [
            (0, 0),
            (1000, 1),
            (2000, 2),
        ]


@pytest.mark.parametrize("rank", ["data_parallel_rank", "attn_dp_rank"])
def test_the_clock_of_a_rank_never_goes_back(write_lines: WriteLines, rank: str) -> None:
    lines = [json.dumps({"ts": ts, "events": [block(ts, None, [ts])], rank: 1}) for ts in (1, 0)]
    with pytest.raises(TraceFormatError, match="found ts 0, expected at least 1000 ms"):
        read_trace(write_lines(*lines), sort=True)


# Blocks from before the recording


def test_a_removed_block_is_known_while_another_one_continues_it(write_lines: WriteLines) -> None:
    first = [block(1, None, [1]), block(2, 1, [2], medium="GPU")]
    go_on = batches(first, [removed(1)], *PAUSE, [block(3, 2, [3])])
    assert prompts(read_trace(write_lines(*go_on)))[-1] == [1, 2, 3]


@pytest.mark.parametrize("gone", [[CLEARED], [removed(2)], [removed(2), removed(1)]])
def test_what_continues_a_block_that_is_gone_is_left_out(
    write_lines: WriteLines, gone: list[Any], left_out: Any
) -> None:
    first = [block(1, None, [1]), block(2, 1, [2])]
    path = write_lines(*batches(first, gone, *PAUSE, [stored([3, 4], 2, [3, 4]), block(5, 4, [5])]))
    assert prompts(read_trace(path)) == [[1, 2]]
    assert left_out(path) == {reader.BEFORE: 3}


def test_what_continues_a_removed_block_is_left_out_even_if_its_tokens_are_known(
    write_lines: WriteLines, left_out: Any
) -> None:
    path = write_lines(
        *batches([stored([1, 2, 3], None, [1, 2, 3])], [removed(2)], *PAUSE, [block(4, 2, [4])])
    )
    assert prompts(read_trace(path)) == [[1, 2, 3]]
    assert left_out(path) == {reader.BEFORE: 1}


def test_a_recording_that_begins_late_starts_at_its_first_whole_prompt(
    write_lines: WriteLines, left_out: Any
) -> None:
    late = [[block(8, 7, [8])], [block(9, 8, [9]), removed(55)], [stored([1, 2], None, [1, 2])]]
    path = write_lines(*batches(*late, [block(3, 2, [3])]))
    trace = read_trace(path)
    assert [facts(request) for request in trace.requests] == [(0, 2, 2)]
    assert left_out(path) == {reader.BEFORE: 2}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (block(8, 7, [8]), f"1 {reader.BEFORE}"),
        (block(8, None, [8], medium="CPU_PINNED"), f"1 {reader.OTHER_MEDIA}"),
        (block(8, None, [8], kv_cache_spec_kind="mamba"), f"1 {reader.OTHER_GROUPS}"),
        (removed(1), "no stored block of a prompt"),
    ],
)
def test_a_recording_without_a_prompt_says_why(
    write_lines: WriteLines, event: Any, reason: str
) -> None:
    with pytest.raises(TraceFormatError, match=r"expected .* record from the start") as caught:
        read_trace(write_lines(*batches([event])))
    assert reason in caught.value.found


# Groups of layers


@pytest.mark.parametrize("full", [0, 1, 7])
@pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention"])
def test_the_kind_of_a_group_tells_which_blocks_are_prompts(
    write_lines: WriteLines, full: int, kind: str, left_out: Any
) -> None:
    def both(names: list[int], parent: Any, tokens: list[int]) -> list[Any]:
        window = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 8}
        return [
            stored(names, parent, tokens, group_idx=full + 1, **window),
            stored(names, parent, tokens, group_idx=full, kv_cache_spec_kind=kind),
        ]

    lines = batches(
        both([1, 2], None, [*range(8)]),
        [removed(1, group_idx=full + 1)],  # of the window alone
        *PAUSE,
        both([3], 2, [8, 8, 8, 8]),
        *PAUSE,
        both([4], 2, [9, 9, 9, 9]),
    )
    path = write_lines(*lines)
    trace = read_trace(path)
    assert [facts(r)[1:] for r in trace.requests] == [(8, 0), (12, 0), (12, 0)]
    assert found(trace) == 16
    assert left_out(path) == {reader.OTHER_GROUPS: 3}


def test_of_several_groups_of_full_attention_one_counts(
    write_lines: WriteLines, left_out: Any
) -> None:
    kind = {"kv_cache_spec_kind": "full_attention"}
    one = [block(1, None, [1], group_idx=2, **kind), block(1, None, [1], group_idx=0, **kind)]
    path = write_lines(*batches([*one, removed(1, group_idx=0), block(3, 1, [3], group_idx=2)]))
    assert prompts(read_trace(path)) == [[1, 3]]
    assert left_out(path) == {reader.MORE_GROUPS: 1}


def test_groups_without_kinds_are_refused_if_there_are_several(write_lines: WriteLines) -> None:
    one = [block(1, None, [1], group_idx=3), block(2, 1, [2], group_idx=3)]
    assert len(read_trace(write_lines(*batches(one))).requests) == 1
    with pytest.raises(TraceFormatError, match="group_idx 0 without kv_cache_spec_kind"):
        read_trace(write_lines(*batches([*one, block(1, None, [1], group_idx=0)])))


def test_kinds_that_a_publisher_tells_with_the_batch_count_too(write_lines: WriteLines) -> None:
    about = {"epoch": 1, "groups": [["mamba", None], ["full_attention", None]], "block_size": 1}
    events = [block(1, None, [1], group_idx=0), block(2, None, [2], group_idx=1)]
    assert prompts(read_trace(write_lines(json.dumps([1, events, None, about])))) == [[2]]


# Extra keys


def test_the_key_of_an_image_belongs_to_its_block(write_lines: WriteLines) -> None:
    text = list(range(1000, 1012))

    def image(name: int, picture: str) -> dict[str, Any]:
        return block(name, 3, [7, 7, 7, 7], extra_keys=[[[picture, 1]]])

    def first(picture: str) -> dict[str, Any]:
        keys = [None, None, None, [[picture, 1]]]
        return stored([1, 2, 3, 4], None, [*text, 7, 7, 7, 7], extra_keys=keys)

    for begun in ([first("A")], [stored([1, 2, 3], None, text), image(4, "A")]):
        more = [image(5, "B")], *PAUSE, [image(6, "C")]
        trace = read_trace(write_lines(*batches(begun, *PAUSE, *more)))
        assert [request.num_prompt_tokens for request in trace.requests] == [16, 16, 16]
        assert {request.namespace for request in trace.requests} == {b""}
        # Three blocks each; and of the fourth, the token before the image.
        assert found(trace) == 24
        assert found(trace, 1) == 26


def test_an_image_that_goes_on_in_the_next_block_is_one(write_lines: WriteLines) -> None:
    def asked(names: list[int], last: int) -> dict[str, Any]:
        keys = [[["A", 2]], [["A", -2]]]
        return stored(names, None, [1, 1, 7, 7, 7, 7, last, last], extra_keys=keys)

    lines = batches([asked([1, 2], 5)], *PAUSE, [asked([1, 3], 6)])
    trace = read_trace(write_lines(*lines))
    assert found(trace) == 4
    assert found(trace, 2) == 6


@pytest.mark.parametrize("split", [False, True])
def test_an_adapter_is_the_namespace_of_a_prompt_in_however_many_events(
    write_lines: WriteLines, split: bool
) -> None:
    poet: dict[str, Any] = {"lora_name": "poet"}
    whole = [stored([1, 2], None, [1, 2], extra_keys=[["poet"], ["poet"]], **poet)]
    parts = [block(n, n - 1 or None, [n], extra_keys=[["poet"]], **poet) for n in (1, 2)]
    plain = stored([7, 8], None, [1, 2], lora_name=None)
    trace = read_trace(write_lines(*batches(parts if split else whole, *PAUSE, [plain])))
    assert [request.namespace for request in trace.requests] == [b"lora poet", b""]
    assert prompts(trace) == [[1, 2], [1, 2]]


def test_salts_of_both_engines_are_namespaces(write_lines: WriteLines) -> None:
    events = [
        block(1, None, [1], extra_keys=[["secret"]]),
        block(2, None, [1], cache_salt="secret"),
        block(3, None, [1], lora_id=0),
        block(4, 1, [2], extra_keys=[None]),
        block(5, None, [1]),
    ]
    trace = read_trace(write_lines(*batches(*[[event] for event in events])))
    assert len({request.namespace for request in trace.requests}) == 4
    assert trace.requests[0].namespace == trace.requests[3].namespace


def test_blocks_whose_keys_are_not_recorded_are_told_apart_by_their_names(
    write_lines: WriteLines, notes: Any
) -> None:
    def turn(names: list[Any]) -> list[Any]:
        return ["BlockStored", names, None, [1, 1, 2, 2], 2, None, "GPU"]

    path = write_lines(*batches([turn(["a", "b"])], *PAUSE, [turn(["c", "d"])]))
    trace = read_trace(path)
    assert found(trace, 2) == 0
    assert dict([reader.UNTOLD]).items() <= notes(path).assumed.items()
    again = batches([turn(["a", "b"])], *PAUSE, [turn(["c", "d"])], *PAUSE, [turn(["c", "d"])])
    assert found(read_trace(write_lines(*again)), 2) == 2
    other = [json.dumps([1, [turn(["a", "b"])], 0]), json.dumps([2, [turn(["c", "d"])], 1])]
    assert found(read_trace(write_lines(*other)), 2) == 0


def test_names_are_compared_while_there_is_room(
    write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_engine, "KEPT_NAMES", 1)
    lines = batches([block("a", None, [1])], *PAUSE, [block("b", None, [2])], *PAUSE)
    trace = read_trace(write_lines(*lines, json.dumps([9, [block("c", None, [1])]])))
    assert prompts(trace) == [[1], [2], [1]]


def test_placeholders_of_64_bits_and_pairs_are_tokens(write_lines: WriteLines) -> None:
    wide = [2**61, 2**61, 2**62, 5]
    trace = read_trace(write_lines(*batches([stored([1, 2], None, wide)])))
    [[one, same, other, text]] = prompts(trace)
    assert one == same != other
    assert text == 5
    pairs = {**stored([1, 2], None, [1, 1]), "token_ids": [[4, 5], [5, 6]]}
    assert prompts(read_trace(write_lines(*batches([pairs])))) == [[4, 5]]


def test_tokens_that_could_be_mistaken_for_images_are_refused(write_lines: WriteLines) -> None:
    largest = UNKNOWN - 1
    assert prompts(read_trace(write_lines(*batches([block(1, None, [largest])])))) == [[largest]]
    keyed = block(2, None, [5], extra_keys=[[["A", 0]]])
    for events in ([block(1, None, [largest]), keyed], [keyed, block(1, None, [largest])]):
        with pytest.raises(TraceFormatError, match=r"found 4294967294 in token_ids, expected at"):
            read_trace(write_lines(*batches(events)))
    with pytest.raises(TraceFormatError, match=r"found 4294967295 in token_ids, expected at"):
        read_trace(write_lines(*batches([block(1, None, [UNKNOWN])])))


# Other memory


def test_only_blocks_on_the_device_count(write_lines: WriteLines, left_out: Any) -> None:
    cpu = [block(1, None, [1], medium="CPU"), {"type": "AllBlocksCleared", "medium": "CPU"}]
    disk = [{**block(5, None, [1], medium="DISK"), "token_ids": [], "block_size": 0}]
    device = [block(1, None, [1], medium="GPU"), *cpu, *disk, block(2, 1, [2])]
    path = write_lines(*batches(device))
    assert prompts(read_trace(path)) == [[1, 2]]
    assert left_out(path) == {reader.OTHER_MEDIA: 3}


# What blockmgr's publisher adds, and batches that came twice


def about(epoch: int, **more: Any) -> dict[str, Any]:
    return {"epoch": epoch, **more}


def test_a_snapshot_tells_blocks_and_is_no_request(write_lines: WriteLines, left_out: Any) -> None:
    parts = [
        [1.0, [block(99, None, [99])], 0, about(5)],
        [2.0, [CLEARED, stored([1, 2], None, [1, 2])], 0, about(5, snapshot=True)],
        [2.0, [block(3, 2, [3])], 0, about(5, snapshot=True, last=True)],
        [3.0, [block(4, 3, [4]), block(100, 99, [100])], 0, about(5)],
    ]
    path = write_lines(*map(json.dumps, parts))
    assert prompts(read_trace(path)) == [[99], [1, 2, 3, 4]]
    assert left_out(path) == {reader.STATED: 3, reader.BEFORE: 1}


def test_blocks_that_a_publisher_restates_after_a_clearing_are_no_requests(
    write_lines: WriteLines, left_out: Any
) -> None:
    device = {**CLEARED, "medium": "GPU"}
    parts = [
        [1.5, [device, block(1, None, [1])], 0, about(5)],
        [1.5, [block(2, 1, [2])], 0, about(5)],  # the same snapshot goes on
        [2.5, [block(3, 2, [3])], 0, about(5)],
    ]
    path = write_lines(*map(json.dumps, parts))
    assert prompts(read_trace(path)) == [[1, 2, 3]]
    assert left_out(path) == {reader.STATED: 2}
    # Other publishers do not restate anything.
    plain = write_lines(*(json.dumps(part[:3]) for part in parts))
    assert [facts(request) for request in read_trace(plain).requests] == [(0, 1, 3)]


def test_a_restart_forgets_and_what_comes_late_is_left_out(
    write_lines: WriteLines, left_out: Any
) -> None:
    parts = [
        [1.0, [block(1, None, [1])], 0, about(5)],
        [2.0, [block(2, 1, [2]), block(1, None, [7])], 0, about(6)],
        [3.0, [block(8, None, [8])], 0, about(5)],
    ]
    path = write_lines(*map(json.dumps, parts))
    assert prompts(read_trace(path)) == [[1], [7]]
    assert left_out(path) == {reader.BEFORE: 1, reader.OUTDATED: 1}


def test_a_batch_that_came_twice_counts_once(write_lines: WriteLines, left_out: Any) -> None:
    lines = batches([stored([1, 2], None, [1, 2])], [block(3, 2, [3])])
    path = write_lines(lines[0], lines[0], lines[1], lines[1])
    assert [facts(request) for request in read_trace(path).requests] == [(0, 2, 2)]
    assert left_out(path) == {reader.REPEATED: 2}


# Several files


def test_a_recording_in_several_files_goes_on(tmp_path: Path) -> None:
    lines = batches([stored([1, 2], None, [1, 2])], [block(3, 2, [3])], *PAUSE, [block(4, 3, [4])])
    (tmp_path / "1.jsonl").write_text(lines[0])
    (tmp_path / "2.jsonl").write_text("\n".join(lines[1:]))
    # What continues a request of the first file is none of its own.
    assert [facts(r) for r in read_trace(tmp_path).requests] == [(0, 2, 0), (5000, 4, 0)]


def test_files_of_engines_are_apart_and_their_images_are_not_mixed_up(tmp_path: Path) -> None:
    for name, picture in (("a", "A"), ("b", "B")):
        keyed = block(1, None, [7, 7], extra_keys=[[[picture, 1]]])
        (tmp_path / f"{name}.jsonl").write_text("\n".join(batches([keyed], [])))
    trace = read_trace(tmp_path)
    assert len(trace.requests) == 2
    assert found(trace, 1) == 1


# Recordings of managers whose requests and hits are known


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("writer", "hashes"), [("maps", "int"), ("maps", "bytes"), ("arrays", "int")]
)
def test_a_recording_of_a_manager_gives_the_requests_that_it_served(
    tmp_path: Path, seed: int, writer: Any, hashes: Any
) -> None:
    engine = recordings.Engine(random.Random(seed), writer=writer, hashes=hashes)
    engine.run(12)
    path = tmp_path / "events.jsonl"
    path.write_text("".join(line + "\n" for _, line in engine.lines))
    trace = read_trace(path)
    served = [asked for asked in engine.requests if sum(asked.stored)]
    wholes = [[*asked.prompt, *asked.output] for asked in served]
    read = [
        [*request.tokens().tolist(), *(request.outputs[0].tolist()[:-1] if request.outputs else ())]
        for request in trace.requests
    ]
    assert read == [whole[: len(whole) // 4 * 4] for whole in wholes]
    expected = sum(len(w) // 4 - sum(a.stored) for w, a in zip(wholes, served, strict=True)) * 4
    assert fuzz_recordings.hits_of(trace, 4) == expected == found(trace) > 0


def test_damaged_recordings_are_refused_or_give_no_more_hits_than_there_were() -> None:
    counts = fuzz_recordings.fuzz(seconds=1e9, seed=1, runs=40)
    assert counts["whole"] > 35  # two engines of unlike layouts cannot be told apart
    assert min(counts[damage] for damage in ("dropped", "late")) > 0
    assert min(counts[f"{damage}, refused"] for damage in ("cut", "swapped", "shuffled")) > 0


@pytest.mark.parametrize(
    ("owner", "name"),
    [(recorded_engine.RecordedEngine, "is_repeated"), (recorded_engine.Names, "are_apart")],
)
def test_a_reader_that_finds_too_much_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    monkeypatch.setattr(owner, name, lambda *_: False)
    with pytest.raises(AssertionError, match="found of"):
        fuzz_recordings.fuzz(seconds=1e9, seed=1, runs=200)
