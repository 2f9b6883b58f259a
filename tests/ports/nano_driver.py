"""A minimal nano-vllm: sequences, a scheduler and a model.

The scheduler calls the block manager as nano-vllm's does: prompts before decoding, first come,
first served; the youngest running sequence is preempted when blocks run out.
The model's K/V is in the oracle's memory, and its next token is read from there through the block
table, so K/V of a wrong prefix shows twice: in the oracle and in the model's output.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import Any

import numpy as np

from tests.stress.memory import Device, Step, Work, extend_prefixes, prefixes_of


class Seq:
    """A request, with the attributes that nano-vllm's sequences have."""

    def __init__(self, name: str, prompt: list[int], max_new_tokens: int) -> None:
        self.name = name
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.max_new_tokens = max_new_tokens
        self.block_table: list[int] = []
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        return len(self) - self.num_prompt_tokens == self.max_new_tokens


class Scheduler:
    """Counts cached blocks, cuts chunks, announces computed blocks; ``counts`` counts events."""

    def __init__(self, blocks: Any, token_budget: int, max_seqs: int) -> None:
        self.blocks = blocks
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.waiting: deque[Seq] = deque()
        self.running: deque[Seq] = deque()
        self.counts: Counter[str] = Counter()

    def schedule(self) -> list[Seq]:
        return self.schedule_prompts() or self.schedule_decodes()

    def schedule_prompts(self) -> list[Seq]:
        batch: list[Seq] = []
        budget = self.token_budget
        while self.waiting and budget and len(batch) < self.max_seqs:
            seq = self.waiting[0]
            found = 0
            if seq.block_table:
                wanted = len(seq) - seq.num_cached_tokens
            else:
                found = self.blocks.can_allocate(seq)
                if found == -1:
                    break
                wanted = len(seq) - found * self.blocks.block_size
            if wanted > budget and batch:
                break  # only the first of a step may be cut
            if not seq.block_table:
                self.blocks.allocate(seq, found)
                self.started(seq)
            seq.num_scheduled_tokens = min(wanted, budget)
            budget -= seq.num_scheduled_tokens
            batch.append(seq)
            if seq.num_scheduled_tokens == wanted:
                self.running.append(self.waiting.popleft())
            else:
                self.counts["chunks"] += 1
        return batch

    def schedule_decodes(self) -> list[Seq]:
        batch: list[Seq] = []
        while self.running and len(batch) < self.max_seqs:
            seq = self.running.popleft()
            if self.make_room(seq):
                self.blocks.may_append(seq)
                seq.num_scheduled_tokens = 1
                batch.append(seq)
        self.running.extendleft(reversed(batch))
        return batch

    def make_room(self, seq: Seq) -> bool:
        while not self.blocks.can_append(seq):
            victim = self.running.pop() if self.running else seq
            self.blocks.deallocate(victim)
            self.waiting.appendleft(victim)
            self.counts["preemptions"] += 1
            if victim is seq:
                return False
        return True

    def started(self, seq: Seq) -> None:
        self.counts["cached tokens"] += seq.num_cached_tokens

    def sampled(self, seq: Seq, token: int) -> None:
        seq.token_ids.append(token)
        if seq.is_finished:
            self.blocks.deallocate(seq)
            self.running.remove(seq)

    def computes(self, seq: Seq) -> tuple[int, int]:
        """The positions that this step's forward computes."""
        return seq.num_cached_tokens, seq.num_cached_tokens + seq.num_scheduled_tokens

    def postprocess(self, batch: list[Seq], tokens: list[int]) -> None:
        for seq, token in zip(batch, tokens, strict=True):
            self.blocks.hash_blocks(seq)
            seq.num_cached_tokens += seq.num_scheduled_tokens
            seq.num_scheduled_tokens = 0
            if seq.num_cached_tokens == len(seq):
                self.sampled(seq, token)


class Engine:
    """Runs a scheduler's steps on a memory whose slots remember what they were computed from."""

    def __init__(self, scheduler: Scheduler, num_blocks: int, vocabulary: int) -> None:
        self.scheduler = scheduler
        self.vocabulary = vocabulary
        self.num_steps = 0
        block_size = scheduler.blocks.block_size
        self.device = Device(num_blocks, block_size, random.Random(0))

    def step(self) -> None:
        """Runs a step; checks the books before and after the forward."""
        batch = self.scheduler.schedule()
        assert batch, "nothing could be scheduled"
        self.check_accounts(batch)
        tokens = self.forward(batch)
        self.scheduler.postprocess(batch, tokens)
        self.check_accounts([])

    def serve(self, seqs: list[Seq], rng: random.Random, most: int) -> None:
        """Runs until all have ended, and each has said what it says alone.

        Args:
            seqs: The requests in order of arrival.
            rng: Draws how many arrive in a step.
            most: Most of them.
        """
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        arrivals = list(reversed(seqs))
        while arrivals or scheduler.waiting or scheduler.running:
            for _ in range(min(rng.randrange(most + 1), len(arrivals))):
                scheduler.waiting.append(arrivals.pop())
            if scheduler.waiting or scheduler.running:
                self.step()
        size = blocks.block_size
        assert [s.token_ids for s in seqs] == [said_alone(s, size, self.vocabulary) for s in seqs]
        assert blocks.manager.num_available == blocks.manager.config.num_blocks

    def forward(self, batch: list[Seq]) -> list[int]:
        self.num_steps += 1
        work = []
        for seq in batch:
            start, stop = self.scheduler.computes(seq)
            prefixes = prefixes_of(seq.token_ids[:stop], self.device.block_size)
            work.append(Work(seq.name, [self.slots(seq, stop)], np.array(prefixes), start))
        step = Step(self.num_steps, [], work)
        self.device.forward(step)
        return [int(self.device.cells[w.slots[0][-1]]) % self.vocabulary for w in work]

    def slots(self, seq: Seq, stop: int) -> np.ndarray:
        positions = np.arange(stop)
        blocks = np.array(seq.block_table)[positions // self.device.block_size]
        return blocks * self.device.block_size + positions % self.device.block_size

    def check_accounts(self, batch: list[Seq]) -> None:
        """Checks that tables and blocks agree, and that no shared block is written."""
        blocks = self.scheduler.blocks
        holders = [s for s in [*self.scheduler.waiting, *self.scheduler.running] if s.block_table]
        named = Counter(block for seq in holders for block in seq.block_table)
        shown = blocks.manager.blocks()
        assert shown.ref_count.tolist() == [named[block] for block in range(len(shown))]
        assert len(shown) - len(named) == blocks.manager.num_available
        assert len(blocks.manager.handles()) == len(holders)
        for seq in batch:
            assert len(seq.block_table) == -(-len(seq) // blocks.block_size)
            start, stop = self.scheduler.computes(seq)
            assert start < stop <= len(seq)
            first = start // blocks.block_size
            last = (stop - 1) // blocks.block_size
            assert all(named[block] == 1 for block in seq.block_table[first : last + 1])
        blocks.manager.check_invariants()


def said_alone(seq: Seq, block_size: int, vocabulary: int) -> list[int]:
    """The model's output for this prompt without a cache, a scheduler or other requests."""
    tokens = seq.token_ids[: seq.num_prompt_tokens]
    prefixes = prefixes_of(tokens, block_size)
    while len(tokens) < seq.num_prompt_tokens + seq.max_new_tokens:
        tokens.append(prefixes[-1] % vocabulary)
        extend_prefixes(prefixes, tokens[-1:], block_size, b"", {})
    return tokens
