"""How much sooner is the first token if a prompt comes back from a tier, and not computed again?

Run ``python -m benchmarks.tiers FOLDER``. Conversations take turns in the transformers engine,
whose device holds one of them, so each turn finds the one before evicted. The model is a small
Llama with random weights. An engine without tiers, one with memory and one with a slab in the
folder take turns, too, so that other work on the machine slows down each of them. A larger model
computes longer, and the time of a load grows with the bytes of its K/V. A second table has the time
of a look-up with a tier that is empty, beside one without tiers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from blockmgr.manager import BlockManager
from blockmgr.ports.engine import Engine, Sampling
from blockmgr.prompt import Prompt
from blockmgr.tiers import DiskTier, HostTier, TierConfig, TieredManager

CONFIG = LlamaConfig(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=4096,
)
BLOCK_SIZE = 16
CONVERSATIONS = 4
TIER_BYTES = 1 << 28


class Talk:
    """Conversations in one engine."""

    def __init__(self, engine: Engine, num_tokens: int) -> None:
        draw = torch.Generator().manual_seed(7)
        self.engine = engine
        self.prompts = torch.randint(5, 1024, (CONVERSATIONS, num_tokens), generator=draw).tolist()
        self.cached = 0

    def turn(self) -> list[float]:
        """Seconds to the first token of a turn of each conversation."""
        seconds = []
        self.cached = 0
        for prompt in self.prompts:
            first: list[float] = []
            start = time.perf_counter()
            [answer] = self.engine.generate(
                [prompt],
                Sampling(max_new_tokens=4, stop_token_ids=()),
                on_token=lambda _, first=first: first.append(time.perf_counter()),
            )
            seconds.append(first[0] - start)
            self.cached += answer.num_cached_tokens
            prompt += [*answer.tokens, 5, 6, 7]
            time.sleep(0.05)  # in which tiers store, as between two requests
        return seconds


def look_ups() -> Table:
    """The least time of a look-up of a cached prompt, without tiers and with an empty one."""
    table = Table("tokens", "match, µs", "with a tier: match", "match_tiers", "over match")
    for num_tokens in (1024, 8192, 65536):
        blocks = num_tokens // BLOCK_SIZE
        empty = TierConfig(num_blocks=blocks)
        plain, tiered = BlockManager(blocks, 16), TieredManager(blocks, 16, tiers=[empty])
        prompt = Prompt(range(num_tokens))
        for manager in (plain, tiered):
            with manager.sequence(manager.admit(prompt)) as sequence:
                sequence.commit(num_tokens)
        calls = (plain.match, tiered.match, tiered.match_tiers)
        rounds = [[_time(call, prompt) for call in calls] for _ in range(9)]
        least = [min(each) for each in zip(*rounds, strict=True)]
        times = (f"{1e6 * each:.2f}" for each in least)
        table.add_row(f"{num_tokens:,}", *times, f"{least[2] / least[0]:.1f}")
    return table


def _time(call: Callable[[Prompt], object], prompt: Prompt) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(200):
        call(prompt)
    return (time.perf_counter() - start) / 200


def main() -> None:
    """Prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path, help="for the slab")
    parser.add_argument("--tokens", type=int, default=400, help="of a first prompt")
    parser.add_argument("--turns", type=int, default=6, help="after the first one")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(CONFIG).eval()
    blocks = (args.tokens + 7 * (args.turns + 1)) // BLOCK_SIZE + 4
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        slab = DiskTier(path=f"{folder}/kv.slab", bytes_to_use=TIER_BYTES)
        kinds = {"computed": [], "memory": [HostTier(bytes_to_use=TIER_BYTES)], "slab": [slab]}
        talks = {
            name: Talk(
                Engine(model, num_blocks=blocks, block_size=BLOCK_SIZE, tiers=tiers), args.tokens
            )
            for name, tiers in kinds.items()
        }
        for talk in talks.values():
            talk.turn()
        seconds: dict[str, list[float]] = {name: [] for name in talks}
        for _ in range(args.turns):
            for name, talk in talks.items():
                seconds[name] += talk.turn()
        for talk in talks.values():
            talk.engine.close()
    table = Table("prompt", "first token, ms", "times as soon", "cached tokens, last turn")
    base = statistics.median(seconds["computed"])
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        cells = f"{1000 * middle:.0f}", f"{base / middle:.1f}", f"{talks[name].cached:,}"
        table.add_row(name, *cells)
    for each in (table, look_ups()):
        Console().print(each)


if __name__ == "__main__":
    main()
