"""Operations as records: drawn from a seed, written to a file, cut down, run again.

A record names its sequences by numbers that are taken modulo how many there are, and its tokens in
full. So whatever is left of a run when records are taken out of it is a run as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.stress.profiles import BALANCED, PROFILES

if TYPE_CHECKING:
    import random

__all__ = ["Draw", "Record"]

Record = dict[str, Any]

BIG = 2**16  # far above any number of sequences, so that each is as likely
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
        record = {"op": op, "entry": self.number()}
        return {**record, **more()} if more else record

    def number(self) -> int:
        """Names a sequence, or anything else of which there are some."""
        return self.rng.randrange(BIG)

    def token(self) -> int:
        """One of the few different tokens of the run."""
        return self.rng.randrange(self.vocabulary)

    def tokens(self, longest: int) -> list[int]:
        """At least one token."""
        return [self.token() for _ in range(self.rng.randint(1, longest))]

    # ---- what an operation needs besides its name and a sequence ------------------------

    def admit(self) -> Record:
        """A prompt that begins like others."""
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
        """How much to take from the cache, and how many blocks to hold back."""
        rng, limits = self.rng, {}
        if rng.random() < 0.1:
            limits["max_cached_tokens"] = rng.randint(0, length)
        if rng.random() < 0.1:
            limits["watermark_blocks"] = rng.randint(0, 3)
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
        """A batch, and the place in it of each one's parent."""
        batch = self.batch(0.7)
        return {"batch": batch, "parents": [self.number() for _ in batch]}

    def step(self) -> Record:
        """One sequence may be left out, one token may not be committed yet."""
        return {
            "skip": self.rng.choice([-1, -1, -1, 0, 1]),
            "held_back": self.rng.choice([0, 0, 0, 1]),
            # What is told apart by the low 16 bits of a step is taken for another then.
            "pause": 2**16 - self.rng.randint(0, 2) if self.rng.random() < 1 / 4096 else 0,
        }

    def begin(self) -> Record:
        """The copies may be reported before the forward runs."""
        return {"applied": self.rng.random() < 0.5}

    def abort(self) -> Record:
        """Now and then while a copy of an unfinished copy has been asked for."""
        return {"nested": self.rng.random() < 0.5}

    def complete(self) -> Record:
        """One step, or two."""
        return {"count": self.rng.randint(1, 2)}

    def commit(self) -> Record:
        """All there is, or a fixed number, which may be out of bounds."""
        return {"num_computed": self.rng.choice([None, 1, 5])}

    def reserve(self) -> Record:
        """Some more slots than tokens, or fewer."""
        return {"more": self.rng.randint(-4, 5)}

    def truncate(self) -> Record:
        """A part of the tokens; out of bounds at both ends."""
        return {"share": self.rng.random()}

    def fork(self) -> Record:
        """Now and then no child at all, which is refused."""
        return {"n": self.rng.choice([1, 1, 2, 3, 0])}

    def branch(self) -> Record:
        """A family, in the order in which it writes."""
        order = [0, 1, 2]
        self.rng.shuffle(order)
        cut = self.rng.randint(0, 3) if self.rng.random() < 0.3 else None
        return {"order": order, "tokens": [self.token() for _ in range(6)], "cut": cut}

    def resume(self) -> Record:
        """With all its slots, or only some."""
        slots = self.rng.choice([None, None, 1, 9])
        return {"num_slots": slots, "read_cache": self.rng.random() < 0.9}

    def hold(self) -> Record:
        """A few blocks, now and then twice."""
        return {"count": self.rng.randint(0, 3), "twice": self.rng.random() < 0.2}

    def let_go(self) -> Record:
        """Some of what is held, now and then too often."""
        return {"count": self.rng.randint(1, 6), "again": self.rng.random() < 0.1}

    def touch_blocks(self) -> Record:
        """A few blocks."""
        return {"count": self.rng.randint(1, 3)}

    def forget(self) -> Record:
        """One block or two."""
        return {"count": self.rng.randint(1, 2)}

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
        """Now and then twice."""
        return {"again": self.rng.random() < 0.2}

    def set_time(self) -> Record:
        """Now and then backwards."""
        return {"seconds": self.rng.choice([0.5, 1, 3, -1])}

    def free(self) -> Record:
        """Now and then in the step that was to compute it."""
        return {"withdraw": self.rng.random() < 0.3}

    def preempt(self) -> Record:
        """Likewise."""
        return {"withdraw": self.rng.random() < 0.3}

    def reset(self) -> Record:
        """The cache, and now and then what it says of its last requests."""
        return {"reset_hit_rate": self.rng.random() < 0.5}

    def nonsense(self) -> Record:
        """A call on a sequence that is gone."""
        return {"call": self.rng.choice(["free", "preempt", "resume", "fork"])}
