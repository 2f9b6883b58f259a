"""``blockmgr index serve``."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli.common import Group, WrongCommand
from blockmgr.errors import MissingExtraError
from blockmgr.lab.choices import different

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.index.service import Feeds

__all__ = ["index"]

_SWITCH_S: Final = 0.0005
_CLOSE_S: Final = 2
"""Seconds for requests in progress at the end: a client may never send or read the rest."""


@click.group(cls=Group, short_help="Tell routers which worker has a prompt in its cache.")
def index() -> None:
    """An index of the caches of many workers, fed by their events."""


def _worker(
    context: click.Context, parameter: click.Parameter, values: Sequence[str]
) -> list[tuple[str, str, str | None]]:
    workers = []
    for value in values:
        name, equals, endpoints = value.partition("=")
        endpoint, _, replay = endpoints.partition(",")
        if not (name and equals and endpoint):
            raise click.BadParameter(f"must be NAME=ENDPOINT or NAME=ENDPOINT,REPLAY, got {value}")
        workers.append((name, endpoint, replay or None))
    try:
        different("workers", (name for name, *_ in workers))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return workers


@index.command(short_help="Serve the index over HTTP.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8089,
    show_default=True,
    help="Port to listen on; 0 for any that is free.",
)
@click.option(
    "--worker",
    "workers",
    multiple=True,
    callback=_worker,
    metavar="NAME=ENDPOINT[,REPLAY]",
    help="A worker to follow, and where it publishes and answers; can be given several times.",
)
@click.option(
    "--ranks", type=click.IntRange(1, 65536), default=1, show_default=True,
    help="Data-parallel ranks of each worker: at ports in a row, each a worker NAME/RANK.",
)  # fmt: skip
@click.option(
    "--max-workers", type=click.IntRange(1, 65536), default=64, show_default=True,
    help="Most workers at a time, each rank counted.",
)  # fmt: skip
@click.option(
    "--max-ranks", type=click.IntRange(1, 65536), default=16, show_default=True,
    help="Most data-parallel ranks whose batches come through one port.",
)  # fmt: skip
@click.option(
    "--block-size", type=click.IntRange(1, 2**31 - 1), default=None, metavar="TOKENS",
    help="Tokens per block of the prompts that are asked for; workers with others are errors.",
)  # fmt: skip
@click.option(
    "--max-blocks", type=click.IntRange(1, 2**40 - 1), default=2**26, show_default=True,
    help="Most different blocks at a time.",
)  # fmt: skip
@click.option(
    "--load-weight", type=float, default=1.0, show_default=True,
    help="Amount that a load of 1 subtracts from a score.",
)  # fmt: skip
def serve(
    host: str, port: int, workers: list[tuple[str, str, str | None]], ranks: int, **limits: Any
) -> None:
    """Serve the index over HTTP until interrupted.

    POST /place with {"digests": [...]} returns the workers that have a prompt, best first. /workers
    announces and withdraws workers at run time. GET /metrics is for Prometheus.

    If the batches of a worker name data-parallel ranks, /place returns each rank, with its number.

    Every client that can reach the port can query and announce, so use a network of routers only.
    """
    try:
        import uvicorn  # noqa: PLC0415  (an extra of its own)

        from blockmgr.index.reading import ReadingProcess  # noqa: PLC0415
        from blockmgr.index.service import Feeds, application  # noqa: PLC0415
        from blockmgr.index.workers import WorkerIndex  # noqa: PLC0415
    except ImportError as error:
        raise WrongCommand(str(MissingExtraError("index", "blockmgr index serve"))) from error
    try:
        made = WorkerIndex(**limits)
    except ValueError as error:
        raise WrongCommand(str(error)) from error
    if not host:  # it would be every address of the machine
        raise WrongCommand("--host must be an address or a name, got ''")
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise WrongCommand(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    # asyncio does it only for sockets that name their protocol. Without it an answer may wait 40 ms
    # for the client's acknowledgement of its first half. Connections inherit it.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reading = ReadingProcess(lambda: os.kill(os.getpid(), signal.SIGTERM))
    feeds = Feeds(made, make=reading.make)
    # For the whole process: the thread that applies events must not delay the one that answers.
    sys.setswitchinterval(_SWITCH_S)
    with listener, closing(reading):
        _announce(feeds, workers, ranks)
        click.echo(f"listening on http://{host}:{listener.getsockname()[1]}", file=sys.stderr)
        config = uvicorn.Config(
            application(feeds),
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=_CLOSE_S,
        )
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            feeds.close()


def _announce(feeds: Feeds, workers: Sequence[tuple[str, str, str | None]], ranks: int) -> None:
    try:
        for name, endpoint, replay in workers:
            feeds.add_ranks(name, endpoint, replay, ranks)
    except ValueError as error:
        feeds.close()
        raise WrongCommand(str(error)) from error
