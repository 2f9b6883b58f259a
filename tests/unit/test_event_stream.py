"""Publisher and subscriber: order, gaps, restarts, and invalid messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr import BlockManager, EndpointError
from tests.unit.engine import cache, step

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

import msgspec
import zmq

from blockmgr.events import Encoder, Publisher, Subscriber, subscriber
from blockmgr.events.endpoints import endpoint_of_rank
from blockmgr.events.publisher import END, SNAPSHOT, Replies
from blockmgr.events.reader import IncompleteAnswerError, Reader, Stream, Verdict
from blockmgr.events.wire import MOST_BYTES

ANY = "tcp://127.0.0.1:0"


class Mirror:
    """A sink that keeps the hashes of each worker."""

    def __init__(self) -> None:
        self.known: dict[str, set[Any]] = {}
        self.resets = 0

    def reset(self, worker: str) -> None:
        self.known[worker] = set()
        self.resets += 1

    def apply(self, worker: str, batch: Any) -> None:
        known = self.known.setdefault(worker, set())
        for event in batch.events:
            kind = type(event).__name__.removeprefix("Old")
            if kind == "BlockStored":
                known.update(event.block_hashes)
            elif kind == "BlockRemoved":
                known.difference_update(event.block_hashes)
            else:
                known.clear()


def truth(manager: BlockManager) -> set[int]:
    digests = [digest for event in manager.resident_events() for digest in event.digests]
    return {int.from_bytes(digest[-8:], "big") for digest in digests}


def until(condition: Callable[[], bool], reader: Subscriber, tries: int = 200) -> None:
    """Polls until something holds; each poll waits for a message, not for time."""
    for _ in range(tries):
        if condition():
            return
        reader.poll(0.05)
    raise AssertionError(f"the condition was never true; {dict(reader.counts)}")


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(64, 2, events=True)


@pytest.fixture
def publisher(manager: BlockManager) -> Iterator[Publisher]:
    with Publisher(manager, 2, ANY, ANY) as made:
        yield made


def reader_of(publisher: Publisher, sink: Any, **options: Any) -> Subscriber:
    return Subscriber(
        "w", publisher.endpoint, publisher.replay_endpoint, sink,
        **{"retry_s": 0.02, "timeout_s": 2.0, **options},
    )  # fmt: skip


def test_a_reader_has_what_the_manager_has(manager: BlockManager, publisher: Publisher) -> None:
    """Tests an early reader, and a late one that requests a snapshot."""
    early = Mirror()
    with reader_of(publisher, early) as reader:
        until(lambda: reader.is_current, reader)
        for prompt in range(20):
            cache(manager, [prompt] * 9)
            publisher.publish()
        until(lambda: early.known.get("w") == truth(manager) != set(), reader)
        late = Mirror()
        with reader_of(publisher, late) as other:
            until(lambda: late.known.get("w") == truth(manager), other)
            assert other.counts["snapshots"] == 1
        manager.reset_prefix_cache()
        until(lambda: early.known.get("w") == set(), reader)


def test_what_an_idle_engine_leaves_is_flushed(manager: BlockManager, publisher: Publisher) -> None:
    """Without a call of publish, a reset still reaches the readers."""
    mirror = Mirror()
    with reader_of(publisher, mirror) as reader:
        cache(manager, [1] * 5)
        until(lambda: bool(mirror.known.get("w")), reader)
        manager.reset_prefix_cache()
        until(lambda: mirror.known.get("w") == set(), reader)


def test_events_that_a_manager_lost_are_made_up_for() -> None:
    manager = BlockManager(64, 2, events=True, event_blocks=2)
    with Publisher(manager, 2, ANY, ANY, flush_s=60) as publisher:
        mirror = Mirror()
        with reader_of(publisher, mirror) as reader:
            until(lambda: reader.is_current, reader)
            cache(manager, [1] * 21)
            publisher.publish()
            until(lambda: mirror.known.get("w") == truth(manager), reader)
            assert len(truth(manager)) == 10


def test_replay_begins_where_a_client_of_vllm_asks(
    manager: BlockManager, publisher: Publisher
) -> None:
    """With a REQ socket, as in vLLM's example: three frames, and an end marker that it knows."""
    for prompt in range(3):
        cache(manager, [prompt] * 3)
        publisher.publish()
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        client.connect(str(publisher.replay_endpoint))
        client.send_multipart((b"", (publisher.num_published - 2).to_bytes(8, "big")))
        answers = []
        while True:
            assert client.poll(5000)
            frames = client.recv_multipart()
            answers.append(frames)
            if frames[2] == END:
                break
    assert [len(frames) for frames in answers] == [4, 4, 4]
    numbers = [int.from_bytes(frames[2], "big") for frames in answers[:-1]]
    assert numbers == [publisher.num_published - 2, publisher.num_published - 1]
    assert answers[-1] == [b"", b"", END, b""]


