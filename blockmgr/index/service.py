"""The index as a small process: events over ZMQ, queries over HTTP, Prometheus metrics.

It says where a prompt is cached; it does not forward requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from blockmgr.errors import MissingExtraError
from blockmgr.event_columns import Tier
from blockmgr.index.feeds import Feeds

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
    from prometheus_client.registry import Collector
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as error:
    raise MissingExtraError("index", "blockmgr.index.service") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.requests import Request

    from blockmgr.index.feeds import ReaderState


__all__ = ["Feeds", "application"]

MOST_BYTES: Final = 2**24
"""Most bytes of a request body: a prompt of half a million blocks."""


class _Metrics(Collector):
    """Metrics of the index and of received messages, read at each scrape."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds

    def describe(self) -> Iterator[Any]:
        """No families: the names are fixed."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """The metric families."""
        index = self._feeds.index
        blocks = GaugeMetricFamily(
            "blockmgr_index_blocks", "Blocks of a worker, or of its rank, in a tier",
            labels=["worker", "tier"],
        )  # fmt: skip
        for worker, rank in index.rows:
            named = {} if rank is None else {"rank": str(rank)}
            for tier in Tier:
                try:
                    count = index.num_blocks(worker, tier, rank)
                except KeyError:
                    break  # withdrawn meanwhile
                labels = {"worker": worker, "tier": tier.name.lower(), **named}
                blocks.add_sample(blocks.name, labels, count)
        yield blocks
        yield GaugeMetricFamily(
            "blockmgr_index_entries", "Different blocks that some worker has",
            value=index.num_entries,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "blockmgr_index_bytes", "Memory of the table", value=index.memory_usage()
        )
        readers = self._feeds.readers()
        current = GaugeMetricFamily(
            "blockmgr_index_current", "1 if nothing of a worker's events is missing",
            labels=["worker"],
        )  # fmt: skip
        messages = CounterMetricFamily(
            "blockmgr_index_messages", "What came of a worker's messages, by outcome",
            labels=["worker", "outcome"],
        )  # fmt: skip
        for worker, reader in readers.items():
            current.add_metric([worker], float(reader.is_current))
            for outcome, count in sorted(reader.counts.items()):
                messages.add_metric([worker, outcome], count)
        yield current
        yield messages
        wrong = GaugeMetricFamily(
            "blockmgr_index_ignored", "1 if a worker's blocks have another size than the index",
            labels=["worker"],
        )  # fmt: skip
        for worker in sorted({worker for worker, _ in index.problems}):
            wrong.add_metric([worker], 1.0)
        yield wrong
        refused = CounterMetricFamily(
            "blockmgr_index_refused", "Events and blocks that were not believed", labels=["reason"]
        )
        for reason, count in sorted(index.counts.items()):
            refused.add_metric([reason], count)
        yield refused


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /place``: digests as numbers (low 64 bits), or as text in hexadecimal."""

    digests: list[int | str]


