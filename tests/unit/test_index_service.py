"""The index as a process: two workers, HTTP, metrics, and crashes of parts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockManager, EndpointError
from tests.unit.engine import cache

pytest.importorskip("msgspec", reason="the extra 'index'")
pytest.importorskip("zmq", reason="the extra 'index'")
pytest.importorskip("starlette", reason="the extra 'index'")
pytest.importorskip("uvicorn", reason="the extra 'index'")
pytest.importorskip("httpx2", reason="starlette's test client")

import httpx2
import msgspec
import zmq
from click.testing import CliRunner
from starlette.testclient import TestClient

from blockmgr.cli import cli
from blockmgr.event_columns import EventKind
from blockmgr.events import Publisher, Subscriber, wire
from blockmgr.events.codec import decode_hashes
from blockmgr.index import WorkerIndex, reading
from blockmgr.index import feeds as feeds_module
from blockmgr.index.reading import ReadingProcess
from blockmgr.index.service import MOST_BYTES, Feeds, application

ANY = "tcp://127.0.0.1:0"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Polls a condition while other processes and threads work."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was never true"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def process() -> Iterator[ReadingProcess]:
    lost: list[bool] = []
    with closing(ReadingProcess(lambda: lost.append(True), retry_s=0.05)) as made:
        yield made
    assert not lost


@pytest.fixture(params=["threads", "process"])
def feeds(request: pytest.FixtureRequest) -> Iterator[Feeds]:
    """Feeds that threads read, and feeds that another process reads."""
    make = None if request.param == "threads" else request.getfixturevalue("process").make
    made = Feeds(WorkerIndex(max_workers=4), retry_s=0.05, make=make)
    yield made
    made.close()


@pytest.fixture
def client(feeds: Feeds) -> Iterator[TestClient]:
    with TestClient(application(feeds)) as made:
        yield made


def manager_with(*prompts: list[int]) -> BlockManager:
    manager = BlockManager(64, 2, events=True)
    for prompt in prompts:
        cache(manager, prompt)
    return manager


def test_it_says_which_worker_has_a_prompt(feeds: Feeds, client: TestClient) -> None:
    managers = [manager_with([1, 2, 3, 4, 5]), manager_with([1, 2, 9])]
    publishers = [Publisher(manager, 2, ANY, ANY) for manager in managers]
    for name, publisher in zip("ab", publishers, strict=True):
        told = {
            "worker": name,
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
        }
        assert client.post("/workers", json=told).status_code == 201
    digests = [digest.hex() for digest in managers[0].block_digests([1, 2, 3, 4])]

    def found() -> dict[str, int]:
        answer = client.post("/place", json={"digests": digests}).json()
        return {each["worker"]: each["num_blocks"] for each in answer["workers"]}

    until(lambda: found() == {"a": 2, "b": 1})
    answer = client.post("/place", json={"digests": digests}).json()
    assert answer["workers"][0] == {
        "worker": "a", "num_blocks": 2, "tiers": {"device": 2}, "score": 1.0,
    }  # fmt: skip
    assert client.post("/workers/a/load", json={"load": 0.9}).status_code == 204
    assert client.post("/place", json={"digests": digests}).json()["workers"][0]["worker"] == "b"
    shown = [{"worker": "a", "current": True}, {"worker": "b", "current": True}]
    until(lambda: client.get("/workers").json()["workers"] == shown)
    metrics = client.get("/metrics").text
    assert 'blockmgr_index_blocks{tier="device",worker="a"} 2.0' in metrics
    assert 'blockmgr_index_current{worker="b"} 1.0' in metrics
    assert client.delete("/workers/a").status_code == 204
    assert set(found()) == {"b"}
    for publisher in publishers:
        publisher.close()


def test_a_worker_that_dies_has_nothing_and_is_back_when_it_is(
    feeds: Feeds, client: TestClient
) -> None:
    """Report 8: after a restart, neither stale entries nor missing ones."""
    first = manager_with([1, 2, 3])
    publisher = Publisher(first, 2, ANY, ANY)
    addresses = publisher.endpoint, str(publisher.replay_endpoint)
    feeds.add("w", *addresses)
    until(lambda: feeds.index.num_blocks("w") == 1)
    publisher.close()
    until(lambda: feeds.index.num_blocks("w") == 0)
    with closing(Publisher(manager_with([4, 5, 6, 7, 8]), 2, *addresses)):
        until(lambda: feeds.index.num_blocks("w") == 2)


def test_the_ranks_of_an_engine_are_workers_at_ports_in_a_row(feeds: Feeds) -> None:
    """One index serves all data-parallel ranks of an engine."""
    for base in range(20_000, 60_000, 7):  # four free ports
        first, replay = f"tcp://127.0.0.1:{base}", f"tcp://127.0.0.1:{base + 2}"
        managers = [manager_with([rank, 2, 3]) for rank in range(2)]
        with ExitStack() as stack:
            try:
                for rank, manager in enumerate(managers):
                    stack.enter_context(Publisher(manager, 2, first, replay, rank=rank))
            except EndpointError:
                continue
            assert feeds.add_ranks("e", first, replay, 2) == ["e/0", "e/1"]
            until(lambda: all(feeds.index.num_blocks(f"e/{rank}") == 1 for rank in range(2)))
            [digest] = managers[1].block_digests([1, 2])
            assert feeds.index.found([digest])[:, 0].tolist() == [0, 1]
            return
    raise AssertionError("no four free ports in a row")


def test_a_rank_has_a_load_and_can_be_forgotten_over_http(feeds: Feeds, client: TestClient) -> None:
    """The name of a rank has a slash."""
    assert feeds.add_ranks("e", "tcp://127.0.0.1:9", None, 2) == ["e/0", "e/1"]
    assert client.post("/workers/e/1/load", json={"load": 0.5}).status_code == 204
    scores = {each.worker: each.score for each in feeds.index.place([1])}
    assert scores == {"e/0": 0.0, "e/1": -0.5}
    assert client.delete("/workers/e/0").status_code == 204
    assert set(feeds.readers()) == {"e/1"}


def test_what_cannot_be_followed_changes_nothing(feeds: Feeds) -> None:
    """Neither the followed worker changes, nor are any ranks added when one has no room."""
    feeds.add("w", "tcp://127.0.0.1:9")
    feeds.index.store("w", [1])
    before = feeds.readers()
    with pytest.raises(ValueError, match="endpoint must be an address to connect to"):
        feeds.add("w", "nowhere")
    with pytest.raises(ValueError, match="worker must be one of at most 4"):
        feeds.add_ranks("e", "tcp://127.0.0.1:9", None, 4)
    with pytest.raises(ValueError, match="replay_endpoint must be tcp://"):
        feeds.add_ranks("e", "tcp://127.0.0.1:9", "ipc://x", 2)
    with pytest.raises(ValueError, match="ranks must be in"):
        feeds.add_ranks("e", "tcp://127.0.0.1:9", None, 0)
    assert feeds.readers() == before
    assert (feeds.index.workers, feeds.index.num_blocks("w")) == (["w"], 1)
    feeds.add("w", "tcp://127.0.0.1:10")
    assert feeds.index.num_blocks("w") == 0


def test_an_error_while_events_are_taken_in_leaves_nothing_half_believed(
    feeds: Feeds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread continues and requests a snapshot."""
    apply, failed, manager = feeds.index._apply_to, [], manager_with([1, 2, 3, 4, 5])

    def fail_once(worker: Any, batch: Any) -> None:
        if not failed:
            failed.append(batch)
            feeds.index.store(worker.name, [99])
            raise MemoryError
        apply(worker, batch)

    with Publisher(manager, 2, ANY, ANY) as publisher:
        feeds.add("w", publisher.endpoint, publisher.replay_endpoint)
        until(lambda: feeds.readers()["w"].is_current and feeds.index.num_blocks("w") == 2)
        monkeypatch.setattr(feeds.index, "_apply_to", fail_once)
        cache(manager, [7, 7, 7])
        until(lambda: bool(failed) and feeds.index.num_blocks("w") == 3)
        until(lambda: not feeds.index.found([99]).any() and feeds.readers()["w"].is_current)
    assert "w: starts again" in caplog.text


