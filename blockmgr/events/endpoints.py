"""Addresses of sockets, by data-parallel rank."""

from __future__ import annotations

import zmq

from blockmgr.errors import EndpointError

__all__ = ["bind", "endpoint_of_rank"]


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """The address of a rank, as vLLM has it: ports in a row, or names with the rank at the end.

    Raises:
        ValueError: The address has no port to count from.

    >>> endpoint_of_rank("tcp://127.0.0.1:5557", 2), endpoint_of_rank("inproc://cache", 1)
    ('tcp://127.0.0.1:5559', 'inproc://cache_dp1')
    """
    if rank == 0:
        return endpoint
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not port.isdecimal():
        raise ValueError(f"endpoint must be tcp:// with a port or inproc://, got {endpoint!r}")
    return endpoint if int(port) == 0 else f"{base}:{int(port) + rank}"


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Binds a socket and says where, with the port that was chosen if it was left open.

    Raises:
        EndpointError: The address is taken, or none of this machine.
    """
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise EndpointError(endpoint, str(error)) from error
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)
