"""Peers that run without their engines do the work for which they are timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.peers import nano_vllm
from benchmarks.peers.adapter import Operation
from benchmarks.peers.nano_vllm import NanoVllm
from benchmarks.peers.ours import FromArrays
from benchmarks.peers.registry import PEERS, load

SIZE = 16


NAMES = [name for name in PEERS if name.startswith(("mini-sglang", "nano-vllm", "transformers"))]
AT_THE_END = {"mini-sglang, as it is", "mini-sglang, tuned"}
"""Peers whose decoded blocks can be found once the request has ended."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def peer(name: str) -> Any:
    [(_, peer)] = load([name])
    if isinstance(peer, ImportError):
        pytest.skip(str(peer))
    return peer


class Side:
    """A cache of a peer, or of ours, driven with token arrays."""

    def __init__(self, peer: Any, num_blocks: int, block_size: int = SIZE) -> None:
        self.peer = peer
        self.cache = peer.open(num_blocks, block_size, max_requests=64, max_tokens=1024)

    def match(self, tokens: Any) -> int:
        return self.cache.match(self.peer.prompt(tokens))

    def admit(self, tokens: Any) -> Any:
        return self.cache.admit(self.peer.prompt(tokens))

    def step(self, requests: Any, tokens: Any) -> None:
        self.cache.step(self.cache.batch(requests), self.peer.prompt(tokens))


def prompts(rng: np.random.Generator, block_size: int) -> Iterator[np.ndarray]:
    """Prompts that share prefixes of any length with earlier ones, some of them entirely."""
    past = [rng.integers(0, 100, 4 * block_size, dtype=np.uint32)]
    while True:
        other = past[rng.integers(len(past))]
        head = other[: rng.integers(len(other) + 1)]
        tail = rng.integers(0, 100, rng.integers(1, 3 * block_size), dtype=np.uint32)
        prompt = np.concatenate([head, tail])[: 20 * block_size]
        past.append(prompt)
        yield prompt


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block_size", [4, SIZE])
def test_it_finds_the_blocks_that_blockmgr_finds_and_holds_as_many(
    name: str, peer: Any, seed: int, block_size: int
) -> None:
    rng = np.random.default_rng(seed)
    source = prompts(rng, block_size)
    num_blocks = 3000  # no evictions, because peers evict different blocks
    sides = [Side(FromArrays(), num_blocks, block_size), Side(peer, num_blocks, block_size)]
    running: list[tuple[Any, Any]] = []
    hits = 0
    for _ in range(60):
        prompt = next(source)
        found, found_by_peer = (side.match(prompt) for side in sides)
        assert found_by_peer == found
        hits += found
        running.append(tuple(side.admit(prompt) for side in sides))
        if running and rng.random() < 0.5:
            ended = running.pop(rng.integers(len(running)))
            for side, request in zip(sides, ended, strict=True):
                side.cache.free(request)
        assert sides[1].cache.num_free() == sides[0].cache.num_free()
    assert hits > 0
    for pair in running:
        for side, request in zip(sides, pair, strict=True):
            side.cache.free(request)
    assert sides[1].cache.num_free() == num_blocks


def test_the_last_token_is_never_found(peer: Any) -> None:
    side = Side(peer, 64)
    prompt = np.arange(4 * SIZE, dtype=np.uint32)
    side.cache.free(side.admit(prompt))
    assert side.match(prompt) == 3 * SIZE
    assert side.match(np.append(prompt, np.uint32(7))) == 4 * SIZE


def test_a_changed_token_ends_the_match_in_the_block_before(peer: Any) -> None:
    side = Side(peer, 64)
    prompt = np.arange(8 * SIZE, dtype=np.uint32)
    side.cache.free(side.admit(prompt))
    for position in (0, SIZE - 1, SIZE, 5 * SIZE + 3):
        changed = prompt.copy()
        changed[position] = 1_000_000
        assert side.match(changed) == position // SIZE * SIZE


def test_decoding_takes_a_block_each_16_tokens_and_makes_it_findable(name: str, peer: Any) -> None:
    side = Side(peer, 64)
    prompts_ = [np.arange(i, i + 2 * SIZE, dtype=np.uint32) for i in (0, 1000)]
    requests = [side.admit(prompt) for prompt in prompts_]
    before = side.cache.num_free()
    decoded = np.arange(5000, 5000 + 2 * (SIZE + 1), dtype=np.uint32).reshape(-1, 2)
    for tokens in decoded[:SIZE]:
        side.step(requests, tokens)
        assert side.cache.num_free() == before - 2
    side.step(requests, decoded[SIZE])
    assert side.cache.num_free() == before - 4
    if name in AT_THE_END:
        for request in requests:
            side.cache.free(request)
    for i, prompt in enumerate(prompts_):
        whole = np.concatenate([prompt, decoded[:, i]])
        assert side.match(whole) == 3 * SIZE


