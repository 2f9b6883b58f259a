"""Two engines on a real Mooncake Store, whose owner and master are killed.

``python -m tests.engines.mooncake`` runs them, with full attention and with windows.
The first process lends its memory, and stores the first turns of some conversations. The second one
finds them. Then the first is killed under load, and later the master. Tokens must be those of an
engine without tiers throughout, and the longest ``admit`` about the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from blockmgr.ports.engine import Engine, Sampling
from blockmgr.tiers import HostTier, MooncakeTier, SharedStorage
from tests.ports.engine_models import VOCAB, engine_of

LENT = 64 << 20
SHAPES = {"Llama": 100, "Gemma3Text": 300}  # blocks of the device, fewer than all prompts need
GREEDY = Sampling(max_new_tokens=4)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def master() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A master on this machine, and its address."""
    import mooncake

    program = Path(mooncake.__file__).parent / "mooncake_master"
    port, metrics = free_port(), free_port()
    options = [f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
    process = subprocess.Popen(
        [program, *options, "--metrics_host=127.0.0.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
        yield f"127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def owner(address: str, name: str = "Llama") -> Iterator[subprocess.Popen[str]]:
    """A first process, which has stored the first turns and keeps its memory."""
    command = [sys.executable, "-m", "tests.engines.mooncake", "owner", address, name]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert any(line == "ready\n" for line in process.stdout), process.wait()
        yield process
    finally:
        process.kill()
        process.communicate()  # and closes the pipes


def prompts(count: int = 12, seed: int = 7) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (count, 60), generator=random).tolist()


def engine_on(*tiers: HostTier | MooncakeTier, name: str = "Llama") -> Engine:
    return engine_of(name, num_blocks=SHAPES[name], block_size=4, tiers=tiers)


class Timed:
    """The longest ``admit``, ``match_tiers`` or ``look_up``, and the longest time of its thread."""

    def __init__(self, engine: Engine) -> None:
        self.longest = self.longest_work = 0.0
        for name in ("admit", "match_tiers", "look_up"):
            if hasattr(engine.manager, name):
                self.time(engine.manager, name)

    def time(self, manager: Any, name: str) -> None:
        call = getattr(type(manager), name)

        def timed(*args: Any, **options: Any) -> Any:
            start, worked = time.perf_counter(), time.thread_time()
            try:
                return call(*args, **options)
            finally:
                self.longest = max(self.longest, time.perf_counter() - start)
                self.longest_work = max(self.longest_work, time.thread_time() - worked)

        cls = type(manager)
        changed = type(cls.__name__, (cls,), {name: timed, "__slots__": ()})
        manager.__class__ = changed


def turns(engine: Engine, kill: Any = None, *, rounds: int = 20) -> tuple[list[Any], list[int]]:
    """All conversations, four turns each time; ``kill`` is called while the second turn runs."""
    talks, answers, cached = prompts(), [], []
    for number in range(rounds):
        if number % 4 == 0:
            talks = prompts()
        timer = threading.Timer(0.02, kill) if kill is not None and number == 1 else None
        if timer is not None:
            timer.start()
        found = engine.generate(talks, GREEDY)
        if timer is not None:
            timer.join()
        answers.append([each.tokens for each in found])
        cached.append(sum(each.num_cached_tokens for each in found))
        for talk, each in zip(talks, found, strict=True):
            talk += [*each.tokens, 1, 2, 3]
    return answers, cached


def show(name: str, engine: Engine, kill: Any, truth: Any) -> Any:
    timed, start = Timed(engine), time.perf_counter()
    answers, cached = turns(engine, kill)
    took = time.perf_counter() - start
    place = engine._tiers and engine._tiers._places[-1]
    said = place.stats() if isinstance(place, SharedStorage) else ""
    print(
        f"{name:14} cached by turn {[sum(cached[i::4]) // 5 for i in range(4)]}, longest admit "
        f"{timed.longest * 1e3:5.2f} ms, {timed.longest_work * 1e3:.2f} of its thread, "
        f"{took:.2f} s, tokens {'equal' if truth in (None, answers) else 'DIFFER'}  {said}",
        flush=True,
    )
    engine.close()
    assert truth in (None, answers)
    return answers


def report(name: str) -> None:
    """All rows of one model."""
    print(name, flush=True)
    truth = show("no tiers", engine_on(name=name), None, None)
    show("host memory", engine_on(HostTier(bytes_to_use=LENT), name=name), None, truth)
    with master() as (address, process):
        tier = MooncakeTier(master=address, lent_bytes=LENT)
        with owner(address, name):
            show("second process", engine_on(tier, name=name), None, truth)
        with owner(address, name) as first:
            kill = lambda: os.kill(first.pid, signal.SIGKILL)  # noqa: E731
            show("owner killed", engine_on(MooncakeTier(master=address), name=name), kill, truth)
        with owner(address, name):
            show("master killed", engine_on(tier, name=name), process.kill, truth)


def main() -> None:
    if sys.argv[1:2] == ["owner"]:
        address, name = sys.argv[2:4]
        engine = engine_on(MooncakeTier(master=address, lent_bytes=LENT), name=name)
        turns(engine, rounds=1)
        while engine._tiers is not None and engine._tiers._mover.poll():
            engine._tiers._mover.drain()
        print("ready", flush=True)
        sys.stdin.read()
        return
    for name in SHAPES:
        report(name)


if __name__ == "__main__":
    main()
