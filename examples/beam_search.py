"""Beam search on shared blocks: `reparent` regroups the beams, `decode` plans the copies."""

import numpy as np

from blockmgr import BlockManager

VOCABULARY, BEAMS, STEPS, BLOCK_SIZE = 50, 4, 24, 4
PROMPT = [7, 3, 9, 4, 1, 8]
# Stands for the model: the log-probability of each token after each other token.
LOGITS = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY))
LOG_PROBS = LOGITS - np.log(np.exp(LOGITS).sum(axis=1, keepdims=True))


def best(scores: np.ndarray, last: list[int]) -> tuple[np.ndarray, list[int], list[int]]:
    """The best continuations of all beams: their scores, their parents, their tokens."""
    candidates = (scores[:, None] + LOG_PROBS[last]).reshape(-1)
    chosen = np.argsort(-candidates, kind="stable")[:BEAMS]
    parents, tokens = np.divmod(chosen, VOCABULARY)
    return candidates[chosen], parents.tolist(), tokens.tolist()


manager = BlockManager(num_blocks=64, block_size=BLOCK_SIZE)
kv = np.zeros((64, BLOCK_SIZE), np.int64)  # stands for the K/V tensors


def forward(handles: list[int]) -> None:
    """Run the planned copies, then write the K/V of the new tokens."""
    plan = manager.take_copies()
    for source, destination, n in plan:
        kv[destination, :n] = kv[source, :n]
    manager.copies_applied(plan.ticket)
    for handle in handles:
        sequence = manager.sequence(handle)
        start, stop = sequence.num_computed_tokens, sequence.num_tokens
        kv.reshape(-1)[sequence.slot_mapping(start, stop)] = sequence.tokens[start:stop]


prompt = manager.admit(PROMPT)
forward([prompt])
manager.commit(prompt, len(PROMPT))  # computed once
beams = [prompt, *manager.fork(prompt, n=BEAMS - 1)]  # all beams share it; nothing is copied

# All beams are equal at first, so the first step continues one of them.
scores, parents, tokens = best(np.array([0.0] + [-np.inf] * (BEAMS - 1)), [PROMPT[-1]] * BEAMS)
for _ in range(STEPS):
    manager.reparent(beams, parents)  # beams[i] becomes a fork of what beams[parents[i]] was
    manager.decode(beams, tokens)
    forward(beams)
    scores, parents, tokens = best(scores, tokens)

for handle in beams:  # each beam reads back its own tokens, through shared blocks
    sequence = manager.sequence(handle)
    slots = sequence.slot_mapping(0, sequence.num_tokens)
    assert kv.reshape(-1)[slots].tolist() == sequence.tokens.tolist()
used, stats = manager.stats().used_blocks, manager.stats()
private = sum(manager.sequence(handle).num_blocks for handle in beams)
print(f"{BEAMS} beams of {len(PROMPT) + STEPS} tokens in {used} blocks; private: {private}")
print(f"{stats.planned_copies - stats.cancelled_copies} block copies in {STEPS} steps")