class Script:
    """A publisher of single messages, valid or not, controlled by a test."""

    def __init__(self, *, replays: bool = True, endpoint: str = ANY) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.linger = 0
        self.pub.bind(endpoint)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.bind(ANY)
        self.asked: list[bytes] = []
        self.sent = 0  # messages of an answer that trickles
        self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self.router.getsockopt_string(zmq.LAST_ENDPOINT) if replays else None

    def send(self, number: int, payload: bytes, topic: bytes = b"") -> None:
        self.pub.send_multipart((topic, number.to_bytes(8, "big"), payload))

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script(replays=False)
    yield made
    made.close()


def batch(hashes: list[int], epoch: int | None = None, rank: int | None = None) -> bytes:
    event = {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
        "token_ids": [0] * len(hashes), "block_size": 1, "lora_id": None, "medium": "GPU",
        "lora_name": None,
    }  # fmt: skip
    about = [] if epoch is None else [{"epoch": epoch}]
    return msgspec.msgpack.encode([0.0, [event], rank, *about])


def listening(script: Script, mirror: Any) -> Subscriber:
    reader = Subscriber("w", script.endpoint, None, mirror, retry_s=0.02)
    assert script.pub.poll(5000)  # wait for the subscription
    script.pub.recv()
    return reader


def test_the_last_batch_of_a_lost_connection_is_not_taken_for_one_of_the_next(
    script: Script,
) -> None:
    """The reader sees both connections, and the batch between them, in one poll."""
    mirror = Mirror()
    with listening(script, mirror) as reader:
        script.send(0, batch([1]))
        assert reader._sub.poll(5000)
        script.close()
        with closing(Script(replays=False, endpoint=script.endpoint)) as again:
            for _ in range(200):
                reader._sub.poll(0)  # a socket subscribes again when it is polled
                if again.pub.poll(50):
                    break
            assert again.pub.recv(zmq.NOBLOCK)
            reader.poll(0.05)
            assert not mirror.known.get("w")
            again.send(0, batch([2]))
            until(lambda: mirror.known.get("w") == {2}, reader)


def test_a_batch_that_comes_twice_or_late_is_applied_once(script: Script) -> None:
    mirror = Mirror()
    with listening(script, mirror) as reader:
        for number in (0, 1, 1, 0, 2):
            script.send(number, batch([number], epoch=5))
        until(lambda: mirror.known.get("w") == {0, 1, 2}, reader)
        assert (reader.counts["apply"], reader.counts["duplicate"]) == (3, 2)


def test_a_gap_that_nobody_can_fill_leaves_nothing_that_may_be_gone(script: Script) -> None:
    mirror = Mirror()
    with listening(script, mirror) as reader:
        script.send(0, batch([1]))
        script.send(5, batch([2]))
        until(lambda: mirror.known.get("w") == {2}, reader)
        assert reader.counts["gap"] == 1


@pytest.mark.parametrize("hashes", [{5: [1], 6: [2]}, {}], ids=["some", "none"])
def test_of_a_publisher_without_snapshots_all_it_can_replay_is_taken(
    hashes: dict[int, list[int]],
) -> None:
    """Earlier events remain unknown."""
    mirror = Mirror()
    replayed = [(number, batch(of)) for number, of in hashes.items()]
    reader = Reader("w", mirror, lambda request: [] if request == SNAPSHOT else replayed)
    reader.catch_up()
    assert mirror.known.get("w", set()) == {one for of in hashes.values() for one in of}
    assert reader.is_current


def test_a_larger_epoch_is_a_restart_and_a_smaller_one_is_ignored(script: Script) -> None:
    mirror = Mirror()
    with listening(script, mirror) as reader:
        script.send(0, batch([1], epoch=5))
        script.send(0, batch([2], epoch=9))
        script.send(1, batch([3], epoch=5))
        script.send(1, batch([4], epoch=9))
        until(lambda: mirror.known.get("w") == {2, 4}, reader)
        assert (reader.counts["restarted"], reader.counts["outdated"]) == (1, 1)


