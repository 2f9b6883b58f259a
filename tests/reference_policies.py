"""A slow version of every eviction policy, from its paper, which the core's must equal.

They use lists, dicts and scans, behind the protocol for policies in Python. So a manager with one
of them is a second implementation of the policy, and every victim can be compared.

A list stands for a queue, oldest block first. A block belongs to a queue from the moment it is
cached, whether or not it is in the list; sizes count all blocks that belong to a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockmgr.policy import EvictionPolicy


def renamed(value: Any, block: int, to: int) -> Any:
    """Replaces a block by another one in lists, sets and dicts."""
    if isinstance(value, list):
        return [to if item == block else item for item in value]
    if isinstance(value, set):
        return {to if item == block else item for item in value}
    if isinstance(value, dict):
        lists = {k: renamed(v, block, to) if isinstance(v, list) else v for k, v in value.items()}
        lists.pop(to, None)  # of the block it was before
        return {to if key == block else key: item for key, item in lists.items()}
    return value


class Tree:
    """Cached blocks, their children (last cached first), and the search for a leaf."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.parent: dict[int, int] = {}
        self.digest: dict[int, bytes] = {}
        self.life: dict[int, int] = {}  # distinguishes uses of one block id
        self.lives = 0
        self.idle: set[int] = set()
        self.walks: dict[str, tuple[int, int, int, int]] = {}

    def children(self, block: int) -> list[int]:
        found = [child for child, parent in self.parent.items() if parent == block]
        return sorted(found, key=lambda child: -self.life[child])

    def leaf(self, chosen: int, queue: str = "") -> int:
        """A leaf below the chosen block; continues where the last walk ended."""
        block = chosen
        last = self.walks.get(queue)
        if last and last[:2] == (chosen, self.life[chosen]) and self.life.get(last[2]) == last[3]:
            block = last[2]
        while self.children(block):
            block = self.children(block)[0]
        start = chosen if block == chosen else self.parent[block]
        self.walks[queue] = (chosen, self.life[chosen], start, self.life[start])
        return block

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.lives += 1
        self.parent[block], self.digest[block], self.life[block] = parent, digest, self.lives
        self.cached(block)

    def on_hit(self, block: int) -> None:
        self.hit(block)

    def on_idle(self, block: int) -> None:
        self.idle.add(block)
        self.became_idle(block)

    def on_used(self, block: int) -> None:
        self.idle.remove(block)
        self.became_used(block)

    def on_uncached(self, block: int, evicted: bool) -> None:
        assert not self.children(block)
        assert not evicted or block in self.idle
        self.gone(block, evicted)
        self.idle.discard(block)
        del self.parent[block], self.digest[block], self.life[block]

    def on_moved(self, block: int, to: int) -> None:
        assert block in self.parent
        assert block not in self.idle
        assert to not in self.parent
        for name, value in vars(self).items():
            setattr(self, name, renamed(value, block, to))
        self.parent = {b: to if p == block else p for b, p in self.parent.items()}

    def cached(self, block: int) -> None: ...
    def hit(self, block: int) -> None: ...
    def became_idle(self, block: int) -> None: ...
    def became_used(self, block: int) -> None: ...
    def gone(self, block: int, evicted: bool) -> None: ...


class Lru(Tree):
    """Evicts the block that has been idle longest."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.order: list[int] = []

    def became_idle(self, block: int) -> None:
        self.order.append(block)

    def became_used(self, block: int) -> None:
        self.order.remove(block)

    def gone(self, block: int, evicted: bool) -> None:
        if block in self.order:
            self.order.remove(block)

    def victim(self) -> int:
        return self.order[0]


class Lfuda(Tree):
    """Evicts the lowest uses + age at the last use; the age is the key of the last victim."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.uses: dict[int, int] = {}
        self.key: dict[int, int] = {}
        self.order: list[int] = []  # by the moment they became idle
        self.age = 0

    def cached(self, block: int) -> None:
        self.uses[block] = 0
        self.hit(block)

    def hit(self, block: int) -> None:
        self.uses[block] += 1
        self.key[block] = self.uses[block] + self.age

    def became_idle(self, block: int) -> None:
        self.order.append(block)

    def became_used(self, block: int) -> None:
        self.order.remove(block)

    def chosen(self) -> int:
        return min(self.order, key=lambda block: self.key[block])

    def gone(self, block: int, evicted: bool) -> None:
        if evicted:
            self.age = max(self.age, self.key[self.chosen()])
        if block in self.order:
            self.order.remove(block)

    def victim(self) -> int:
        return self.leaf(self.chosen())


