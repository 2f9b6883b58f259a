"""Reads tiers and links that users type."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from blockmgr.lab.choices import parse_bytes, parse_rate
from blockmgr.lab.study import Capacity, parse_capacity
from blockmgr.lab.tiered import ReplayTier

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AskedLinks", "AskedTiers"]

BYTES_END = "b"


@dataclass(frozen=True, slots=True)
class AskedTiers:
    """Tiers as a user gives them, the fastest first.

    Attributes:
        text: The user's input, such as ``"host=50GiB,disk=1TiB"``.
        sizes: For each tier its name, and its sizes: in blocks or in shares of the working set, or
            in bytes, as an int.
    """

    text: str
    sizes: tuple[tuple[str, tuple[Capacity | int, ...]], ...]

    @classmethod
    def parse(cls, text: str) -> AskedTiers:
        """Tiers from a list such as ``"host=50GiB,disk=1TiB"`` or ``"host=2%,8%,20%"``.

        A size without a name is another one of the tier before it. A size is a number of blocks, a
        percentage of the working set, or bytes with MiB, GiB or TiB.

        Raises:
            ValueError: An item is none of these, or the first one has no name.

        >>> AskedTiers.parse("host=2%,8%,disk=4096").sizes[1][1][0].value
        4096
        """
        found: list[tuple[str, list[Capacity | int]]] = []
        for item in text.split(","):
            name, equals, size = item.rpartition("=")
            if equals:
                found.append((name.strip(), []))
            if not found:
                raise ValueError(f"tiers must be sizes by name, such as host=50GiB, got {text!r}")
            size = size.strip()
            is_bytes = size.lower().endswith(BYTES_END)
            found[-1][1].append(parse_bytes(size) if is_bytes else parse_capacity(size))
        return cls(text, tuple((name, tuple(sizes)) for name, sizes in found))

    def tiers(
        self, working_set: Callable[[], int], block_bytes: int | None, links: tuple[float, ...] = ()
    ) -> list[tuple[ReplayTier, ...]]:
        """The tiers of replays: every combination of their sizes.

        Args:
            working_set: Returns the number of blocks to which shares refer.
            block_bytes: Bytes of a block; None if there is no model.
            links: Bytes a second of each tier's link; none if everything moves at once.

        Raises:
            ValueError: Sizes in bytes or links need ``block_bytes``, there is not one link a tier,
                a tier is smaller than a block, or two have one name.
        """
        if links and len(links) != len(self.sizes):
            raise ValueError(
                f"links must be one for each of {len(self.sizes)} tiers, got {len(links)}"
            )
        if links and block_bytes is None:
            raise ValueError("links need a model (--model), for the bytes of a block")
        times = [1000 * (block_bytes or 0) / rate for rate in links] or [0.0] * len(self.sizes)
        blocks = [
            [_blocks(size, working_set, block_bytes) for size in sizes] for _, sizes in self.sizes
        ]
        return [
            tuple(
                ReplayTier(name=name, num_blocks=count, ms_per_block=time)
                for (name, _), count, time in zip(self.sizes, counts, times, strict=True)
            )
            for counts in product(*blocks)
        ]


@dataclass(frozen=True, slots=True)
class AskedLinks:
    """Links as a user gives them.

    Attributes:
        text: The user's input, such as ``"25GB/s,2GB/s"``.
        rates: Bytes a second, of the link of each tier.
    """

    text: str
    rates: tuple[float, ...]

    @classmethod
    def parse(cls, text: str) -> AskedLinks:
        """Links from a list such as ``"25GB/s,2GB/s"``.

        Raises:
            ValueError: An item is no rate above 0.

        >>> AskedLinks.parse("25GB/s,500MB/s").rates
        (25000000000.0, 500000000.0)
        """
        return cls(text, tuple(parse_rate(item.strip()) for item in text.split(",")))


def _blocks(size: Capacity | int, working_set: Callable[[], int], block_bytes: int | None) -> int:
    if isinstance(size, int):
        if block_bytes is None:
            raise ValueError("tiers in bytes need a model (--model), for the bytes of a block")
        if size < block_bytes:
            raise ValueError(f"tiers must hold a block of {block_bytes:,} bytes, got {size:,}")
        return size // block_bytes
    return size.value if isinstance(size.value, int) else size.blocks(working_set())
