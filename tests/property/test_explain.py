"""Explain compared with a recorder of everything that was ever cached."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from blockmgr import BlockManager, Explanation, MissReason, OutOfBlocksError
from tests.fingerprints import fingerprint

Key = tuple[bytes, tuple[tuple[tuple[int, ...], bytes], ...]]  # namespace; (tokens, extras) a block

NAMESPACES = (b"", b"", b"", b"tenant")
EXTRAS = (b"", b"", b"", b"image")


@dataclass
class Live:
    """A sequence, as the recorder sees it."""

    handle: int
    namespace: bytes
    extras: dict[int, bytes]
    tokens: list[int]


class Recorder:
    """A manager, and plain lists of its history."""

    def __init__(self, rng: random.Random, num_blocks: int) -> None:
        self.rng = rng
        self.size = 3
        self.manager = BlockManager(num_blocks, self.size, max_seqs=6, ghost_blocks=400)
        self.live: list[Live] = []
        self.ever: set[Key] = set()  # chains of blocks that were once cached
        self.reasons: Counter[MissReason] = Counter()

    def chain(
        self, namespace: bytes, tokens: list[int], extras: dict[int, bytes], blocks: int
    ) -> Key:
        pieces = (
            (tuple(tokens[i * self.size : (i + 1) * self.size]), extras.get(i, b""))
            for i in range(blocks)
        )
        return namespace, tuple(pieces)

    def is_cached(self, key: Key) -> bool:
        namespace, blocks = key
        tokens = [token for piece, _ in blocks for token in piece]
        extras = {i: keys for i, (_, keys) in enumerate(blocks) if keys}
        match = self.manager.match([*tokens, 0], namespace=namespace, extras=extras)
        return len(match.block_ids) == len(blocks)

    def is_held(self, key: Key) -> bool:
        blocks = len(key[1])
        return any(
            len(s.tokens) >= blocks * self.size
            and self.chain(s.namespace, s.tokens, s.extras, blocks) == key
            for s in self.live
        )

    def expected(self, namespace: bytes, tokens: list[int], extras: dict[int, bytes]) -> list:
        """The reason for each missed block, by a full scan."""
        cached = {key for key in self.ever if self.is_cached(key)}
        limit = (len(tokens) - 1) // self.size
        reasons: list[MissReason] = []
        diverged = False
        for i in range(limit):
            key = self.chain(namespace, tokens, extras, i + 1)
            same_tokens = [
                other
                for other in cached
                if [piece for piece, _ in other[1]] == [piece for piece, _ in key[1]]
            ]
            if key in cached:
                assert not reasons
                continue
            if self.is_held(key):
                reasons.append(MissReason.NOT_COMMITTED)
            elif key in self.ever:
                reasons.append(MissReason.EVICTED)
            elif any(other[0] == namespace for other in same_tokens):
                reasons.append(MissReason.OTHER_EXTRAS)
            elif same_tokens:
                reasons.append(MissReason.OTHER_NAMESPACE)
            else:
                siblings = [
                    other[1][-1]
                    for other in cached
                    if other[0] == namespace and other[1][:-1] == key[1][:-1]
                ]
                begins_alike = any(
                    keys == key[1][-1][1] and piece[0] == key[1][-1][0][0]
                    for piece, keys in siblings
                )
                diverged = diverged or (not reasons and begins_alike)
                reasons.append(MissReason.DIVERGED if diverged else MissReason.NEVER_SEEN)
        alone = len(tokens) - limit * self.size == 1 or len(tokens) % self.size == 0
        return [*reasons, MissReason.LAST_TOKEN if alone else MissReason.PARTIAL_BLOCK]

    def by_block(self, found: Explanation) -> list[MissReason]:
        assert found.num_partial_tokens == 0
        reasons = []
        for miss in found.misses:
            reasons += [miss.reason] * -(-miss.num_tokens // self.size)
        return reasons

    def random_prompt(self) -> tuple[bytes, list[int], dict[int, bytes]]:
        rng = self.rng
        tokens = [rng.choice([0, 0, 1, 2]) for _ in range(rng.randint(1, 13))]
        if self.live and rng.random() < 0.3:
            tokens = rng.choice(self.live).tokens[: rng.randint(1, 13)] + tokens[:2]
        extras = {i: keys for i in range(len(tokens) // self.size) if (keys := rng.choice(EXTRAS))}
        return rng.choice(NAMESPACES), tokens, extras

    def step(self) -> None:
        rng = self.rng
        act = rng.random()
        if not self.live or (act < 0.4 and len(self.live) < 5):
            namespace, tokens, extras = self.random_prompt()
            try:
                handle = self.manager.admit(tokens, namespace=namespace, extras=extras)
            except OutOfBlocksError:
                return
            self.live.append(Live(handle, namespace, extras, tokens))
            return
        s = rng.choice(self.live)
        view = self.manager.sequence(s.handle)
        if act < 0.65:
            computed = rng.randint(view.num_computed_tokens, len(s.tokens))
            self.manager.commit(s.handle, computed)
            for blocks in range(1, computed // self.size + 1):
                self.ever.add(self.chain(s.namespace, s.tokens, s.extras, blocks))
        elif act < 0.72:
            length = rng.randint(1, len(s.tokens))
            self.manager.truncate(s.handle, length)
            s.tokens = s.tokens[:length]
        else:
            self.manager.free(s.handle)
            self.live.remove(s)

    def check(self) -> None:
        namespace, tokens, extras = self.random_prompt()
        before = fingerprint(self.manager)
        found = self.manager.explain(tokens, namespace=namespace, extras=extras)
        assert fingerprint(self.manager) == before
        reasons = self.by_block(found)
        assert reasons == self.expected(namespace, tokens, extras)
        self.reasons.update(reasons)


def test_explain_says_what_a_recorder_of_everything_says() -> None:
    told: Counter[MissReason] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        recorder = Recorder(rng, rng.randint(6, 14))
        for _ in range(60):
            recorder.step()
            recorder.check()
        recorder.manager.check_invariants()
        told += recorder.reasons
    reachable = set(MissReason) - {
        MissReason.CACHING_OFF,
        MissReason.TOO_LARGE,
        MissReason.NOT_REMEMBERED,
        MissReason.GROUP,
    }
    assert set(told) == reachable
    assert min(told.values()) > 20  # every reason occurred often enough


@pytest.mark.parametrize("seed", range(20))
def test_so_many_more_blocks_would_have_kept_it_and_one_fewer_would_not(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randint(0, 2) for _ in range(rng.randint(3, 8))] for _ in range(12)]
    sizes = range(4, 40)
    managers = {size: BlockManager(size, 2, ghost_blocks=40 if size == 5 else 0) for size in sizes}
    checked = 0
    for _ in range(60):
        tokens = rng.choice(prompts)
        for miss in managers[5].explain(tokens).misses:
            for block, more in enumerate(miss.more_blocks, start=miss.start // 2 + 1):
                checked += 1
                assert more > 0
                assert len(managers[5 + more].match(tokens).block_ids) >= block
                assert len(managers[5 + more - 1].match(tokens).block_ids) < block
        for manager in managers.values():
            handle = manager.admit(tokens)
            manager.commit(handle, len(tokens))
            manager.free(handle)
    assert checked
