"""Random worlds of several processes on one store, which may lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blockmgr.groups import Group
from blockmgr.tiers import LookUp, SharedStorage, TierConfig, shared_key_bytes
from tests.tiers.fake_store import FakeStore
from tests.tiers.world import SIZE, SPACES, Memory, World


class Objects(Memory):
    """The bytes of a tier in a shared store, which knows no blocks."""

    def __init__(self, storage: SharedStorage, size: int) -> None:
        self.storage = storage
        self.data = np.zeros((size, 0))

    def write(self, block: int, serial: int, key: bytes, data: np.ndarray, digest: bytes) -> None:
        if not self.storage.write([key], [memoryview(data.tobytes())], [digest]):
            raise OSError("not stored")

    def read(self, block: int, serial: int, key: bytes) -> tuple[np.ndarray, bytes | None]:
        into = bytearray(8 * SIZE)
        [digest] = self.storage.read([key], [memoryview(into)])
        return np.frombuffer(into, np.uint64).copy(), digest


class SharedWorld(World):
    """One process on a store that others may use, too.

    Args:
        seed: As in ``World``.
        folder: As in ``World``.
        store: The store.
        talks: What is talked about; the same list in each process.
        groups: As in ``World``.
        is_alone: Whether no other process uses the store.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        store: FakeStore,
        talks: list,
        groups: tuple[Group, ...],
        *,
        is_alone: bool,
    ) -> None:
        self.store_of_all, self.is_alone = store, is_alone
        self.storage: SharedStorage | None = None
        self.questions: list[LookUp] = []
        self.clock = 0.0
        super().__init__(seed, folder, groups)
        self.talks = talks

    def set_up(self, tiers: list[TierConfig]) -> None:
        self.has_slab = False
        if self.storage is not None:
            self.storage.close()
        weights = "-".join(str(self.weights[space]) for space in SPACES)
        self.storage = SharedStorage(
            self.store_of_all,
            {"weights": weights},
            block_bytes=8 * SIZE,
            key_bytes=shared_key_bytes(SIZE),
            threads=1,
            timeout=60,
            retry=1e-9,
        )
        life = self.random.choice([40.0, 1e6])
        size = self.sizes[-1]
        tiers[-1] = TierConfig(
            num_blocks=size, shared=self.storage, known_seconds=life, **self.writes
        )
        self.stores[-1] = Objects(self.storage, size)
        self.shared = (len(tiers) - 1,)
        self.questions.clear()

    def admit(self) -> None:
        if self.talks and self.random.random() < 0.6:
            tokens, namespace, extras = self.random.choice(self.talks)
            self.manager.look_up(tokens, namespace=namespace, extras=extras)
        super().admit()

    def take_jobs(self) -> None:
        self.questions += self.manager.take_lookups(now=self.clock)
        super().take_jobs()

    def step(self) -> None:
        self.clock += 1
        if self.questions and self.random.random() < 0.3:
            self.answer(self.questions.pop(self.random.randrange(len(self.questions))))
        super().step()

    def answer(self, question: LookUp) -> None:
        assert self.storage is not None
        has = [True] * self.random.randrange(len(question.keys) + 1)
        if not self.lies():
            try:
                has = self.storage.has(question.keys)
            except OSError:
                has = []
        self.manager.lookups_done(question.ticket, has)

    def lose(self) -> None:
        if self.random.random() < 0.2:
            self.restart()
        else:
            super().lose()

    def restart(self) -> None:
        self.start()

    def spoil(self, block: int) -> None:
        if self.is_alone:  # others may have read it already, which nothing can prevent
            super().spoil(block)

    def run(self, steps: int) -> None:
        super().run(steps)
        assert self.storage is not None
        stats = self.storage.stats()
        self.counts["shared_read"] += stats.read
        self.counts["shared_missing"] += stats.missing
        self.storage.close()


class Worlds:
    """One to three processes that talk about the same things, in turns."""

    def __init__(self, seed: int, folder: Path, groups: tuple[Group, ...] = ()) -> None:
        count = seed % 3 + 1
        self.store = FakeStore(seed, lie=(0, 0.1, 0.4)[seed // 3 % 3])
        talks: list = []
        self.all = [
            SharedWorld(seed * 10 + i, folder, self.store, talks, groups, is_alone=count == 1)
            for i in range(count)
        ]

    def run(self, steps: int) -> None:
        for _ in range(steps // 20):
            for world in self.all:
                for _ in range(20):
                    world.step()
                world.manager.check_invariants()
        for world in self.all:
            world.run(20)

    def count(self, name: str) -> int:
        return sum(world.counts[name] for world in self.all)
