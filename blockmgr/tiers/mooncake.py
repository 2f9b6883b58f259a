"""``MooncakeStore``: Mooncake Store as the objects of a shared tier.

Needs ``mooncake``, so ``blockmgr.tiers`` does not import it.

Source: R. Qin et al., "Mooncake: Trading More Storage for Less Computation - A KVCache-centric
Architecture for Serving LLM Chatbot", FAST 2025.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
from typing import TYPE_CHECKING, Any

from blockmgr.arguments import positive, text, whole
from blockmgr.digest import KeyedDigest
from blockmgr.tiers.errors import SharedStoreError
from blockmgr.tiers.records import up
from blockmgr.tiers.shared import SharedStorage
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blockmgr.tiers.kinds import MooncakeTier

__all__ = ["MooncakeStore", "connected"]

NO_MASTER = -900  # its call to the master failed
NOT_THERE = -704


class MooncakeStore(NotCopied):
    """A client of Mooncake Store, with memory that it lends to the store.

    Args:
        master: Address of the master, ``"host:port"``.
        host: Name or address of this machine, by which the other clients reach it.
        lent_bytes: Memory of this process that the store may use; 0 only to use that of others.
        protocol: Transport: ``"tcp"``, or ``"rdma"``.
        devices: Devices for RDMA, by name, with commas between them.
        timeout: Seconds in which something must answer at ``master``. If it is no master, Mooncake
            itself fails after some 90 s.

    Raises:
        SharedStoreError: Mooncake is not installed, nothing answers at ``master``, or it is no
            master.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    _instead = "make another client"

    def __init__(
        self,
        master: str,
        *,
        host: str = "127.0.0.1",
        lent_bytes: int = 0,
        protocol: str = "tcp",
        devices: str = "",
        timeout: float = 5.0,
    ) -> None:
        own = (text("host", host), whole("lent_bytes", lent_bytes, 0))
        how = (text("protocol", protocol), text("devices", devices))
        self._master = text("master", master)
        self._memory: list[tuple[int, mmap.mmap]] = []
        positive("timeout", timeout)
        address, _, port = master.rpartition(":")
        if not address or not port.isdecimal():
            raise ValueError(f"master must be 'host:port', got {master!r}")
        try:
            from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415
        except ImportError as error:
            raise SharedStoreError(
                master, f"Mooncake cannot be imported, see blockmgr[mooncake]: {error}"
            ) from error
        try:  # because its own attempts hold the interpreter for more than a minute
            socket.create_connection((address.strip("[]"), int(port)), timeout).close()
        except OSError as error:
            raise SharedStoreError(master, f"nothing answers there: {error}") from None
        self._client: Any = MooncakeDistributedStore()
        if code := self._client.setup(own[0], "P2PHANDSHAKE", own[1], 1 << 24, *how, master):
            raise SharedStoreError(master, f"its set-up failed with {code}")

    def buffer(self, size: int) -> memoryview:
        """As ``ObjectStore.buffer``: registered for transfers."""
        memory = mmap.mmap(-1, up(size))
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if code := self._client.register_buffer(address, len(memory)):
            raise OSError(f"Mooncake cannot register {size} bytes: {code}")
        self._memory.append((address, memory))
        return memoryview(memory)[:size]

    def exist(self, names: Sequence[str]) -> list[bool]:
        """As ``ObjectStore.exist``."""
        codes = self._client.batch_is_exist(list(names))
        if any(code < 0 for code in codes):
            raise self._unreachable(min(codes))
        return [code == 1 for code in codes]

    def put(self, names: Sequence[str], data: Sequence[memoryview]) -> list[bool]:
        """As ``ObjectStore.put``. An object that is there stays as it is."""
        places = [_address(each) for each in data]
        sizes = [each.nbytes for each in data]
        return [code == 0 for code in self._reached("batch_put_from", names, places, sizes)]

    def get(self, names: Sequence[str], into: Sequence[memoryview]) -> list[int]:
        """As ``ObjectStore.get``. What a process has lent that ended cannot be read."""
        places = [_address(each) for each in into]
        sizes = [each.nbytes for each in into]
        codes = self._reached("batch_get_into", names, places, sizes)
        return [0 if code == NOT_THERE else max(-1, code) for code in codes]

    def remove(self, names: Sequence[str]) -> None:
        """As ``ObjectStore.remove``."""
        self._reached("batch_remove", names, True)  # also what was asked for just now

    def close(self) -> None:
        """Ends the connection; what this process has lent goes with it."""
        for address, _ in self._memory:
            self._client.unregister_buffer(address)
        self._client.close()

    def _reached(self, call: str, names: Sequence[str], *rest: object) -> list[int]:
        codes: list[int] = getattr(self._client, call)(list(names), *rest)
        if NO_MASTER in codes:
            raise self._unreachable(NO_MASTER)
        return codes

    def _unreachable(self, code: int) -> ConnectionError:
        return ConnectionError(f"Mooncake's master {self._master} cannot be reached: {code}")


def connected(
    tier: MooncakeTier,
    layout: Mapping[str, str | int],
    *,
    keyed: KeyedDigest | None = None,
    **options: Any,
) -> SharedStorage:
    """A ``SharedStorage`` with these ``options`` on the store of a tier; raises as both do.

    The secret of the tier counts before ``keyed``. If it cannot be read, or there is no memory for
    transfers, that is a ``SharedStoreError``, too.
    """
    options["keyed"] = keyed if tier.secret_file == "" else _keyed(tier)
    store = MooncakeStore(
        tier.master,
        host=tier.host,
        lent_bytes=tier.lent_bytes,
        protocol=tier.protocol,
        devices=tier.devices,
    )
    try:
        return SharedStorage(store, layout, timeout=tier.timeout, **options)
    except BaseException as error:
        store.close()
        if isinstance(error, OSError):
            raise SharedStoreError(tier.master, str(error)) from None
        raise


def _keyed(tier: MooncakeTier) -> KeyedDigest:
    """A digest with the secret in the file of a tier."""
    try:
        with open(tier.secret_file, "rb") as file:
            secret = file.read(1 << 10).rstrip(b"\r\n")
    except OSError as error:
        problem = f"cannot read secret_file {str(tier.secret_file)!r}: {error.strerror}"
        raise SharedStoreError(tier.master, problem) from None
    try:
        return KeyedDigest(secret)
    except ValueError:
        problem = f"secret_file must have 16 to 64 bytes, got {len(secret)}"
        raise SharedStoreError(tier.master, problem) from None


def _address(part: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(part))
