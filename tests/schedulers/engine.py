"""A random workload, served by a peer's scheduler and by an engine whose K/V can be checked.

Every slot of the memory holds the prefix from which it was computed. The engine moves blocks and
computes tokens as the scheduler orders, then reads everything that attention would read. The next
token depends on what it has read, so wrong K/V shows twice.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

VOCABULARY = 3
STEPS_WITHOUT_PROGRESS = 30
MOST_STEPS = 1000


@dataclass(frozen=True)
class Adapter:
    """Further inputs of a request besides its tokens."""

    lora_int_id: int
    long_lora_max_len: int = 0


@dataclass
class Request:
    """A request and its time of arrival."""

    name: int
    prompt: list[int]
    num_new: int
    adapter: int
    arrives: int
    aborted_at: int | None
    forks_at: int | None


def contents(tokens: list[int], adapter: int) -> list[int]:
    """The correct content of each token's slot."""
    value, found = adapter + 1, []
    for token in tokens:
        value = (value * 6364136223846793005 + token * 1442695040888963407 + 1) % 2**64
        found.append(value)
    return found


def say(read: list[int | None]) -> int:
    """The next token."""
    value = 0
    for each in read:
        value = (value * 31 + (each or 7)) % (2**61 - 1)
    return value % VOCABULARY


