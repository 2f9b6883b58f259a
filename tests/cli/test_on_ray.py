"""Sweeps and fleets on a Ray cluster: the same results, and typed errors instead of hangs.

All tests share one cluster on this machine. Every wait has a time limit.
"""

from __future__ import annotations

import os
import secrets
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import Result

from blockmgr import ClusterLostError, MissingExtraError
from blockmgr.lab import workers
from blockmgr.lab.fleets import fleets
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import Sweep, sweep
from blockmgr.lab.trace import Trace
from blockmgr.lab.workers import RayCluster
from blockmgr.lab.workloads import generate

CONFIG = ReplayConfig(min_service_ms=0, service_ms_per_token=0)
BOUNDS: dict[str, Any] = {"connect_s": 90.0, "silence_s": 60.0, "limit_s": 180.0}

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")

CLUSTER = """
import sys, ray
context = ray.init(
    address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
    configure_logging=False, _temp_dir=sys.argv[1],
)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


class Cluster:
    """A cluster with two processors, started by a separate process."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(90), "the cluster does not start"
        address = self.process.stdout.readline().decode().strip()
        self.jobs = RayCluster(address=address, **BOUNDS)

    def processes(self, name: str) -> list[int]:
        """All descendants of a process, found by a part of their command."""
        parents, commands = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2]
                parents[int(folder.name)] = int(stat.split()[1])
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().decode()
        found = []
        for process, command in commands.items():
            above = process
            while above in parents and above != self.process.pid:
                above = parents[above]
            if above == self.process.pid and name in command:
                found.append(process)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Paths of sockets must be short.
    folder = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with folder as path, pytest.MonkeyPatch.context() as patch:
        # Other users of this machine can reach its ports, and must not get access.
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        made = Cluster(Path(path))
        yield made
        made.close()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate("chat", 3, conversations=30)


def swept(trace: Trace, jobs: int | RayCluster) -> Sweep:
    configs = [replace(CONFIG, block_size=size) for size in (8, 16)]
    return sweep(trace, parse_capacities("10%,20%"), configs, policies=("lru", "arc"), jobs=jobs)


@needs_ray
def test_a_cluster_prints_what_one_process_prints_even_if_a_worker_is_killed(
    run: Callable[..., Result], cluster: Cluster, trace: Trace
) -> None:
    killed = threading.Event()
    ended = threading.Event()

    def kill_one() -> None:
        while not ended.is_set():
            for process in cluster.processes("ray::run_there")[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    killed.set()
                    return

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    try:
        assert swept(trace, cluster.jobs) == swept(trace, 1)
    finally:
        ended.set()
        killer.join(10)
    assert killed.is_set()

    words = ["fleet", "chat", "--replicas", "1,2", "--routers", "session,random", "--json"]
    there = run(*words, "--ray", cluster.jobs.address)
    assert there.exit_code == 0, there.stderr
    assert there.stdout == run(*words, "--jobs", "1").stdout


@needs_ray
def test_requests_of_the_warm_up_are_not_counted_there_either(
    cluster: Cluster, trace: Trace
) -> None:
    sizes = parse_capacities("20%")
    cold, here, there = (
        sweep(trace, sizes, CONFIG, warmup=warmup, jobs=jobs)
        for warmup, jobs in ((0, 1), (20, 1), (20, cluster.jobs))
    )
    assert there == here != cold


@needs_ray
def test_a_cluster_that_is_started_for_the_work_gives_the_same(trace: Trace) -> None:
    [capacity] = parse_capacities("50%")

    def counts(jobs: int | RayCluster) -> list[Any]:
        rows = fleets(trace, [1, 2], capacity, CONFIG, routers=["session"], jobs=jobs)
        return [
            (
                [one.as_plain for one in row.result.replicas],
                row.best_hit_rate,
                row.result.first_token_ms.tolist(),
            )
            for row in rows
            if row.result is not None
        ]

    assert counts(RayCluster(num_cpus=1, **BOUNDS)) == counts(1)


@needs_ray
def test_an_error_of_a_task_and_a_limit_are_told_as_they_are(
    cluster: Cluster, trace: Trace
) -> None:
    sizes = parse_capacities("20%")
    with pytest.raises(ValueError, match="eviction must be one of lru"):
        sweep(trace, sizes, CONFIG, policies=("fifo",), jobs=cluster.jobs)
    hurried = RayCluster(address=cluster.jobs.address, **{**BOUNDS, "limit_s": 1e-6})
    with pytest.raises(TimeoutError, match="tasks must end within limit_s"):
        swept(trace, hurried)


@needs_ray
def test_a_cluster_that_dies_in_the_middle_is_a_typed_error(cluster: Cluster, trace: Trace) -> None:
    calls = []

    def end_it() -> None:
        calls.append(cluster.processes("raylet/raylet"))
        for process in calls[0] if len(calls) == 1 else []:
            os.kill(process, signal.SIGKILL)

    sizes = parse_capacities("10%,20%,30%,40%")
    with pytest.raises(ClusterLostError, match=r"the cluster at 1.* is lost") as lost:
        sweep(trace, sizes, CONFIG, policies=("lru", "arc"), jobs=cluster.jobs, advance=end_it)
    assert calls[0]
    assert lost.value.address == cluster.jobs.address


def test_a_cluster_that_is_not_there_is_a_typed_error_at_once(
    run: Callable[..., Result], trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda _: True)  # the command does not use Ray
    nowhere = RayCluster(address="127.0.0.1:1")
    with pytest.raises(ClusterLostError, match=r"the cluster at 127\.0\.0\.1:1 is lost: does not"):
        fleets(trace, [1], parse_capacities("50%")[0], CONFIG, routers=["random"], jobs=nowhere)
    result = run("sweep", "chat", "--capacity", "20%", "--ray", "127.0.0.1:1")
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
    assert "the cluster at 127.0.0.1:1 is lost" in result.stderr


def test_without_ray_the_extra_is_named(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[ray\]'"):
        swept(trace, RayCluster())


def test_machines_of_another_version_are_refused() -> None:
    with pytest.raises(ValueError, match=r"version must be 0\.0 on each machine of the cluster"):
        workers.run_there([None], "0.0", print)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": "somewhere"}, "address must be local, auto or HOST:PORT, got 'somewhere'"),
        ({"address": "host:"}, "address must be local, auto or HOST:PORT, got 'host:'"),
        ({"address": "auto", "num_cpus": 2}, "num_cpus must be None for a cluster that runs"),
        ({"num_cpus": 0}, "num_cpus must be in"),
        ({"connect_s": 0}, "connect_s must be above 0"),
        ({"silence_s": -1}, "silence_s must be above 0"),
        ({"limit_s": 0}, "limit_s must be above 0"),
        ({"retries": -1}, "retries must be in"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayCluster(**changes)