def test_what_is_no_event_is_counted_and_logged_once(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign frames, truncated batches and invalid numbers are ignored."""
    mirror = Mirror()
    with listening(script, mirror) as reader, caplog.at_level(logging.WARNING):
        script.send(0, b"\xc1")
        script.send(0, batch([7])[:-3])
        script.pub.send_multipart((b"", b"short", batch([7])))
        script.pub.send_multipart((b"", batch([7])))
        script.send(0, msgspec.msgpack.encode([0.0, [{"type": "BlockMoved"}]]))
        script.send(0, batch([1]))
        until(lambda: mirror.known.get("w") == {1}, reader)
        assert reader.counts["foreign"] == 5
    assert len(caplog.records) == 1
    assert "others like it are only counted" in caplog.text


def test_a_killed_publisher_takes_what_is_known_of_it_along(manager: BlockManager) -> None:
    """A worker that restarts at the same address is recognised by its epoch."""
    mirror = Mirror()
    publisher = Publisher(manager, 2, ANY, ANY)
    addresses = publisher.endpoint, publisher.replay_endpoint
    with reader_of(publisher, mirror, timeout_s=0.2) as reader:
        cache(manager, [1] * 5)
        until(lambda: bool(mirror.known.get("w")), reader)
        publisher.close()
        until(lambda: reader.counts["lost"] > 0, reader)
        assert mirror.known["w"] == set()
        again = BlockManager(64, 2, events=True)
        cache(again, [2] * 7)
        with Publisher(again, 2, addresses[0], addresses[1]):
            until(lambda: mirror.known["w"] == truth(again), reader)


def test_a_publisher_that_forgot_what_is_missing_is_asked_for_a_snapshot() -> None:
    """No loop: one replay that does not continue from the reader's position, then a snapshot."""
    manager = BlockManager(64, 2, events=True)
    with Publisher(manager, 2, ANY, ANY, buffer_batches=1, flush_s=60) as publisher:
        mirror = Mirror()
        with reader_of(publisher, mirror) as reader:
            until(lambda: reader.is_current, reader)
            publisher.publish()
            until(
                lambda: reader._reader._positions[None].stream.next == publisher.num_published,
                reader,
            )
            before = reader.counts["snapshots"]
            for prompt in range(4):
                cache(manager, [prompt] * 5)
                publisher.publish()
                assert reader._sub.poll(5000)
                reader._sub.recv_multipart()  # lost on the way
            cache(manager, [9] * 5)
            publisher.publish()
            until(lambda: mirror.known.get("w") == truth(manager), reader)
            assert reader.counts["snapshots"] == before + 1


@pytest.mark.parametrize(
    ("known", "epoch", "number", "verdict"),
    [
        ((None, None), None, 0, Verdict.APPLY),
        ((None, None), 4, 3, Verdict.GAP),
        ((4, 3), 4, 3, Verdict.APPLY),
        ((4, 3), 4, 2, Verdict.DUPLICATE),
        ((4, 3), 4, 0, Verdict.DUPLICATE),
        ((4, 3), 4, 7, Verdict.GAP),
        ((4, 3), 5, 0, Verdict.RESTARTED),
        ((4, 3), 3, 3, Verdict.OUTDATED),
        ((None, 3), None, 0, Verdict.RESTARTED),
        ((None, 3), None, 2, Verdict.DUPLICATE),
    ],
)
def test_what_a_batch_is_to_a_reader(
    known: tuple[int | None, int | None], epoch: int | None, number: int, verdict: Verdict
) -> None:
    stream = Stream()
    stream.epoch, stream.next = known
    assert stream.judge(epoch, number) is verdict


def test_an_address_that_is_taken_is_named(manager: BlockManager, publisher: Publisher) -> None:
    with pytest.raises(EndpointError, match="cannot listen on tcp://127") as caught:
        Publisher(BlockManager(8, 2, events=True), 2, publisher.endpoint)
    assert caught.value.endpoint == publisher.endpoint
    with pytest.raises(ValueError, match="needs events=True"):
        Publisher(BlockManager(8, 2), 2, ANY)
    with pytest.raises(ValueError, match="endpoint must be an address to connect to"):
        Subscriber("w", "nowhere", None, Mirror())


def test_a_publisher_that_cannot_be_made_leaves_the_events_where_they_are(
    manager: BlockManager, publisher: Publisher
) -> None:
    other = BlockManager(8, 2, events=True)
    cache(other, [1, 2, 3])
    taken = str(publisher.replay_endpoint)
    with pytest.raises(EndpointError, match="cannot listen on tcp://127") as caught:
        Publisher(other, 2, ANY, taken)
    assert caught.value.endpoint == taken
    with pytest.raises(ValueError, match="block_size must be the manager's, 2, got 4"):
        Publisher(other, 4, ANY)
    assert other.take_events().num_blocks == 1


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"manager": None}, TypeError, "manager must be a manager or a pool, got NoneType"),
        ({"endpoint": 5557}, TypeError, "endpoint must be a str, got int"),
        ({"replay_endpoint": 5558}, TypeError, "replay_endpoint must be a str, got int"),
        ({"endpoint": "tcp://127.0.0.1:70000"}, EndpointError, "70000: a port must be at most"),
        (
            {"endpoint": "tcp://127.0.0.1:65535", "rank": 1},
            EndpointError,
            "cannot listen on .*65536",
        ),
        ({"replay_endpoint": "ipc://x", "rank": 1}, ValueError, "replay_endpoint must be tcp://"),
        ({"topic": b"kv"}, TypeError, "topic must be a str, got bytes"),
        ({"rank": -1}, ValueError, "rank must be in"),
        ({"flush_s": 0}, ValueError, "flush_s must be above 0 and finite"),
        ({"buffer_batches": 0}, ValueError, "buffer_batches must be in"),
        ({"max_queued": "many"}, TypeError, "max_queued must be an int"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_publisher_refuses_wrong_arguments(
    manager: BlockManager, wrong: dict[str, Any], error: type[Exception], match: str
) -> None:
    cache(manager, [1, 2, 3])
    with pytest.raises(error, match=match):
        Publisher(**{"manager": manager, "block_size": 2, "endpoint": ANY, **wrong})
    assert manager.take_events().num_blocks == 1


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"worker": 1}, TypeError, "worker must be a str, got int"),
        ({"endpoint": 5557}, TypeError, "endpoint must be a str, got int"),
        ({"endpoint": "tcp://127.0.0.1:70000"}, ValueError, "endpoint must be an address to"),
        ({"replay_endpoint": "nowhere"}, ValueError, "replay_endpoint must be an .*'nowhere'"),
        ({"sink": None}, TypeError, "sink must have reset, got NoneType"),
        ({"topic": b"kv"}, TypeError, "topic must be a str, got bytes"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s must be above 0 and finite"),
        ({"retry_s": "1"}, TypeError, "retry_s must be a number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_a_subscriber_refuses_wrong_arguments(
    wrong: dict[str, Any], error: type[Exception], match: str
) -> None:
    right = {"worker": "w", "endpoint": "tcp://127.0.0.1:9", "replay_endpoint": None}
    with pytest.raises(error, match=match):
        Subscriber(**{**right, "sink": Mirror(), **wrong})


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf"), "1"])
def test_a_wait_that_is_none_is_refused_at_once(wait: Any) -> None:
    """A negative wait would never end."""
    with Subscriber("w", "tcp://127.0.0.1:9", None, Mirror()) as reader:
        with pytest.raises((ValueError, TypeError), match="timeout_s must be"):
            reader.poll(wait)
        assert reader.poll(0) == 0
    with pytest.raises(ValueError, match="the subscriber is closed"):
        reader.poll(0)


def test_a_message_with_a_number_below_zero_is_not_believed() -> None:
    mirror = Mirror()
    reader = Reader("w", mirror, None)
    reader.receive([b"", (-5).to_bytes(8, "big", signed=True), batch([1])])
    assert (reader.counts["foreign"], mirror.known) == (1, {})


def test_an_answer_that_is_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer from a foreign sender may never end."""
    monkeypatch.setattr(subscriber, "_MOST_ANSWERED", 200)
    script, mirror = Script(), Mirror()
    with (
        closing(script),
        Subscriber("w", script.endpoint, script.replay, mirror, retry_s=0.01) as reader,
    ):
        stop = threading.Event()

        def answer() -> None:
            while not stop.is_set():
                if script.router.poll(20):
                    client, *_ = script.router.recv_multipart()
                    for number in range(50):
                        frames = (client, b"", b"", number.to_bytes(8, "big"), batch([number]))
                        script.router.send_multipart(frames)
                    script.router.send_multipart((client, b"", b"", END, b""))

        thread = threading.Thread(target=answer)
        thread.start()
        until(lambda: reader.counts["unanswered"] > 0, reader)
        stop.set()
        thread.join()
        assert not mirror.known.get("w")
        assert not reader.is_current


def test_an_event_of_a_kind_that_is_not_known_is_not_passed_over() -> None:
    """The meaning of an unknown event is open, so only a snapshot restores the worker."""
    mirror = Mirror()
    moved = msgspec.msgpack.encode([0.0, [{"type": "BlockMoved", "block_hashes": [1]}], None])
    answers: dict[bytes, list[tuple[int, bytes]]] = {bytes(7) + b"\x01": [(1, moved)]}
    reader = Reader("w", mirror, lambda request: answers.get(request, []), retry_s=1e-9)
    reader.catch_up()
    for number, payload in enumerate((batch([1]), moved, batch([2]))):
        reader.receive([b"", number.to_bytes(8, "big"), payload])
    reader.catch_up()
    assert not mirror.known["w"]
    parts = msgspec.msgpack.encode([0.0, [], None, {"epoch": 1, "snapshot": True, "last": True}])
    answers[SNAPSHOT] = [(2, parts)]
    reader.catch_up()
    assert reader.is_current
    assert reader.counts["foreign"] >= 2


def test_ranks_publish_at_ports_in_a_row_and_say_who_they_are() -> None:
    assert endpoint_of_rank("endpoint", "tcp://*:5557", 3) == "tcp://*:5560"
    with pytest.raises(ValueError, match="endpoint must be tcp:// with a port"):
        endpoint_of_rank("endpoint", "ipc:///somewhere", 1)
    managers = [BlockManager(16, 2, events=True) for _ in range(2)]
    publishers = [Publisher(each, 2, ANY, ANY, rank=rank) for rank, each in enumerate(managers)]
    ranks = []
    for manager, made in zip(managers, publishers, strict=True):

        class Ranks(Mirror):
            def apply(self, worker: str, batch: Any) -> None:
                ranks.append(batch.data_parallel_rank)

        cache(manager, [1, 2, 3])
        with reader_of(made, Ranks()) as reader:
            until(lambda: reader.is_current, reader)
        made.close()
    assert set(ranks) == {0, 1}
    assert ranks == sorted(ranks)


def test_a_closed_publisher_says_so(manager: BlockManager) -> None:
    publisher = Publisher(manager, 2, ANY)
    publisher.close()
    publisher.close()
    with pytest.raises(ValueError, match="the publisher is closed"):
        publisher.publish()


def test_an_encoder_and_a_step_agree_on_the_time(manager: BlockManager) -> None:
    manager.admit([1, 2, 3])
    step(manager)
    [payload] = Encoder(2).batches(manager.take_events(), 12.5)
    assert msgspec.msgpack.decode(payload)[0] == 12.5


# Ranks that share a connection.


class RankMirror:
    """A sink that keeps the hashes of each rank."""

    def __init__(self) -> None:
        self.known: dict[int | None, set[Any]] = {}

    def reset(self, worker: str, rank: int | None = None) -> None:
        for each in list(self.known) if rank is None else [rank]:
            self.known[each] = set()

    def apply(self, worker: str, batch: Any) -> None:
        known = self.known.setdefault(batch.data_parallel_rank, set())
        for event in batch.events:
            known.update(event.block_hashes)


def test_ranks_of_one_connection_count_their_own_batches(script: Script) -> None:
    """A gap of one rank leaves the other, whose numbers go on."""
    mirror = RankMirror()
    with listening(script, mirror) as reader:
        for number, hashes, rank in ((0, [1], 0), (0, [2], 1), (1, [3], 1), (1, [4], 0)):
            script.send(number, batch(hashes, rank=rank))
        until(lambda: mirror.known == {0: {1, 4}, 1: {2, 3}}, reader)
        assert (reader.ranks, reader.counts["restarted"]) == ([0, 1], 0)
        script.send(7, batch([5], rank=1))
        script.send(2, batch([6], rank=0))
        until(lambda: mirror.known == {0: {1, 4, 6}, 1: {5}}, reader)
        assert reader.counts["gap"] == 1


def test_a_restart_of_one_rank_leaves_the_others(script: Script) -> None:
    mirror = RankMirror()
    with listening(script, mirror) as reader:
        for hashes, epoch, rank in (([1], 5, 0), ([2], 5, 1), ([3], 9, 1)):
            script.send(0, batch(hashes, epoch, rank))
        until(lambda: mirror.known == {0: {1}, 1: {3}}, reader)


def test_a_gap_of_one_rank_is_filled_with_its_own_batches_only() -> None:
    """The publisher's answer has batches of all ranks, with their own numbers."""
    kept = [(n, batch([10 * rank + n], rank=rank)) for n in range(4) for rank in range(2)]
    asked: list[bytes] = []

    def ask(request: bytes) -> list[tuple[int, bytes]]:
        asked.append(request)
        first = int.from_bytes(request, "big")
        return [] if request == SNAPSHOT else [each for each in kept if each[0] >= first]

    mirror = RankMirror()
    reader = Reader("w", mirror, ask, retry_s=1e-9)
    reader.catch_up()
    assert mirror.known == {0: {0, 1, 2, 3}, 1: {10, 11, 12, 13}}
    assert reader.is_current
    kept += [(4, batch([4], rank=0)), (5, batch([5], rank=0)), (4, batch([14], rank=1))]
    before = len(asked)
    reader.receive([b"", (5).to_bytes(8, "big"), kept[-2][1]])
    assert not reader.is_current
    reader.catch_up()
    assert asked[before:] == [(4).to_bytes(8, "big")]
    assert mirror.known[0] == {0, 1, 2, 3, 4, 5}
    reader.receive([b"", (4).to_bytes(8, "big"), kept[-1][1]])
    assert mirror.known[1] == {10, 11, 12, 13, 14}
    assert reader.counts["duplicate"] == 0


def test_a_rank_that_appears_late_leaves_what_others_have_applied() -> None:
    """All that can be replayed has the batches of the others as well."""
    kept = [(n, batch([n], rank=0)) for n in range(3)]

    def ask(request: bytes) -> list[tuple[int, bytes]]:
        return [] if request == SNAPSHOT else kept

    mirror = RankMirror()
    reader = Reader("w", mirror, ask, retry_s=1e-9)
    reader.catch_up()
    kept += [(n, batch([10 + n], rank=1)) for n in range(3)]
    reader.receive([b"", (2).to_bytes(8, "big"), kept[-1][1]])
    reader.catch_up()
    assert mirror.known == {0: {0, 1, 2}, 1: {10, 11, 12}}
    assert (reader.counts["apply"], reader.is_current) == (6, True)


def test_a_snapshot_of_several_ranks_is_taken_for_each_of_them() -> None:
    def part(hashes: list[int], rank: int, *, last: bool) -> bytes:
        event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None}
        event |= {"token_ids": [], "block_size": 1, "lora_id": None, "medium": None}
        about = {"epoch": 3, "snapshot": True, "last": last}
        return msgspec.msgpack.encode([0.0, [{**event, "lora_name": None}], rank, about])

    parts = [
        (8, part([1], 0, last=False)), (3, part([5], 1, last=True)), (8, part([2], 0, last=True)),
    ]  # fmt: skip
    mirror = RankMirror()
    reader = Reader("w", mirror, lambda request: parts if request == SNAPSHOT else None)
    reader.catch_up()
    assert mirror.known == {0: {1, 2}, 1: {5}}
    reader.receive([b"", (9).to_bytes(8, "big"), batch([3], epoch=3, rank=0)])
    reader.receive([b"", (4).to_bytes(8, "big"), batch([6], epoch=3, rank=1)])
    assert mirror.known == {0: {1, 2, 3}, 1: {5, 6}}