def test_an_index_that_dies_knows_everything_when_it_is_back() -> None:
    """It requests snapshots, so that it also gets earlier events."""
    manager = manager_with([1, 2, 3, 4, 5])
    with Publisher(manager, 2, ANY, ANY) as publisher:
        for _ in range(2):
            feeds = Feeds(WorkerIndex(max_workers=1), retry_s=0.05)
            feeds.add("w", publisher.endpoint, publisher.replay_endpoint)
            until(lambda feeds=feeds: feeds.index.num_blocks("w") == 2)  # type: ignore[misc]
            feeds.close()


@pytest.mark.parametrize(
    ("request_line", "body", "status", "message"),
    [
        ("POST /place", b"{", 400, "the body is wrong"),
        ("POST /place", b'{"digests": [1.5]}', 400, "the body is wrong"),
        ("POST /place", b'{"digests": ["xy"]}', 400, "digests must be numbers or hexadecimal"),
        ("POST /place", b'{"digests": ["ab01"]}', 400, "digests must have at least 8 bytes"),
        ("POST /place", b'{"hashes": []}', 400, "the body is wrong"),
        ("POST /workers", b'{"worker": "w", "endpoint": "nowhere"}', 400, "endpoint must be"),
        ("POST /workers", b'{"worker": "\xff", "endpoint": "x"}', 400, "the body is wrong"),
        ("POST /workers", b'{"worker": "w\\n", "endpoint": "tcp://x:9"}', 400, "worker must have"),
        ("POST /workers", b'{"worker": "", "endpoint": "tcp://x:9"}', 400, "worker must have"),
        ("POST /place", b'{"digests": ' + b"[" * 100_000, 400, "the body is wrong"),
        ("POST /place", b'{"digests": [1' + b"0" * 10_000 + b"]}", 400, "the body is wrong"),
        ("POST /place", b'{"digests": [true]}', 400, "the body is wrong"),
        ("POST /workers/w/load", b'{"load": 1}', 404, "never announced"),
        ("DELETE /workers/w", b"", 404, "is not followed"),
        ("POST /place", b" " * (MOST_BYTES + 1), 413, "a body must be at most"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    client: TestClient, request_line: str, body: bytes, status: int, message: str
) -> None:
    answer = client.request(*request_line.split(), content=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_a_worker_without_room_is_refused_and_not_followed(feeds: Feeds) -> None:
    for worker in "abcd":
        feeds.add(worker, "tcp://127.0.0.1:9", None)
    with pytest.raises(ValueError, match="worker must be one of at most 4"):
        feeds.add("e", "tcp://127.0.0.1:9", None)
    assert set(feeds.readers()) == set("abcd")


def serve(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "blockmgr", "index", "serve", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[int]:
    """The processes of a process that read events, by number."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) != pid:
                continue
            if b"spawn_main" in status.with_name("cmdline").read_bytes():
                found.append(int(status.parent.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_serves_until_it_is_interrupted() -> None:
    manager = manager_with([1, 2, 3, 4, 5])
    with Publisher(manager, 2, ANY, ANY) as publisher:
        worker = f"w={publisher.endpoint},{publisher.replay_endpoint}"
        with serve("--port", "0", "--worker", worker) as process:
            assert process.stderr is not None
            url = process.stderr.readline().split()[-1]
            digests = [digest.hex() for digest in manager.block_digests([1, 2, 3, 4])]

            def found() -> Any:
                answer = httpx2.post(f"{url}/place", json={"digests": digests}).json()
                return answer["workers"][0]["num_blocks"]

            try:
                until(lambda: found() == 2)
                with serve("--port", url.rpartition(":")[2]) as taken:
                    _, said = taken.communicate(timeout=60)
                assert taken.returncode == 2
                assert f"cannot listen on {url.removeprefix('http://')}" in said
            finally:
                process.terminate()


def test_the_command_ends_although_a_client_never_sends_the_rest() -> None:
    half = b"POST /place HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
    with serve("--port", "0") as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[-1]
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(place) as waiting, socket.create_connection(place) as gone:
            waiting.sendall(half)
            gone.sendall(half)
            gone.shutdown(socket.SHUT_WR)
            gone.recv(1)
            process.terminate()
            try:
                _, said = process.communicate(timeout=30)
            finally:
                process.kill()
    assert "Disconnect" not in said  # a client that hangs up is no error of the server


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--worker w", "NAME=ENDPOINT"),
        ("--worker =tcp://x", "NAME=ENDPOINT"),
        ("--worker w=", "NAME=ENDPOINT"),
        ("--worker w=tcp://x:1 --worker w=tcp://x:2", "workers must differ, got 'w' twice"),
        ("--load-weight nan", "load_weight must be finite, got nan"),
        ("--host=", "--host must be an address or a name, got ''"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(options: str, message: str) -> None:
    done = CliRunner().invoke(cli, ["index", "serve", *options.split()])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


# Workers that are slow, lie or name ranks.


class Raw:
    """A publisher of any bytes, whose answers never end."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.router = self.context.socket(zmq.ROUTER)
        for each in (self.pub, self.router):
            each.linger = 0
            each.bind(ANY)
        self.asked = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.trickle)
        self.thread.start()

    def told(self, *, replay: bool = True) -> dict[str, str | None]:
        endpoint, answers = (
            socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (self.pub, self.router)
        )
        return {"endpoint": endpoint, "replay_endpoint": answers if replay else None}

    def trickle(self) -> None:
        clients: set[bytes] = set()
        number = 0
        while not self.stop.wait(0.005):
            while self.router.poll(0):
                clients.add(self.router.recv_multipart()[0])
            for client in clients:
                number += 1
                self.router.send_multipart((client, b"", b"", number.to_bytes(8, "big"), b"x"))
                self.asked.set()

    def send(self, number: int, events: list[dict[str, Any]], rank: int | None = None) -> None:
        payload = msgspec.msgpack.encode([0.0, events, rank])
        self.pub.send_multipart((b"", number.to_bytes(8, "big"), payload))

    def close(self) -> None:
        self.stop.set()
        self.thread.join()
        self.context.destroy(linger=0)


@pytest.fixture
def raw() -> Iterator[Raw]:
    made = Raw()
    yield made
    made.close()


def stored(hashes: list[int], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": hashes, "medium": "GPU", **fields}


@pytest.mark.parametrize("feeds", ["threads"], indirect=True)
def test_others_are_answered_while_a_worker_does_not_end_its_answer(
    feeds: Feeds, client: TestClient, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer comes while the bad worker's exchange is open. So does its own end."""
    monkeypatch.setattr(feeds_module, "Subscriber", partial(Subscriber, timeout_s=3600))
    feeds.add("good", "tcp://127.0.0.1:9", None)
    feeds.index.store("good", [1, 2])
    assert client.post("/workers", json={"worker": "evil", **raw.told()}).status_code == 201
    assert raw.asked.wait(60)
    reader = feeds.readers()["evil"]
    [thread] = [each for each in threading.enumerate() if each.name == "events of evil"]
    for _ in range(3):
        answer = client.post("/place", json={"digests": [1, 2]}).json()
        assert answer["workers"][0] == {
            "worker": "good", "num_blocks": 2, "tiers": {"device": 2}, "score": 1.0,
        }  # fmt: skip
        assert client.get("/health").json()["workers"] == 2
        assert "blockmgr_index_current" in client.get("/metrics").text
        assert not reader.is_current
    assert client.post("/workers", json={"worker": "evil", **raw.told()}).status_code == 201
    raw.asked.clear()
    assert raw.asked.wait(60)
    assert client.delete("/workers/evil").status_code == 204
    assert [each["worker"] for each in client.get("/workers").json()["workers"]] == ["good"]
    thread.join(60)
    assert not thread.is_alive()
    assert reader.is_stopped


@pytest.mark.parametrize("feeds", ["threads"], indirect=True)
def test_a_worker_is_forgotten_while_its_reader_is_in_a_call(feeds: Feeds) -> None:
    """Nothing waits for the thread, and what it still applies does not reach a later worker."""
    entered, leave = threading.Event(), threading.Event()
    released: list[bool] = []

    def apply(worker: Any, batch: Any) -> None:
        entered.set()
        released.append(leave.wait(60))
        original(worker, batch)

    original = feeds.index._apply_to
    manager = manager_with([1, 2, 3])
    with Publisher(manager, 2, ANY, ANY) as publisher:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feeds.index, "_apply_to", apply)
            feeds.add("w", publisher.endpoint, publisher.replay_endpoint)
            assert entered.wait(60)
            [thread] = [each for each in threading.enumerate() if each.name == "events of w"]
            feeds.remove("w")
            assert feeds.index.workers == []
            assert thread.is_alive()
        feeds.add("w", "tcp://127.0.0.1:9", None)
        leave.set()
        thread.join(60)
        assert all(released)  # the reader was in its call until then
        assert feeds.index.num_blocks("w") == 0


def test_ranks_that_share_a_port_are_told_apart_over_http(
    feeds: Feeds, client: TestClient, raw: Raw
) -> None:
    assert client.post(
        "/workers", json={"worker": "w", **raw.told(replay=False)}
    ).status_code == 201  # fmt: skip
    assert raw.pub.poll(60_000)
    for rank in (0, 1):
        raw.send(0, [stored([1, 2, 3])], rank)
    raw.send(1, [{"type": "BlockRemoved", "block_hashes": [3, 2], "medium": "GPU"}], 1)

    def found() -> list[tuple[int, int]]:
        workers = client.post("/place", json={"digests": [1, 2, 3]}).json()["workers"]
        assert {each["worker"] for each in workers} == {"w"}
        return [(each.get("rank"), each["num_blocks"]) for each in workers]

    until(lambda: found() == [(0, 3), (1, 1)])
    shown = [{"worker": "w", "current": True, "ranks": [0, 1]}]
    until(lambda: client.get("/workers").json()["workers"] == shown)
    assert client.post("/workers/w/load", json={"load": 5.0, "rank": 0}).status_code == 204
    assert found() == [(1, 1), (0, 3)]
    refused = client.post("/workers/w/load", json={"load": 5.0, "rank": 7})
    assert (refused.status_code, refused.json()["error"]) == (
        404, "worker 'w' has no rank 7, only [0, 1]"
    )  # fmt: skip
    metrics = client.get("/metrics").text
    assert 'blockmgr_index_blocks{rank="1",tier="device",worker="w"} 1.0' in metrics
    assert client.delete("/workers/w").status_code == 204
    assert feeds.index.rows == []
    until(lambda: feeds.index.num_entries == 0)


def test_a_worker_with_another_block_size_is_shown_as_an_error(raw: Raw) -> None:
    made = Feeds(WorkerIndex(max_workers=2, block_size=16))
    with closing(made), TestClient(application(made)) as client:
        client.post("/workers", json={"worker": "w", **raw.told(replay=False)})
        assert raw.pub.poll(60_000)
        raw.send(0, [stored([1], block_size=64)])
        until(lambda: "error" in client.get("/workers").json()["workers"][0])
        [worker] = client.get("/workers").json()["workers"]
        assert "its blocks have 64 tokens, but 16 in this index" in worker["error"]
        metrics = client.get("/metrics").text
        assert 'blockmgr_index_ignored{worker="w"} 1.0' in metrics
        assert 'blockmgr_index_refused_total{reason="other_block_size"} 1.0' in metrics


# A process that reads the events.


def test_feeds_of_a_process_that_ends_are_told_so() -> None:
    lost = threading.Event()
    others = multiprocessing.active_children()
    with closing(ReadingProcess(lost.set)) as process:
        Feeds(WorkerIndex(), make=process.make).add("w", "tcp://127.0.0.1:9")
        [child] = set(multiprocessing.active_children()) - set(others)
        child.kill()
        assert lost.wait(60)


def test_a_process_that_is_closed_is_not_lost() -> None:
    lost = threading.Event()
    threads, others = threading.enumerate(), multiprocessing.active_children()
    ReadingProcess(lost.set).close()
    assert (threading.enumerate(), multiprocessing.active_children()) == (threads, others)
    assert not lost.is_set()


@on_linux
def test_the_command_ends_when_nothing_reads_events_any_more() -> None:
    """What it knows would be out of date forever, so its parent starts it again."""
    with serve("--port", "0") as process:
        try:
            assert process.stderr is not None
            assert "listening on" in process.stderr.readline()
            [child] = children(process.pid)
            os.kill(child, signal.SIGKILL)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode != 0
    assert "the process that reads the events of workers has ended" in said


@on_linux
def test_a_signal_to_the_whole_group_ends_the_command_without_a_complaint() -> None:
    with serve("--port", "0") as process:
        assert process.stderr is not None
        assert "listening on" in process.stderr.readline()
        for each in (*children(process.pid), process.pid):  # in the order that is harder
            os.kill(each, signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert not said


@on_linux
def test_the_process_that_reads_ends_with_the_command() -> None:
    with serve("--port", "0") as process:
        assert process.stderr is not None
        assert "listening on" in process.stderr.readline()
        [child] = children(process.pid)
        process.kill()
    until(lambda: not is_alive(child))


@pytest.mark.parametrize(
    "payload",
    [
        [0.0, [stored([1, 2, 3], parent_block_hash=None, token_ids=[], block_size=16)], 0],
        [0.0, [["BlockStored", [1, 2, 3], None, [7] * 48, 16, None, "CPU"]], None],
        [0.0, [["BlockStored", [1, 2], None, [], 16, None, "GPU", None, None, 1, "mamba", 0]], 3],
        [0.0, [["BlockStored", [1], None, [], 16], ["BlockRemoved", [1, 2], "GPU"]], None],
        [0.0, [["BlockRemoved", [bytes(32)], "GPU", 1], ["AllBlocksCleared", "CPU"]], None],
        [0.0, [{"type": "AllBlocksCleared"}, stored([b"x" * 32] * 20_000)], None],
        [0.0, [stored([5] * 20_000)], 1, {"epoch": 5, "groups": [["mamba", None]]}],
        [0.0, [], None, {"epoch": 5, "groups": [["mamba", None]], "block_size": 16}],
    ],
)
def test_a_batch_says_the_same_after_it_went_from_process_to_process(payload: list[Any]) -> None:
    batch = decode_hashes(msgspec.msgpack.encode(payload))
    sent: list[Any] = []
    sender = reading._Sender(1, SimpleNamespace(send_bytes=sent.append), threading.Lock())  # type: ignore[arg-type]
    sender.apply("w", batch)
    parts = [reading._decode(each).batch for each in sent]  # type: ignore[union-attr]
    assert parts[0].about == batch.about
    assert all(part.about is None for part in parts[1:])
    assert {(part.ts, part.data_parallel_rank) for part in parts} == {
        (batch.ts, batch.data_parallel_rank)
    }
    assert flat(event for part in parts for event in part.events) == flat(batch.events)


def flat(events: Iterable[Any]) -> list[tuple[Any, ...]]:
    """What an index reads of events, one item a block."""
    rows: list[tuple[Any, ...]] = []
    for event in events:
        kind = wire.KIND_OF[type(event)]
        about: tuple[Any, ...] = kind, event.medium, event.locality
        if kind is EventKind.STORED:
            about += event.block_size, event.kv_cache_spec_kind
            about += (event.kv_cache_spec_sliding_window,)
        if kind is EventKind.CLEARED:
            rows.append(about)
            continue
        rows += [(*about, event.group_idx, block) for block in event.block_hashes]
    return rows
