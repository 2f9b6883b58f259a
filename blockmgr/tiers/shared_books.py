"""The books of a tier whose bytes are in a store that others share."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import DIGEST_BYTES, Path, contents_of, part_name
from blockmgr.tiers.plans import Proofs
from blockmgr.tiers.tier import TierBooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.config import ManagerConfig
    from blockmgr.tiers.layout import Layout
    from blockmgr.tiers.plans import Ticket
    from blockmgr.tiers.tier import TierConfig

__all__ = ["SharedBooks"]


class SharedBooks(TierBooks):
    """What this process stored or saw in a shared store lately: only a hint.

    Its blocks are no places, and what a load reads is found by its key. A key has the digest of the
    key before it, the namespace, the extra keys and the tokens, so it stands for a whole prefix.
    That of a further part of a node has the digest of the node's key, and the name of the part.
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

    def known(self, path: Path) -> npt.NDArray[np.bool_]:
        """What this process knows of a path: ``bool[n, num_parts]``."""
        found = self.find(path)
        known = np.zeros((len(path), self.layout.num_parts), np.bool_)
        known[: len(found)] = found >= 0
        return known

    def keys(self, path: Path, pieces: Pieces) -> list[bytes]:
        """Keys of blocks of a path, of which this tier may have the beginning."""
        return self._chain(path, self.find(path)[:, 0].tolist(), pieces)[0]

    def _chain(
        self, path: Path, have: Sequence[int], pieces: Pieces
    ) -> tuple[list[bytes], list[bytes]]:
        """Keys of blocks of a path, and the digest of each.

        Args:
            path: The path.
            have: Blocks of this tier for its first nodes.
            pieces: The blocks; their nodes, if any, continue ``have``.
        """
        first, num_nodes = len(have), pieces.num_nodes
        parent = self._roots.get(path.namespace, self.shared.root)
        if have:
            parent = self._digests[have[-1]].tobytes()
        found: list[tuple[bytes, bytes]] = []
        for content in contents_of(path, first, first + num_nodes):
            found.append(self._named(parent, content))
            parent = found[-1][1]
        units, parts = pieces.units[num_nodes:].tolist(), pieces.parts[num_nodes:].tolist()
        for unit, part in zip(units, parts, strict=True):
            at = unit - first
            node = found[at][1] if at >= 0 else self._digests[have[unit]].tobytes()
            [content] = contents_of(path, unit, unit + 1, part_name(part))
            found.append(self._named(node, content))
        return [key for key, _ in found], [digest for _, digest in found]

    def _named(self, parent: bytes, content: bytes) -> tuple[bytes, bytes]:
        """The key of this content behind the block with this digest, and the digest of the key."""
        key = parent + content
        digest = self.shared.digest(key)
        while moved := self._moved.get(digest):
            key = moved + content
            digest = self.shared.digest(key)
        return key, digest

    def proofs(
        self,
        path: Path,
        pieces: Pieces,
        have: Sequence[int],
        serials: npt.NDArray[np.uint64],
    ) -> Proofs:
        """As ``TierBooks.proofs``, with keys of the shared store."""
        return Proofs(serials, tuple(self._chain(path, have, pieces)[0]))

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
            _, digests = self._chain(path, have, pieces.first(count))
            known = np.frombuffer(b"".join(digests), np.uint8).reshape(count, DIGEST_BYTES)
            self._digests[list(blocks)] = known
            self._seen[list(blocks)] = self._now
        return count

    def saw(self, path: Path, there: npt.NDArray[np.bool_]) -> int:
        """Notes what the store says to have of a path; how many blocks are new here.

        That is a whole of what prompts read that continue at one end: the deepest one for which
        there is room.

        Args:
            path: The path.
            there: ``bool[n, num_parts]``: what is there.
        """
        run = len(there) if there[:, 0].all() else int(there[:, 0].argmin())
        places = np.where(there[:run], 0, -1).astype(np.int32)
        stop = self.layout.deepest(places)
        while stop:
            part = path.head(stop)
            have, kept, _, missing = self.state_of(part)
            if not len(missing) or not self.storing.isdisjoint(self.names_of(part, have, missing)):
                return 0
            self.pool.acquire(kept, found=False)
            try:
                room = self.room(path.namespace)
                if len(missing) <= room:
                    self._note(part, have, missing)
                    return len(missing)
            finally:
                self.pool.release(kept[::-1])
            stop = self.layout.deepest(places, min(stop - 1, len(have) + room))
        return 0

    def _note(self, path: Path, have: list[int], pieces: Pieces) -> None:
        """Makes blocks findable that the store has."""
        count = len(pieces)
        blocks = self.pool.take(count, namespace=path.namespace).tolist()
        try:
            self.promote(path, have, pieces, blocks, self.take_serials(count))
        finally:
            self.pool.release(blocks[::-1])
        self.stats.found += count

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
        """Removes the last node of a path, and never looks for it under its keys again."""
        super().condemn(path)
        if path.has_end:
            return
        which = np.zeros((len(path), self.layout.num_parts), np.bool_)
        which[-1] = True
        self._disown(path, which)

    def take_back(self, store: Ticket) -> bool:
        """As ``TierBooks.take_back`` in this process, whose keys are others from here on."""
        which = np.zeros((len(store.path), self.layout.num_parts), np.bool_)
        which[store.pieces.units, store.pieces.parts] = True
        self._disown(store.path, which)
        return True

    def _disown(self, path: Path, which: npt.NDArray[np.bool_]) -> None:
        """Removes blocks of a path, and never looks for them under their keys again."""
        pieces = Pieces(which | (np.arange(which.shape[1]) == 0))
        keys, digests = self._chain(path, [], pieces)
        chosen = which[pieces.units, pieces.parts].tolist()
        self._moved.update(
            (digest, os.urandom(DIGEST_BYTES)) for digest in itertools.compress(digests, chosen)
        )
        self.shared.discard([*itertools.compress(keys, chosen)])

    def erase_namespace(self, namespace: bytes, void: Sequence[Ticket]) -> None:
        """Never looks under the keys that the namespace had, whose blocks others may still have."""
        self._roots[namespace] = os.urandom(DIGEST_BYTES)

    def reset(self) -> None:
        """As ``TierBooks.reset``: keys are others from here on."""
        self._roots.clear()
        self._moved.clear()
        self.shared.reset()