def test_a_sink_that_knows_no_ranks_gets_one_of_them(caplog: pytest.LogCaptureFixture) -> None:
    """It would mix their caches. The refused rank is counted and logged once."""
    mirror = Mirror()
    reader = Reader("w", mirror, None)
    with caplog.at_level(logging.WARNING):
        for number, rank in ((0, 0), (0, 1), (1, 1), (1, 0)):
            payload = batch([10 * rank + number], rank=rank)
            reader.receive([b"", number.to_bytes(8, "big"), payload])
    assert mirror.known["w"] == {0, 1}
    assert reader.counts["other_rank"] == 2
    assert len(caplog.records) == 1
    assert "a batch of rank 1: ranks [0] are known" in caplog.text


def test_a_lost_connection_takes_what_is_known_of_all_ranks_along() -> None:
    mirror = RankMirror()
    reader = Reader("w", mirror, None)
    for rank in range(2):
        reader.receive([b"", bytes(8), batch([rank], rank=rank)])
    reader.lose()
    assert mirror.known == {0: set(), 1: set()}
    reader.heed_connection()
    reader.receive([b"", bytes(8), batch([7], rank=3)])
    assert (mirror.known[3], reader.ranks, reader.is_current) == ({7}, [3], True)


def test_a_publisher_cannot_name_endless_ranks() -> None:
    reader = Reader("w", RankMirror(), None)
    for rank in range(200):
        reader.receive([b"", bytes(8), batch([rank], rank=rank)])
    assert len(reader.ranks) == 64
    assert reader.counts["other_rank"] == 136


