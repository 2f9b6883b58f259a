"""A slab: what it finds again, what it refuses, and who may open it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from blockmgr.tiers import (
    Slab,
    SlabError,
    SlabHeldError,
    SlabMismatchError,
    SlabSpaceError,
)
from blockmgr.tiers.ground import slab_ground
from blockmgr.tiers.records import MAGIC
from tests.unit.slab_support import SIZE, content, judge, key_of, open_slab

SIZES: Any = {"num_blocks": 8, "block_bytes": SIZE, "key_bytes": 4}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.slab"


def filled(path: Path, count: int = 5, **options: Any) -> list[int]:
    """The serials of blocks 0 to count, each in the block of its number."""
    slab = open_slab(path, **options)
    serials = [slab.write(i, key_of(i), content(key_of(i), slab.block_bytes)) for i in range(count)]
    slab.close()
    return serials


def offset_of(path: Path, data: bytes) -> int:
    found = path.read_bytes().find(data)
    assert found >= 0
    return found


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


# ---- what is found ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [SIZE, 3 * SIZE, 100])
def test_a_block_is_read_as_it_was_written(path: Path, size: int) -> None:
    slab = open_slab(path, block_bytes=size)
    aligned = memoryview(np.zeros(size + SIZE, np.uint8))
    start = -aligned.obj.ctypes.data % SIZE  # type: ignore[attr-defined]
    for into in (bytearray(size), aligned[start : start + size]):
        serial = slab.write(3, key_of(1), content(key_of(1), size))
        assert slab.read(3, key_of(1), serial, into)
        assert bytes(into) == content(key_of(1), size)
        serial = slab.write(3, key_of(2), into)
        assert slab.read(3, key_of(2), serial, bytearray(size))
    slab.close()


@pytest.mark.parametrize("is_aligned", [True, False])
@pytest.mark.parametrize("size", [SIZE, 2 * SIZE, 100])
def test_several_blocks_are_read_at_once_as_they_are_read_alone(
    path: Path, size: int, is_aligned: bool
) -> None:
    serials = dict(enumerate(filled(path, 8, block_bytes=size)))
    flip(path, offset_of(path, content(key_of(5), size)))
    slab = open_slab(path, block_bytes=size)
    serials[6] += 1  # another write
    blocks = [1, 2, 3, 7, 0, 5, 4, 5, 6, 7]
    into = memory_of([bytes(size)] * len(blocks), is_aligned)
    names = [key_of(block) for block in blocks]
    found = list(slab.read_digests(blocks, names, [serials[b] for b in blocks], into))
    for block, digest, data in zip(blocks, found, into, strict=True):
        if block in {5, 6}:
            assert digest is None
        else:
            assert digest == slab.read_digest(block, key_of(block), serials[block], bytearray(size))
            assert bytes(data) == content(key_of(block), size)
    with pytest.raises(ValueError, match="block must be"):
        next(slab.read_digests([0, 8], names[:2], [1, 2], into[:2]))
    slab.close()


def memory_of(datas: list[bytes], is_aligned: bool = True) -> list[memoryview]:
    """Memory of whole pages with these contents, or beside their beginnings."""
    size = len(datas[0])
    memory = memoryview(mmap.mmap(-1, size * len(datas) + SIZE))[0 if is_aligned else 8 :]
    parts = [memory[i * size : (i + 1) * size] for i in range(len(datas))]
    for part, data in zip(parts, datas, strict=True):
        part[:] = data
    return parts


@pytest.mark.parametrize("is_aligned", [True, False])
@pytest.mark.parametrize("size", [SIZE, 2 * SIZE, 100])
@pytest.mark.parametrize("most", [None, 1, SIZE + 1])
def test_several_blocks_are_written_at_once_as_they_are_written_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: int, is_aligned: bool, most: int | None
) -> None:
    """Also if the file system takes fewer bytes at once than it is asked to."""
    transfers = []
    pwritev = os.pwritev

    def few(file: int, views: list[memoryview], at: int) -> int:
        transfers.append(len(views))
        if most is None:
            return pwritev(file, views, at)
        return min(most, os.pwrite(file, bytes(b"".join(views)[:most]), at))

    slab = open_slab(path, block_bytes=size)
    slab._direct = -1 if most else slab._direct  # parts of pages go through the page cache
    monkeypatch.setattr(os, "pwritev", few)
    blocks = [1, 2, 3, 7, 0, 5, 4]
    names = [key_of(block + 20) for block in blocks]
    data = memory_of([content(name, size) for name in names], is_aligned)
    first = slab.take_serials(len(blocks))
    serials = range(first, first + len(blocks))
    assert len(list(slab.write_blocks(blocks, names, data, serials=serials))) == len(blocks)
    assert transfers == ([] if size == 100 else [3])
    slab.close()
    again = open_slab(path, block_bytes=size)
    assert judge(again) == (set(names), 0)
    assert again.found["block"].tolist() == blocks
    assert again.found["serial"].tolist() == list(serials)
    again.close()


def test_what_a_disk_that_fails_has_written_of_several_blocks_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slab = open_slab(path)
    names = [key_of(i) for i in range(5)]
    data = memory_of([content(name) for name in names])
    pwritev, calls = os.pwritev, iter([1, 0])

    def fails_later(file: int, views: list[memoryview], at: int) -> int:
        if not next(calls):
            raise OSError("the disk failed")
        return pwritev(file, views, at)

    monkeypatch.setattr(os, "pwritev", fails_later)
    first, written = slab.take_serials(5), []
    with pytest.raises(OSError, match="the disk failed"):
        written.extend(
            slab.write_blocks([0, 1, 4, 5, 7], names, data, serials=range(first, first + 5))
        )
    assert len(written) == 2
    slab.close()
    again = open_slab(path)
    assert judge(again) == (set(names[:2]), 0)
    again.close()
    with pytest.raises(ValueError, match="block must be"):
        next(open_slab(path).write_blocks([0, 8], names[:2], data[:2], serials=[1, 2]))


def test_a_restart_finds_what_was_there_in_the_order_of_writes(path: Path) -> None:
    slab = open_slab(path)
    written = [
        (block, slab.write(block, key_of(block), content(key_of(block)))) for block in (5, 0, 7)
    ]
    slab.close()
    again = open_slab(path)
    assert [(block, serial) for block, serial, _ in again.found.tolist()] == written
    assert judge(again) == ({key_of(5), key_of(0), key_of(7)}, 0)
    again.close()


def test_a_restart_finds_more_blocks_than_it_reads_headers_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockmgr.tiers.slab.SCAN_BYTES", 1024)
    slab = open_slab(path, num_blocks=100)
    blocks = [0, 1, 15, 16, 17, 99]
    for block in blocks:
        slab.write(block, key_of(block), content(key_of(block)))
    slab.close()
    again = open_slab(path, num_blocks=100)
    assert again.found["block"].tolist() == blocks
    assert judge(again) == ({key_of(block) for block in blocks}, 0)
    again.close()


def test_a_new_slab_is_written_over_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first write to room that was only allocated is many times as slow."""
    written = []
    pwrite = os.pwrite

    def recorded(file: int, data: bytes, at: int) -> int:
        count = pwrite(file, data, at)
        written.append((at, at + count))
        return count

    monkeypatch.setattr(os, "pwrite", recorded)
    open_slab(path, num_blocks=600).close()
    end = 0
    for first, last in sorted(written):
        assert first <= end, "a gap"
        end = max(end, last)
    assert end == path.stat().st_size
    assert sum(last - first for first, last in written) < 2 * end
    written.clear()
    open_slab(path, num_blocks=600).close()
    assert sum(last - first for first, last in written) < SIZE


