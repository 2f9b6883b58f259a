"""What does beam search save by forking block tables rather than resubmitting each beam?

Two ways run alternately in one process, with the same tiny seeded model, prompt and width.
``beam_search`` forks and reparents. The other way submits every beam as a new request at each step,
asks for one token and its likeliest candidates, and relies on the prefix cache, as vLLM's beam
search does. Both must find the same beams. Prints the ratios of host time (everything outside
copies and forward), of all time, of tokens computed, and the blocks held against private copies.

Not measured: a model so large that its forward outweighs the host; there the ratio of computed
tokens decides.

Run: python -m benchmarks.beam [--prompt 512] [--beams 8] [--tokens 32] [--block-size 16]
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from dataclasses import dataclass

import torch
import transformers

from blockmgr import __version__
from blockmgr.ports.engine import Engine, Sampling

VOCAB = 256


@dataclass(frozen=True)
class Run:
    beams: list[list[int]]
    host_s: float
    all_s: float
    computed_tokens: int
    copies: int
    peak_blocks: int
    unshared_blocks: int


def make_engine(args: argparse.Namespace) -> Engine:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * (args.prompt + args.tokens),
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    blocks = 4 * args.beams * (args.prompt + args.tokens) // args.block_size
    model = transformers.LlamaForCausalLM(config)
    return Engine(model, num_blocks=blocks, block_size=args.block_size)


def forked(args: argparse.Namespace, prompt: list[int]) -> Run:
    engine = make_engine(args)
    start = time.perf_counter()
    [found] = engine.beam_search([prompt], args.beams, args.tokens, num_return=args.beams)
    return measured(engine, [sample.tokens for sample in found.samples], start)


def submitted_anew(args: argparse.Namespace, prompt: list[int]) -> Run:
    engine = make_engine(args)
    start = time.perf_counter()
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    how = Sampling(max_new_tokens=1, logprobs=2 * args.beams)
    for _ in range(args.tokens):
        results = engine.generate([[*prompt, *tokens] for _, tokens in beams], how)
        candidates = [
            (score + logprob, [*tokens, token])
            for (score, tokens), result in zip(beams, results, strict=True)
            for token, logprob in (result.samples[0].logprobs or [[]])[0]
        ]
        beams = sorted(candidates, key=lambda scored: -scored[0])[: args.beams]
    return measured(engine, [tokens for _, tokens in beams], start)


def measured(engine: Engine, beams: list[list[int]], start: float) -> Run:
    all_s = time.perf_counter() - start
    report = engine.report()
    return Run(
        beams=beams,
        host_s=all_s - report.device_s,  # includes the work between the calls
        all_s=all_s,
        computed_tokens=report.computed_tokens,
        copies=report.copies,
        peak_blocks=report.peak_blocks,
        unshared_blocks=report.peak_unshared_blocks,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("prompt", 512), ("beams", 8), ("tokens", 32), ("block-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(VOCAB, (args.prompt,), generator=generator).tolist()
    pairs = [(forked(args, prompt), submitted_anew(args, prompt)) for _ in range(args.repeats + 1)]
    pairs = pairs[1:]  # the first run is a warm-up
    fork, again = pairs[0]
    if fork.beams != again.beams:
        raise SystemExit("the two ways found different beams")

    def ratio(name: str) -> str:
        ratios = sorted(getattr(b, name) / getattr(a, name) for a, b in pairs)
        return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"

    last = args.prompt + args.tokens - 1
    columns, tails = -(-last // args.block_size), -(-args.tokens // args.block_size)
    steps = args.tokens
    host = [statistics.median(p[i].host_s for p in pairs) * 1e6 / steps for i in (0, 1)]
    print(
        f"blockmgr {__version__}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, {platform.machine()}, one thread\n"
        f"prompt {args.prompt}, {args.beams} beams, {args.tokens} tokens, blocks of "
        f"{args.block_size}; same beams both ways\n"
        f"new requests over forks, median of {args.repeats} pairs (range):\n"
        f"  host time        {ratio('host_s')}   {host[1]:,.0f} us over {host[0]:,.0f} us a step\n"
        f"  all time         {ratio('all_s')}\n"
        f"  tokens computed  {again.computed_tokens / fork.computed_tokens:.2f}   "
        f"{again.computed_tokens:,} over {fork.computed_tokens:,}\n"
        f"blocks held by forking: {fork.peak_blocks} at the peak, {fork.copies} block copies\n"
        f"  one sequence and {args.beams} tails: {columns} + {args.beams} x {tails} = "
        f"{columns + args.beams * tails}\n"
        f"  {args.beams} private copies: {fork.unshared_blocks}"
    )


if __name__ == "__main__":
    main()
