"""The model's admissions: the cached prefix of a prompt, and the blocks for the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockmgr.blocks import Admission, Match, Priority
from blockmgr.errors import (
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    SequenceStateError,
    StaleMatchError,
    UnknownSequenceError,
)
from tests.stress.model_pool import Block, Content, ModelPool, Seq

__all__ = ["ModelAdmission", "Plan", "Terms", "common", "token_list", "whole"]


@dataclass
class Terms:
    """The limits of an admission on the cache and the pool."""

    watermark: int
    read_cache: bool = True
    most: int | None = None  # tokens taken from the cache
    due: int | None = None  # exactly so many


ASKED = {"read_cache": True, "match": None, "max_cached_tokens": None, "watermark_blocks": None}
"""Defaults of the arguments of an admission."""


@dataclass
class Plan:
    """The plan of an admission."""

    hits: list[Block]
    source: Block | None
    num_partial: int
    take_over: bool
    num_blocks: int
    needed: int


def common(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def whole(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
    return int(value)


def token_list(tokens: Iterable[int]) -> list[int]:
    out = [whole("tokens", token, 0, 2**32 - 1) for token in tokens]
    if not out:
        raise ValueError("tokens must not be empty")
    return out


def checked_key(namespace: object, extras: object) -> tuple[bytes, dict[int, bytes]]:
    extras = {} if extras is None else extras
    if not isinstance(namespace, bytes) or not isinstance(extras, Mapping):
        raise TypeError("namespace must be bytes, extras a mapping")
    if len(namespace) > 1024:
        raise ValueError(f"namespace must be at most 1024 bytes long, got {len(namespace)}")
    for index, extra in extras.items():
        whole("extras", index, 0, 2**62)
        if not isinstance(extra, bytes):
            raise TypeError(f"extras must map to bytes, got {extra!r}")
        if not 1 <= len(extra) <= 1024:
            raise ValueError(f"extras must be 1 to 1024 bytes long, got {len(extra)}")
    return namespace, dict(extras)


class ModelAdmission(ModelPool):
    """The part of the model that admits prompts."""

    def sequence(self, handle: int) -> Seq:
        if handle not in self.seqs:
            raise UnknownSequenceError(handle)
        return self.seqs[handle]

    def running(self, handle: int) -> Seq:
        seq = self.sequence(handle)
        if seq.is_preempted:
            raise SequenceStateError(f"sequence {handle} is preempted")
        return seq

    def best_child(self, parent: Content, extras: bytes, tokens: list[int]) -> Block | None:
        """The child with the longest common prefix; ties go to the one linked last."""
        candidates = self.children(parent, extras)
        lengths = [common(child.written, tokens) for child in candidates]
        least = self.config.min_partial_tokens
        if not least or not lengths or max(lengths) < least:
            return None
        return candidates[lengths.index(max(lengths))]

    def can_be_taken_over(self, tail: Block, tokens: list[int]) -> bool:
        """Whether no other sequence holds the tail and none of its tokens would be lost."""
        is_whole = len(tail.tokens) < self.size and tokens[: len(tail.tokens)] == list(tail.tokens)
        return is_whole and tail in self.idle()

    def plan(self, seq: Seq, num_slots: int, partial: bool, terms: Terms) -> Plan:
        """The longest cached prefix, and the plan to admit the sequence with it."""
        hits: list[Block] = []
        read = terms.read_cache
        last = len(seq.tokens) - 1  # never found: one token is always left to compute
        last = last if terms.most is None else min(last, terms.most)
        while read and (len(hits) + 1) * self.size <= last:
            hit = self.find(seq.content(len(hits) + 1))
            if hit is None:
                break
            hits.append(hit)
        num_blocks = -(-num_slots // self.size)
        rest = seq.tokens[len(hits) * self.size : last]
        source = None
        if read and partial and num_blocks > len(hits):
            extras = seq.extras.get(len(hits), b"")
            source = self.best_child(seq.content(len(hits)), extras, rest)
        take_over = source is not None and self.can_be_taken_over(source, rest)
        num_blocks = max(num_blocks, len(hits))
        idle = self.idle()
        acquired = hits if source is None else [*hits, source]
        needed = num_blocks - len(hits) - take_over + sum(b in idle for b in acquired)
        num_partial = 0 if source is None else common(source.written, rest)
        return Plan(hits, source, num_partial, take_over, num_blocks, needed)

    def best_plan(self, seq: Seq, num_slots: int, terms: Terms) -> tuple[Plan, bool]:
        """The best plan that fits, or one that does not: a copy keeps its source in use."""
        available = self.available(self.share(seq.namespace)) - terms.watermark
        for partial in (True, False):
            plan = self.plan(seq, num_slots, partial, terms)
            cached = len(plan.hits) * self.size + plan.num_partial
            if terms.due not in (None, cached):
                raise StaleMatchError(terms.due or 0, cached)
            fits = plan.needed == 0 or plan.needed <= available
            if fits or terms.due is not None:
                break
        return plan, fits

    def fitting_plan(self, seq: Seq, num_slots: int, terms: Terms) -> Plan:
        plan, fits = self.best_plan(seq, num_slots, terms)
        if not fits:
            available = self.available(self.share(seq.namespace))
            raise OutOfBlocksError(plan.needed, available, terms.watermark)
        return plan

    def terms(self, namespace: bytes, asked: Mapping[str, Any]) -> Terms:
        """The limits in the arguments of an admission."""
        values = {**ASKED, **asked}
        held_back = values["watermark_blocks"]
        if held_back is not None:
            held_back = whole("watermark_blocks", held_back, 0, 2**62)
        most, match = values["max_cached_tokens"], values["match"]
        most = most if most is None else whole("max_cached_tokens", most, 0, 2**62)
        if match is not None and (most is not None or not values["read_cache"]):
            raise ValueError("match says what is taken from the cache")
        due = None if match is None else match.num_cached_tokens
        watermark = self.watermark(self.share(namespace), held_back)
        return Terms(watermark, values["read_cache"], most if due is None else due, due)

    def check_fits(self, seq: Seq, num_slots: int, watermark: int = 0) -> None:
        most = self.limit(self.share(seq.namespace)) - watermark
        if -(-num_slots // self.size) > min(self.width, most):
            raise NeverFitsError(f"{num_slots} slots never fit")

    def settle_in(self, seq: Seq, plan: Plan, counters: str | None) -> None:
        seq.blocks, seq.promoted, seq.is_preempted = list(plan.hits), len(plan.hits), False
        self.seqs[seq.handle] = seq
        for block in plan.hits:
            block.hint = Priority.NORMAL  # this is the expected reuse
        self.settle_down()
        if plan.take_over:
            assert plan.source is not None
            plan.source.content = plan.source.stamp = plan.source.retention = None
            plan.source.hint = Priority.NORMAL
            seq.blocks.append(plan.source)
        elif plan.source is not None:
            plan.source.stamp = None  # in use from here on, so that it is not evicted below
        share = self.share(seq.namespace)
        seq.blocks += [self.take(share) for _ in range(plan.num_blocks - len(seq.blocks))]
        if plan.source is not None and not plan.take_over:
            self.record(plan.source, seq.blocks[len(plan.hits)], plan.num_partial)
        self.settle_down()
        seq.num_computed_tokens = len(plan.hits) * self.size + plan.num_partial
        seq.num_cached_tokens = seq.settled = seq.written = seq.num_computed_tokens
        for index, block in enumerate(plan.hits):
            if block.unwritten:
                seq.written = min(seq.written, (index + 1) * self.size - block.unwritten)
        if counters is None:
            return
        self.count[f"{counters}query_tokens"] += len(seq.tokens)
        self.count[f"{counters}hit_tokens"] += seq.num_cached_tokens
        if not counters:
            self.count["partial_hit_tokens"] += plan.num_partial
            self.lookups.append((len(seq.tokens), seq.num_cached_tokens))

    def checked_slots(self, seq: Seq, num_slots: int | None, watermark: int) -> int:
        length = len(seq.tokens)
        slots = length if num_slots is None else whole("num_slots", num_slots, 1, 2**63 - 1)
        self.check_fits(seq, max(length, slots), watermark)
        return slots

    def new_rows(self, n: int) -> list[int]:
        taken = {handle & 0xFFFFFFFF for handle in self.seqs}
        rows = [row for row in range(self.config.max_seqs) if row not in taken]
        if len(rows) < n:
            raise OutOfSequencesError(n, len(rows))
        return [self.generations[row] << 32 | row for row in rows[:n]]

    def prompt(self, tokens: Iterable[int], namespace: object, extras: object) -> Seq:
        return Seq(-1, token_list(tokens), *checked_key(namespace, extras), self.size)

    def admit(
        self,
        tokens: Iterable[int],
        *,
        namespace: object = b"",
        extras: object = None,
        num_slots: int | None = None,
        **asked: Any,
    ) -> int:
        seq = self.prompt(tokens, namespace, extras)
        terms = self.terms(seq.namespace, asked)
        slots = self.checked_slots(seq, num_slots, terms.watermark)
        [seq.handle] = self.new_rows(1)
        plan = self.fitting_plan(seq, slots, terms)
        self.settle_in(seq, plan, "" if terms.read_cache else None)
        return seq.handle

    def check_row(self, seq: Seq) -> None:
        if len(seq.tokens) > self.width * self.size:
            raise NeverFitsError(f"{len(seq.tokens)} tokens never fit")

    def match(
        self,
        tokens: Iterable[int],
        *,
        namespace: object = b"",
        extras: object = None,
        num_slots: int | None = None,
        **asked: Any,
    ) -> Match:
        seq = self.prompt(tokens, namespace, extras)
        slots = len(seq.tokens) if num_slots is None else num_slots
        terms = self.terms(seq.namespace, asked)
        try:
            self.checked_slots(seq, num_slots, terms.watermark)
        except NeverFitsError:
            terms.watermark = -(2**31)  # a prompt that never fits finds everything that is cached
        plan, _ = self.best_plan(seq, slots, terms)
        num_cached = len(plan.hits) * self.size + plan.num_partial
        ids = np.array([b.id for b in plan.hits], np.int32)
        idle = plan.needed - (plan.num_blocks - len(plan.hits))
        last = len(seq.tokens) - 1 if terms.most is None else min(len(seq.tokens) - 1, terms.most)
        most = self.num_computing(seq.content(last // self.size))
        computing = most * self.size - num_cached if most > len(plan.hits) else 0
        return Match(num_cached, plan.num_partial, ids, idle, computing)

    def num_computing(self, wanted: Content) -> int:
        """The most leading blocks of the prompt that one running sequence has or will commit."""
        namespace, chunks = wanted
        running = (s for s in self.seqs.values() if not s.is_preempted and not s.outdated)
        alike = (s for s in running if self.config.prefix_caching and s.namespace == namespace)
        return max(
            (common(s.content(s.num_tokens // self.size)[1], chunks) for s in alike), default=0
        )

    def can_admit(
        self,
        tokens: Iterable[int],
        *,
        namespace: object = b"",
        extras: object = None,
        num_slots: int | None = None,
        **asked: Any,
    ) -> Admission:
        seq = self.prompt(tokens, namespace, extras)
        terms = self.terms(seq.namespace, asked)
        try:
            slots = self.checked_slots(seq, num_slots, terms.watermark)
            self.new_rows(1)
            self.fitting_plan(seq, slots, terms)
        except NeverFitsError:
            return Admission.NEVER
        except (OutOfSequencesError, OutOfBlocksError):
            return Admission.LATER
        return Admission.NOW