class Workload:
    """Everything drawn from a seed: requests, scheduler settings, sizes of the pools."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.size = rng.choice([1, 2, 4])
        self.caching = rng.random() < 0.6
        chunked = rng.random() < 0.5
        self.num_gpu = rng.randrange(6, 24)
        self.num_cpu = 200
        most = self.size * self.num_gpu
        stems = [self._tokens(rng, rng.randrange(1, max(most // 2, 2))) for _ in range(3)]
        self.requests: list[Request] = []
        for name in range(rng.randrange(3, 14)):
            prompt = rng.choice(stems)[: rng.randrange(1, 20)] + self._tokens(rng, rng.randrange(6))
            num_new = rng.randrange(1, 10)
            # After a swap to the host and back, forks no longer share blocks, and all must fit.
            forks = rng.random() < 0.15
            room = self.num_gpu // 2 * self.size if forks else most
            num_new = min(num_new, max(room - 1, 1))
            if rng.random() < 0.25:  # a single request fills the pool, or half of it
                prompt += self._tokens(rng, room)
            self.requests.append(
                Request(
                    name,
                    prompt[: max(room - num_new, 1)],
                    num_new,
                    adapter=rng.choice([0, 0, 0, 1]),
                    arrives=rng.randrange(12),
                    aborted_at=rng.randrange(20) if rng.random() < 0.1 else None,
                    forks_at=rng.randrange(num_new) if forks else None,
                )
            )
        can_fork = any(request.forks_at is not None for request in self.requests)
        # A token for every sequence and some more: the schedulers swap groups in without counting.
        budget = len(self.requests) * (1 + can_fork) + rng.randrange(1, 9) if chunked else 10**6
        self.options = SimpleNamespace(
            scheduler=SimpleNamespace(
                chunked_prefill_enabled=chunked,
                delay_factor=0.0,
                embedding_mode=False,
                is_attention_free=False,
                is_multi_step=False,
                long_prefill_token_threshold=0,
                max_long_partial_prefills=1,
                max_model_len=10**6,
                max_num_batched_tokens=budget,
                max_num_partial_prefills=1,
                max_num_seqs=64 if can_fork else rng.choice([2, 4, 64]),
                num_lookahead_slots=0,
                num_scheduler_steps=1,
                policy="fcfs",
                # A forked group cannot be recomputed, and older schedulers do not prevent that.
                preemption_mode="swap" if can_fork else rng.choice([None, None, "swap"]),
                runner_type="generate",
                send_delta_data=False,
                single_user_mode=False,
                use_v2_block_manager=True,
            ),
            cache=SimpleNamespace(
                block_size=self.size,
                num_gpu_blocks=self.num_gpu,
                num_cpu_blocks=self.num_cpu,
                sliding_window=None,
                enable_prefix_caching=self.caching,
                is_attention_free=False,
            ),
        )

    @staticmethod
    def _tokens(rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(VOCABULARY), k=count)


@dataclass
class Served:
    """The results of a workload."""

    outputs: dict[int, list[list[int]]] = field(default_factory=dict)
    """By request: the tokens of each of its sequences, in the order in which they ended."""
    dropped: set[int] = field(default_factory=set)
    """Requests that the scheduler refused for good."""
    wrong_reads: int = 0
    wrong_tokens: int = 0
    error: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class Engine:
    """Serves a workload with a peer's scheduler."""

    def __init__(self, peer: Any, manager: Any, workload: Workload) -> None:
        self.peer = peer
        self.work = workload
        if not peer.has_extra_hash:  # it must separate adapters in another way
            for request in workload.requests:
                request.adapter = 0
        self.scheduler = peer.make_scheduler(manager, workload.options)
        self.status = peer.sequence.SequenceStatus
        self.gpu: dict[int, list[int | None]] = {}
        self.cpu: dict[int, list[int | None]] = {}
        self.groups: dict[int, Any] = {}
        self.names = iter(range(1000, 10**6))
        self.served = Served()

    def run(self) -> Served:
        """Runs until every request has ended, or there is no progress."""
        step = idle = 0
        waiting = sorted(self.work.requests, key=lambda r: r.arrives)
        try:
            while waiting or self.scheduler.has_unfinished_seqs():
                while waiting and waiting[0].arrives <= step:
                    self._add(waiting.pop(0))
                self._abort(step)
                progress = self._step()
                idle = 0 if progress or waiting else idle + 1
                if idle > STEPS_WITHOUT_PROGRESS or step > MOST_STEPS:
                    self.served.error = "stuck" if idle else "no end"
                    break
                step += 1
        except Exception as error:  # every exception is a result
            self.served.error = f"{type(error).__name__}: {error}"
        return self.served

    def _add(self, request: Request) -> None:
        adapter = Adapter(request.adapter) if request.adapter else None
        group = self.peer.make_group(request.name, request.prompt, adapter)
        self.groups[request.name] = (request, group)
        self.scheduler.add_seq_group(group)

    def _abort(self, step: int) -> None:
        for request, _ in self.groups.values():
            if request.aborted_at is not None and step == request.arrives + request.aborted_at:
                self.scheduler.abort_seq_group(str(request.name))

    def _step(self) -> bool:
        metas, outputs, *_ = self.scheduler.schedule()
        self.served.dropped |= {int(group.request_id) for group in outputs.ignored_seq_groups}
        self._move(outputs)
        scheduled = list(zip(metas, outputs.scheduled_seq_groups, strict=True))
        work = [part for meta, _ in scheduled for part in self._parts(meta)]
        for _, table, right, start, end in work:  # the whole batch writes before it reads
            for at in range(start, end):
                self._block(table, at)[at % self.work.size] = right[at]
        said: dict[int, int] = {}
        for seq_id, table, right, _, end in work:
            read = [self._block(table, at)[at % self.work.size] for at in range(end)]
            self.served.wrong_reads += sum(a != b for a, b in zip(read, right, strict=False))
            said[seq_id] = say(read)
            self.served.wrong_tokens += said[seq_id] != say([*right[:end]])
        for meta, each in scheduled:
            self._process(meta, each, said)
        self.scheduler.free_finished_seq_groups()
        counts = self.served.counts
        counts["steps"] += 1
        counts["preempted"] += outputs.preempted
        counts["swapped out"] += len(outputs.blocks_to_swap_out)
        counts["swapped in"] += len(outputs.blocks_to_swap_in)
        counts["copied"] += len(outputs.blocks_to_copy)
        return bool(metas or outputs.ignored_seq_groups)

    def _move(self, outputs: Any) -> None:
        empty: list[int | None] = [None] * self.work.size
        for pairs, source, to in (
            (outputs.blocks_to_swap_in, self.cpu, self.gpu),
            (outputs.blocks_to_swap_out, self.gpu, self.cpu),
            (outputs.blocks_to_copy, self.gpu, self.gpu),
        ):
            to.update([(int(b), list(source.get(int(a), empty))) for a, b in pairs])

    def _block(self, table: list[int], at: int) -> list[int | None]:
        return self.gpu.setdefault(table[at // self.work.size], [None] * self.work.size)

    def _parts(self, meta: Any) -> list[tuple[int, list[int], list[int], int, int]]:
        """For each sequence: its blocks, the expected content, and the positions to compute."""
        adapter = self.groups[int(meta.request_id)][0].adapter
        found = []
        for seq_id, data in meta.seq_data.items():
            tokens = list(data.get_token_ids())
            end = len(tokens)
            start = end - 1
            if meta.is_prompt:
                start = data.get_num_computed_tokens()
                end = min(start + meta.token_chunk_size, end)
                cached = len(meta.computed_block_nums or ()) * self.work.size
                if cached > start:
                    self.served.counts["tokens found"] += min(cached, end - 1) - start
                    start = min(cached, end - 1)
                self.served.counts["parts of prompts"] += end < len(tokens)
            table = list(meta.block_tables[seq_id])
            found.append((seq_id, table, contents(tokens, adapter), start, end))
        return found

    def _process(self, meta: Any, scheduled: Any, said: dict[int, int]) -> None:
        request, group = self.groups[int(meta.request_id)]
        group.update_num_computed_tokens(scheduled.token_chunk_size)
        if not meta.do_sample:
            return
        for seq in group.get_seqs(status=self.status.RUNNING):
            if seq.get_output_len() == request.forks_at and len(group.get_seqs()) == 1:
                child = seq.fork(next(self.names))
                self._join(group, child)
                self._append(child, (said[seq.seq_id] + 1) % VOCABULARY)
                self.scheduler.fork_seq(seq, child)
                said[child.seq_id] = -1
                self.served.counts["forks"] += 1
            if said[seq.seq_id] >= 0:
                self._append(seq, said[seq.seq_id])
        for seq in group.get_seqs(status=self.status.RUNNING):
            if seq.get_output_len() >= request.num_new:
                seq.status = self.status.FINISHED_STOPPED
                self.scheduler.free_seq(seq)
                self.served.outputs.setdefault(request.name, []).append(list(seq.get_token_ids()))

    @staticmethod
    def _join(group: Any, child: Any) -> None:
        if hasattr(group, "add"):
            group.add(child)
            return
        group.seqs = [*group.seqs, child]
        group.seqs_dict[child.seq_id] = child
        group.is_single_seq = False

    def _append(self, seq: Any, token: int) -> None:
        seq.append_token_id(token, {token: self.peer.sequence.Logprob(0.0)})
