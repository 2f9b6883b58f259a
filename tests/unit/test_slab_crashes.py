"""A slab after kill -9 at any write, and after a power failure that kept any of the writes.

``python -m tests.unit.test_slab_crashes`` kills at each call that changes the file, and tries every
order of writes that a disk may choose; the tests take some of both.
"""

from __future__ import annotations

import argparse
import itertools
import math
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blockmgr.tiers import Slab
from tests.unit.slab_support import SIZE, content, judge, key_of, open_slab

LIVES = 3
Say = Callable[..., object]


def live(path: Path | str, num_blocks: int, say: Say, *, writes: int) -> None:
    """Opens a slab three times: stores, reads, erases, resets, closes; says what it begins and did.

    No key is written twice, so a key that is found says which write made it.
    """
    rng, numbers = random.Random(3), itertools.count()
    for life in range(LIVES):
        slab = open_slab(path, num_blocks=num_blocks)
        judge(slab)
        for _ in range(writes):
            count = rng.choice((1, 1, 3))
            first = rng.randrange(num_blocks - count + 1)
            blocks, keys = (
                range(first, first + count),
                [key_of(next(numbers)) for _ in range(count)],
            )
            data: list[bytes | mmap.mmap] = [content(key) for key in keys]
            if rng.random() < 0.5:  # past the page cache
                data = [mmap.mmap(-1, SIZE) for _ in keys]
                for each, key in zip(data, keys, strict=True):
                    each[:] = content(key)
            serial = slab.take_serials(count)
            for i, (block, key) in enumerate(zip(blocks, keys, strict=True)):
                say("write", block, int.from_bytes(key, "little"), serial + i)
            serials = range(serial, serial + count)
            for _ in slab.write_blocks(blocks, keys, data, serials=serials):
                pass
            for _ in blocks:
                say("written")
        say("erase", 0)
        slab.erase([0])
        say("done")
        if life == 1:
            say("reset")
            slab.reset()
            say("done")
        slab.close(order=range(num_blocks))


@dataclass
class Promises:
    """What a slab owes after a crash: blocks that were written, and nothing that is gone.

    A write is promised when it returned, and after a power failure if a sync came after it; an
    ``erase`` and a ``reset`` are as soon as they returned.
    """

    kept: dict[int, int] = field(default_factory=dict)
    serials: set[int] = field(default_factory=set)
    begun: list[tuple[str, list[int]]] = field(default_factory=list)

    def hear(self, what: str, *of: int) -> None:
        if what not in ("written", "done"):
            self.begun.append((what, list(of)))
            if what == "write":
                self.serials.add(of[2])
            return
        call, of_it = self.begun.pop()
        if call == "write":
            self.kept[of_it[0]] = of_it[1]
        elif call == "erase":
            self.kept.pop(of_it[0], None)
            self.begun = [each for each in self.begun if each[1][:1] != of_it]
        else:
            self.kept.clear()
            self.begun.clear()

    def check(self, slab: Slab) -> tuple[int, int]:
        """How many blocks are found and proved, and how many are refused."""
        proved, refused = judge(slab)
        found = {int.from_bytes(key, "little") for key in proved}
        is_reset = any(call == "reset" for call, _ in self.begun)
        open_blocks = {of[0] for _, of in self.begun if of}
        sure = {k for b, k in self.kept.items() if b not in open_blocks and not is_reset}
        allowed = {*self.kept.values(), *(of[1] for call, of in self.begun if call == "write")}
        assert sure <= found, f"{sure - found} are lost"
        assert found <= allowed, f"{found - allowed} came back"
        new = slab.write(0, key_of(999), content(key_of(999)))
        assert new not in self.serials, "a serial was given twice"
        return len(found), refused


# ---- kill -9 ------------------------------------------------------------------------------


