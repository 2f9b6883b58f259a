"""Each trace format: a small valid file, malformed ones, and detection of the format."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockmgr.errors import MissingExtraError, TraceFormatError
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.formats import ids, record
from blockmgr.lab.replay import ReplayConfig, held_blocks, replay
from blockmgr.lab.stored import RequestStore, Row
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.trace import Request, Trace, read_trace, write_trace
from tests.lab.conftest import WriteLines
from tests.lab.worlds import facts, same

TRACES = Path(__file__).parent / "traces"
MOONCAKE = (TRACES / "mooncake.jsonl").read_text().splitlines()
zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")


# Ids


def test_bailians_ids_stand_for_16_tokens_and_its_clock_counts_seconds() -> None:
    trace = read_trace(TRACES / "bailian.jsonl")
    assert trace.tokens_per_id == 16
    assert [facts(request) for request in trace.requests] == [
        (61_114, 41, 132),
        (61_114, 33, 5),
        (75_900, 70, 40),
    ]
    # The first two share two ids; the third continues the prefix that it shares with both.
    assert unbounded(trace, ReplayConfig(block_size=16)).hit_tokens == 32 + 32


@pytest.mark.parametrize("clock", ["27482.75", "27482", "2.748275e4"])
def test_clocks_may_be_fractions(write_lines: WriteLines, clock: str) -> None:
    trace = read_trace(write_lines(MOONCAKE[0], MOONCAKE[1].replace("27482", clock)))
    assert trace.requests[1].arrival_ms == 27_482


def records_of(size: int, rng: random.Random, most_ids: int = 6) -> list[str]:
    lines = []
    for number in range(40):
        names = [number * 1000 + place for place in range(rng.randint(1, most_ids))]
        tokens = size * len(names) - rng.choice((0, 0, rng.randrange(size)))
        record = {"timestamp": number, "input_length": tokens, "output_length": 1}
        lines.append(json.dumps({**record, "hash_ids": names}))
    return lines


@pytest.mark.parametrize("size", [1, 7, 16, 48, 64, 128, 500, 1024])
def test_what_an_id_stands_for_follows_from_the_lengths_of_prompts(
    write_lines: WriteLines, size: int
) -> None:
    lines = records_of(size, random.Random(size), most_ids=400 if size > 16 else 60)
    assert read_trace(write_lines(*lines)).tokens_per_id == size


def test_lengths_that_fit_several_sizes_take_the_usual_one_or_the_power_of_two(
    write_lines: WriteLines,
) -> None:
    def line(tokens: int, count: int) -> str:
        record = {"timestamp": 0, "input_length": tokens, "output_length": 1}
        return json.dumps({**record, "hash_ids": list(range(count))})

    assert read_trace(write_lines(line(700, 2))).tokens_per_id == 512  # 350 to 699 fit
    assert read_trace(write_lines(line(200, 2))).tokens_per_id == 128  # 100 to 199 fit
    assert read_trace(write_lines(line(200, 2)), tokens_per_id=150).tokens_per_id == 150
    with pytest.raises(ValueError, match=r"tokens_per_id .*every number from 1100 on fits"):
        read_trace(write_lines(line(1100, 1)))
    with pytest.raises(TraceFormatError, match="2 hash_ids for input_length 200, expected 1, one"):
        read_trace(write_lines(line(200, 2)), tokens_per_id=256)
    own = write_lines("")
    prompt = np.array([1, 2], dtype=np.uint32)
    write_trace(Trace("t", (Request(arrival_ms=0, prompt=prompt, num_output_tokens=0),)), own)
    with pytest.raises(ValueError, match=r"tokens_per_id .* without ids, got 16"):
        read_trace(own, tokens_per_id=16)


def test_ids_that_contradict_lengths_are_named_where_they_do(write_lines: WriteLines) -> None:
    lines = records_of(64, random.Random(1), most_ids=100)
    broken = json.loads(lines[30])
    broken["input_length"] += 64
    lines[30] = json.dumps(broken)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(*lines))
    assert (caught.value.line, caught.value.column) == (31, lines[30].index('"hash_ids"') + 1)
    count = len(broken["hash_ids"])
    assert caught.value.found == f"{count} hash_ids for input_length {broken['input_length']}"
    assert caught.value.expected == f"{count + 1}, one for each 64 tokens"


@pytest.mark.parametrize(
    "names",
    [
        [3, 2**31, 2**40, 2**63 - 1],
        [3, 2**63, 2**64 - 1, 2**63 + 7],
        [3, -1, -(2**63), -(2**40)],
        [2**64, 2**128 - 1, 2**200, 2**64 + 1],
        ["a", "0f" * 32, "", "b"],
    ],
)
def test_ids_of_any_width_are_told_apart(write_lines: WriteLines, names: list[Any]) -> None:
    def lines(called: list[Any]) -> list[str]:
        order = [0, 1, 0, 2, 3, 1, 0]
        return [
            json.dumps(
                {
                    "timestamp": number,
                    "input_length": 40,
                    "output_length": 3,
                    "hash_ids": [called[place], called[place]][:2],
                    "chat_id": 0,
                }
            )
            for number, place in enumerate(order)
        ]

    small = read_trace(write_lines(*lines([0, 1, 2, 3])), tokens_per_id=32)
    wide = read_trace(write_lines(*lines(names)), tokens_per_id=32)
    for size in (4, 8, 32):
        config = ReplayConfig(block_size=size)
        assert replay(wide, 60, config) == replay(small, 60, config)
        assert unbounded(wide, config) == unbounded(small, config)


def test_wide_ids_with_equal_beginnings_are_refused_where_they_could_be_mistaken(
    write_lines: WriteLines,
) -> None:
    line = MOONCAKE[0].replace("46", str(2**40))
    trace = read_trace(write_lines(line))
    with pytest.raises(ValueError, match=r"block_size must be at least 3, .* got 2"):
        trace.check_block_size(2)
    with pytest.raises(ValueError, match=r"min_partial_tokens must be 0 or at least 3.*, got 1"):
        replay(trace, 100, ReplayConfig(block_size=16, min_partial_tokens=1))


def test_blocks_of_several_ids_are_found_where_all_ids_agree(write_lines: WriteLines) -> None:
    trace = read_trace(TRACES / "bailian.jsonl")
    config = ReplayConfig(block_size=32)
    assert unbounded(trace, config).hit_tokens == replay(trace, 100, config).hit_tokens == 64
    with pytest.raises(ValueError, match=r"must divide 16.* or be a multiple of it, got 24"):
        trace.check_block_size(24)


def test_an_id_is_held_to_what_came_before_it_only_while_there_is_room(
    write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(MOONCAKE[0], MOONCAKE[1].replace("46, 47", "47, 46"))
    with pytest.raises(TraceFormatError, match="id 47 first in hash_ids"):
        read_trace(path)
    monkeypatch.setattr(ids, "CHECKED_IDS", 0)
    assert len(read_trace(path).requests) == 2


# Order


def test_a_clock_that_goes_back_is_refused_or_put_in_order(write_lines: WriteLines) -> None:
    path = write_lines(*reversed(MOONCAKE))
    with pytest.raises(TraceFormatError, match=r":2:2: found timestamp 0, expected at least 27482"):
        read_trace(path)
    assert same(read_trace(path, sort=True), read_trace(write_lines(*MOONCAKE)))


def test_requests_of_one_instant_keep_the_order_of_the_file(write_lines: WriteLines) -> None:
    lines = [MOONCAKE[0].replace('"output_length": 52', f'"output_length": {n}') for n in range(9)]
    trace = read_trace(write_lines(MOONCAKE[1], *lines), sort=True)
    assert [request.num_output_tokens for request in trace.requests] == [*range(9), 11]


# Compression, folders, standard input


@pytest.mark.parametrize("press", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_compressed_files_are_told_by_what_they_begin_with(
    tmp_path: Path, press: Callable[[bytes], bytes]
) -> None:
    plain = (TRACES / "mooncake.jsonl").read_bytes()
    first, second = plain.splitlines(keepends=True)
    path = tmp_path / "trace"
    path.write_bytes(press(first) + press(second))  # several members, as parallel tools write them
    assert same(read_trace(path), read_trace(TRACES / "mooncake.jsonl"))

    path.write_bytes(press(plain)[:-6])
    with pytest.raises(TraceFormatError, match="found damaged compressed data"):
        read_trace(path)


def test_a_compressed_file_that_is_damaged_later_says_in_which_line(tmp_path: Path) -> None:
    lines = records_of(64, random.Random(1), most_ids=300) * 1
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-20])
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert caught.value.line > 5


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python has zstd since 3.14")
def test_zstd_without_its_extra_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    monkeypatch.delattr(sys.modules["backports"], "zstd", raising=False)
    path = tmp_path / "trace.zst"
    path.write_bytes(zstd.compress(b"{}"))
    with pytest.raises(MissingExtraError, match=r"trace.zst.*'\.\[cli\]'"):
        read_trace(path)


def test_a_folder_is_one_trace_in_order_of_arrival(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "early.jsonl").write_text(MOONCAKE[0])
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(MOONCAKE[1].encode()))
    (tmp_path / "README.md").write_text("no trace")
    (tmp_path / ".hidden.jsonl").write_text("no trace")
    assert same(read_trace(tmp_path), read_trace(TRACES / "mooncake.jsonl"))


def test_a_folder_without_traces_or_of_mixed_formats_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trace must be a folder with files that end in \.csv"):
        read_trace(tmp_path)
    for name in ("bailian.jsonl", "mooncake.jsonl"):
        shutil.copy(TRACES / name, tmp_path)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/mooncake.jsonl:1:1: found Mooncake, expected Qwen-Bailian, as in "
        f"{tmp_path}/bailian.jsonl"
    )


def test_standard_input_is_read_compressed_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = (TRACES / "mooncake.jsonl").read_bytes()
    for data in (plain, gzip.compress(plain)):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        trace = read_trace("-")
        assert trace.name == "stdin"
        assert same(trace, read_trace(TRACES / "mooncake.jsonl"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(plain[:-9])))
    with pytest.raises(TraceFormatError, match=r"^<stdin>:2:\d+: found broken JSON"):
        read_trace("-")


# Detection of the format


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plainly no trace\n", ':1:1: found "plainly no trace", expected a trace: blockmgr'),
        ('{"a": 1, "b": 2}\n', ':1:1: found an object with "a", "b", expected a trace: '),
        ("[1, 2]\n", ":1:1: found a list, expected a trace: "),
        ('"text"', ':1:1: found ".*text.*", expected a trace'),
        ("", ":1:1: found the end of the file, expected a request"),
        ("[]", ":1:1: found the end of the file, expected a request"),
        ('{"format": "other"}', ':1:2: found format "other", expected "blockmgr-trace"'),
    ],
)
def test_a_file_of_no_known_format_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(TraceFormatError, match=found):
        read_trace(path)


@pytest.mark.parametrize(("name", "column"), [("azure.csv", 11), ("burstgpt.csv", 17)])
def test_lengths_without_content_are_refused_with_the_reason(name: str, column: int) -> None:
    with pytest.raises(TraceFormatError, match=rf"{name}:1:{column}: .*so no hit rate follows"):
        read_trace(TRACES / name)


def test_a_file_that_goes_on_in_another_format_is_refused(write_lines: WriteLines) -> None:
    other = (TRACES / "openai.jsonl").read_text().splitlines()[0]
    with pytest.raises(TraceFormatError, match=r':2:1: found no field "input_length"'):
        read_trace(write_lines(MOONCAKE[0], other))


def test_a_byte_order_mark_is_no_part_of_a_trace(write_lines: WriteLines) -> None:
    path = write_lines(b"\xef\xbb\xbf" + MOONCAKE[0].encode() + b"\n", MOONCAKE[1])
    assert len(read_trace(path).requests) == 2


# Arrays


def test_an_array_is_read_an_element_at_a_time_with_places_of_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n ".join(MOONCAKE * 1) + "]\n")
    assert same(read_trace(path), read_trace(TRACES / "mooncake.jsonl"))
    path.write_text("[" + MOONCAKE[0] + ",\n  " + MOONCAKE[1].replace("27482", '"x"') + "]")
    with pytest.raises(TraceFormatError, match=r':2:4: found timestamp "x"'):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[{first}\n {second}]", r":2:2: found '\{{', expected ',' or '\]'"),
        ("[{first},\n {{]", r":2:3: found broken JSON"),
        ("[{first},\n {second}", r":2:\d+: found 'the end of the file', expected"),
        ("[{first},\n", r":2:1: found broken JSON"),
        ("[{first}]\n[{second}]", r":2:1: found '\[' behind an array"),
        ("[{first}]{second}", r"found '\{{' behind an array, expected the end of the file"),
        ("[]\n{first}", r":2:1: found '\{{' behind an array"),
    ],
)
def test_a_broken_array_is_named_where_it_breaks(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text.format(first=MOONCAKE[0], second=MOONCAKE[1]))
    with pytest.raises(TraceFormatError, match=error.replace("{{", "{")):
        read_trace(path)


def test_a_break_is_named_before_the_rest_of_a_long_array_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    rest = ",\n".join(MOONCAKE * 2000)
    path.write_text(f'[{MOONCAKE[0]},\n{{"timestamp" 5}},\n{rest}]')
    with pytest.raises(TraceFormatError, match=r":2:14: found broken JSON"):
        read_trace(path, max_line_bytes=70_000)


def test_elements_larger_than_what_is_read_at_once_are_whole(tmp_path: Path) -> None:
    rng = random.Random(4)
    texts = ["é" * rng.randrange(90_000) + '"]},' for _ in range(9)]
    plain = [
        {"timestamp": n, "input_length": 5, "output_length": 1, "hash_ids": [n], "text": text}
        for n, text in enumerate(texts)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(plain, ensure_ascii=False), encoding="utf-8")
    assert len(read_trace(path).requests) == 9
    with pytest.raises(TraceFormatError, match="found a record of more than 20000 bytes"):
        read_trace(path, max_line_bytes=20_000)


@pytest.mark.parametrize("character", ["é", "€", "😀"])
@pytest.mark.parametrize("cut", range(4))
def test_a_character_that_is_read_in_two_parts_is_whole(
    tmp_path: Path, character: str, cut: int
) -> None:
    """The first chunk read ends after ``cut`` bytes of a character, or between two."""
    head = '[{"hash_ids": [1], "output_length": 5, "input_length": 5, "timestamp": 0, "text": "'
    width = len(character.encode())
    filler = (record.PIECE - cut - len(head)) % width
    text = "x" * filler + character * (record.PIECE // width + 9)
    path = tmp_path / "trace.json"
    path.write_text(f'{head}{text}"}}]', encoding="utf-8")
    assert len(read_trace(path).requests) == 1


# Text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words in a folder, with a chat template."""
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("transformers")
    pytest.importorskip("jinja2")
    words = ["[UNK]", "<s>", "user", "assistant", "system", ":"]
    words += ["hello", "world", "again", "and", "be", "brief"]
    model = tokenizers.models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="[UNK]")
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    folder = tmp_path_factory.mktemp("tokenizer")
    whole.save(str(folder / "tokenizer.json"))
    template = (
        "<s> {% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        "{% endif %}{{ m.role }} : {{ m.content }} {% endfor %}"
        "{% if add_generation_prompt %}assistant :{% endif %}"
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def spoken(folder: Path, tokens: Any) -> str:
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    names = {number: word for word, number in words.items()}
    return " ".join(names[int(token)] for token in tokens)


def test_a_log_of_chats_is_tokenized_as_the_model_is_given_it(tokenizer: Path) -> None:
    trace = read_trace(TRACES / "openai.jsonl", tokenizer=tokenizer)
    assert [request.arrival_ms for request in trace.requests] == [0, 2500, 5000]
    first, second, third = trace.requests
    asked = spoken(tokenizer, first.tokens())
    assert asked == "<s> system : be brief user : hello world assistant :"
    assert [spoken(tokenizer, output) for output in first.outputs] == ["hello"]
    assert spoken(tokenizer, second.tokens()).endswith("user : hello again assistant :")
    assert [spoken(tokenizer, o) for o in second.outputs] == ["again and again", ""]
    assert second.num_samples == 2
    assert spoken(tokenizer, third.tokens()) == "<s> user : hello assistant :"
    assert (first.namespace, third.namespace) == (b"m", b"n")


def test_a_conversation_without_times_asks_once_for_each_answer(tokenizer: Path) -> None:
    trace = read_trace(TRACES / "sharegpt.json", tokenizer=tokenizer)
    said = [(r.arrival_ms, spoken(tokenizer, r.tokens())) for r in trace.requests]
    assert said == [
        (0, "<s> user : hello world assistant :"),
        (1000, "<s> system : be brief user : hello [UNK] [UNK] assistant :"),
        (
            10_030,  # one token of an answer, and ten seconds
            "<s> user : hello world assistant : hello user : again assistant :",
        ),
    ]
    assert [r.session for r in trace.requests] == [1, 2, 1]  # a conversation is one
    # The second turn finds the first and its answer.
    result = replay(trace, 100, ReplayConfig(block_size=1))
    assert result.hit_tokens == len(["<s>", "user", ":", "hello", "world", "assistant", ":"]) + 1


def test_text_needs_a_tokenizer_that_is_here(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer \(--tokenizer\) must be a folder"):
        read_trace(TRACES / "sharegpt.json")
    with pytest.raises(ValueError, match="tokenizer must be a local folder, got 'some/model'"):
        read_trace(TRACES / "sharegpt.json", tokenizer="some/model")
    with pytest.raises(ValueError, match="tokenizer must be a folder with a tokenizer"):
        read_trace(TRACES / "sharegpt.json", tokenizer=tmp_path)


def test_a_tokenizer_for_a_trace_without_text_is_refused(tokenizer: Path) -> None:
    with pytest.raises(ValueError, match="must be None for a trace without text"):
        read_trace(TRACES / "bailian.jsonl", tokenizer=tokenizer)


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(ValueError, match="trace must be a file or a folder, got ''"):
        read_trace("")


def test_without_the_extra_text_names_the_extra(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[tokenizer\]'"):
        read_trace(TRACES / "sharegpt.json", tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("changes", "field", "found"),
    [
        ({"messages": []}, "messages", "messages []"),
        ({"messages": ["hi"]}, "messages", 'message "hi"'),
        ({"messages": [{"role": "user", "content": 5}]}, "content", "content 5"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "a conversation (the chat"),
        ({"timestamp": "yesterday"}, "timestamp", 'timestamp "yesterday"'),
        ({"timestamp": None}, None, "no time"),
        ({"timestamp": 1}, "timestamp", "timestamp 1"),
        ({"response": {"choices": 3}}, "response", 'response {"choices": 3}'),
        ({"response": {"choices": [3]}}, "choices", "choice 3"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "no message before"),
    ],
)
def test_a_malformed_chat_is_named(
    write_lines: WriteLines, tokenizer: Path, changes: dict[str, Any], field: str, found: str
) -> None:
    good = {"timestamp": 5, "messages": [{"role": "user", "content": "hello"}]}
    line = json.dumps({**good, **changes})
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(json.dumps(good), line), tokenizer=tokenizer)
    assert caught.value.line == 2
    assert caught.value.column == (line.index(f'"{field}"') + 1 if field else 1)
    assert caught.value.found.startswith(found)


@pytest.mark.parametrize("turn", [{"from": "nobody", "value": ""}, {"from": "human"}, "hello"])
def test_a_malformed_turn_of_sharegpt_is_named(tmp_path: Path, tokenizer: Path, turn: Any) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(
        '[{"id": 1, "conversations": []},\n{"conversations": [' + json.dumps(turn) + "]}]"
    )
    with pytest.raises(TraceFormatError, match=r":2:2: found turn .*, expected from one of human"):
        read_trace(path, tokenizer=tokenizer)


# The cache on disk


def rows(count: int, rng: random.Random) -> list[Row]:
    return [
        Row(
            arrival_ms=rng.randrange(50),
            order=number,
            prompt=[rng.randrange(2**63) for _ in range(rng.randint(1, 9))]
            if (hashed := rng.random() < 0.5)
            else [rng.randrange(2**32) for _ in range(rng.randint(1, 9))],
            num_tokens=100 if hashed else None,
            num_output_tokens=3,
            outputs=[[1, 2, 3], []] if rng.random() < 0.3 else [],
            namespace=rng.randbytes(rng.randrange(3)),
        )
        for number in range(count)
    ]


def test_requests_on_disk_are_those_in_memory_and_in_other_processes_too() -> None:
    made = rows(3000, random.Random(9))
    in_memory, on_disk = RequestStore(), RequestStore(in_memory=1000)
    for store in (in_memory, on_disk):
        store.add(made)
    one = Trace("one", in_memory.requests(64))
    other = Trace("other", on_disk.requests(64))
    assert same(one, other)
    assert [r.arrival_ms for r in other.requests] == sorted(row.arrival_ms for row in made)
    assert facts(other.requests[-1]) == facts(one.requests[2999])
    assert len(other.requests[10:20]) == 10
    with pytest.raises(IndexError):
        other.requests[3000]
    program = (
        "import pickle, sys; t = pickle.load(sys.stdin.buffer);"
        "print(sum(len(r.tokens()) * (n + 1) for n, r in enumerate(t.requests)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(other),
        stdout=subprocess.PIPE,
        check=True,
    )
    expected = sum(len(r.tokens()) * (n + 1) for n, r in enumerate(one.requests))
    assert int(found.stdout) == expected


@pytest.mark.parametrize("block_size", [16, 48, 300])
@pytest.mark.parametrize("outputs", ["hold", "none"])
def test_the_largest_request_of_a_trace_on_disk_is_that_of_its_requests(
    block_size: int, outputs: Any
) -> None:
    rng = random.Random(5)
    store = RequestStore(in_memory=1000)
    store.add(
        Row(
            arrival_ms=number,
            order=number,
            prompt=list(range(count := rng.randint(1, 9))),
            num_tokens=64 * count,
            num_output_tokens=rng.randrange(900),
        )
        for number in range(9000)
    )
    trace = Trace("t", store.requests(64))
    assert trace.is_hashed
    config = ReplayConfig(block_size=block_size, outputs=outputs)
    held = [held_blocks(request, config) for request in trace.requests]
    assert largest_request_blocks(trace, config) == max(held) > min(held)


def test_columns_have_the_namespace_of_each_request() -> None:
    made = [
        Row(arrival_ms=n, order=n, prompt=[n], num_tokens=64, num_output_tokens=1, namespace=name)
        for n, name in enumerate([b"", b"a", b"", b"", b"bcd", b"a"])
    ]
    store = RequestStore()
    store.add(made)
    requests = store.requests(64)
    assert requests.columns()[1] == [row.namespace for row in made]
    assert [request.namespace for request in requests] == [row.namespace for row in made]


def test_prompts_whose_ids_stand_for_different_lengths_make_no_trace() -> None:
    from blockmgr.lab.trace import HashedPrompt

    ids_ = np.array([1], dtype=np.int64)
    prompts = [HashedPrompt(ids_, 10, tokens_per_id=size) for size in (16, 32)]
    requests = [Request(arrival_ms=0, prompt=p, num_output_tokens=0) for p in prompts]
    with pytest.raises(ValueError, match="tokens_per_id must be the same for all prompts, got"):
        Trace("t", tuple(requests))
