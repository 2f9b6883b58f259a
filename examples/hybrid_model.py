"""A hybrid model on one pool: full attention, a sliding window and a recurrent state.

The model is a fake whose K/V is one number per token, so that it runs anywhere. Each layer reads
what its kind of layer reads, through the block tables of the manager, and the output equals that of
a model without a cache.
"""

import numpy as np

from blockmgr import BlockManager, FullAttention, RecurrentState, SlidingWindow

BLOCK_SIZE, NUM_BLOCKS, WINDOW, VOCAB = 4, 64, 6, 97
FULL, RECENT, STATE = range(3)  # the groups, in their order


class HybridModel:
    """Three layers, one of each kind, and the memory they share."""

    def __init__(self) -> None:
        groups = [FullAttention(), SlidingWindow(WINDOW), RecurrentState()]
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, null_block=True, groups=groups)
        self.memory = np.zeros((NUM_BLOCKS, BLOCK_SIZE), dtype=np.int64)

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Continues a prompt; prints what the cache held, and the blocks of the sequence."""
        manager, tokens = self.manager, list(prompt)
        handle = manager.admit(prompt)
        computed = manager.sequence(handle).num_computed_tokens
        print(f"{computed} tokens cached, stops at {manager.stops(handle)}")
        while computed < len(prompt):  # the prefill ends a chunk at each stop
            stop = min([*manager.stops(handle), len(prompt)])
            token = self.forward(handle, tokens, computed, stop)
            computed = stop
        self.show(handle)
        for _ in range(num_tokens):
            tokens.append(token)
            manager.append(handle, [token])
            token = self.forward(handle, tokens, len(tokens) - 1, len(tokens))
        manager.free(handle)
        return tokens[len(prompt) :]

    def forward(self, handle: int, tokens: list[int], start: int, stop: int) -> int:
        """One step: copies, tokens ``[start, stop)`` through all layers, commit."""
        manager, memory = self.manager, self.memory
        plan = manager.take_copies()
        for copy in plan:  # a cached state is copied before it advances
            memory[copy.destination, : copy.num_tokens] = memory[copy.source, : copy.num_tokens]
        for group in (FULL, RECENT):
            slots = manager.slot_mapping(handle, start, stop, group=group)
            memory.reshape(-1)[slots] = tokens[start:stop]
        state = manager.group_table(STATE)[manager.row(handle), 0]
        for position in range(start, stop):
            before = memory[state, 0] if position else 0
            memory[state, 0] = next_state(before, tokens[position])
        last = stop - 1
        seen = self.read(handle, FULL, 0, last)
        recent = self.read(handle, RECENT, max(0, stop - WINDOW), last)
        manager.copies_applied(plan.ticket)
        manager.commit(handle, stop)
        return next_token(seen, recent, memory[state, 0])

    def read(self, handle: int, group: int, first: int, last: int) -> np.ndarray:
        """K/V of the positions from ``first`` to ``last``, through the table of the group."""
        table = self.manager.group_table(group)[self.manager.row(handle)]
        at = np.arange(first, last + 1)
        return self.memory[table[at // BLOCK_SIZE], at % BLOCK_SIZE]

    def show(self, handle: int) -> None:
        """The blocks of each group after the prompt; 0 stands for a released block."""
        row, blocks = self.manager.row(handle), self.manager.sequence(handle).num_blocks
        for name, group in (("full", FULL), ("window", RECENT)):
            print(f"  {name:<7}{self.manager.group_table(group)[row, :blocks].tolist()}")
        print(f"  state  {self.manager.group_table(STATE)[row].tolist()}")


def next_state(state: int, token: int) -> int:
    """The state of the recurrent layer after a token."""
    return (31 * state + token) % 1009


def next_token(seen: np.ndarray, recent: np.ndarray, state: int) -> int:
    """The model's output: it depends on all tokens, on the last ones, and on their order."""
    return int(seen.sum() + 3 * recent.sum() + state) % VOCAB


def without_a_cache(prompt: list[int], num_tokens: int) -> list[int]:
    """The same model on all tokens at once, for comparison."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        state = 0
        for token in tokens:
            state = next_state(state, token)
        tokens.append(next_token(np.array(tokens), np.array(tokens[-WINDOW:]), state))
    return tokens[len(prompt) :]


if __name__ == "__main__":
    model = HybridModel()
    system = list(range(10, 30))
    for question in ([40, 41, 42], [50, 51], [40, 41, 43]):
        said = model.generate(system + question, 5)
        equal = said == without_a_cache(system + question, 5)
        print(f"  says {said}, {'as' if equal else 'NOT as'} without a cache")