def test_no_two_writes_have_one_serial_whatever_happens_between(path: Path) -> None:
    serials = filled(path) + filled(path) + filled(path)
    assert len(set(serials)) == len(serials)
    assert serials == sorted(serials)


def test_a_key_that_was_written_twice_is_found_where_it_was_written_last(path: Path) -> None:
    filled(path)
    slab = open_slab(path)
    slab.write(6, key_of(0), content(key_of(0)))
    slab.close()
    again = open_slab(path)
    assert again.found["block"].tolist() == [1, 2, 3, 4, 6]
    again.close()


# ---- what is refused --------------------------------------------------------------------


def test_another_key_or_serial_is_refused(path: Path) -> None:
    """A block that has another block by now, with a header and bytes that are its own."""
    filled(path)
    slab = open_slab(path)
    serials = {block: serial for block, serial, _ in slab.found.tolist()}
    into = bytearray(SIZE)
    assert slab.read(2, key_of(2), serials[2], into)
    assert not slab.read(2, key_of(3), serials[2], into)
    assert not slab.read(2, key_of(2), serials[3], into)
    assert not slab.read(5, key_of(5), serials[2], into)
    assert slab.write(2, key_of(2), content(key_of(2))) != serials[2]
    assert not slab.read(2, key_of(2), serials[2], into)
    slab.close()


