"""The recurrent states of a worker that only remembers what each slot holds.

It finds them as vLLM's workers do. A step ends in one column of a request's table, that of its last
token. A state that another column has is brought there first. The forward leaves the state before
the drafts in that column, and those after each draft in the columns behind; but the windows of
their convolutions stay together in the first of them. Once the drafts are verified, the state at
the end of a block that right tokens reached is brought to the column of that block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.engines.world import World

__all__ = ["States"]

State = tuple[int, int, int]  # group, last position, prefix


class States:
    """What a worker knows of the states of its requests.

    A block's slots hold the part of a state that fills it, like K/V.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._columns: dict[str, int] = {}  # by request, the token whose columns have its states
        self._accepted: dict[str, int] = {}  # by request, tokens of the last step that were right
        self._windows: dict[int, Sequence[State]] = {}  # by block, those of several states

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copies the windows of whole blocks, all at once."""
        self._bring([(source, to, 0) for source, to in pairs])

    def load(self, name: str, blocks: list[int], state: State) -> None:
        """Writes a state that a connector brings: it has one, and a block for it."""
        world, given = self._world, [block for block in blocks if block]
        if len(given) != 1 or given != blocks[-1:]:
            world.tally.wrong.append((world.tally.steps, f"{name}, loaded {state[0]}", state[1]))
        for block in given:
            world.memory |= dict.fromkeys(world.slots(block), state)
            self._windows[block] = [state]

    def begin(self, output: Any, batch: list[tuple[str, int, int]]) -> None:
        """Brings states to the columns of the last tokens of the step."""
        gone = (
            *output.finished_req_ids,
            *(output.preempted_req_ids or ()),
            *output.scheduled_cached_reqs.resumed_req_ids,
            *(new.req_id for new in output.scheduled_new_reqs),
        )
        for name in gone:
            self._columns.pop(name, None)
            self._accepted.pop(name, None)
        moves = []
        for name, start, stop in batch:
            token = self._columns.get(name, start - 1)
            self._columns[name] = stop - 1
            right = self._accepted.get(name, 1) - 1
            for _, size, table in self._groups(name):
                before, now = token // size, (stop - 1) // size
                if before not in (-1, now):
                    moves.append((table, before, now, right))
                    self._accepted.pop(name, None)
        self._move(moves)

    def consume(
        self, name: str, group: int, step: tuple[int, int, int], prefixes: list[int]
    ) -> None:
        """Continues the state, and notes it if it is not the one after the token before.

        Args:
            name: The request.
            group: The group of layers.
            step: First position of its step, the one after the last, and drafts among them.
            prefixes: By position, the tokens up to there.
        """
        world, (start, stop, drafts) = self._world, step
        table, size = world.launched[name][group], world.settings.sizes[group]
        first, least = (stop - 1) // size, stop - drafts
        columns = table[first : first + 1 + world.settings.drafts]
        is_whole = len({*columns} - {0}) == 1 + world.settings.drafts
        if is_whole and start:
            accepted = self._accepted.get(name, 1)
            due = group, start - 1, prefixes[start - 1]
            held = [world.memory.get(slot) for slot in world.slots(columns[accepted - 1])]
            window = self._windows.get(columns[0], ())[accepted - 1 : accepted]
            is_whole = all(each == due for each in (*held, *(window or [None])))
        if not is_whole:
            world.tally.wrong.append((world.tally.steps, f"{name}, group {group}", start))
        states = [(group, i, prefixes[i]) for i in range(least - 1, stop)]
        for block, state in zip(columns, states, strict=False):
            for slot in world.slots(block):
                world.memory[slot] = state
        if columns:
            self._windows[columns[0]] = states
        if world.settings.checkpoints and not drafts:
            self._pass(table, group, (start, stop), prefixes)

    def _pass(
        self, table: list[int], group: int, step: tuple[int, int], prefixes: list[int]
    ) -> None:
        """Writes the state at the last block end inside a step, in the column before its last."""
        world, (start, stop) = self._world, step
        size = world.settings.sizes[group]
        end, column = (stop - 1) // size * size, -(-stop // size) - 2
        if start % size or column <= (start - 1) // size or start + size > end:
            return
        state = group, end - 1, prefixes[end - 1]
        for slot in world.slots(table[column]):
            world.memory[slot] = state
        self._windows[table[column]] = [state]

    def settle(self, name: str, stop: int, least: int, accepted: int) -> None:
        """Keeps the state at the end of a block, if right tokens reached one.

        Args:
            name: The request.
            stop: Where its step ended, drafts included.
            least: Where its drafts began.
            accepted: Its tokens that are right, from the last one before the drafts on.
        """
        self._accepted[name] = accepted
        moves = []
        for _, size, table in self._groups(name):
            end = (least + accepted - 1) // size * size
            if end < least:
                continue
            now, to = (stop - 1) // size, end // size - 1
            if to == now:
                self._accepted[name] = 1
            moves.append((table, now, to, end - least))
        self._move(moves)

    def _groups(self, name: str) -> Iterator[tuple[int, int, list[int]]]:
        settings = self._world.settings
        for group, layers in enumerate(settings.layers):
            if layers.kind == "state":
                yield group, settings.sizes[group], self._world.launched[name][group]

    def _move(self, moves: list[tuple[list[int], int, int, int]]) -> None:
        """Brings states from one column to another, after so many right drafts."""
        world = self._world
        brought: dict[int, Any] = {}
        for table, before, now, right in moves:
            source, to = world.slots(table[before + right]), world.slots(table[now])
            brought |= {b: world.memory.get(a) for a, b in zip(source, to, strict=True)}
        world.memory |= brought
        self._bring([(table[before], table[now], right) for table, before, now, right in moves])

    def _bring(self, windows: list[tuple[int, int, int]]) -> None:
        found = {to: self._windows.get(block, ())[right:] for block, to, right in windows}
        self._windows |= found
