"""The installed C library: its names, its options and its bytes are those of the Python package."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import random
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from blockmgr import BlockManager, ManagerConfig
from blockmgr.errors import OutOfBlocksError, OutOfSequencesError, UnknownSequenceError
from blockmgr.stats import Stats
from tests.library.face import HEADER, loaded, struct, text_of

ROOT = Path(__file__).parents[2]
BAD_VALUE, OUT_OF_BLOCKS, OUT_OF_SEQUENCES, UNKNOWN_SEQUENCE = 16, 1, 2, 18


OPTIONS, PROMPT, STATS = map(struct, ("blockmgr_options", "blockmgr_prompt", "blockmgr_stats"))
SEQUENCE = struct("blockmgr_sequence")


@pytest.fixture(scope="module")
def prefix() -> Path:
    if "BLOCKMGR_PREFIX" not in os.environ:
        pytest.skip("tests/library/check builds the library, and then runs these tests")
    return Path(os.environ["BLOCKMGR_PREFIX"])


@pytest.fixture(scope="module")
def library(prefix: Path) -> ctypes.CDLL:
    return loaded(prefix / "lib" / "libblockmgr.so")


def defaults(library: ctypes.CDLL) -> Any:
    options = OPTIONS()
    assert library.blockmgr_options_init(ctypes.byref(options), ctypes.c_size_t(0)) == BAD_VALUE
    size = ctypes.c_size_t(ctypes.sizeof(options))
    assert library.blockmgr_options_init(ctypes.byref(options), size) == 0
    return options


def created(library: ctypes.CDLL, **given: int) -> tuple[int, ctypes.c_void_p]:
    options = defaults(library)
    for name, value in given.items():
        setattr(options, name, value)
    manager = ctypes.c_void_p()
    return library.blockmgr_create(ctypes.byref(options), ctypes.byref(manager)), manager


def prompt_of(tokens: list[int], name: bytes = b"") -> Any:
    prompt = PROMPT(struct_size=ctypes.sizeof(PROMPT), num_tokens=len(tokens), name_size=len(name))
    prompt.kept = (ctypes.c_uint32 * len(tokens))(*tokens), ctypes.create_string_buffer(name)
    prompt.tokens, prompt.name = (ctypes.addressof(each) for each in prompt.kept)
    return prompt


def declared() -> set[str]:
    return set(re.findall(r"BLOCKMGR_API [\w* ]*?(blockmgr_\w+)\(", HEADER))


def test_the_header_and_the_package_have_one_version() -> None:
    version = ".".join(re.findall(r"#define BLOCKMGR_VERSION_[A-Z]+ (\d+)", HEADER))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert version == tomllib.loads(text)["project"]["version"]


def test_a_build_without_a_compiler_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    for tool in ("cmake", "make"):
        if (found := shutil.which(tool)) is None:
            pytest.skip(f"no {tool}")
        (tmp_path / tool).symlink_to(found)
    source = ROOT / "blockmgr" / "csrc"
    done = subprocess.run(
        ["cmake", "-G", "Unix Makefiles", "-S", source, "-B", tmp_path / "build"],
        env={"PATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert "There is no C++20 compiler: install one, on Debian: apt-get install g++" in lines


def test_the_shared_library_shows_the_calls_of_the_header_and_nothing_else(prefix: Path) -> None:
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", prefix / "lib" / "libblockmgr.so"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert names == declared()
    assert len(names) > 40


def test_the_shared_library_needs_nothing_but_the_run_time_libraries(prefix: Path) -> None:
    shown = subprocess.run(
        ["readelf", "-d", prefix / "lib" / "libblockmgr.so"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", shown))
    of_the_system = ("libstdc++.", "libm.", "libgcc_s.", "libc.", "ld-linux")
    assert [name for name in needed if not name.startswith(of_the_system)] == []


@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_installed_headers_compile_without_a_warning(prefix: Path, language: str) -> None:
    name, standard, compiler = (
        ("blockmgr.h", "c99", "cc") if language == "c" else ("blockmgr.hpp", "c++20", "c++")
    )
    if shutil.which(compiler) is None:
        pytest.skip(f"no compiler is called {compiler}")
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
    subprocess.run(
        [compiler, *flags, "-fsyntax-only", "-x", language, "-I", prefix / "include", "-"],
        input=f"#include <{name}>\n",
        check=True,
        text=True,
    )


def test_options_have_the_defaults_of_the_python_package(library: ctypes.CDLL) -> None:
    options, config = defaults(library), ManagerConfig(num_blocks=8, block_size=4)
    told = {name: getattr(options, name) for name, *_ in OPTIONS._fields_}
    assert ctypes.string_at(told.pop("eviction")).decode() == config.eviction
    assert told.pop("append_only") == (config.dedup == "append_only")
    assert told.pop("prompt_end_stop") == -1
    assert config.prompt_end_stop is None
    assert told.pop("digest_size") == 16
    of_c = {"struct_size", "num_blocks", "block_size", "reserved", "digest", "digest_context"}
    of_c |= {"quotas", "num_quotas", "groups", "num_groups", "group_block_sizes"}
    for name in told.keys() - of_c:
        assert told[name] == (getattr(config, name) or 0), name
    known = {row.name for row in dataclasses.fields(ManagerConfig)}
    spelled_otherwise = {"dedup", "eviction", "prompt_end_stop", "digest"}
    assert known - spelled_otherwise <= told.keys()


NUMBERS: dict[str, tuple[int, ...]] = {
    "num_blocks": (1, 2, 9, 0),
    "block_size": (1, 4, 65535, 65536),
    "max_seqs": (1, 5, 0),
    "max_blocks_per_seq": (1, 8, 40000),
    "min_partial_tokens": (0, 1, 4, 5),
    "watermark_blocks": (0, 1, 9, 10),
    "steps_in_flight": (0, 200, 201),
    "hit_rate_window": (0, 5, 2**24 + 1),
    "ghost_blocks": (0, 7, 2**30),
    "max_pinned_blocks": (0, 1, 9),
    "event_blocks": (1, 300),
    "max_rollback_tokens": (0, 1),
    "halfway_stop_tokens": (0, 1, -1),
    "stop_margin_tokens": (0, 1, -1),
}
FLAGS = ("prefix_caching", "early_commit", "null_block", "retention", "events")


def test_the_same_options_are_taken_and_refused_as_in_python(library: ctypes.CDLL) -> None:
    rng = random.Random(5)
    taken = 0
    for _ in range(3_000):
        given = {"num_blocks": 9, "block_size": 4, "max_seqs": 5}
        for name in rng.sample(sorted(NUMBERS), 3):
            given[name] = rng.choice(NUMBERS[name])
        for name in FLAGS:
            if rng.random() < 0.3:
                given[name] = rng.randint(0, 1)
        of_python = {name: bool(given[name]) if name in FLAGS else given[name] for name in given}
        try:
            config = ManagerConfig(**of_python)  # type: ignore[arg-type]
        except ValueError:
            config = None
        status, manager = created(library, **given)
        assert (status == 0) == (config is not None), (given, text_of(library))
        assert status in (0, BAD_VALUE)
        taken += status == 0
        library.blockmgr_destroy(manager)
    assert 500 < taken < 2_500


def test_counts_have_the_names_of_the_python_package() -> None:
    names = [name for name, *_ in STATS._fields_]
    assert names == ["struct_size", *(row.name for row in dataclasses.fields(Stats))]


def test_digests_are_byte_for_byte_those_of_the_python_package(library: ctypes.CDLL) -> None:
    tokens = list(range(100, 150))
    due = BlockManager(num_blocks=8, block_size=16).block_digests(tokens, namespace=b"tenant")
    _, manager = created(library, num_blocks=8, block_size=16)
    out, count = ctypes.create_string_buffer(48), ctypes.c_int64()
    prompt = prompt_of(tokens, b"tenant")
    assert (
        library.blockmgr_block_digests(
            manager, ctypes.byref(prompt), out, ctypes.c_int64(48), ctypes.byref(count)
        )
        == 0
    )
    assert out.raw == b"".join(due)
    library.blockmgr_destroy(manager)


def test_a_refusal_has_the_text_of_the_python_error(library: ctypes.CDLL) -> None:
    _, manager = created(library, num_blocks=2, block_size=4, max_seqs=1, watermark_blocks=1)
    handle = ctypes.c_int64()

    def admit(tokens: list[int]) -> int:
        prompt = prompt_of(tokens)
        status: int = library.blockmgr_admit(manager, ctypes.byref(prompt), ctypes.byref(handle))
        return status

    def check(status: int, due: int, error: Exception) -> None:
        assert status == due
        assert text_of(library) == str(error)

    assert admit([1, 2, 3]) == 0
    first = handle.value
    check(admit([9]), OUT_OF_SEQUENCES, OutOfSequencesError(1, 0))
    check(
        library.blockmgr_free(manager, ctypes.c_int64(7), 0),
        UNKNOWN_SEQUENCE,
        UnknownSequenceError(7),
    )
    many = (ctypes.c_uint32 * 4)(4, 5, 6, 7)
    assert library.blockmgr_append(manager, ctypes.c_int64(first), many, ctypes.c_int64(4)) == 0
    assert library.blockmgr_preempt(manager, ctypes.c_int64(first), 0) == 0
    library.blockmgr_destroy(manager)
    _, manager = created(library, num_blocks=3, block_size=4, watermark_blocks=1)
    assert admit([1]) == 0
    check(admit([1, 2, 3, 4, 5]), OUT_OF_BLOCKS, OutOfBlocksError(2, 2, 1))
    library.blockmgr_destroy(manager)


def test_events_have_the_tokens_of_each_stored_block(library: ctypes.CDLL) -> None:
    _, manager = created(library, num_blocks=8, block_size=4, events=1, retention=1)
    handle, events = ctypes.c_int64(), ctypes.c_void_p()
    session = ctypes.create_string_buffer(b"chat")
    for name, tokens in ((b"a", [*range(9)]), (b"b", [*range(50, 55)])):
        prompt = prompt_of(tokens, name)
        if name == b"b":
            prompt.session, prompt.session_size = ctypes.addressof(session), 4
        assert not library.blockmgr_admit(manager, ctypes.byref(prompt), ctypes.byref(handle))
        assert not library.blockmgr_commit(manager, handle, ctypes.c_int64(len(tokens)))
    assert not library.blockmgr_take_events(manager, ctypes.byref(events))
    listed, event = struct("blockmgr_event_list"), struct("blockmgr_event")
    found = listed(struct_size=ctypes.sizeof(listed))
    assert not library.blockmgr_events_list(events, ctypes.byref(found))
    runs = (event * found.num_events).from_address(found.events)

    def read(run: Any) -> tuple[bytes, bytes, list[int]]:
        tokens = (ctypes.c_uint32 * (4 * run.num_blocks)).from_address(run.tokens)
        names = (run.name, run.name_size), (run.session or 0, run.session_size)
        name, of_session = (ctypes.string_at(at, size) if size else b"" for at, size in names)
        return name, of_session, list(tokens)

    assert [read(run) for run in runs] == [
        (b"a", b"", [*range(8)]),
        (b"b", b"chat", [*range(50, 54)]),
    ]
    assert found.num_digests == 3
    library.blockmgr_events_destroy(events)
    library.blockmgr_destroy(manager)
