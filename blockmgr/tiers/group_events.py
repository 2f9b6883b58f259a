"""The events of a tier's pool as those of a manager with several groups of layers.

In the pool, each further part of a node is a block of its own, which continues the node's. Mirrors
know the blocks of all groups under the digest of the node, as they do for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blockmgr.event_columns import Event, EventKind, Events, events_of
from blockmgr.tiers.paths import part_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.tiers.layout import Layout

__all__ = ["GroupEvents"]


class _Node(NamedTuple):
    """What the events of a node say, and how many nodes a prompt has that ends with it."""

    parent: bytes | None
    depth: int
    extras: bytes
    namespace: bytes


@dataclass(slots=True)
class _Held:
    """The parts of a node that there are, and those that make up what a group has of it."""

    parts: set[int]
    whole: frozenset[int]

    @property
    def is_whole(self) -> bool:
        return bool(self.whole) and self.whole <= self.parts


class _Told(NamedTuple):
    """A block of a group that is stored or removed, or a clearing."""

    kind: EventKind
    group: int
    step: int
    digest: bytes = b""
    node: _Node = _Node(None, 0, b"", b"")
    tokens: bytes = b""

    def goes_on(self, before: _Told) -> bool:
        """Whether it belongs to the event of the one before."""
        return self[:3] == before[:3] and (
            self.kind is EventKind.REMOVED or self.node.parent == before.digest
        )


class GroupEvents:
    """Follows the events of one pool.

    A group has a node from the moment when there is all that a query right behind the node reads of
    it, until some of that goes.

    Args:
        layout: The parts of the nodes.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._nodes: dict[bytes, _Node] = {}
        self._parts: dict[bytes, tuple[bytes, int]] = {}  # node and part, by the part's digest
        self._held: dict[tuple[int, bytes], _Held] = {}
        self._read: dict[int, frozenset[int]] = {}  # of the last node, by depth

    def translated(self, events: Events) -> Events:
        """The events of groups that these events of blocks stand for.

        After lost events, it is right again from a snapshot on.
        """
        if not len(events):
            return events
        return _columns([each for event in events for each in self._told(event)], events)

    def _told(self, event: Event) -> Iterator[_Told]:
        if event.kind is EventKind.STORED:
            yield from self._stored(event)
        elif event.kind is EventKind.REMOVED:
            yield from self._removed(event)
        else:
            for known in (self._nodes, self._parts, self._held):
                known.clear()
            yield _Told(event.kind, 0, event.step)

    def _stored(self, event: Event) -> Iterator[_Told]:
        parent = event.parent
        for row, digest in enumerate(event.digests):
            extras = event.extras.get(row, b"")
            node, part = digest, part_of(extras)
            if part and parent is not None:
                node = parent
                self._parts[digest] = node, part
            else:
                above = None if parent is None else self._nodes.get(parent)
                depth = 1 + (0 if above is None else above.depth)
                self._nodes[digest] = _Node(parent, depth, extras, event.namespace)
            parent = digest
            if (facts := self._nodes.get(node)) is None:  # its event was lost
                continue
            group = self._layout.group_of(part)
            held = self._held.get((group, node))
            if held is None:
                held = _Held(set(), self._whole(group, facts.depth))
                self._held[group, node] = held
            was_whole = held.is_whole
            held.parts.add(part)
            if held.is_whole and not was_whole:
                tokens = event.tokens[row].tobytes()
                yield _Told(event.kind, group, event.step, node, facts, tokens)

    def _removed(self, event: Event) -> Iterator[_Told]:
        for digest in event.digests:
            node, part = self._parts.pop(digest, (digest, 0))
            if not part:
                self._nodes.pop(digest, None)
            group = self._layout.group_of(part)
            held = self._held.get((group, node))
            if held is None:
                continue
            was_whole = held.is_whole
            held.parts.discard(part)
            if not held.parts:
                del self._held[group, node]
            if was_whole and not held.is_whole:
                yield _Told(event.kind, group, event.step, node)

    def _whole(self, group: int, depth: int) -> frozenset[int]:
        """The parts of a group that a query right behind the last of so many nodes reads of it."""
        if depth not in self._read:
            last = self._layout.needed(depth * self._layout.block_size, depth - 1)[-1]
            self._read[depth] = frozenset(np.flatnonzero(last).tolist())
        return frozenset(part for part in self._read[depth] if self._layout.group_of(part) == group)


def _columns(told: list[_Told], like: Events) -> Events:
    """Events as columns, with digests and blocks of the same sizes as others."""
    firsts = [i for i, each in enumerate(told) if not i or not each.goes_on(told[i - 1])]
    heads = [told[i] for i in firsts]
    stored = [each for each in told if each.kind is EventKind.STORED]
    blocks = [each.digest for each in told if each.kind is not EventKind.CLEARED]
    counts = np.diff([*firsts, len(told)])
    counts[[each.kind is EventKind.CLEARED for each in heads]] = 0
    size = like.digests.shape[1]
    return events_of(
        like.tokens.shape[1],
        size,
        np.array([each.kind for each in heads], np.uint8),
        counts,
        np.array([each.node.parent is not None for each in heads], np.bool_),
        np.array([each.group for each in heads], np.uint8),
        b"".join(each.node.parent or bytes(size) for each in heads),
        b"".join(blocks),
        np.frombuffer(b"".join(each.tokens for each in stored), np.uint32),
        {row: each.node.extras for row, each in enumerate(stored) if each.node.extras},
        [each.node.namespace for each in heads],
        (),
        np.array([each.step for each in heads], np.int64),
        like.num_lost,
    )
