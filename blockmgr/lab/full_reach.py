"""Finds how much of a prompt full attention has, from public calls only.

A hit ends where a group lacks what the next query reads, so a manager's ``match`` does not show
what full attention has beyond that. This class records the digest of each whole block: block tables
show when a block gets new content, and the manager says whether it is still cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.groups import first_full

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.request import Tokens
    from blockmgr.manager import BlockManager

__all__ = ["FullReach"]


class FullReach:
    """The content of full attention's blocks.

    Args:
        manager: The manager of the replay.
        config: Config of the replay, with groups.
    """

    def __init__(self, manager: BlockManager, config: ReplayConfig) -> None:
        self._manager = manager
        self._size = config.block_size
        self._tables = [
            manager.group_table(place)
            for place in range(len(config.groups))
            if place != first_full(config.groups)
        ]
        # By block: the digest of its content, if that is a whole block of full attention.
        self._keys: npt.NDArray[Any] = np.full(manager.config.num_blocks, None, dtype=object)
        self._blocks: dict[bytes, int] = {}
        self._digests: list[bytes] = []

    def refused(self, tokens: Tokens, namespace: bytes) -> int:
        """Tokens in whole blocks that full attention has, but ``match`` does not find.

        Args:
            tokens: The prompt, which is admitted next.
            namespace: Namespace of the prompt.
        """
        size, manager = self._size, self._manager
        self._digests = digests = manager.block_digests(tokens, namespace=namespace)
        found = manager.match(tokens, namespace=namespace, num_slots=1).num_cached_tokens
        end = found // size
        while end < (len(tokens) - 1) // size and self._holds(digests[end]):
            end += 1
        return max(0, end * size - found)

    def _holds(self, key: bytes) -> bool:
        block = self._blocks.get(key)
        return block is not None and self._keys[block] == key and self._manager.is_cached(block)

    def taken(self, handle: int, start: int, stop: int) -> None:
        """Called when a sequence has blocks for ``[start, stop)``: their old content is gone."""
        row = self._manager.row(handle)
        units = slice(start // self._size, -(-stop // self._size))
        for table in self._tables:
            # The table of a group of states has one column.
            self._keys[table[row, units] if table.shape[1] > 1 else table[row]] = None
        self._keys[self._manager.block_ids(handle, units.start)] = None

    def prompt_computed(self, handles: list[int], prompt: int) -> None:
        """Called when the prompt is computed and the sequences have blocks for their outputs."""
        view = self._manager.sequence(handles[0])
        self._put(handles[0], self._digests, view.num_cached_tokens // self._size)
        for handle in handles:
            self.taken(handle, prompt, self._manager.sequence(handle).num_slots)

    def ending(self, handle: int, tokens: Tokens, prompt: int, namespace: bytes) -> None:
        """Called before a sequence ends, with all its computed tokens.

        Args:
            handle: The sequence.
            tokens: The computed tokens.
            prompt: Number of prompt tokens among them.
            namespace: Namespace of the sequence.
        """
        digests = self._manager.block_digests(tokens, namespace=namespace)
        self._put(handle, digests, prompt // self._size)

    def _put(self, handle: int, digests: list[bytes], first: int) -> None:
        whole = digests[first:]
        blocks = self._manager.block_ids(handle, first)[: len(whole)]
        self._keys[blocks] = np.array(whole, dtype=object)
        self._blocks.update(zip(whole, blocks, strict=True))
        if len(self._blocks) > 2 * len(self._keys):
            live = enumerate(self._keys.tolist())
            self._blocks = {key: block for block, key in live if key is not None}