def test_any_flipped_byte_is_refused_and_none_is_taken_for_right(path: Path) -> None:
    filled(path)
    payload = offset_of(path, content(key_of(3)))
    header = offset_of(path, key_of(3)) // 64 * 64
    places = [payload, payload + 1, payload + SIZE // 2, payload + SIZE - 1]
    slab = open_slab(path)
    serial = {block: serial for block, serial, _ in slab.found.tolist()}[3]
    record = range(header, header + slab._records.checked_bytes + 8)
    for place in [*places, *record]:
        flip(path, place)
        assert not slab.read(3, key_of(3), serial, bytearray(SIZE)), place - header
        flip(path, place)
    assert slab.read(3, key_of(3), serial, bytearray(SIZE))
    slab.close()
    for place in record:  # a header that is damaged is not found by a restart
        flip(path, place)
        again = open_slab(path)
        assert judge(again) == ({key_of(i) for i in (0, 1, 2, 4)}, 0)
        again.close()
        flip(path, place)


def test_a_payload_of_another_slot_is_refused(path: Path) -> None:
    """A disk that confuses two places: header and bytes are whole, each for itself."""
    filled(path)
    at = [offset_of(path, content(key_of(i))) for i in (1, 2)]
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at[0])
        file.write(data[at[1] : at[1] + SIZE])
    slab = open_slab(path)
    assert judge(slab) == ({key_of(i) for i in (0, 2, 3, 4)}, 1)
    slab.close()


def test_a_header_of_another_slab_is_refused(tmp_path: Path) -> None:
    """A file that was overwritten in part with another: its records have its own checksums."""
    one, two = tmp_path / "one", tmp_path / "two"
    filled(one)
    filled(two, layout={"revision": "2"})
    data = two.read_bytes()
    with one.open("r+b") as file:  # all but the identity and the state
        file.seek(3 * SIZE)
        file.write(data[3 * SIZE :])
    slab = open_slab(one)
    assert judge(slab) == (set(), 0)
    slab.close()


def test_a_codec_that_is_unknown_is_refused(path: Path) -> None:
    """A payload that is not the bytes of the block, as a version to come may write."""
    slab = open_slab(path)
    serial = slab.write(0, key_of(0), content(key_of(0)))
    records = slab._records
    header = np.frombuffer(os.pread(slab._file, records.size, slab._header(0)), records.dtype)
    for name, value in (("codec", 1), ("logical_bytes", SIZE + 1), ("stored_bytes", SIZE - 1)):
        changed = header.copy()
        changed[name] = value
        body = changed.tobytes()[: records.checked_bytes]
        check = __import__("xxhash").xxh3_64_intdigest(body, records.seed).to_bytes(8, "little")
        os.pwrite(slab._file, body + check, slab._header(0))
        assert not slab.read(0, key_of(0), serial, bytearray(SIZE)), name
    os.pwrite(slab._file, header.tobytes(), slab._header(0))
    assert slab.read(0, key_of(0), serial, bytearray(SIZE))
    slab.close()


def test_a_file_cut_short_is_refused(path: Path) -> None:
    filled(path)
    os.truncate(path, path.stat().st_size - SIZE)
    with pytest.raises(SlabError, match=r"it has \d+ bytes, not \d+"):
        open_slab(path)


# ---- resets -----------------------------------------------------------------------------


def test_what_was_reset_does_not_come_back(path: Path) -> None:
    filled(path)
    slab = open_slab(path)
    slab.reset()
    slab.write(6, key_of(6), content(key_of(6)))
    slab.close()
    for _ in range(2):
        again = open_slab(path)
        assert judge(again) == ({key_of(6)}, 0)
        again.close()


def test_after_a_volatile_reset_nothing_comes_back_that_is_written_before_the_next_opening(
    path: Path,
) -> None:
    """The weights have changed, and a restart may have those of before."""
    filled(path)
    slab = open_slab(path)
    slab.reset(volatile=True)
    serial = slab.write(6, key_of(6), content(key_of(6)))
    assert slab.read(6, key_of(6), serial, bytearray(SIZE))
    slab.reset()
    slab.write(7, key_of(7), content(key_of(7)))
    slab.close()
    again = open_slab(path)
    assert again.found.size == 0
    again.write(1, key_of(1), content(key_of(1)))
    again.close()
    last = open_slab(path)
    assert judge(last) == ({key_of(1)}, 0)
    last.close()