class _Announcement(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /workers``."""

    worker: str
    endpoint: str
    replay_endpoint: str | None = None


class _Load(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /workers/{worker}/load``."""

    load: float
    rank: int | None = None


class _RefusedError(Exception):
    """A bad request; the response contains the reason."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def application(feeds: Feeds) -> Starlette:
    """The index over HTTP, for any ASGI server.

    ``POST /place`` with ``{"digests": [...]}`` returns the workers, best first, with their blocks
    and scores. ``GET /workers`` lists them, ``POST /workers`` with ``worker``, ``endpoint`` and
    ``replay_endpoint`` announces one, ``DELETE /workers/NAME`` forgets it, and
    ``POST /workers/NAME/load`` with ``{"load": x}`` sets its load. ``GET /metrics`` is for
    Prometheus, ``GET /health`` for health checks.

    A worker whose batches name data-parallel ranks is in the answers of ``/place`` once for each,
    with its ``rank``, and has ``ranks`` in ``GET /workers``; ``blockmgr_index_blocks`` has a label
    ``rank``. A load with ``"rank": r`` is that of one rank, without it that of all. A worker is
    announced and forgotten with all its ranks. ``error`` in ``GET /workers`` says why the blocks of
    a worker are ignored.

    Args:
        feeds: The index to query, and the subscribers of its workers.
    """
    answers = _Answers(feeds)
    routes = [
        Route("/place", answers.place, methods=["POST"]),
        Route("/workers", answers.workers, methods=["GET", "POST"]),
        # Names of ranks contain a slash.
        Route("/workers/{worker:path}/load", answers.load, methods=["POST"]),
        Route("/workers/{worker:path}", answers.worker, methods=["DELETE"]),
        Route("/metrics", answers.metrics),
        Route("/health", answers.health),
    ]
    return Starlette(routes=routes, exception_handlers={_RefusedError: _refused})


class _Answers:
    """The answers to requests, by path."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = feeds
        self._index = feeds.index
        self._registry = CollectorRegistry()
        self._registry.register(_Metrics(feeds))

    async def place(self, request: Request) -> Response:
        question = await _body(request, _Question)
        try:
            digests = [bytes.fromhex(d) if isinstance(d, str) else d for d in question.digests]
        except ValueError:
            raise _RefusedError(400, "digests must be numbers or hexadecimal text") from None
        if any(len(digest) < 8 for digest in digests if isinstance(digest, bytes)):
            raise _RefusedError(400, "digests must have at least 8 bytes, 16 hexadecimal digits")
        placements = self._index.place(digests)
        return _json(
            {
                "blocks": len(digests),
                "workers": [
                    {
                        "worker": each.worker,
                        **({} if each.rank is None else {"rank": each.rank}),
                        "num_blocks": each.num_blocks,
                        "tiers": {tier.name.lower(): n for tier, n in each.tiers.items()},
                        "score": each.score,
                    }
                    for each in placements
                ],
            }
        )

    async def workers(self, request: Request) -> Response:
        if request.method == "POST":
            wanted = await _body(request, _Announcement)
            try:
                # It may wait for another process, and answers must not.
                await run_in_threadpool(
                    self._feeds.add, wanted.worker, wanted.endpoint, wanted.replay_endpoint
                )
            except ValueError as error:
                raise _RefusedError(400, str(error)) from None
            return _json({"worker": wanted.worker}, 201)
        problems = self._index.problems
        listed = [_described(name, each, problems) for name, each in self._feeds.readers().items()]
        return _json({"workers": listed})

    async def worker(self, request: Request) -> Response:
        try:
            await run_in_threadpool(self._feeds.remove, request.path_params["worker"])
        except KeyError as error:
            raise _RefusedError(404, str(error.args[0])) from None
        return Response(status_code=204)

    async def load(self, request: Request) -> Response:
        wanted = await _body(request, _Load)
        try:
            self._index.set_load(request.path_params["worker"], wanted.load, wanted.rank)
        except KeyError as error:
            raise _RefusedError(404, str(error.args[0])) from None
        except ValueError as error:
            raise _RefusedError(400, str(error)) from None
        return Response(status_code=204)

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def health(self, request: Request) -> Response:
        return _json({"workers": len(self._index.workers), "entries": self._index.num_entries})


async def _refused(request: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, _RefusedError) else 500
    return _json({"error": str(error)}, status)


def _described(
    worker: str, reader: ReaderState, problems: Mapping[tuple[str, int | None], str]
) -> dict[str, Any]:
    """A worker as ``GET /workers`` shows it."""
    described: dict[str, Any] = {"worker": worker, "current": reader.is_current}
    if ranks := reader.ranks:
        described["ranks"] = ranks
    if own := [problem for (name, _), problem in problems.items() if name == worker]:
        described["error"] = own[0]
    return described


async def _body(request: Request, kind: type[Any]) -> Any:
    data = bytearray()
    try:
        async for chunk in request.stream():
            data += chunk
            if len(data) > MOST_BYTES:
                raise _RefusedError(413, f"a body must be at most {MOST_BYTES} bytes")
    except ClientDisconnect:  # the client has gone: this answer is only for the server
        raise _RefusedError(400, "the body ended early") from None
    try:
        return msgspec.json.decode(bytes(data), type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _RefusedError(400, f"the body is wrong: {error}") from None


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
