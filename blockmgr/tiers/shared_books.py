"""The books of a tier whose bytes are in a store that others share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import DIGEST_BYTES, Path, contents_of
from blockmgr.tiers.plans import Proofs
from blockmgr.tiers.tier import TierBooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.config import ManagerConfig
    from blockmgr.tiers.layout import Layout
    from blockmgr.tiers.tickets import Ticket
    from blockmgr.tiers.tier import TierConfig

__all__ = ["SharedBooks"]


class SharedBooks(TierBooks):
    """What this process stored or saw in a shared store lately: only a hint.

    Its blocks are no places, and what a load reads is found by its key. A key has the digest of the
    key before it, the namespace, the extra keys and the tokens, so it stands for a whole prefix.
    Behind the tokens of an end, its block has what was in it before, which no other process may
    read. So ends are not stored here.
    """

    keeps_ends = False

    def __init__(self, config: TierConfig, manager: ManagerConfig, layout: Layout) -> None:
        super().__init__(config, manager, layout)
        assert config.shared is not None
        self.shared = config.shared
        self._seen = np.zeros(config.size)
        self._digests = np.zeros((config.size, DIGEST_BYTES), np.uint8)
        self._life = config.known_seconds
        self._now, self._next_sweep = 0.0, 0.0
        # What takes the place of the root of a namespace, and of the beginning of a key.
        self._roots: dict[bytes, bytes] = {}
        self._moved: dict[bytes, bytes] = {}

    def nodes(self, path: Path) -> list[int]:
        """The blocks that hold the beginning of a path."""
        found: list[int] = self.find(path)[:, 0].tolist()
        return found

    def keys(self, path: Path, have: Sequence[int], stop: int) -> list[bytes]:
        """Keys of blocks of a path that continue ``have``, blocks of this tier, up to ``stop``."""
        return self._chain(path, have, stop)[0]

    def _chain(self, path: Path, have: Sequence[int], stop: int) -> tuple[list[bytes], list[bytes]]:
        """Keys of blocks of a path, and the digest of each."""
        parent = self._roots.get(path.namespace, self.shared.root)
        if have:
            parent = self._digests[have[-1]].tobytes()
        keys, digests = [], []
        for content in contents_of(path, len(have), stop):
            key = parent + content
            parent = self.shared.digest(key)
            while moved := self._moved.get(parent):
                key = moved + content
                parent = self.shared.digest(key)
            keys.append(key)
            digests.append(parent)
        return keys, digests

    def proofs(
        self,
        path: Path,
        pieces: Pieces,
        have: Sequence[int],
        serials: npt.NDArray[np.uint64],
    ) -> Proofs:
        """As ``TierBooks.proofs``, with keys of the shared store."""
        return Proofs(serials, tuple(self.keys(path, have, len(have) + len(pieces))))

    def promote(
        self,
        path: Path,
        have: Sequence[int],
        pieces: Pieces,
        blocks: Sequence[int],
        first_serial: int,
    ) -> int:
        """As ``TierBooks.promote``."""
        count = super().promote(path, have, pieces, blocks, first_serial)
        if count:
            _, digests = self._chain(path, have, len(have) + count)
            known = np.frombuffer(b"".join(digests), np.uint8).reshape(count, DIGEST_BYTES)
            self._digests[list(blocks)] = known
            self._seen[list(blocks)] = self._now
        return count

    def saw(self, path: Path, n: int) -> int:
        """Notes that the store says to have ``n`` blocks of a path; how many are new here."""
        have = self.nodes(path)
        if n <= len(have):
            return 0
        pieces = Pieces(self.layout.needed(n * path.block_size, len(have)))
        if not self.storing.isdisjoint(self.names_of(path, have, pieces)):
            return 0
        self.pool.acquire(have, found=False)
        try:
            count = min(len(pieces), self.room(path.namespace))
            if not count:
                return 0
            blocks = self.pool.take(count, namespace=path.namespace).tolist()
            try:
                self.promote(path, have, pieces, blocks, self.take_serials(count))
            finally:
                self.pool.release(blocks[::-1])
        finally:
            self.pool.release(have[::-1])
        self.stats.found += count
        return count

    def pass_time(self, now: float) -> None:
        """Forgets what was stored or seen too long ago, now and then."""
        self._now = now
        if now < self._next_sweep:
            return
        self._next_sweep = now + self._life / 4
        every = np.arange(self.pool.num_blocks)
        old = every[self.pool.is_cached(every) & (self._seen < now - self._life)]
        for block in old.tolist():
            self.forget(block)  # with what continues it, which may be old, too

    def condemn(self, path: Path) -> None:
        """Removes the last block of a path, and never looks for it under its key again."""
        super().condemn(path)
        if path.has_end:
            return
        key = self.keys(path, [], len(path))[-1]
        self._moved[self.shared.digest(key)] = os.urandom(DIGEST_BYTES)
        self.shared.discard(key)

    def take_back(self, store: Ticket) -> bool:
        """As ``TierBooks.take_back`` in this process, whose keys are others from here on."""
        self.condemn(store.path.head(len(store.have) + 1))
        return True

    def erase_namespace(self, namespace: bytes) -> None:
        """Never looks under the keys that the namespace had, whose blocks others may still have."""
        self._roots[namespace] = os.urandom(DIGEST_BYTES)

    def reset(self) -> None:
        """As ``TierBooks.reset``: keys are others from here on."""
        self._roots.clear()
        self._moved.clear()
        self.shared.reset()
