"""Chunked prefill, samples, beams and preemption in one scheduler: `fork`, `resume_together`."""

import numpy as np

from blockmgr import BlockManager, OutOfBlocksError

CHUNK, VOCABULARY, LENGTH, BLOCK_SIZE = 6, 31, 24, 4


class Family:
    """A request: its sequences, and the tokens chosen for them that have no slots yet."""

    def __init__(self, prompt: list[int], n: int, *, beams: bool = False) -> None:
        self.prompt, self.n, self.beams = prompt, n, beams
        self.handles, self.tokens = [], []
        self.scores = np.array([0.0] + [-np.inf] * (n - 1))


class Engine:
    def __init__(self, num_blocks: int, requests: list[Family]) -> None:
        # strict_decode: a chunk that this engine forgot would be an error, not wrong K/V.
        self.manager = BlockManager(num_blocks, BLOCK_SIZE, strict_decode=True)
        self.kv = np.zeros(num_blocks * BLOCK_SIZE, np.int64)  # stands for the K/V tensors
        self.waiting, self.running, self.preempted, self.finished = requests, [], [], {}

    def step(self) -> None:
        self.decode()
        try:
            while self.preempted:
                self.manager.resume_together(self.preempted[0].handles)  # all or none
                self.running.append(self.preempted.pop(0))
            while self.waiting:
                first = self.waiting[0]
                first.handles = [self.manager.admit(first.prompt, num_slots=CHUNK)]
                self.running.append(self.waiting.pop(0))
        except OutOfBlocksError:
            pass  # later steps free blocks
        plan = self.manager.take_copies()
        blocks = self.kv.reshape(-1, BLOCK_SIZE)
        for source, destination, n in plan:  # on a device: one launch of blockmgr.kv
            blocks[destination, :n] = blocks[source, :n]
        self.manager.copies_applied(plan.ticket)
        for family in list(self.running):
            logits = [self.forward(view) for view in self.views(family)]
            if not family.tokens and all(each is not None for each in logits):
                self.choose(family, logits)

    def decode(self) -> None:
        """Gives slots to the chosen tokens, and to the next chunks; preempts while that fails."""
        while True:
            ready = [family for family in self.running if self.is_computed(family)]
            chosen = dict(p for f in ready for p in zip(f.handles, f.tokens, strict=True))
            try:
                for family in self.running:
                    for view in self.views(family):  # the next chunk, where one is left
                        view.reserve(min(view.num_computed_tokens + CHUNK, view.num_tokens))
                self.manager.decode(list(chosen), list(chosen.values()))
            except OutOfBlocksError:  # the batch is all or nothing: preempt the newest family
                victim = self.running.pop()
                for handle in victim.handles:
                    self.manager.preempt(handle)  # its chosen tokens stay chosen
                self.preempted.insert(0, victim)
            else:
                break
        for family in ready:
            family.tokens = []

    def views(self, family: Family) -> list:
        return [self.manager.sequence(handle) for handle in family.handles]

    def is_computed(self, family: Family) -> bool:
        views = self.views(family)
        return bool(family.tokens) and all(v.num_computed_tokens == v.num_tokens for v in views)

    def forward(self, sequence) -> np.ndarray | None:
        """Writes the K/V of a chunk and commits it; the logits, once all tokens are computed."""
        start, stop = sequence.num_computed_tokens, min(sequence.num_tokens, sequence.num_slots)
        slots = sequence.slot_mapping(0, stop)
        self.kv[slots[start:]] = sequence.tokens[start:stop]
        sequence.commit(stop)
        if stop < sequence.num_tokens:
            return None
        context = int(self.kv[slots] @ np.arange(1, stop + 1)) % 97  # reads all of its K/V
        return np.sin(np.arange(VOCABULARY) * (1.7 + context))

    def choose(self, family: Family, logits: list[np.ndarray]) -> None:
        """The next token of each sequence: one for each sample, or the best beams."""
        if fresh := len(family.handles) < family.n:  # the prompt is computed once, and all share it
            family.handles += self.manager.fork(family.handles[0], family.n - 1)
            logits = logits * family.n
        if family.beams:
            best = (family.scores[:, None] + np.array(logits)).reshape(-1)
            chosen = np.argsort(-best, kind="stable")[: family.n]
            family.scores, family.tokens = best[chosen], (chosen % VOCABULARY).tolist()
            self.manager.reparent(family.handles, chosen // VOCABULARY)
        else:
            ranks = range(family.n) if fresh else [0] * family.n
            family.tokens = [int(np.argsort(-x)[r]) for x, r in zip(logits, ranks, strict=True)]
        if (views := self.views(family))[0].num_tokens == LENGTH:
            self.finished[tuple(family.prompt)] = [view.tokens.tolist() for view in views]
            self.running.remove(family)
            for view in views:
                view.free()


def serve(num_blocks: int) -> Engine:
    engine = Engine(num_blocks, [Family([*range(9), n], 4, beams=n % 2 == 1) for n in range(6)])
    while len(engine.finished) < 6:
        engine.step()
    return engine


if __name__ == "__main__":
    small, large = serve(num_blocks=40), serve(num_blocks=400)
    assert small.finished == large.finished  # preemption changes the cost, not the answers
    for stats in (small.manager.stats(), large.manager.stats()):
        print(f"{stats.forks} forks, {stats.preemptions} preemptions, ", end="")
        print(f"{stats.peak_used_blocks} blocks of {stats.capacity} at most")