@pytest.mark.parametrize("page", [1, 2])
def test_one_damaged_state_of_two_undoes_no_reset(path: Path, page: int) -> None:
    filled(path)
    slab = open_slab(path)
    slab.reset()
    slab.close()
    flip(path, page * SIZE + 9)
    again = open_slab(path)
    assert again.found.size == 0
    again.close()


def test_a_slab_whose_two_states_are_damaged_is_refused(path: Path) -> None:
    filled(path)
    for page in (1, 2):
        flip(path, page * SIZE + 1)
    with pytest.raises(SlabError, match="its state is damaged"):
        open_slab(path)


# ---- the order of uses ------------------------------------------------------------------


def test_a_clean_end_keeps_the_order_of_uses(path: Path) -> None:
    filled(path)
    slab = open_slab(path)
    assert slab.order == [0, 1, 2, 3, 4]
    slab.close(order=[3, 0, 4, 7])  # there is nothing in 7
    again = open_slab(path)
    assert again.found["block"].tolist() == [0, 1, 2, 3, 4]
    assert again.order == [1, 2, 3, 0, 4]  # nobody named 1 and 2
    again.close(order=np.array([1], np.int32))
    again.close(order=[0])
    last = open_slab(path)
    assert last.order == [0, 2, 3, 4, 1]
    last.close()


def test_a_crash_leaves_the_order_of_writes(path: Path) -> None:
    """Also where the end before it was clean: its order is not that of what was used since."""
    filled(path)
    open_slab(path).close(order=[4, 3, 2, 1, 0])
    slab = open_slab(path)
    assert slab.order == [4, 3, 2, 1, 0]
    slab._close_files()  # as a kill does
    again = open_slab(path)
    assert again.order == [0, 1, 2, 3, 4]
    again.close()


def test_an_order_of_which_any_part_is_torn_is_the_order_of_writes(path: Path) -> None:
    filled(path)
    slab = open_slab(path)
    first, size = slab._order, 24 + 4 * 5
    slab.close(order=[4, 3, 2, 1, 0])
    whole = path.read_bytes()
    for place in range(first, first + size):
        path.write_bytes(whole)
        flip(path, place)
        again = open_slab(path)
        assert again.order == [0, 1, 2, 3, 4], place - first
        assert judge(again) == ({key_of(i) for i in range(5)}, 0)
        again.close()
    for cut in range(first, first + size - 4, 4):  # the rest is as it was before
        torn = whole[:cut] + bytes(first + size - cut) + whole[first + size :]
        path.write_bytes(torn)
        again = open_slab(path)
        assert again.order == [0, 1, 2, 3, 4], cut - first
        again.close()
    path.write_bytes(whole)
    last = open_slab(path)
    assert last.order == [4, 3, 2, 1, 0]
    last.close()


def test_an_order_of_another_slab_counts_for_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path, revision in ((one, "1"), (two, "2")):
        filled(path, layout={"revision": revision})
        slab = open_slab(path, layout={"revision": revision})
        first = slab._order
        slab.close(order=[4, 3, 2, 1, 0])
    data = two.read_bytes()
    with one.open("r+b") as file:
        file.seek(first)
        file.write(data[first : first + SIZE])
    slab = open_slab(one)
    assert slab.order == [0, 1, 2, 3, 4]
    slab.close()


def test_what_was_reset_is_in_no_order(path: Path) -> None:
    filled(path)
    slab = open_slab(path)
    slab.reset()
    assert slab.order == []
    slab.close(order=[0, 1])
    again = open_slab(path)
    assert again.order == []
    again.close()