class Killer:
    """Counts calls that change a file, and ends the process in one: with none, half or all done."""

    def __init__(self, point: int | None) -> None:
        self.calls = 0
        self.at, self.part = divmod(-3 if point is None else point, 3)
        self.pwrite = os.pwrite
        for name in ("pwrite", "pwritev", "fsync", "rename"):
            setattr(os, name, self.hooked(getattr(os, name)))

    def hooked(self, plain: Callable[..., int]) -> Callable[..., int]:
        def call(*args: object) -> int:
            if self.calls == self.at:
                if self.part == 1 and plain.__name__ in ("pwrite", "pwritev"):
                    self.half(*args)  # type: ignore[arg-type]
                elif self.part == 2:
                    plain(*args)
                os.kill(os.getpid(), signal.SIGKILL)
            self.calls += 1
            return plain(*args)

        return call

    def half(self, file: int, data: memoryview | list[memoryview], at: int) -> None:
        data = b"".join(data) if isinstance(data, list) else bytes(data)
        # Not the direct file, whose transfers have whole pages.
        buffered = os.open(f"/proc/self/fd/{file}", os.O_RDWR)
        self.pwrite(buffered, data[: len(data) // 2], at)


def in_a_child(path: Path, point: int | None) -> tuple[list[str], int]:
    """Runs until a point; what the run said, and the number of its calls if it had an end."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        killer = Killer(point)
        live(
            path,
            8,
            lambda *said: os.write(write, f"{' '.join(map(str, said))}\n".encode()),
            writes=9,
        )
        os.write(write, f"calls {killer.calls}\n".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    if point is None:
        assert status == 0
        return said[:-1], int(said.pop().split()[1])
    assert os.WTERMSIG(status) == signal.SIGKILL, said
    return said, 0


def kills(folder: Path, most: int | None) -> tuple[int, int, int]:
    """The number of kills, and of blocks that were proved and refused after them."""
    _, calls = in_a_child(folder / "whole.slab", None)
    points = range(3 * calls)
    chosen = points if most is None else random.Random(most).sample(points, most)
    proved = refused = 0
    for point in chosen:
        path = folder / f"{point}.slab"
        said, _ = in_a_child(path, point)
        promises = Promises()
        for line in said:
            what, *of = line.split()
            promises.hear(what, *map(int, of))
        slab = open_slab(path)
        good, bad = promises.check(slab)
        slab.close()
        path.unlink()
        proved, refused = proved + good, refused + bad
    return len(chosen), proved, refused


# ---- power failures -----------------------------------------------------------------------


@dataclass
class Write:
    at: int
    data: bytes


@dataclass
class Recording:
    """The file as it was, each write and sync since then (``None``), and what the run said."""

    base: bytes
    events: list[Write | None] = field(default_factory=list)
    said: list[tuple[int, tuple[object, ...]]] = field(default_factory=list)

    def say(self, *said: object) -> None:
        self.said.append((len(self.events), said))

    def barriers(self) -> Iterator[tuple[list[Write], list[Write], Promises]]:
        """For each sync and the end: the writes that are synced, and those that are under way.

        What is lost of the latter may be any of them, so a failure before any one is one of these.
        """
        ends = [i for i, event in enumerate(self.events) if event is None]
        for synced, stop in itertools.pairwise([0, *ends, len(self.events)]):
            promises = Promises()
            for at, said in self.said:
                if at <= synced + 1 or (at <= stop and said != ("written",)):
                    promises.hear(*said)  # type: ignore[arg-type]
            kept = [event for event in self.events[:synced] if event]
            yield kept, [event for event in self.events[synced:stop] if event], promises

    def image(self, *writes: Write) -> bytes:
        disk = bytearray(self.base)
        for write in writes:
            disk[write.at : write.at + len(write.data)] = write.data
        return bytes(disk)


def orders(loose: list[Write], most: int | None) -> Iterator[list[Write]]:
    """What a disk may have of these writes, whole or not at all: all of it, or some of it.

    Two writes to one place count by the one that came last, which may be either.
    """
    places: dict[int, list[Write | None]] = {}
    for write in loose:
        places.setdefault(write.at, [None]).append(write)
    choices = list(places.values())
    if most is None or math.prod(map(len, choices)) <= most:
        chosen: Iterator[tuple[Write | None, ...]] = itertools.product(*choices)
    else:
        rng = random.Random(most)
        chosen = (tuple(rng.choice(each) for each in choices) for _ in range(most))
    return ([write for write in each if write] for each in chosen)


def torn(loose: list[Write], rng: random.Random) -> list[Write]:
    """Of four writes two are whole, one is lost, one has some of its sectors; in any order."""
    pieces = []
    for write in loose:
        kept = rng.choice((1.0, 1.0, 0.5, 0.0))
        cuts = [0, *range(-write.at % 512, len(write.data), 512), len(write.data)]
        pairs = [(a, b) for a, b in itertools.pairwise(cuts) if b > a and rng.random() < kept]
        pieces += [Write(write.at + a, write.data[a:b]) for a, b in pairs]
    rng.shuffle(pieces)
    return pieces


def recorded(path: Path, num_blocks: int, writes: int) -> Recording:
    open_slab(path, num_blocks=num_blocks).close()
    recording = Recording(path.read_bytes())
    pwrite, pwritev, fsync = os.pwrite, os.pwritev, os.fsync

    def write(file: int, data: memoryview, at: int) -> int:
        count = pwrite(file, data, at)
        recording.events.append(Write(at, bytes(data[:count])))
        return count

    def write_run(file: int, data: list[memoryview], at: int) -> int:
        count = pwritev(file, data, at)
        recording.events.append(Write(at, b"".join(data)[:count]))
        return count

    def sync(file: int) -> None:
        fsync(file)
        recording.events.append(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        patch.setattr(os, "pwritev", write_run)
        patch.setattr(os, "fsync", sync)
        live(path, num_blocks, recording.say, writes=writes)
    return recording


def power_failures(folder: Path, num_blocks: int, most: int | None) -> tuple[int, int, int]:
    """The number of failures, and of blocks that were proved and refused after them."""
    recording = recorded(folder / "kv.slab", num_blocks, 2 * num_blocks)
    failed = folder / "failed.slab"
    rng = random.Random(0)
    count = proved = refused = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)  # the checks need none
        for kept, loose, promises in recording.barriers():
            some = [torn(loose, rng) for _ in range(20 if most else 200)]
            for lucky in itertools.chain(orders(loose, most), some):
                failed.write_bytes(recording.image(*kept, *lucky))
                slab = open_slab(failed, num_blocks=num_blocks)
                good, bad = promises.check(slab)
                slab.close()
                count, proved, refused = count + 1, proved + good, refused + bad
    return count, proved, refused


# ---- small and full size ------------------------------------------------------------------


def test_no_kill_makes_a_wrong_block_or_loses_one_that_was_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", __spec__.name, "--kills", "50", "--folder", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    count, proved, refused = map(int, done.stdout.split()[:3])
    assert count == 50
    assert proved > count
    assert 0 < refused <= 3 * count, "each kill spoils at most the blocks of one run"


def test_no_power_failure_makes_a_wrong_block_or_undoes_a_reset(tmp_path: Path) -> None:
    """Nor loses a block that was synced, brings one back, or gives a serial again."""
    count, proved, refused = power_failures(tmp_path, num_blocks=3, most=100)
    assert count > 500
    assert proved > 300
    assert refused > 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.unit.test_slab_crashes")
    parser.add_argument(
        "--kills", type=int, help="kill at so many points only, and do nothing else"
    )
    parser.add_argument("--folder", type=Path, help="where the files of --kills go")
    args = parser.parse_args()
    said = "{}: {} blocks proved and {} refused afterwards, 0 wrong, 0 lost, 0 came back"
    if args.kills is not None:
        print(*kills(args.folder, args.kills))
        return
    with tempfile.TemporaryDirectory() as name:
        count, *found = kills(Path(name), None)
        print(said.format(f"{count} kills", *found), flush=True)
        count, *found = power_failures(Path(name), 4, None)
        print(said.format(f"{count} power failures", *found))


if __name__ == "__main__":
    main()