# Publishers that are silent.

Answer = Callable[[bytes], list[tuple[int, bytes]] | None]


class Silent:
    """A publisher that answers nothing any more, and a clock that a test moves."""

    def __init__(self, *ranks: int) -> None:
        self.now = 0.0
        kept = [(0, batch([rank], rank=rank)) for rank in ranks]
        self.answer: Answer = lambda request: [] if request == SNAPSHOT else kept
        self.mirror = RankMirror()
        self.reader = Reader(
            "w", self.mirror, self.ask, retry_s=1.0, check_s=5.0, clock=lambda: self.now
        )
        self.reader.catch_up()
        assert self.mirror.known == {rank: {rank} for rank in ranks}
        self.answer = lambda request: None

    def ask(self, request: bytes) -> list[tuple[int, bytes]] | None:
        return self.answer(request)

    def wait(self, seconds: float) -> dict[int | None, set[Any]]:
        self.now += seconds
        self.reader.catch_up()
        return self.mirror.known


def incomplete(request: bytes) -> None:
    raise IncompleteAnswerError


def test_a_worker_that_is_late_once_is_not_forgotten() -> None:
    """A busy engine is silent and answers late. Its blocks are still there."""
    silent = Silent(0)
    assert silent.wait(4.9) == {0: {0}}
    assert silent.reader.counts["unanswered"] == 0
    assert silent.wait(0.1) == {0: {0}}
    assert (silent.reader.counts["unanswered"], silent.reader.is_current) == (1, False)
    silent.answer = lambda request: []
    assert silent.wait(1.0) == {0: {0}}
    assert silent.reader.is_current
    silent.answer = lambda request: None
    assert silent.wait(5.0) == {0: {0}}  # each silence has two tries


