"""Publisher and subscriber: order, gaps, restarts, and invalid messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
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
from blockmgr.events.publisher import END, SNAPSHOT
from blockmgr.events.reader import Reader
from blockmgr.events.stream import Stream, Verdict

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


def batch(hashes: list[int], epoch: int | None = None) -> bytes:
    event = {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None,
        "token_ids": [0] * len(hashes), "block_size": 1, "lora_id": None, "medium": "GPU",
        "lora_name": None,
    }  # fmt: skip
    about = [] if epoch is None else [{"epoch": epoch}]
    return msgspec.msgpack.encode([0.0, [event], None, *about])


def listening(script: Script, mirror: Mirror) -> Subscriber:
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
            until(lambda: reader._reader._stream.next == publisher.num_published, reader)
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