def test_a_disk_that_fails_at_the_end_leaves_no_file_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    slab = open_slab(path)

    def fail(*_: Any) -> int:
        raise OSError("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(OSError, match="the disk failed"):
            slab.close(order=[1])
    again = open_slab(path)
    assert len(again.order) == 5
    again.close()


# ---- who may open it --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field", "found", "wanted"),
    [
        ({"layout": {"model": "other"}}, "model", "tiny", "other"),
        ({"layout": {"revision": "2"}}, "revision", "1", "2"),
        ({"layout": {"dtype": "bfloat16"}}, "dtype", "float32", "bfloat16"),
        ({"layout": {"rank": 1}}, "rank", 0, 1),
        ({"layout": {"window": 16}}, "window", None, 16),
        ({"block_bytes": 2 * SIZE}, "block_bytes", SIZE, 2 * SIZE),
        ({"num_blocks": 9}, "num_blocks", 8, 9),
        ({"key_bytes": 8}, "key_bytes", 4, 8),
    ],
)
def test_a_slab_for_other_blocks_is_refused_by_name_and_stays_as_it_was(
    path: Path, change: dict[str, Any], field: str, found: object, wanted: object
) -> None:
    filled(path)
    before = path.read_bytes()
    with pytest.raises(SlabMismatchError, match=f"made for {field}") as caught:
        open_slab(path, **change)
    assert (caught.value.field, caught.value.found, caught.value.wanted) == (field, found, wanted)
    assert path.read_bytes() == before
    slab = open_slab(path)  # the refused opening has left no lock
    assert len(judge(slab)[0]) == 5
    slab.close()


def test_a_slab_of_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockmgr.tiers.slab.FORMAT", 3)
    filled(path)
    monkeypatch.undo()
    with pytest.raises(SlabMismatchError, match="made for format 3, not 2"):
        open_slab(path)


@pytest.mark.parametrize(
    "text",
    [b"[]", b"3", b"null", b'{"layout": null}', b'{"layout": [1]}', b"{", b"\xff", b"[" * 4000],
    ids=lambda text: repr(text[:16]),
)
def test_an_identity_of_others_with_a_good_checksum_is_refused(path: Path, text: bytes) -> None:
    filled(path)
    body = MAGIC + len(text).to_bytes(4, "little") + text
    with path.open("r+b") as file:
        file.write(body + xxhash.xxh3_64_digest(body))
    for opened in (open_slab, slab_ground):
        with pytest.raises(SlabError, match="another file, or damaged"):
            opened(path)


def test_a_second_opener_in_this_process_is_refused(path: Path) -> None:
    slab = open_slab(path)
    with pytest.raises(SlabHeldError, match="open already"):
        open_slab(path)
    slab.close()
    open_slab(path).close()


def test_a_second_process_is_refused(path: Path) -> None:
    slab = open_slab(path)
    script = f"from tests.unit.slab_support import open_slab\nopen_slab({str(path)!r})"
    command = [sys.executable, "-c", script]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "SlabHeldError" in refused.stderr
    slab.close()
    subprocess.run(command, check=True)