def test_a_worker_that_does_not_answer_twice_is_forgotten() -> None:
    silent = Silent(0)
    silent.wait(5.0)
    assert silent.wait(0.9) == {0: {0}}
    assert silent.wait(0.1) == {0: set()}


def test_a_batch_that_comes_in_order_ends_the_doubt() -> None:
    """It proves that nothing was lost before it."""
    silent = Silent(0)
    silent.wait(5.0)
    silent.reader.receive([b"", (1).to_bytes(8, "big"), batch([7], rank=0)])
    assert silent.reader.is_current
    assert silent.wait(1.0) == {0: {0, 7}}
    assert silent.reader.counts["unanswered"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        incomplete,
        lambda request: [(1, b"\xc1")],
        lambda request: [(-5, batch([7], rank=0))],  # which no request can name
    ],
    ids=["an answer without its end", "an answer that cannot be read", "a number below zero"],
)
def test_a_sign_that_a_batch_is_missing_forgets_at_once(answer: Any) -> None:
    """Blocks that it removed would be believed to be there."""
    silent = Silent(0)
    silent.answer = answer
    assert silent.wait(5.0) == {0: set()}


def test_a_gap_that_is_not_filled_forgets_at_once() -> None:
    silent = Silent(0)
    silent.wait(4.0)
    silent.reader.receive([b"", (9).to_bytes(8, "big"), batch([7], rank=0)])
    assert silent.wait(0.0) == {0: set()}


