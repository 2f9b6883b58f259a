"""A store of objects in memory, which may lie or be gone."""

from __future__ import annotations

import random
from collections.abc import Sequence

LIES = ("flip", "half", "other", "nothing", "short", "gone")


class FakeStore:
    """Objects by name, which lie with some probability: others' bytes, half, flipped, or none."""

    def __init__(self, seed: int = 0, *, lie: float = 0.0) -> None:
        self.objects: dict[str, bytes] = {}
        self.random = random.Random(seed)
        self.lie = lie
        self.is_down = self.is_unreadable = False
        self.calls: list[tuple[str, list[str]]] = []
        self.is_closed = False

    def buffer(self, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def exist(self, names: Sequence[str]) -> list[bool]:
        self.reach("exist", names)
        return [name in self.objects or self.lies() for name in names]

    def put(self, names: Sequence[str], data: Sequence[memoryview]) -> list[bool]:
        self.reach("put", names)
        for name, each in zip(names, data, strict=True):
            if not self.lies():  # it says that it has what it lost
                self.objects.setdefault(name, self.damaged(bytes(each)))
        return [not self.lies() for _ in names]

    def get(self, names: Sequence[str], into: Sequence[memoryview]) -> list[int]:
        self.reach("get", names)
        sizes = []
        for name, target in zip(names, into, strict=True):
            if self.is_unreadable and name in self.objects:
                sizes.append(-1)
                continue
            found = self.damaged(self.objects.get(name, b""))
            target[: len(found)] = found
            says_more = bool(found) and self.lies()
            sizes.append(len(target) if says_more else len(found))
        return sizes

    def remove(self, names: Sequence[str]) -> None:
        self.reach("remove", names)
        for name in names:
            self.objects.pop(name, None)

    def close(self) -> None:
        self.is_closed = True

    def reach(self, call: str, names: Sequence[str]) -> None:
        self.calls.append((call, list(names)))
        if self.is_down or (call != "remove" and self.random.random() < self.lie / 10):
            raise ConnectionError("the store is gone")

    def lies(self) -> bool:
        return self.random.random() < self.lie / 2

    def damaged(self, data: bytes) -> bytes:
        if not data or not self.lies():
            return data
        how = self.random.choice(LIES)
        if how == "flip":
            at = self.random.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        if how == "half":
            return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
        if how == "other":
            return self.random.choice(list(self.objects.values()) or [data])
        if how == "short":
            return data[: len(data) // 2]
        return b"" if how == "gone" else bytes(len(data))
