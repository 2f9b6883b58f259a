"""Addresses of sockets, by data-parallel rank."""

from __future__ import annotations

import zmq

from blockmgr.arguments import text, whole
from blockmgr.errors import EndpointError

__all__ = ["bind", "bounded", "connect", "endpoint_of_rank"]

_MOST_PORT = 65535


def endpoint_of_rank(name: str, endpoint: str, rank: int | None) -> str:
    """The address of a rank, as in vLLM: consecutive ports, or names that end in the rank.

    Args:
        name: Name of the argument, for the error.
        endpoint: The address of rank 0.
        rank: None for an engine without ranks.

    Raises:
        ValueError: The address has no port to count from, or the rank is out of its bounds.
        TypeError: A value is of the wrong type.

    >>> endpoint_of_rank("endpoint", "tcp://127.0.0.1:5557", 2)
    'tcp://127.0.0.1:5559'
    >>> endpoint_of_rank("endpoint", "inproc://cache", 1)
    'inproc://cache_dp1'
    """
    text(name, endpoint)
    if rank is None or whole("rank", rank, 0, _MOST_PORT) == 0:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdecimal():
        raise ValueError(f"{name} must be tcp:// with a port or inproc://, got {endpoint!r}")
    return endpoint if int(port) == 0 else f"{base}:{int(port) + rank}"


def bounded(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, *, most_bytes: int, most_queued: int
) -> zmq.Socket[bytes]:
    """Makes a socket that cannot be made to hold much, and does not wait when it is closed.

    Args:
        context: Its context.
        kind: Type of the socket.
        most_bytes: Most bytes of a frame; a connection that sends more is cut.
        most_queued: Most messages in each direction, for each connection.
    """
    socket = context.socket(kind)
    socket.linger = 0
    socket.maxmsgsize = most_bytes
    socket.set_hwm(most_queued)
    return socket


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Binds a socket; returns the address, with the port that was chosen if it was 0.

    Raises:
        EndpointError: The address is taken, or not an address of this machine.
    """
    try:
        _check_port(endpoint)
        socket.bind(endpoint)
    except (zmq.ZMQError, ValueError) as error:
        raise EndpointError(endpoint, str(error)) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connect(socket: zmq.Socket[bytes], name: str, endpoint: str) -> None:
    """Connects a socket; the other end may start later.

    Raises:
        ValueError: Not an address.
    """
    try:
        _check_port(endpoint)
        socket.connect(endpoint)
    except (zmq.ZMQError, ValueError) as error:
        raise ValueError(
            f"{name} must be an address to connect to, got {endpoint!r}: {error}"
        ) from error


def _check_port(endpoint: str) -> None:
    """Refuses a port above 65,535, which ZMQ would reduce modulo 65,536."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdecimal() and int(port) > _MOST_PORT:
        raise ValueError(f"a port must be at most {_MOST_PORT}")
