"""What users say of a tier: where it is, how large, and in which way it gets its blocks."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from blockmgr.arguments import positive, text, whole
from blockmgr.options import check_options, rule

if TYPE_CHECKING:
    from blockmgr.policy import PolicyFactory

__all__ = ["STORES", "DiskTier", "HostTier", "MooncakeTier", "StoreName"]

StoreName = Literal["idle", "second_touch", "release", "commit"]
STORES: tuple[StoreName, ...] = ("idle", "second_touch", "release", "commit")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HostTier:
    """K/V in memory of the host.

    Attributes:
        bytes_to_use: Bytes that its blocks take.
        eviction: Eviction order, as in ``ManagerConfig``.
        store: What is stored, and when, as in ``TierConfig``.
    """

    bytes_to_use: int
    eviction: str | PolicyFactory = "lru"
    store: StoreName = field(default="idle", metadata=rule(choices=STORES))

    def __post_init__(self) -> None:
        whole("bytes_to_use", self.bytes_to_use, 1)
        check_options(self)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DiskTier:
    """K/V in a slab, which the next process finds again.

    Attributes:
        path: The file. The first start makes it and writes over it once; its folder must exist.
        bytes_to_use: Bytes that its blocks take.
        eviction: Eviction order, as in ``ManagerConfig``.
        store: What is stored, and when, as in ``TierConfig``.
        revision: A name for the weights, which must change whenever they do; empty to identify them
            by a checksum, for which they are read once.
    """

    path: str | os.PathLike[str]
    bytes_to_use: int
    eviction: str | PolicyFactory = "lru"
    store: StoreName = field(default="idle", metadata=rule(choices=STORES))
    revision: str = ""

    def __post_init__(self) -> None:
        _path("path", self.path)
        whole("bytes_to_use", self.bytes_to_use, 1)
        check_options(self)
        text("revision", self.revision)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MooncakeTier:
    """K/V in Mooncake Store, which engines with the same model and block size share.

    Attributes:
        master: Address of its master, ``"host:port"``.
        host: Name or address of this machine, by which other machines reach it.
        lent_bytes: Memory of this process that the store may use; 0 only to use that of others.
        protocol: Transport: ``"tcp"``, or ``"rdma"``.
        devices: Devices for RDMA, by name, with commas between them.
        known_blocks: Blocks that this process remembers to be in the store.
        known_seconds: How long it remembers them.
        timeout: Seconds after which a call of the store fails.
        revision: As in ``DiskTier``.
        secret_file: A file with a secret, 16 to 64 bytes, the same for all engines that share.
            Without it others of the store can know the names of prompts that they guess. Line ends
            behind the secret do not count; empty for none.
    """

    master: str
    host: str = "127.0.0.1"
    lent_bytes: int = 0
    protocol: str = "tcp"
    devices: str = ""
    known_blocks: int = 65536
    known_seconds: float = 60.0
    timeout: float = 2.0
    revision: str = ""
    secret_file: str | os.PathLike[str] = ""

    def __post_init__(self) -> None:
        _path("secret_file", self.secret_file)
        for name in ("master", "host", "protocol", "devices", "revision"):
            text(name, getattr(self, name))
        whole("lent_bytes", self.lent_bytes, 0)
        whole("known_blocks", self.known_blocks, 1, 2**31 - 1)
        positive("known_seconds", self.known_seconds)
        positive("timeout", self.timeout)


def _path(name: str, value: object) -> None:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a str or a path, got {type(value).__name__}")
