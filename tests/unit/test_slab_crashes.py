"""A slab after kill -9 at each write, and after a power failure that kept any of the writes."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.slab_support import SIZE, content, judge, key_of, open_slab

# Children write to eight blocks again and again. Each is killed at its nth write to the file, with
# none, half or all of that write done.
KILLED = """
import os, random, signal, sys
from tests.unit.slab_support import SIZE, content, judge, key_of, open_slab

path, points = sys.argv[1], int(sys.argv[2])
plain = os.pwrite
proved = refused = 0

def run(point):
    rng = random.Random(point)
    calls = 0
    def pwrite(file, data, at):
        nonlocal calls
        calls += 1
        if calls < 1 + point // 3:
            return plain(file, data, at)
        size = len(data) * (point % 3) // 2
        if size:
            # Not the direct file, whose transfers have whole pages.
            plain(slab_file(), bytes(data[:size]), at)
        os.kill(os.getpid(), signal.SIGKILL)
    def slab_file():
        return os.open(path, os.O_RDWR)
    os.pwrite = pwrite
    slab = open_slab(path)
    while True:
        key = key_of(rng.randrange(40))
        slab.write(rng.randrange(8), key, content(key))

for point in range(points):
    child = os.fork()
    if not child:
        run(point)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    slab = open_slab(path)
    found, bad = judge(slab)
    proved, refused = proved + len(found), refused + bad
    slab.close()
print(proved, refused)
"""


def test_no_kill_at_any_write_makes_a_wrong_block(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "kv.slab"), "201"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    proved, refused = map(int, done.stdout.split())
    # Each kill spoils at most one of the eight blocks, and most are whole.
    assert proved > 4 * 201
    assert 0 < refused <= 201


@dataclass
class Write:
    at: int
    data: bytes


class Recording:
    """The file as it was, and each write and sync since then (``None``)."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.base = path, path.read_bytes()
        self.events: list[Write | None] = []
        pwrite, fsync = os.pwrite, os.fsync

        def recorded(file: int, data: bytes, at: int) -> int:
            count = pwrite(file, data, at)
            self.events.append(Write(at, bytes(data)[:count]))
            return count

        def synced(file: int) -> None:
            fsync(file)
            self.events.append(None)

        monkeypatch.setattr(os, "pwrite", recorded)
        monkeypatch.setattr(os, "fsync", synced)

    def image(self, stop: int, rng: random.Random | None) -> bytes:
        """What a disk has after a power failure at the event ``stop``.

        All that was synced; of the rest everything (no ``rng``), or any of it in any order: of
        four writes two are whole, one is lost, and one has only some of its sectors.
        """
        events = self.events[:stop]
        synced = max((i for i, event in enumerate(events) if event is None), default=0)
        kept = [event for event in events[:synced] if event]
        loose = [event for event in events[synced:] if event]
        if rng is not None:
            loose = [part for write in loose for part in survivors(write, rng)]
            rng.shuffle(loose)
        disk = bytearray(self.base)
        for write in (*kept, *loose):
            disk[write.at : write.at + len(write.data)] = write.data
        return bytes(disk)


def survivors(write: Write, rng: random.Random) -> list[Write]:
    """Some of the pieces of a write that a disk writes alone."""
    kept = rng.choice((1.0, 1.0, 0.5, 0.0))
    first = -write.at % 512
    cuts = [0, *range(first, len(write.data), 512), len(write.data)]
    pairs = itertools.pairwise(cuts)
    return [Write(write.at + a, write.data[a:b]) for a, b in pairs if b > a and rng.random() < kept]


def test_no_power_failure_makes_a_wrong_block_or_undoes_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every prefix of a run's writes, and for each some of the orders that a disk may choose."""
    path, failed = tmp_path / "kv.slab", tmp_path / "failed.slab"
    open_slab(path).close()
    recording = Recording(path, monkeypatch)
    reset_at = 0
    for run in range(2):
        slab = open_slab(path)
        for i in range(12):
            key = key_of(100 * run + i % 9)
            slab.write(i * 5 % 8, key, content(key))
        if not run:
            slab.reset()
            reset_at = len(recording.events)
        slab.close()
    monkeypatch.undo()

    proved = 0
    rng = random.Random(0)
    for stop in range(len(recording.events) + 1):
        for image in (None, *(rng for _ in range(5))):
            failed.write_bytes(recording.image(stop, image))
            slab = open_slab(failed)
            found, _ = judge(slab)
            proved += len(found)
            before = {key for key in found if int.from_bytes(key, "little") < 100}
            assert stop < reset_at or not before, "a reset was undone"
            slab.close()
    assert proved > 500


def test_a_serial_is_not_given_again_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the opening is on disk before a serial of it is."""
    path, failed = tmp_path / "kv.slab", tmp_path / "failed.slab"
    open_slab(path).close()
    recording = Recording(path, monkeypatch)
    slab = open_slab(path)
    serials = [slab.write(i, key_of(i), content(key_of(i))) for i in range(3)]
    slab.close()
    first = next(i for i, e in enumerate(recording.events) if e and len(e.data) == SIZE)
    monkeypatch.undo()
    rng = random.Random(1)
    for stop in range(first, len(recording.events) + 1):
        for _ in range(10):
            failed.write_bytes(recording.image(stop, rng))
            slab = open_slab(failed)
            assert slab.write(7, key_of(7), content(key_of(7))) not in serials
            slab.close()
