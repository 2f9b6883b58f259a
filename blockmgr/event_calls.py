"""The calls about events: a part of ``BlockManager`` and of ``BlockPool``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from blockmgr.event_columns import Events, events_of

if TYPE_CHECKING:
    from blockmgr.config import ManagerConfig

__all__ = ["EventCalls"]


class EventCalls:
    """Events about findable blocks, for routers and other mirrors."""

    __slots__ = ()

    _core: Any  # of a manager or of a pool
    _config: ManagerConfig

    # Events.

    def take_events(self) -> Events:
        """The blocks that became findable or stopped being findable since the last call.

        A mirror that applies the events in order has, after each call, exactly the digests of the
        findable full blocks; with several groups of layers, those of each group. A partial tail has
        no digest and no events. A block counts as stored when it is committed, which is before its
        K/V is written with ``early_commit``; a withdrawn commit counts as a removal. A state counts
        as stored when the copy that keeps it is applied.

        If ``num_lost`` is above 0, the mirror is stale; ``take_snapshot`` repairs it.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(blocks of the events).

        >>> from blockmgr import BlockManager
        >>> manager = BlockManager(num_blocks=8, block_size=2, events=True)
        >>> handle = manager.admit([1, 2, 3, 4, 5])
        >>> manager.commit(handle, 5)
        >>> [event] = manager.take_events()
        >>> event.kind.name, event.tokens.tolist(), event.parent
        ('STORED', [[1, 2], [3, 4]], None)
        >>> len(manager.take_events())
        0
        """
        events: Events = self._core.take_events(self._make_events("take_events"))
        return events

    def take_snapshot(self) -> Events:
        """All findable blocks, to fill an empty mirror or repair one that lost events.

        The first event clears the device's tier; then come the blocks, parents before children.
        Events that waited for ``take_events`` are dropped, because the snapshot includes their
        effect; later events come with the next ``take_events``.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(cached blocks).
        """
        events: Events = self._core.take_snapshot(self._make_events("take_snapshot"))
        return events

    def resident_events(self) -> Events:
        """All findable blocks, in the form of ``take_snapshot``; changes nothing.

        For one mirror among several. It includes the effect of events that wait for
        ``take_events``. A mirror that applies both is still correct.

        Raises:
            ValueError: The manager or pool was built without ``events``.

        Cost: O(cached blocks).
        """
        events: Events = self._core.resident_events(self._make_events("resident_events"))
        return events

    def _make_events(self, call: str) -> partial[Events]:
        if not self._config.events:
            raise ValueError(f"{call} needs events=True")
        return partial(events_of, self._config.block_size)
