"""Operations as records, which can be drawn from a seed, written, reduced and run again.

A record contains its tokens in full, and names its sequences by numbers modulo the number of
sequences. So a run stays valid when records are removed from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.stress.profiles import BALANCED, PROFILES

if TYPE_CHECKING:
    import random

__all__ = ["Draw", "Record"]

Record = dict[str, Any]

BIG = 2**16  # far above any number of sequences, so that each is equally likely
EXTRAS = ("x", "y")


class Draw:
    """An endless stream of records for one run of a profile."""

    def __init__(self, rng: random.Random, profile: str) -> None:
        self.rng, self.profile = rng, PROFILES[profile]
        weights = {**BALANCED, **self.profile.weights}
        self.ops = list(weights)
        swarm = self.profile.swarm
        self.weights = [weight * 2 ** rng.uniform(-swarm, swarm) for weight in weights.values()]
        self.vocabulary = rng.choice(self.profile.vocabulary)
        self.stems = [self.tokens(self.profile.prompt) for _ in range(4)]

    def one(self) -> Record:
        """The next operation."""
        op = self.rng.choices(self.ops, self.weights)[0]
        more = getattr(self, op, None)
        record: Record = {"op": op, "entry": self.number()}
        record = {**record, **more()} if more else record
        if self.profile.sessions and op in {"admit", "next_turn", "signal", "end_session"}:
            record["session"] = f"{record['entry'] % 5 or ''}"
        return record

    def number(self) -> int:
        """A number that selects a sequence, or an item of any other list."""
        return self.rng.randrange(BIG)

    def token(self) -> int:
        """One of the few distinct tokens of the run."""
        return self.rng.randrange(self.vocabulary)

    def tokens(self, longest: int) -> list[int]:
        """At least one token."""
        return [self.token() for _ in range(self.rng.randint(1, longest))]

    # ---- arguments of operations besides name and sequence ------------------------

    def admit(self) -> Record:
        """A prompt that shares a prefix with others."""
        rng = self.rng
        stem = rng.choice(self.stems)
        tokens = stem[: rng.randint(1, len(stem))] + self.tokens(4)[rng.randint(0, 1) :]
        extras = None if rng.random() < 0.8 else {str(rng.randint(0, 2)): rng.choice(EXTRAS)}
        slots = None if rng.random() < 0.7 else rng.randint(1, len(tokens) + 6)
        return {
            "tokens": tokens,
            "namespace": rng.choice(self.profile.namespaces).decode(),
            "extras": extras,
            "num_slots": slots,
            "commit": rng.random() < 0.5,
            "read_cache": rng.random() < 0.9,
            "by_match": rng.random() < 0.2,
            "limits": self.limits(len(tokens)),
        }

    def limits(self, length: int) -> Record:
        """The most tokens to take from the cache, and the number of blocks to hold back."""
        rng, limits = self.rng, {}
        if rng.random() < 0.1:
            limits["max_cached_tokens"] = rng.randint(0, length)
        if rng.random() < 0.1:
            limits["watermark_blocks"] = rng.randint(0, 3)
        if self.profile.loads and rng.random() < 0.6:
            limits["num_loaded_tokens"] = rng.randint(0, length)
        return limits

    def next_turn(self) -> Record:
        """The next turn of the conversation, or sometimes an edit of the prompt."""
        cut = None if self.rng.random() < 0.75 else self.rng.randint(1, 12)
        return {"tokens": self.tokens(6), "cut": cut}

    def append(self) -> Record:
        """One token, or a few."""
        return {"tokens": self.tokens(1 if self.rng.random() < 0.8 else 6)}

    def batch(self, share: float) -> list[int]:
        """Some of the sequences, in some order."""
        chosen = [i for i in range(self.profile.max_seqs[1]) if self.rng.random() < share]
        self.rng.shuffle(chosen)
        return chosen

    def decode(self) -> Record:
        """A batch, and a token for each."""
        batch = self.batch(0.8)
        return {"batch": batch, "tokens": [self.token() for _ in batch]}

    def reparent(self) -> Record:
        """A batch, and the index of each sequence's parent in it."""
        batch = self.batch(0.7)
        return {"batch": batch, "parents": [self.number() for _ in batch]}

    def step(self) -> Record:
        """One sequence may be left out, and one token may stay uncommitted."""
        return {
            "skip": self.rng.choice([-1, -1, -1, 0, 1]),
            "held_back": self.rng.choice([0, 0, 0, 1]),
            # After that many steps, the low 16 bits of the step number repeat.
            "pause": 2**16 - self.rng.randint(0, 2) if self.rng.random() < 1 / 4096 else 0,
        }

    def begin(self) -> Record:
        """The copies may be reported before the forward runs."""
        return {"applied": self.rng.random() < 0.5}

    def abort(self) -> Record:
        """Sometimes while a copy of an unfinished copy is planned."""
        return {"nested": self.rng.random() < 0.5}

    def complete(self) -> Record:
        """One step, or two."""
        return {"count": self.rng.randint(1, 2)}

    def commit(self) -> Record:
        """All slots, or a fixed number, which may be out of bounds."""
        return {"num_computed": self.rng.choice([None, 1, 5])}

    def reserve(self) -> Record:
        """A few more slots than tokens, or fewer."""
        return {"more": self.rng.randint(-4, 5)}

    def truncate(self) -> Record:
        """A part of the tokens, which may be out of bounds at both ends."""
        return {"share": self.rng.random()}

    def turn(self) -> Record:
        """Tokens of the next turn."""
        return {"tokens": self.tokens(4)}

    def retain_prefix(self) -> Record:
        """Any level."""
        return {"priority": self.rng.randint(0, 3)}

    def fork(self) -> Record:
        """Sometimes no child, which the manager refuses."""
        return {"n": self.rng.choice([1, 1, 2, 3, 0])}

    def branch(self) -> Record:
        """A family of sequences, in the order in which they write."""
        order = [0, 1, 2]
        self.rng.shuffle(order)
        cut = self.rng.randint(0, 3) if self.rng.random() < 0.3 else None
        return {"order": order, "tokens": [self.token() for _ in range(6)], "cut": cut}

    def resume(self) -> Record:
        """With all slots, or only some."""
        slots = self.rng.choice([None, None, 1, 9])
        return {"num_slots": slots, "read_cache": self.rng.random() < 0.9}

    def resume_together(self) -> Record:
        """A batch, in any order."""
        return {"batch": self.batch(0.7), **self.resume()}

    def regroup(self) -> Record:
        """Mostly while no step is in flight."""
        return {"steps": self.rng.random() < 0.7}

    def hold(self) -> Record:
        """A few blocks, sometimes twice."""
        return {"count": self.rng.randint(0, 3), "twice": self.rng.random() < 0.2}

    def let_go(self) -> Record:
        """Some of the held blocks, sometimes too often."""
        return {"count": self.rng.randint(1, 6), "again": self.rng.random() < 0.1}

    def touch_blocks(self) -> Record:
        """A few blocks."""
        return {"count": self.rng.randint(1, 3)}

    def forget(self) -> Record:
        """One block or two."""
        return {"count": self.rng.randint(1, 2)}

    def shrink(self) -> Record:
        """To any number of blocks, even a wrong one; mostly who is in the way is preempted."""
        return {"share": self.rng.random(), "evacuates": self.rng.random() < 0.6}

    def grow(self) -> Record:
        """Mostly to all blocks."""
        return {"share": self.rng.choice([1.0, 1.0, self.rng.random() * 1.1])}

    def retain(self) -> Record:
        """A few tokens of a sequence, for a while."""
        priority = self.rng.choice([None, 0, 1, 2, 3])
        ttl = None if priority is None else self.rng.choice([None, None, 1, 2.5])
        return {
            "start": self.rng.randint(0, 6),
            "length": self.rng.randint(1, 8),
            "priority": priority,
            "ttl": ttl,
        }

    def unpin(self) -> Record:
        """Sometimes twice."""
        return {"again": self.rng.random() < 0.2}

    def set_time(self) -> Record:
        """Sometimes backwards."""
        return {"seconds": self.rng.choice([0.5, 1, 3, -1])}

    def end_session(self) -> Record:
        """In any of the namespaces."""
        return {"namespace": self.rng.choice(self.profile.namespaces).decode()}

    def signal(self) -> Record:
        """For a time, or without one."""
        return {
            **self.end_session(),
            "signal": self.rng.choice(["tool_wait", "resumed", "done"]),
            "expected_in": self.rng.choice([None, 1, 2.5]),
        }

    def free(self) -> Record:
        """Sometimes in the step that would compute it."""
        return {"withdraw": self.rng.random() < 0.3}

    def preempt(self) -> Record:
        """Likewise."""
        return {"withdraw": self.rng.random() < 0.3}

    def reset(self) -> Record:
        """The cache, and sometimes its recent hits."""
        return {"reset_hit_rate": self.rng.random() < 0.5}

    def nonsense(self) -> Record:
        """A call on a sequence that has ended."""
        return {"call": self.rng.choice(["free", "preempt", "resume", "fork"])}
