"""A mirror of a manager's cache, fed only by its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.event_columns import EventKind
from tests.specification.blocks import marked

if TYPE_CHECKING:
    from blockmgr.event_columns import Events
    from tests.specification.blocks import Prefix

__all__ = ["GroupMirror", "Mirror"]


class Mirror:
    """The findable prefixes by digest, updated only by events."""

    def __init__(self) -> None:
        self.contents: dict[bytes, Prefix] = {}

    def follow(self, manager: Any) -> None:
        """Applies the events since the last call."""
        events = manager.take_events()
        self.apply(events)
        if events.num_lost:
            self.apply(manager.take_snapshot())

    def apply(self, events: Events) -> None:
        """Applies events in order; an event that changes nothing is an error."""
        for event in events:
            if event.kind is EventKind.CLEARED:
                self.contents.clear()
            elif event.kind is EventKind.REMOVED:
                for digest in event.digests:
                    del self.contents[digest]
            else:
                before: Prefix = (event.namespace, ())
                if event.parent is not None:
                    before = self.contents[event.parent]
                rows = zip(event.digests, event.tokens.tolist(), strict=True)
                for index, (digest, tokens) in enumerate(rows):
                    block = marked(tokens, event.extras.get(index, b""))
                    before = before[0], before[1] + block
                    if self.contents.setdefault(digest, before) is not before:
                        raise ValueError(f"digest {digest.hex()} was stored twice")


class GroupMirror:
    """The findable blocks of several groups, updated only by events.

    They are compared with what the manager says can be found, after every call that has events.
    """

    def __init__(self) -> None:
        self.tokens: dict[tuple[int, bytes], tuple[int, ...]] = {}

    def follow(self, manager: Any) -> None:
        """Applies the events since the last call."""
        events = manager.take_events()
        self.apply(events)
        if events.num_lost:
            self.apply(manager.take_snapshot())
        if not len(events):
            return
        due = GroupMirror()
        due.apply(manager.resident_events())
        if self.tokens != due.tokens:
            differing = self.tokens.items() ^ due.tokens.items()
            raise AssertionError(f"events and findable blocks differ in {differing}")

    def apply(self, events: Events) -> None:
        """Applies events in order; an event that changes nothing is a violation."""
        for event in events:
            names = [(event.group, digest) for digest in event.digests]
            if event.kind is EventKind.CLEARED:
                self.tokens.clear()
            elif event.kind is EventKind.REMOVED:
                for name in names:
                    if self.tokens.pop(name, None) is None:
                        raise AssertionError(f"{name} was removed, but not stored")
            else:
                for name, tokens in zip(names, event.tokens.tolist(), strict=True):
                    if name in self.tokens:
                        raise AssertionError(f"{name} was stored twice")
                    self.tokens[name] = tuple(tokens)