FORKED = """
import os, sys
from blockmgr import ForkError
from tests.unit.slab_support import SIZE, content, judge, key_of, open_slab

path = sys.argv[1]
slab = open_slab(path)
serial = slab.write(0, key_of(0), content(key_of(0)))
ready, gone = os.pipe(), os.pipe()
child = os.fork()
if not child:
    into = bytearray(SIZE)
    for call in (
        lambda: slab.write(0, key_of(0), content(key_of(0))),
        lambda: slab.read(0, key_of(0), serial, into),
        lambda: slab.reset(),
    ):
        try:
            call()
        except ForkError as error:
            assert "belongs to the process" in str(error)
        else:
            os._exit(1)
    os.write(ready[1], b"x")
    os.read(gone[0], 1)  # outlives the slab of its parent
    os._exit(0)
os.read(ready[0], 1)
assert slab.read(0, key_of(0), serial, bytearray(SIZE))
slab.close()
again = open_slab(path)
assert judge(again) == ({key_of(0)}, 0)
os.write(gone[1], b"x")
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_may_not_use_it_and_does_not_keep_its_lock(path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(path)], check=True, timeout=60)


def test_a_path_that_is_no_slab_is_refused_and_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "letter"
    letter.write_text("not a slab" * 1000)
    for path, problem in (
        (letter, "another file, or damaged"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none" / "kv.slab", "there is no folder"),
        (letter / "kv.slab", "Not a directory"),
        (Path(os.devnull), "not a file"),
    ):
        with pytest.raises(SlabError, match=problem) as caught:
            open_slab(path)
        assert str(path) in str(caught.value)
    assert letter.read_text() == "not a slab" * 1000
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter"]
    with pytest.raises(ValueError, match="path must name a file"):
        open_slab("")


def test_a_slab_that_does_not_fit_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(SlabSpaceError, match=r"needs \d+ bytes, and \d+ are free") as caught:
        open_slab(tmp_path / "kv.slab", num_blocks=2**20, block_bytes=2**40)
    assert caught.value.needed > caught.value.available
    assert not list(tmp_path.iterdir())


def test_a_new_slab_takes_all_its_room_and_is_for_its_owner_only(path: Path) -> None:
    open_slab(path, num_blocks=64).close()
    about = path.stat()
    assert about.st_blocks * 512 >= 64 * SIZE
    assert stat.S_IMODE(about.st_mode) == 0o600


def test_what_a_creation_that_was_killed_left_is_made_anew(path: Path) -> None:
    draft = Path(f"{path}.blockmgr-new")
    draft.write_bytes(b"half of a slab")
    draft.chmod(0o666)
    open_slab(path).close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_slab_takes_no_file_of_others(path: Path) -> None:
    letter, draft = path.with_name("letter"), Path(f"{path}.blockmgr-new")
    letter.write_text("of others")
    draft.symlink_to(letter)
    with pytest.raises(SlabError, match="cannot open it"):
        open_slab(path)
    draft.unlink()
    letter.rename(f"{path}.new")
    open_slab(path).close()
    assert Path(f"{path}.new").read_text() == "of others"


def test_a_file_that_was_replaced_while_it_was_locked_is_not_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    flock = fcntl.flock

    def replaced(file: int, how: int) -> None:
        path.unlink()
        monkeypatch.undo()
        filled(path, 2)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with pytest.raises(SlabHeldError):
        open_slab(path)
    assert len(open_slab(path).found) == 2


@pytest.mark.parametrize("call", ["pread", "preadv", "pwrite", "fsync"])
def test_a_disk_that_fails_at_the_opening_is_told_so(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    filled(path)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(SlabError, match="the disk failed: Input/output error"):
            open_slab(path)
    assert len(open_slab(path).found) == 5  # the refusal keeps no lock


def test_a_file_that_ends_while_it_is_opened_is_told_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path)
    preadv = os.preadv

    def half(file: int, into: list[memoryview], at: int) -> int:
        part = memoryview(into[0])
        return preadv(file, [part[: -(-len(part) // 2)]], at)

    monkeypatch.setattr(os, "preadv", half)
    open_slab(path).close()  # it reads on
    monkeypatch.setattr(os, "preadv", lambda file, into, at: 0)
    with pytest.raises(SlabError, match="ends early"):
        open_slab(path)


def test_a_link_to_a_file_that_is_yet_to_be_made_stays_a_link(tmp_path: Path) -> None:
    disk, link = tmp_path / "disk", tmp_path / "kv.slab"
    disk.mkdir()
    link.symlink_to(disk / "kv.slab")
    for _ in range(2):
        open_slab(link).close()
    assert link.is_symlink()
    assert [entry.name for entry in disk.iterdir()] == ["kv.slab"]


LIMITED = """
import resource, sys
from tests.unit.slab_support import open_slab
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
open_slab(sys.argv[1])
"""


def test_a_limit_of_the_size_of_files_is_named(path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.rstrip().endswith("kv.slab: cannot make it: File too large")
    assert not list(path.parent.iterdir())


def write_two(slab: Slab, *, keys: int = 2, serials: int = 2, digests: int = 2) -> None:
    first, data = slab.take_serials(2), [bytes(SIZE)] * 2
    known = {"serials": [first, first + 1][:serials], "digests": [bytes(16)] * digests}
    list(slab.write_blocks([0, 1], [b"keys"] * keys, data, **known))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda s: s.write(8, b"keys", bytes(SIZE)), ValueError, r"block must be in \[0, 7\]"),
        (lambda s: s.write(0, b"key", bytes(SIZE)), ValueError, "key must have 4 bytes, got 3"),
        (lambda s: s.write(0, b"keys", b"short"), ValueError, "memory must have 4096 bytes, got 5"),
        (lambda s: s.read(-1, b"keys", 1, bytearray(SIZE)), ValueError, "block must be"),
        (lambda s: s.read(True, b"keys", 1, bytearray(SIZE)), TypeError, "block must be an int"),
        (lambda s: s.read(0, b"keys", 1, bytearray(1)), ValueError, "memory must have"),
        (lambda s: s.close(order=[8]), ValueError, r"order must be in \[0, 7\]"),
        (lambda s: s.close(order=[-1, 0]), ValueError, "order must be in"),
        (lambda s: s.close(order=[0] * 9), ValueError, "order must have at most 8 blocks, got 9"),
        (lambda s: s.close(order="ab"), TypeError, "order must be"),
        (lambda s: s.write(0, b"keys", bytes(SIZE), digest=bytes(8)), ValueError, "digest must"),
        (lambda s: s.write(0, b"keys", bytes(SIZE), digest="x" * 16), TypeError, "digest must"),
        (lambda s: s.write(0, "keys", bytes(SIZE)), TypeError, "key must be bytes, got str"),
        (lambda s: s.write(0, bytearray(4), bytes(SIZE)), TypeError, "bytes, got bytearray"),
        (lambda s: s.read(0, "keys", 1, bytearray(SIZE)), TypeError, "key must be bytes, got"),
        (lambda s: s.write(0, b"keys", bytes(SIZE), serial=1), ValueError, "serial must be in"),
        (lambda s: s.write(0, b"keys", bytes(SIZE), serial=1.5), TypeError, "serial must be an"),
        (
            lambda s: s.write(0, b"keys", bytes(SIZE), serial=2**64),
            ValueError,
            "serial must be in .*, got 184",
        ),
        (lambda s: write_two(s, serials=1), ValueError, "serials must be one for each of 2, got 1"),
        (lambda s: write_two(s, digests=1), ValueError, "digests must be one for each of 2, got 1"),
        (lambda s: write_two(s, keys=3), ValueError, "keys must be one for each of 2, got 3"),
        (lambda s: [*s.read_digests([0], [b"keys"], [], [bytearray(SIZE)])], ValueError, "serials"),
        (lambda s: open_slab(s.path, num_blocks=0), ValueError, "num_blocks must be"),
        (lambda s: open_slab(s.path, block_bytes=0.5), TypeError, "block_bytes must be an int"),
        (lambda s: open_slab(s.path, layout={"x": "y" * 4096}), ValueError, "layout must fit"),
        (lambda s: open_slab(s.path, layout={1: "x"}), TypeError, "layout must have str as names"),
        (lambda s: open_slab(s.path, layout={"x": 0.5}), TypeError, "must be an int, got 0.5"),
        (lambda s: open_slab(s.path, layout={"x": None}), TypeError, r"layout\['x'\] must be"),
        (lambda s: Slab(s.path, None, **SIZES), TypeError, "layout must map names"),
        (lambda s: open_slab(os.fsencode(s.path)), TypeError, "path must be a str or a path"),
        (lambda s: open_slab(5), TypeError, "path must be a str or a path, got int"),
        (lambda s: open_slab("a\0b"), ValueError, "path must name a file"),
    ],
)
def test_wrong_values_are_refused_by_name(
    path: Path, call: Any, error: type[Exception], message: str
) -> None:
    slab = open_slab(path)
    with pytest.raises(error, match=message):
        call(slab)
    slab.close()
    for use in (lambda: slab.write(0, b"keys", bytes(SIZE)), slab.reset):
        with pytest.raises(ValueError, match="is closed"):
            use()
    slab.close()


def test_numpy_integers_make_the_same_slab(path: Path) -> None:
    slab = open_slab(path)
    serial = slab.write(7, b"keys", bytes(SIZE))
    slab.close()
    numbers = {name: np.int16(value) for name, value in SIZES.items()}
    again = open_slab(path, layout={"rank": np.uint8(0)}, **numbers)
    assert again.read(7, b"keys", serial, bytearray(SIZE))
    again.erase([np.int8(7)])
    assert not again.read(7, b"keys", serial, bytearray(SIZE))
    again.close()


@pytest.mark.parametrize("name", ["format", "layout", "num_blocks"])
def test_a_layout_may_use_the_names_of_the_format(path: Path, name: str) -> None:
    open_slab(path, layout={name: "bf16"}).close()
    with pytest.raises(SlabMismatchError, match=f"it was made for {name} 'bf16', not 'fp8'"):
        open_slab(path, layout={name: "fp8"})
    open_slab(path, layout={name: "bf16"}).close()


@pytest.mark.parametrize(
    "error",
    [
        SlabError("a", "it is wrong"),
        SlabHeldError("a"),
        SlabMismatchError("a", "model", "x", "y"),
        SlabSpaceError("a", 2, 1),
    ],
)
def test_errors_survive_pickling(error: SlabError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_slab_that_nobody_closed_is_released_with_its_object(path: Path) -> None:
    slab: Slab | None = open_slab(path)
    assert slab is not None
    del slab
    open_slab(path).close()