def test_what_was_used_longest_ago_goes_first_when_blocks_run_out(peer: Any) -> None:
    side = Side(peer, 9)
    old, recent, new = (np.arange(i, i + 4 * SIZE + 1, dtype=np.uint32) for i in (0, 500, 900))
    for prompt in (old[:-1], recent[:-1]):
        side.cache.free(side.admit(prompt))
    assert side.match(recent) == side.match(old) == 4 * SIZE
    side.cache.free(side.admit(recent))
    side.cache.free(side.admit(old))  # used last, although cached first
    request = side.admit(new[: 2 * SIZE])
    if Operation.EVICTING_ADMIT in peer.cannot:  # it evicts both
        assert side.match(old) == 0
    else:
        assert side.match(old) == 4 * SIZE
    assert side.match(recent) < 4 * SIZE
    assert side.match(np.append(new[: 2 * SIZE], np.uint32(1))) == 2 * SIZE
    side.cache.free(request)
    assert side.cache.num_free() == 9


@pytest.mark.parametrize("kind", ["as it is", "tuned"])
def test_nano_vllm_gives_up_the_last_block_of_a_prompt_first(kind: str) -> None:
    side = Side(NanoVllm(kind), 4)
    old = np.arange(4 * SIZE + 1, dtype=np.uint32)
    side.cache.free(side.admit(old[:-1]))
    side.cache.free(side.admit(np.arange(2000, 2000 + SIZE, dtype=np.uint32)))
    assert side.match(old) == 3 * SIZE


@pytest.mark.parametrize("kind", ["as it is", "tuned"])
def test_nano_vllm_compares_the_tokens_of_what_it_finds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nano_vllm._AsItIs, "_digest", lambda *_: 7)
    monkeypatch.setattr(nano_vllm.xxhash, "xxh64_digest", lambda _: b"seven")
    side = Side(NanoVllm(kind), 64)
    cached, other = (np.arange(i, i + SIZE + 1, dtype=np.uint32) for i in (0, 500))
    side.cache.free(side.admit(cached[:-1]))
    assert side.match(cached) == SIZE
    assert side.match(other) == 0


def test_only_a_peer_that_says_so_gives_up_more_than_it_needs(peer: Any) -> None:
    side = Side(peer, 8)
    starts = (0, 500, 900, 1300)
    one, two, three, four = (np.arange(i, i + 2 * SIZE + 1, dtype=np.uint32) for i in starts)
    for prompt in (one[:-1], two[:-1], three[:-1], four[:-1]):
        side.cache.free(side.admit(prompt))
    side.cache.free(side.admit(np.arange(2000, 2000 + SIZE, dtype=np.uint32)))
    assert side.match(one) < 2 * SIZE
    left = [side.match(prompt) for prompt in (two, three, four)]
    assert left == [0 if Operation.EVICTING_ADMIT in peer.cannot else 2 * SIZE] * 3


def test_more_than_the_pool_is_refused_with_nothing_held(peer: Any) -> None:
    side = Side(peer, 8)
    prompt = np.arange(4 * SIZE, dtype=np.uint32)
    held = side.admit(prompt)
    other = np.arange(2000, 2000 + 6 * SIZE, dtype=np.uint32)
    with pytest.raises(MemoryError):
        side.admit(np.concatenate([prompt[: 2 * SIZE], other]))
    assert side.cache.num_free() == 4
    side.cache.free(held)
    assert side.cache.num_free() == 8
    side.cache.free(side.admit(other))  # evicts blocks that the refused prompt found


def test_two_computed_the_same_block_and_none_is_lost(peer: Any) -> None:
    side = Side(peer, 16)
    prompt = np.arange(4 * SIZE, dtype=np.uint32)
    pair = [side.admit(prompt) for _ in range(2)]  # neither finds the last block
    for tokens in np.repeat(np.arange(2 * SIZE, dtype=np.uint32), 2).reshape(-1, 2):
        side.step(pair, tokens)  # nor blocks that both fill with the same tokens
    for request in pair:
        side.cache.free(request)
    assert side.cache.num_free() == 16
    side.cache.free(side.admit(np.arange(5000, 5000 + 16 * SIZE, dtype=np.uint32)))
    assert side.match(prompt) == 0


def test_blocks_are_handed_out_in_scattered_order(peer: Any) -> None:
    """After any permutation, the whole pool can be used and cached blocks can be found."""
    side = Side(peer, 64)
    side.cache.scatter(np.random.default_rng(0).permutation(64))
    prompt = np.arange(64 * SIZE, dtype=np.uint32)
    side.cache.free(side.admit(prompt))
    assert side.cache.num_free() == 64
    assert side.match(prompt) == 63 * SIZE


def test_a_peer_that_cannot_fork_says_so(peer: Any) -> None:
    side = Side(peer, 64)
    request = side.admit(np.arange(2 * SIZE + 3, dtype=np.uint32))
    if Operation.FORK in peer.cannot:
        with pytest.raises(NotImplementedError, match="fork"):
            side.cache.fork(request, 2)
        assert side.cache.num_free() == 61
        return
    children = side.cache.fork(request, 2)
    # Each child has a copy of the block that is not full.
    assert side.cache.copies() == 2
    assert side.cache.copies() == 0
    assert side.cache.num_free() == 59
    side.step([request, *children], np.arange(3, dtype=np.uint32))
    for one in (request, *children):
        side.cache.free(one)
    assert side.cache.num_free() == 64
