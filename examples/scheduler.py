"""A scheduler with continuous batching: admit, decode, preempt, resume, copy, finish."""

import numpy as np

from blockmgr import BlockManager, OutOfBlocksError


class Scheduler:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = BlockManager(num_blocks, block_size, watermark_blocks=1)
        self.kv = np.zeros((num_blocks, block_size), np.int64)  # stands for the K/V tensors
        self.waiting, self.preempted = [], []  # prompts, handles
        self.running, self.finished = {}, []  # handle -> token sampled last, token lists

    def step(self, max_tokens: int) -> None:
        while self.running:  # append one token to every running sequence
            try:
                self.manager.decode(list(self.running), list(self.running.values()))
                break
            except OutOfBlocksError:  # nothing changed: preempt the newest, retry
                handle, _ = self.running.popitem()
                self.manager.preempt(handle)  # its last token will be sampled again
                self.preempted.append(handle)
        try:
            while self.preempted:
                self.manager.resume(self.preempted[-1])
                self.running[self.preempted.pop()] = None
            while self.waiting:
                self.running[self.manager.admit(self.waiting[0])] = None
                self.waiting.pop(0)
        except OutOfBlocksError:
            pass  # the next steps free blocks
        plan = self.manager.take_copies()
        for source, destination, n in plan:  # on a device: one launch of blockmgr.kv
            self.kv[destination, :n] = self.kv[source, :n]
        self.manager.copies_applied(plan.ticket)
        for handle in list(self.running):
            sequence = self.manager.sequence(handle)
            self.running[handle] = self.forward(sequence)
            if sequence.num_tokens == max_tokens:
                self.finished.append(sequence.tokens.tolist())
                sequence.commit(max_tokens)  # so that later prompts find it
                sequence.free()
                del self.running[handle]

    def forward(self, sequence) -> int:
        """Write K/V of the new tokens, read the whole context, sample a token."""
        slots = sequence.slot_mapping(0, sequence.num_tokens)
        start, kv = sequence.num_computed_tokens, self.kv.reshape(-1)
        kv[slots[start:]] = sequence.tokens[start:]
        return int(kv[slots] @ np.arange(1, len(slots) + 1)) % 97


if __name__ == "__main__":
    scheduler = Scheduler(num_blocks=12, block_size=4)
    scheduler.waiting = [[9, 8, 7, 6, 5, 4, 3, 2, 10 + n] for n in range(8)]  # a common prefix
    while len(scheduler.finished) < 8:
        scheduler.step(max_tokens=20)
    stats = scheduler.manager.stats()
    print(f"{stats.hit_tokens} prompt tokens found in the cache, {stats.preemptions} preemptions")
