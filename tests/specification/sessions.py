"""Sessions: where the path of each ends, what its next prompt supersedes, what is expected.

A session is known by its namespace and its name. Of its path only the last block is kept, here with
the moment when that became findable: a block that loses its content is another one afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blockmgr.blocks import Priority
from tests.specification.admission import Plan, Terms
from tests.specification.blocks import Block, Seq
from tests.specification.leaves import ModelLeaves

__all__ = ["ModelSessions"]


@dataclass(eq=False)
class Session:
    """A session, and the sequence of its last prompt while that lives."""

    handle: int | None = None
    tip: Block | None = None
    linked: int = 0
    num_blocks: int = 0
    outlook: str = ""
    until: float = math.inf


class ModelSessions(ModelLeaves):
    """A manager for full attention alone whose prompts may have sessions."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sessions: dict[tuple[bytes, bytes], Session] = {}
        """By namespace and name, the one with the oldest prompt first."""

        self.ended: set[int] = set()
        """Sequences whose session has ended."""

        self.naming = b""
        self.left: tuple[Block, int, int] | None = None

    # ---- paths --------------------------------------------------------------------------

    def tip(self, session: Session) -> Block | None:
        """The last block of its path, if that is still cached."""
        tip = session.tip
        return tip if tip is not None and tip.content and tip.linked == session.linked else None

    def chain(self, tip: Block) -> list[Block]:
        """The blocks of a path, the last one first."""
        found = [tip]
        while parents := self.parents(found[-1]):
            found += parents
        return found

    def alone(self, chain: list[Block], own: Session) -> int:
        """The leading blocks of these, the last of a path first, that nothing else uses."""
        self.expire()
        tips = [self.tip(one) for one in self.sessions.values() if one is not own]
        below: Block | None = None
        for count, block in enumerate(chain):
            assert block.content is not None
            others = [
                b for b in self.live if b is not below and self.parent_of(b) == block.content[1]
            ]
            used = self.references(block) or block in self.holds or block in tips
            if used or any(self.level(b) > Priority.LOW for b in others):
                return count
            if self.is_pinned(block) or (block.retention or (0, 0))[0] > Priority.NORMAL:
                return count
            below = block
        return len(chain)

    def lower(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.hint = Priority.LOW

    def own_level(self, block: Block) -> int:
        waits = (s for s in self.sessions.values() if s.outlook == "expected")
        expected = any(self.tip(session) is block for session in waits)
        return max(super().own_level(block), Priority.EXPECTED if expected else Priority.LOW)

    # ---- prompts ------------------------------------------------------------------------

    def admit(self, tokens: Iterable[int], *, session: bytes = b"", **asked: Any) -> int:  # type: ignore[override]
        if session:
            self.check_retention()
        self.naming = session
        try:
            return super().admit(tokens, **asked)
        finally:
            self.naming = b""

    def expect(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        if self.naming:
            self.follow_up(seq, plan, terms)
        self.take_back(seq)
        super().expect(seq, plan, terms)

    def expect_stops(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        self.take_back(seq)
        super().expect_stops(seq, plan, terms)

    def take_back(self, seq: Seq) -> None:
        """The path of a preempted sequence is its own again."""
        for session in self.sessions.values():
            if session.handle == seq.handle:
                session.tip, session.num_blocks = None, 0

    def follow_up(self, seq: Seq, plan: Plan, terms: Terms) -> None:
        """The prompt is the last one of its session."""
        key = seq.namespace, self.naming
        session = self.sessions.get(key)
        if session is None:
            self.make_room(seq.namespace)
            session = Session()
        tip = self.tip(session) if session.handle is None else None
        superseded: list[Block] = []
        if tip is not None and terms.read_cache:
            assert tip.content is not None
            goes_on = plan.copied.get(0) is tip and len(tip.content[1][1]) == plan.cached
            superseded = [] if goes_on else self.superseded(self.chain(tip), seq, session)
        self.sessions.pop(key, None)
        self.sessions[key] = session
        session.handle, session.outlook = seq.handle, ""
        self.lower(superseded)
        self.count["superseded_blocks"] += len(superseded)

    def superseded(self, chain: list[Block], seq: Seq, session: Session) -> list[Block]:
        """What only this path uses behind the blocks that it shares, half of them at least."""
        ends = range(self.size, len(seq.tokens), self.size)
        shared = 0
        for old, end in zip(reversed(chain), ends, strict=False):
            if old is not self.find((0, seq.prefix(end))):
                break
            shared += 1
        if 2 * shared < len(chain):
            return []
        rest = chain[: len(chain) - shared]
        return rest[: self.alone(rest, session)]

    def make_room(self, namespace: bytes) -> None:
        """Drops the session with the oldest prompt if the share knows as many as it may."""
        share = self.share(namespace)
        known = [key for key in self.sessions if self.share(key[0]) == share]
        if len(known) == -(-self.config.max_sessions * self.limit(share) // self.capacity):
            del self.sessions[known[0]]

    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        """A sequence that comes to another namespace leaves its session."""
        handles = list(handles)
        known = [self.seqs[handle] for handle in handles if handle in self.seqs]
        before = {seq.handle: seq.namespace for seq in known}
        super().reparent(handles, parents)
        moved = {seq.handle for seq in known if seq.namespace != before[seq.handle]}
        self.ended -= moved
        for session in self.sessions.values():
            if session.handle in moved:
                session.handle = None

    # ---- ends ---------------------------------------------------------------------------

    def give_back(
        self, seq: Seq, *, resumes: bool = False, expect_reuse: bool | None = None
    ) -> None:
        self.keep_end(seq)
        if expect_reuse is not None:
            self.hint(seq, expect_reuse)
        self.left = self.path_of(seq)
        self.shorten(seq.tables[0], 0)

    def path_of(self, seq: Seq) -> tuple[Block, int, int] | None:
        """The last cached block of a sequence, since when it is, and the blocks up to it."""
        if seq.outdated:
            return None
        blocks, count = seq.blocks, seq.promoted
        if count < len(blocks) and (end := blocks[count]) and end.content:
            return end, end.linked, count + 1
        last = blocks[count - 1] if count else None
        if last is None:
            return None
        node = self.node(last)
        return node, node.linked, count

    def free(
        self, handle: int, *, expect_reuse: bool | None = None, withdraw: bool = False
    ) -> None:
        self.left = None
        super().free(handle, expect_reuse=expect_reuse, withdraw=withdraw)
        self.leave_path(handle)
        self.ended.discard(handle)
        for session in self.sessions.values():
            if session.handle == handle:
                session.handle = None

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        super().preempt(handle, withdraw=withdraw)
        self.leave_path(handle)

    def leave_path(self, handle: int) -> None:
        """What a sequence leaves is the path of its session, or goes first if that has ended."""
        left, self.left = self.left, None
        ended = handle in self.ended
        owners = (s for s in self.sessions.values() if s.handle == handle)
        session = Session() if ended else next(owners, None)
        tip, linked, count = left or (None, 0, 0)
        if session is None:
            return
        if tip is None or tip.content is None or tip.linked != linked:
            return
        if ended or session.outlook == "done":
            chain = self.chain(tip)
            self.lower(chain[: self.alone(chain, session)])
        session.tip, session.linked, session.num_blocks = tip, linked, count

    def end_session(self, session: bytes, *, namespace: bytes = b"") -> int | None:
        self.check_retention()
        known = self.sessions.get((namespace, session))
        if known is None:
            return None
        tip = self.tip(known)
        chain = [] if tip is None else self.chain(tip)
        count = self.alone(chain, known)
        del self.sessions[namespace, session]
        if known.handle is not None:
            self.ended.add(known.handle)
        self.lower(chain[:count])
        return count

    def signal(
        self,
        session: bytes,
        signal: str,
        *,
        expected_in: float | None = None,
        namespace: bytes = b"",
    ) -> int | None:
        self.check_retention()
        known = self.sessions.get((namespace, session))
        if known is None:
            return None
        tip = self.tip(known)
        chain = [] if tip is None else self.chain(tip)
        if signal == "done":
            count = self.alone(chain, known)
            known.outlook = "done"
            self.lower(chain[:count])
            return count
        if known.outlook == "done":
            for block in chain:
                block.hint = Priority.NORMAL
        known.outlook = "expected"
        known.until = math.inf if expected_in is None else self.now + expected_in
        return len(chain)

    def set_time(self, seconds: float) -> None:
        super().set_time(seconds)
        for session in self.sessions.values():
            if session.outlook == "expected" and session.until <= self.now:
                session.outlook = ""

    def level_gauges(self) -> dict[str, int]:
        return {**super().level_gauges(), "sessions": len(self.sessions)}

    def check_invariants(self) -> None:
        super().check_invariants()
        for session in self.sessions.values():
            tip = self.tip(session)
            assert tip is None or len(self.chain(tip)) == session.num_blocks