def test_a_silent_worker_is_forgotten_with_all_its_ranks() -> None:
    """Also those after the first that was asked about; a rank that sends batches stays."""
    silent = Silent(0, 1, 2)
    silent.wait(4.0)
    silent.reader.receive([b"", (1).to_bytes(8, "big"), batch([7], rank=1)])
    assert silent.wait(1.0) == {0: {0}, 1: {1, 7}, 2: {2}}
    assert silent.wait(1.0) == {0: set(), 1: {1, 7}, 2: set()}


# Publishers that never end, or send too much.


@pytest.fixture
def trickle() -> Iterator[Script]:
    """A publisher whose answers never end: a short batch every few milliseconds."""
    script, stop = Script(), threading.Event()

    def answer() -> None:
        clients: set[bytes] = set()
        while not stop.wait(0.005):
            while script.router.poll(0):
                frames = script.router.recv_multipart()
                clients.add(frames[0])
                script.asked.append(frames[-1])
            for client in clients:
                script.sent += 1
                number = script.sent.to_bytes(8, "big")
                script.router.send_multipart((client, b"", b"", number, b"x"))

    thread = threading.Thread(target=answer)
    thread.start()
    yield script
    stop.set()
    thread.join()
    script.close()


def test_an_answer_that_trickles_has_a_deadline(
    trickle: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is that of the whole answer: each of its parts comes in time."""
    clock = count(step=0.01)
    monkeypatch.setattr(subscriber, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(subscriber, "_MOST_ANSWERED", 500 * 300)  # after 500 parts, it ends anyway
    mirror = Mirror()
    with Subscriber("w", trickle.endpoint, trickle.replay, mirror, timeout_s=0.2) as reader:
        reader.poll(0.01)
        assert trickle.sent < 400
        assert reader.counts["unanswered"] == 1
        assert not reader.is_current


def test_a_wait_for_an_answer_ends_when_another_thread_says_so(trickle: Script) -> None:
    with Subscriber("w", trickle.endpoint, trickle.replay, Mirror(), timeout_s=600) as reader:
        thread = threading.Thread(target=reader.poll, args=(0.01,))
        thread.start()
        while not trickle.asked:
            thread.join(0.01)
        assert thread.is_alive()
        reader.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert (reader.is_stopped, reader.poll(600)) == (True, 0)


def test_all_frames_of_an_answer_count(trickle: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also topics, and messages of one byte, each of which takes memory."""
    monkeypatch.setattr(subscriber, "_MOST_ANSWERED", 2000)
    with Subscriber("w", trickle.endpoint, trickle.replay, Mirror(), timeout_s=600) as reader:
        reader.poll(0.01)
        assert reader.counts["unanswered"] == 1


def test_a_frame_that_is_too_long_ends_the_connection(script: Script) -> None:
    """The bound is checked before the frame is read, so it takes no memory."""
    mirror = Mirror()
    with listening(script, mirror) as reader:
        script.send(0, batch([1]))
        until(lambda: mirror.known.get("w") == {1}, reader)
        script.send(1, bytes(MOST_BYTES + 1))
        until(lambda: reader.counts["lost"] > 0, reader)
        assert mirror.known["w"] == set()


def test_every_socket_has_bounds(manager: BlockManager, publisher: Publisher) -> None:
    """A frame without a bound is read whole into memory before anybody looks at it."""
    with reader_of(publisher, Mirror()) as reader:
        sockets = [reader._sub, reader._dealer, publisher._pub, publisher._replies.socket]
        for socket in sockets:
            assert socket is not None
            assert 0 < socket.maxmsgsize <= MOST_BYTES
            assert 0 < socket.rcvhwm <= 2**15


def test_readers_that_ask_and_never_read_do_not_fill_memory() -> None:
    """Few answers are made at a time, and only as far as they are sent."""
    made: list[int] = []

    def answer(request: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        for number in range(10**6):
            made.append(number)
            yield b"", number.to_bytes(8, "big"), bytes(2**16)

    with zmq.Context() as context:
        replies = Replies(context, answer)
        port = replies.socket.bind_to_random_port("tcp://127.0.0.1")
        clients = [context.socket(zmq.DEALER) for _ in range(12)]
        for client in clients:
            client.linger = 0
            client.rcvhwm = 1
            client.connect(f"tcp://127.0.0.1:{port}")
            for _ in range(3):
                client.send_multipart((b"", SNAPSHOT), zmq.DONTWAIT)
        before = -1
        for _ in range(1000):  # until nothing more fits
            if replies.socket.poll(10):
                replies.take()
            replies.send()
            if before == len(made) > 0:
                break
            before = len(made)
        assert replies.is_sending
        assert len(replies._open) <= 4
        assert len(made) < 2000
        context.destroy(linger=0)


def test_a_reader_that_takes_nothing_makes_room_for_the_next() -> None:
    now = [0.0]
    with zmq.Context() as context:
        endless = iter(lambda: (b"", bytes(8), bytes(2**16)), None)
        replies = Replies(
            context, lambda request: endless if request == b"e" else iter([(b"", END, b"")]),
            lambda: now[0],
        )  # fmt: skip
        port = replies.socket.bind_to_random_port("tcp://127.0.0.1")
        clients = [context.socket(zmq.DEALER) for _ in range(5)]
        for client, request in zip(clients, [b"e"] * 4 + [SNAPSHOT], strict=True):
            client.linger = 0
            client.rcvhwm = 1
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send_multipart((b"", request))
            assert replies.socket.poll(5000)
            replies.take()
        for _ in range(200):
            replies.send()
        assert not clients[-1].poll(20)
        for _ in range(1000):
            now[0] += 6.0
            replies.send()
            if clients[-1].poll(20):
                break
        assert clients[-1].recv_multipart(zmq.DONTWAIT) == [b"", b"", END, b""]
        context.destroy(linger=0)


def test_a_long_answer_comes_whole(manager: BlockManager) -> None:
    """More messages than fit at once; none is dropped, as ZMQ does where nobody looks."""
    with Publisher(manager, 2, ANY, ANY) as publisher:
        for prompt in range(500):
            cache(manager, [prompt] * 3)
            publisher.publish()
        with zmq.Context() as context, context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.set_hwm(1)
            client.connect(str(publisher.replay_endpoint))
            client.send_multipart((b"", bytes(8)))
            numbers = []
            while client.poll(5000):
                frames = client.recv_multipart()
                if frames[2] == END:
                    break
                numbers.append(int.from_bytes(frames[2], "big"))
            assert numbers == list(range(publisher.num_published))
