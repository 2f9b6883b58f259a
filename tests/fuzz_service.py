"""A fuzzer of the index process: ``python -m tests.fuzz_service --seconds 60``.

A process plays bad workers, over their sockets and over HTTP: one is slow, one lies, one floods,
one dies over and over, and a client announces and withdraws them and sends broken requests.
Meanwhile another client asks for prompts that a good worker has. Every answer must be right. The
same client asks a second index that has the good worker only: the difference is the work of the
bad workers, and what both have is the noise of the machine.

Prints the times of both in milliseconds, and with each wrong answer what the reading of the good
worker has counted since the previous one: if the machine stops this program for more than 10
seconds, the good worker answers nothing, and the index forgets it as it should (``unanswered 2``).
The exit code is 1 if an answer was wrong or missing, or if the 99th percentile beside the bad
workers is above ``--limit-ms``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq

from blockmgr.events.publisher import END
from blockmgr.events.wire import MOST_BYTES

ANY = "tcp://127.0.0.1:0"
GOOD = list(range(1, 1025))
encode = msgspec.msgpack.encode


def stored(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": [],
        "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None, **fields,
    }  # fmt: skip


class Client:
    """Asks one index over one connection, which is made again if it breaks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.asked = 0.0

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            answer = self.send(method, path, data)
        except ConnectionError:
            if not self.has_idled():
                raise
            answer = self.send(method, path, data)  # this program was stopped before it sent
        status, read = answer
        return status, json.loads(read) if read[:1] == b"{" else read

    def has_idled(self) -> bool:
        """Whether the index may have closed the connection, because nobody used it."""
        return time.monotonic() - self.asked > 2

    def send(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        if self.has_idled():
            self.connection.close()
        self.asked = time.monotonic()
        try:
            self.connection.request(method, path, data)
            answer = self.connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise


# Bad workers.


class Bad:
    """The sockets of a worker that a thread plays, and a random generator of its own."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        for each in (self.pub, self.router):
            each.linger = 0
            each.sndtimeo = 1000
            each.set_hwm(100)
            each.bind(ANY)
        self.numbers: dict[int, int] = {}

    @property
    def told(self) -> dict[str, str]:
        endpoints = [each.getsockopt_string(zmq.LAST_ENDPOINT) for each in (self.pub, self.router)]
        return {"endpoint": endpoints[0], "replay_endpoint": endpoints[1]}

    def send(self, payload: bytes, number: int | None = None, rank: int = 0) -> None:
        if number is None:
            number = self.numbers.get(rank, 0)
        self.numbers[rank] = number + 1
        self.pub.send_multipart((b"", number.to_bytes(8, "big", signed=True), payload))

    def requests(self, wait_ms: int) -> Iterator[bytes]:
        for _ in range(100):
            if not self.router.poll(wait_ms):
                return
            yield self.router.recv_multipart()[0]

    def reply(self, client: bytes, number: bytes, payload: bytes) -> None:
        self.router.send_multipart((client, b"", b"", number, payload))

    def close(self) -> None:
        self.context.destroy(linger=0)


def be_slow(bad: Bad, is_over: Callable[[], bool]) -> None:
    """Answers byte by byte, without end, and makes gaps so that it is asked."""
    clients: list[bytes] = []
    for turn in range(10**9):
        if is_over():
            return
        clients = [*clients, *bad.requests(5)][-50:]
        for client in clients:
            bad.reply(client, turn.to_bytes(8, "big"), b"x")
        bad.send(encode([0.0, [stored([turn])], 0]), number=3 * turn)


def lie(rng: random.Random) -> bytes:
    """A batch as no engine sends it."""
    number = [0, 1, -1, 255, 256, 2**31, 2**63, rng.getrandbits(63)]
    kinds = [
        "full_attention",
        "sliding_window",
        "chunked_local_attention",
        "mamba",
        "x" * 500,
        None,
    ]
    hashes = [rng.choice([*number, bytes(8), bytes(32), 5]) for _ in range(rng.randint(0, 50))]
    if rng.random() < 0.5:
        hashes = rng.sample(GOOD, 50)
    events: list[Any] = []
    for _ in range(rng.randint(0, 30)):
        described = {
            "group_idx": rng.choice(number), "kv_cache_spec_kind": rng.choice(kinds),
            "kv_cache_spec_sliding_window": rng.choice(number), "block_size": rng.choice(number),
            "medium": rng.choice(["GPU", "CPU", "STORAGE", "TAPE", None]),
        }  # fmt: skip
        events.append(stored(hashes, **rng.choice([described, {}])))
        events.append({"type": "BlockRemoved", "block_hashes": hashes[:5], "medium": "GPU"})
        if rng.random() < 0.1:
            events.append({"type": rng.choice(["AllBlocksCleared", "BlockMoved"])})
    groups = [
        [rng.choice(kinds[:5]), rng.choice(number)] for _ in range(rng.choice([0, 3, 60, 300]))
    ]
    about = {
        "epoch": rng.choice([1, 2, rng.getrandbits(62)]), "snapshot": rng.random() < 0.5,
        "last": rng.random() < 0.5, "groups": groups, "block_size": rng.choice(number),
    }  # fmt: skip
    rank = rng.choice([None, 0, 1, rng.randrange(2**16), -1, 2**40])
    payload = bytearray(encode([rng.random(), events, rank, *rng.choice([[], [about]])]))
    for _ in range(rng.choice([0, 0, 1, 5])):
        payload[rng.randrange(len(payload))] = rng.randrange(256)
    return bytes(payload)


def be_a_liar(bad: Bad, is_over: Callable[[], bool]) -> None:
    """Sends and answers batches that no engine sends, with any numbers."""
    while not is_over():
        number = bad.rng.choice([None, None, None, 0, 2**62, bad.rng.getrandbits(40)])
        bad.send(lie(bad.rng), number=number)
        for client in bad.requests(1):
            for turn in range(bad.rng.randint(0, 20)):
                bad.reply(client, turn.to_bytes(8, "big"), lie(bad.rng))
            if bad.rng.random() < 0.8:
                bad.reply(client, END, b"")


def be_a_flood(bad: Bad, is_over: Callable[[], bool]) -> None:
    """Sends batches as fast as the socket takes them: tiny ones, the longest, and longer ones."""
    large = [bad.rng.getrandbits(63) for _ in range(60_000)]
    spread = pow(0x9E3779B97F4A7C15, -1, 2**64)
    payloads = [
        encode([0.0, [stored(large[:n]) for _ in range(6)], 0])
        for n in (1, 100, 10_000, 60_000)
    ]  # fmt: skip
    payloads.append(encode([0.0, [stored([spread * j % 2**64 for j in range(1, 50_000)])], 0]))
    removals = [{"type": "BlockRemoved", "block_hashes": [key], "medium": "GPU"} for key in large]
    payloads.append(encode([0.0, removals, 0]))
    payloads.append(encode([0.0, [stored([1], token_ids=[1] * (MOST_BYTES - 500))], 0]))
    while not is_over():
        payload = bad.rng.choice(payloads)
        for _ in range(bad.rng.choice([1, 1000]) if len(payload) < 10_000 else 4):
            bad.send(payload)
        for client in bad.requests(0):
            for turn in range(20):
                with_no_end = bad.rng.choice(payloads)
                bad.reply(client, turn.to_bytes(8, "big"), with_no_end)
            bad.reply(client, END, b"")
        if bad.rng.random() < 0.001:
            bad.send(bytes(MOST_BYTES + 1))


def be_dying(bad: Bad, is_over: Callable[[], bool]) -> None:
    """Ends and starts again at the same port, at times as a program that speaks no ZMQ."""
    told = bad.told["endpoint"]
    keys = [bad.rng.getrandbits(63) for _ in range(20_000)]
    while not is_over():
        bad.pub.close(linger=0)
        if bad.rng.random() < 0.3:
            speak_no_zmq(int(told.rpartition(":")[2]), bad.rng)
        bad.pub = bad.context.socket(zmq.PUB)
        bad.pub.linger = 0
        try:
            bad.pub.bind(told)
        except zmq.ZMQError:  # the port is not free yet
            time.sleep(0.05)
            continue
        bad.numbers.clear()
        until = time.monotonic() + bad.rng.random()
        while time.monotonic() < until and not is_over():
            bad.send(encode([0.0, [stored(keys)], 0]))
            for client in bad.requests(20):
                if bad.rng.random() < 0.5:
                    bad.reply(client, END, b"")


def speak_no_zmq(port: int, rng: random.Random) -> None:
    try:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(0.3)
            connection, _ = server.accept()
            with connection:
                greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
                connection.sendall(rng.choice([greeting[: rng.randrange(64)], rng.randbytes(100)]))
    except OSError:
        return


def churn(address: str, workers: dict[str, dict[str, str]], rng: random.Random) -> None:
    """A request of a careless operator, or of a client that speaks no HTTP."""
    client = Client(address)
    name = rng.choice(list(workers))
    kind = rng.random()
    with closing(client.connection):
        if kind < 0.3:
            client.ask("DELETE", f"/workers/{name}")
        elif kind < 0.7:
            client.ask("POST", "/workers", {"worker": name, **workers[name]})
        elif kind < 0.8:
            load = rng.choice([0.5, 1e308, "nan", None, {"rank": 1}])
            client.ask("POST", f"/workers/{name}/load", {"load": load})
        elif kind < 0.9:
            path = rng.choice(["/place", "/workers", "/metrics", "/x", "/workers//load"])
            data = rng.choice([b"{", b"[" * 1000, rng.randbytes(100), b'{"digests": ["zz"]}'])
            client.ask(rng.choice(["POST", "GET", "PUT"]), path, data)
        else:
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port)), timeout=5) as raw:
                begun = b"POST /place HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
                raw.sendall(rng.choice([begun, rng.randbytes(200)]))
                time.sleep(0.1)


ROLES = {"slow": be_slow, "liar": be_a_liar, "flood": be_a_flood, "dying": be_dying}


def play(address: str, seconds: float, seed: int) -> None:
    """Plays the bad workers until the time is over."""
    end = time.monotonic() + seconds
    stop = threading.Event()

    def is_over() -> bool:
        return stop.is_set() or time.monotonic() > end

    def run(role: Callable[[Bad, Callable[[], bool]], None], bad: Bad) -> None:
        while not is_over():
            try:
                role(bad, is_over)
            except zmq.ZMQError:  # a reader that has left, or takes nothing
                time.sleep(0.01)

    bad = {name: Bad(f"{seed} {name}") for name in ROLES}
    told = {name: each.told for name, each in bad.items()}
    for name, endpoints in told.items():
        Client(address).ask("POST", "/workers", {"worker": name, **endpoints})
    threads = [threading.Thread(target=run, args=(ROLES[name], bad[name])) for name in ROLES]
    for thread in threads:
        thread.start()
    rng = random.Random(seed)
    try:
        while not is_over():
            churn(address, told, rng)
            time.sleep(rng.random() / 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for each in bad.values():
            each.close()


# The client.


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """An index as a process: its address and its process id."""
    command = [sys.executable, "-m", "blockmgr", "index", "serve", "--port", "0"]
    command += ["--max-blocks", str(2**20)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = process.stderr.readline().split("//")[-1].strip()
        drain = threading.Thread(target=process.stderr.read, daemon=True)
        drain.start()
        try:
            yield address, process.pid
            if process.poll() is not None:
                raise AssertionError(f"the index ended with {process.returncode}")
        finally:
            process.kill()


@contextmanager
def good_worker(*addresses: str) -> Iterator[None]:
    """A worker with the blocks of ``GOOD``, which it answers to every request."""
    context = zmq.Context()
    stop = threading.Event()
    with context:
        pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        told = {"worker": "good"}
        for name, each in (("endpoint", pub), ("replay_endpoint", router)):
            each.linger = 0
            each.bind(ANY)
            told[name] = each.getsockopt_string(zmq.LAST_ENDPOINT)
        about = {"epoch": 1, "snapshot": True, "last": True}
        snapshot = encode([0.0, [stored(GOOD)], None, about])

        def answer() -> None:
            while not stop.is_set():
                if router.poll(50):
                    client, _, request = router.recv_multipart()
                    if request != b"\0\0\0\0\0\0\0\1":
                        router.send_multipart((client, b"", b"", bytes(8), snapshot))
                    router.send_multipart((client, b"", b"", END, b""))

        thread = threading.Thread(target=answer)
        thread.start()
        for address in addresses:
            Client(address).ask("POST", "/workers", told)
        try:
            yield
        finally:
            stop.set()
            thread.join()
            pub.close()
            router.close()


def measured(client: Client, rng: random.Random) -> tuple[float, str]:
    """The time of a question in seconds, and what is wrong with the answer."""
    count = rng.randint(1, len(GOOD))
    start = time.perf_counter()
    if rng.random() < 0.2:
        status, answer = client.ask("GET", "/health")
        return time.perf_counter() - start, "" if status == 200 else f"health: {status} {answer}"
    status, answer = client.ask("POST", "/place", {"digests": GOOD[:count]})
    seconds = time.perf_counter() - start
    if status != 200:
        return seconds, f"place: {status} {answer}"
    found = [each["num_blocks"] for each in answer["workers"] if each["worker"] == "good"]
    return seconds, "" if found == [count] else f"place: the good worker has {found}, not {count}"


class Counted:
    """What the reading of the good worker has counted since the last look."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: Counter[str] = Counter()
        self.news()

    def news(self) -> str:
        time.sleep(0.5)  # the process that reads reports four times a second
        _, text = self._client.ask("GET", "/metrics")
        outcomes = r'index_messages_total{outcome="(\w+)",worker="good"} (\S+)'
        found = re.findall(outcomes, text.decode())
        counts = Counter({outcome: int(float(count)) for outcome, count in found})
        new = counts - self._seen
        self._seen = counts
        return ", ".join(f"{outcome} {count}" for outcome, count in sorted(new.items())) or "none"


def until_good(client: Client) -> None:
    for _ in range(600):
        _, answer = client.ask("POST", "/place", {"digests": GOOD})
        if [each["num_blocks"] for each in answer["workers"]] == [len(GOOD)]:
            return
        time.sleep(0.05)
    raise AssertionError("the index never had the blocks of the good worker")


def family(pid: int) -> list[int]:
    """A process and those that it started, by number; only the first where there is no /proc."""
    found = [pid]
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            parent = re.search(r"PPid:\s+(\d+)", status.read_text())
            if parent and int(parent[1]) == pid:
                found.append(int(status.parent.name))
    return found


def memory(pids: list[int]) -> float:
    """MiB of processes; 0 where the system does not tell."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            total += int(found[1]) if found else 0
    return total / 1024


def line(name: str, times: list[float]) -> tuple[str, float]:
    """The times as a line, and their 99th percentile in milliseconds."""
    ordered = sorted(1000 * each for each in times)
    high = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.99, 0.999)]
    late = sum(each > 50 for each in ordered)
    text = f"{name:12} {len(ordered):9,} answers, median {statistics.median(ordered):6.2f}, 99 % "
    text += f"{high[0]:6.2f}, 99.9 % {high[1]:6.2f}, longest {ordered[-1]:6.1f} ms, "
    return f"{text}{late} above 50 ms", high[0]


def fuzz(seconds: float, seed: int, limit_ms: float) -> int:
    """Runs it, prints the result and returns the exit code."""
    rng = random.Random(seed)
    times: dict[str, list[float]] = {"beside them": [], "idle": []}
    wrong: list[str] = []
    with ExitStack() as stack:
        (address, pid), (idle, _) = (stack.enter_context(served()) for _ in range(2))
        stack.enter_context(good_worker(address, idle))
        clients = {"beside them": Client(address), "idle": Client(idle)}
        for client in clients.values():
            until_good(client)
        command = [sys.executable, "-m", "tests.fuzz_service", "--play", address]
        command += ["--seconds", str(seconds), "--seed", str(seed)]
        player = stack.enter_context(subprocess.Popen(command))
        stack.callback(player.kill)
        counted = {name: Counted(client) for name, client in clients.items()}
        most_mib, processes = 0.0, family(pid)
        while player.poll() is None:
            for name, client in clients.items():
                took, problem = measured(client, rng)
                times[name].append(took)
                if problem:
                    wrong.append(f"{name}: {problem} (counts: {counted[name].news()})")
            most_mib = max(most_mib, memory(processes))
            time.sleep(0.005)
        if player.returncode:
            wrong.append(f"the player ended with {player.returncode}")
        for name in ROLES:
            status, _ = clients["beside them"].ask("DELETE", f"/workers/{name}")
            wrong += [] if status in {204, 404} else [f"DELETE: {status}"]
        until_good(clients["beside them"])
        _, health = clients["beside them"].ask("GET", "/health")
        if health != {"workers": 1, "entries": len(GOOD)}:
            wrong.append(f"the index has more than the good worker's blocks: {health}")
    slow = False
    for name, each in times.items():
        text, high = line(name, each)
        print(text)
        slow = slow or (name != "idle" and high > limit_ms)
    print(f"most memory of the index: {most_mib:.0f} MiB; {len(wrong)} wrong answers")
    print(*wrong[:20], sep="\n")
    return int(slow or bool(wrong))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_service", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-ms", type=float, default=50.0)
    parser.add_argument("--play", metavar="HOST:PORT", help="play the bad workers of this index")
    args = parser.parse_args(argv)
    if args.play:
        play(args.play, args.seconds, args.seed)
        return 0
    return fuzz(args.seconds, args.seed, args.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