class Sieve(Tree):
    """A hand from the oldest to the newest block, which spares and unmarks found blocks."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.order: list[int] = []
        self.marked: set[int] = set()
        self.passed: set[int] = set()
        self.hand = 0  # index into the list; its length: the end

    def hit(self, block: int) -> None:
        self.marked.add(block)

    def became_idle(self, block: int) -> None:
        if block in self.order:
            return
        if block in self.passed:
            self.order.insert(self.hand, block)  # behind the hand, which does not move
            self.hand += 1
            self.passed.remove(block)
        else:
            at_end = self.hand == len(self.order)
            self.order.append(block)
            self.hand += at_end

    def gone(self, block: int, evicted: bool) -> None:
        self.marked.discard(block)
        self.passed.discard(block)
        if block in self.order:
            self.hand -= self.order.index(block) < self.hand
            self.order.remove(block)

    def victim(self) -> int:
        while True:
            if self.hand == len(self.order):
                self.hand = 0
            block = self.order[self.hand]
            if block not in self.idle:
                del self.order[self.hand]
                self.passed.add(block)
                self.marked.discard(block)
            elif block in self.marked:
                self.marked.remove(block)
                self.hand += 1
            else:
                return self.leaf(block)


class S3Fifo(Tree):
    """A tenth for newcomers, the rest for blocks that were found twice there or came back."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.small_size = max(1, capacity // 10)
        self.where: dict[int, str] = {}
        self.lists: dict[str, list[int]] = {"small": [], "main": []}
        self.hits: dict[int, int] = {}
        self.at_front: set[int] = set()
        self.ghosts: list[bytes] = []

    def cached(self, block: int) -> None:
        digest = self.digest[block]
        self.where[block] = "main" if digest in self.ghosts else "small"
        self.hits[block] = 0
        if digest in self.ghosts:
            self.ghosts.remove(digest)

    def hit(self, block: int) -> None:
        self.hits[block] = min(3, self.hits[block] + 1)

    def became_idle(self, block: int) -> None:
        queue = self.lists[self.where[block]]
        if block in self.at_front:
            queue.insert(0, block)
            self.at_front.remove(block)
        elif block not in queue:
            queue.append(block)

    def gone(self, block: int, evicted: bool) -> None:
        digest, queue = self.digest[block], self.lists[self.where[block]]
        if block in queue:
            queue.remove(block)
        self.at_front.discard(block)
        if evicted and self.where[block] == "small" and digest:
            if digest in self.ghosts:
                self.ghosts.remove(digest)
            most = self.capacity - self.small_size
            self.ghosts = [*self.ghosts, digest][-most:] if most else []
        del self.where[block]

    def victim(self) -> int:
        while True:
            small, main = self.lists["small"], self.lists["main"]
            due = list(self.where.values()).count("small") >= self.small_size
            name = "small" if small and (due or not main) else "main"
            queue = self.lists[name]
            block = queue[0]
            if block not in self.idle:
                self.at_front.add(queue.pop(0))
            elif name == "small" and self.hits[block] > 1:
                main.append(queue.pop(0))
                self.where[block], self.hits[block] = "main", 0
            elif name == "main" and self.hits[block]:
                main.append(queue.pop(0))
                self.hits[block] -= 1
            else:
                return self.leaf(block, name)


class Arc(Tree):
    """T1, T2, B1, B2 and the target p, figure 4 of the paper."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.p = 0.0
        self.where: dict[int, str] = {}
        self.lists: dict[str, list[int]] = {"t1": [], "t2": []}
        self.b1: list[bytes] = []
        self.b2: list[bytes] = []

    def size(self, name: str) -> int:
        return list(self.where.values()).count(name)

    def cached(self, block: int) -> None:
        digest = self.digest[block]
        self.where[block] = "t1"
        if digest in self.b1:
            self.p = min(self.p + max(1.0, len(self.b2) / len(self.b1)), float(self.capacity))
            self.b1.remove(digest)
            self.where[block] = "t2"
        elif digest in self.b2:
            self.p = max(self.p - max(1.0, len(self.b1) / len(self.b2)), 0.0)
            self.b2.remove(digest)
            self.where[block] = "t2"
        self.forget_ghosts()

    def forget_ghosts(self) -> None:
        while self.b1 and self.size("t1") + len(self.b1) > self.capacity:
            del self.b1[0]
        while len(self.where) + len(self.b1) + len(self.b2) > 2 * self.capacity:
            del (self.b2 or self.b1)[0]

    def hit(self, block: int) -> None:
        before = self.lists[self.where[block]]
        self.where[block] = "t2"
        if block in before:
            before.remove(block)
            self.lists["t2"].append(block)

    def became_idle(self, block: int) -> None:
        self.lists[self.where[block]].append(block)

    def became_used(self, block: int) -> None:
        self.lists[self.where[block]].remove(block)

    def gone(self, block: int, evicted: bool) -> None:
        name, digest = self.where.pop(block), self.digest[block]
        if block in self.lists[name]:
            self.lists[name].remove(block)
        if evicted and digest:
            for ghosts in (self.b1, self.b2):
                if digest in ghosts:
                    ghosts.remove(digest)
            (self.b1 if name == "t1" else self.b2).append(digest)
        self.forget_ghosts()

    def victim(self) -> int:
        t1, t2 = self.lists["t1"], self.lists["t2"]
        name = "t1" if t1 and (self.size("t1") > self.p or not t2) else "t2"
        return self.leaf(self.lists[name][0], name)


REFERENCES: dict[str, Callable[[int], EvictionPolicy]] = {
    "lru": Lru,
    "lfuda": Lfuda,
    "s3fifo": S3Fifo,
    "arc": Arc,
}
