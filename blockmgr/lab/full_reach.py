"""How far full attention has a prompt, and which group cuts it short, from public calls alone.

A hit ends where some group lacks what the next query reads, so a manager's ``match`` says nothing
of what full attention has behind it. This remembers by block which whole page it holds: whatever
takes a block is seen in the tables of its sequence, and what is still cached is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr.groups import FullAttention, RecurrentState, first_full

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.groups import Group
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.request import Tokens
    from blockmgr.manager import BlockManager

__all__ = ["FullReach"]

STATE = b"state"


class FullReach:
    """What full attention and states hold, page by page.

    Args:
        manager: Of the replay.
        config: How it is replayed, with groups.
    """

    def __init__(self, manager: BlockManager, config: ReplayConfig) -> None:
        self._manager = manager
        self._size = config.block_size
        places = range(len(config.groups))
        states = [i for i in places if isinstance(config.groups[i], RecurrentState)]
        others = [i for i in places if i != first_full(config.groups) and i not in states]
        self._state_tables = [manager.group_table(group) for group in states]
        self._other_tables = [manager.group_table(group) for group in others]
        narrow = [g for g in config.groups if not isinstance(g, FullAttention | RecurrentState)]
        # Of windows and chunks, the widest lacks something whenever one of the others does.
        self._widest: Group | None = max(narrow, key=lambda group: group.width, default=None)
        # By block: the digest of the whole page that it holds, with a mark if as a state.
        self._keys: npt.NDArray[Any] = np.full(manager.config.num_blocks, None, dtype=object)
        self._blocks: dict[bytes, int] = {}
        self._digests: list[bytes] = []
        self._state_before: list[int] = []

    def refusals(self, tokens: Tokens, namespace: bytes) -> dict[Group, int]:
        """Tokens of a prompt that full attention has and ``match`` does not find, by group."""
        size, manager = self._size, self._manager
        self._digests = digests = manager.block_digests(tokens, namespace=namespace)
        found = manager.match(tokens, namespace=namespace, num_slots=1).num_cached_tokens
        end = first = found // size
        while end < (len(tokens) - 1) // size and self._holds(digests[end]):
            end += 1
        refused: dict[Group, int] = {}
        for unit in range(first, end):
            group = self._lacking(digests[unit])
            refused[group] = refused.get(group, 0) + (unit + 1) * size - max(found, unit * size)
        return refused

    def _lacking(self, digest: bytes) -> Group:
        if self._state_tables and (self._widest is None or not self._holds(STATE + digest)):
            return RecurrentState()
        return self._widest or FullAttention()

    def _holds(self, key: bytes) -> bool:
        block = self._blocks.get(key)
        return block is not None and self._keys[block] == key and self._manager.is_cached(block)

    def taken(self, handle: int, start: int, stop: int) -> None:
        """A sequence has blocks for the forward of ``[start, stop)``: what they held is gone."""
        row = self._manager.row(handle)
        units = slice(start // self._size, -(-stop // self._size))
        for table in self._other_tables:
            self._keys[table[row, units]] = None
        self._keys[self._manager.block_ids(handle, units.start)] = None
        self._state_before = self._states_of(handle)
        self._keys[self._state_before] = None

    def committed(self, handle: int, computed: int) -> None:
        """The forward has stopped here. A state that was kept is no longer the sequence's own."""
        if not self._state_tables:
            return
        states = self._states_of(handle)
        if states[0] != self._state_before[0] and computed % self._size == 0:
            self._put(STATE + self._digests[computed // self._size - 1], self._state_before[0])
        self._keys[states] = None

    def prompt_computed(self, handles: list[int], prompt: int) -> None:
        """The prompt of these sequences is computed, and they have blocks for their outputs."""
        view = self._manager.sequence(handles[0])
        self._put_pages(handles[0], self._digests, view.num_cached_tokens // self._size)
        for handle in handles:
            self.taken(handle, prompt, self._manager.sequence(handle).num_slots)

    def ending(self, handle: int, tokens: Tokens, prompt: int, namespace: bytes) -> None:
        """A sequence is about to go; all its tokens that are computed are known.

        Args:
            handle: The sequence.
            tokens: Those that are computed.
            prompt: How many of them are the prompt's.
            namespace: Whose they are.
        """
        digests = self._manager.block_digests(tokens, namespace=namespace)
        self._put_pages(handle, digests, prompt // self._size)
        if self._state_tables and digests and len(tokens) % self._size == 0:
            self._put(STATE + digests[-1], self._states_of(handle)[0])

    def _states_of(self, handle: int) -> list[int]:
        row = self._manager.row(handle)
        return [int(table[row, 0]) for table in self._state_tables]

    def _put(self, key: bytes, block: int) -> None:
        self._keys[block] = key
        self._blocks[key] = block

    def _put_pages(self, handle: int, digests: list[bytes], first: int) -> None:
        pages = digests[first:]
        blocks = self._manager.block_ids(handle, first)[: len(pages)]
        self._keys[blocks] = np.array(pages, dtype=object)
        self._blocks.update(zip(pages, blocks, strict=True))
        if len(self._blocks) > 2 * len(self._keys):
            live = enumerate(self._keys.tolist())
            self._blocks = {key: block for block, key in live if key is not None}
