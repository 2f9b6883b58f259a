"""The state machine over every call of ``BlockPool``, in lock-step with its model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockmgr import BlockStateError, OutOfBlocksError, StepError, TicketError
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint
from tests.ports.pool_model import PoolModel
from tests.strategies import DIGESTS

REFUSALS = (BlockStateError, OutOfBlocksError, StepError, TicketError, ValueError)

which = st.integers(0, 7)
picks = st.lists(which, min_size=1, max_size=5)
token_lists = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=3, max_size=9)
namespaces = st.sampled_from([b"", b"", b"", b"tenant"])
extras = st.sampled_from([b"", b"", b"", b"image"])


def plain(result: Any) -> Any:
    """Results as lists and ints."""
    return result.tolist() if hasattr(result, "tolist") else result


class PoolMachine(RuleBasedStateMachine):
    """Random calls, right and wrong, on a tiny pool and on its model."""

    @initialize(
        num_blocks=st.integers(1, 7),
        block_size=st.integers(1, 3),
        prefix_caching=st.sampled_from([True, True, True, True, False]),
        null_block=st.booleans(),
        digest=st.sampled_from(sorted(DIGESTS)),
    )
    def build(
        self, num_blocks: int, block_size: int, prefix_caching: bool, null_block: bool, digest: str
    ) -> None:
        kind = {"prefix_caching": prefix_caching, "null_block": null_block}
        num_blocks += null_block
        self.pool = BlockPool(num_blocks, block_size, digest=DIGESTS[digest], **kind)
        self.model = PoolModel(num_blocks, block_size, **kind)
        self.looked_for: list[tuple[Any, ...]] = []
        self.contents: dict[int, tuple[int, Any]] = {}

    # ---- calls on both, and comparison --------------------------------------------------

    def both(self, name: str, *args: Any, **options: Any) -> Any:
        """Makes the call on both; if the model refuses it, the pool must too, unchanged."""
        call = getattr(self.pool, name)
        refusal: Exception | None = None
        try:
            expected = getattr(self.model, name)(*args, *options.values())
        except REFUSALS as error:
            refusal = error
        if refusal is None:
            result = plain(call(*args, **options))
            assert result == expected
            return result
        before = fingerprint(self.pool)
        with pytest.raises(type(refusal)) as caught:
            call(*args, **options)
        assert type(caught.value) is type(refusal)
        if isinstance(refusal, OutOfBlocksError):
            assert str(caught.value) == str(refusal)
        assert fingerprint(self.pool) == before
        return None

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        pool.check_invariants()
        blocks = list(model.refs)
        assert pool.ref_count(blocks).tolist() == [model.refs[b] for b in blocks]
        assert [b for b in blocks if pool.is_cached(b)] == sorted(model.keys)
        assert pool.is_cached(blocks).tolist() == [b in model.keys for b in blocks]
        assert pool.idle_blocks().tolist() == model.idle
        assert pool.is_idle(blocks).tolist() == [b in model.idle for b in blocks]
        waiting = {c.destination for c in [*model.pending, *(model.flight or ())]}
        assert [b for b in blocks if pool.waits_for_copy(b)] == sorted(waiting)
        assert pool.num_pending_copies == len(model.pending)
        assert (pool.num_free, pool.num_idle) == (len(model.free), len(model.idle))
        assert pool.num_used == len(model.used())
        assert pool.num_cached == len(model.keys)
        assert pool.num_available == pool.num_free + pool.num_idle == pool.capacity - pool.num_used

    @invariant()
    def what_is_cached_reads_back(self) -> None:
        if not hasattr(self, "pool"):
            return
        pool, model = self.pool, self.model
        for b, key in model.keys.items():
            assert tuple(pool.tokens(b).tolist()) == key.tokens
            assert pool.parent(b) == (key.parent if isinstance(key.parent, int) else -1)
            children = [c for c, k in model.keys.items() if k.parent == b]
            assert sorted(pool.children(b).tolist()) == sorted(children)
        for name in (b"", b"tenant"):
            first = [c for c, k in model.keys.items() if k.parent == name]
            assert sorted(pool.children(namespace=name).tolist()) == sorted(first)

    @invariant()
    def content_that_is_gone_has_another_generation(self) -> None:
        if not hasattr(self, "pool"):
            return
        for b, (generation, key) in self.contents.items():
            if self.model.keys.get(b) is not key:
                assert self.pool.generation(b) > generation
        self.contents = {b: (self.pool.generation(b), k) for b, k in self.model.keys.items()}

    def look_again(self) -> None:
        """Repeats recent look-ups, whose results otherwise show only in counts."""
        for tokens, namespace, keys in self.looked_for:
            self.both("find", tokens, parent=-1, namespace=namespace, extras=keys)

    # ---- choosing blocks -----------------------------------------------------------------

    def held(self) -> list[int]:
        return [b for b, n in self.model.refs.items() for _ in range(n)]

    def choose(self, among: list[int], indices: list[int]) -> list[int]:
        return [among[i % len(among)] for i in indices] if among else []

    def any_held(self) -> bool:
        return any(self.model.refs.values())

    def any_cached(self) -> bool:
        return bool(self.model.keys)

    def any_idle(self) -> bool:
        return bool(self.model.idle)

    def any_copy(self) -> bool:
        return bool(self.model.pending or self.model.flight)

    def a_node(self, index: int) -> int:
        """Often -1, otherwise a cached block."""
        cached = [-1, *sorted(self.model.keys)]
        return cached[index % len(cached)]

    # ---- right calls ---------------------------------------------------------------------

    @rule(n=st.sampled_from([1, 1, 2, 3, 5, 0, -1]))
    def take(self, n: int) -> None:
        self.both("take", n)

    @precondition(lambda self: self.any_held() or self.any_cached())
    @rule(indices=picks)
    def acquire(self, indices: list[int]) -> None:
        self.both("acquire", self.choose([*self.held(), *self.model.keys], indices))

    @precondition(any_held)
    @rule(indices=st.lists(which, min_size=1, max_size=5, unique=True))
    def release(self, indices: list[int]) -> None:
        held = self.held()
        self.both("release", [held[i] for i in {i % len(held): i for i in indices}])
        self.look_again()

    @precondition(any_held)
    @rule()
    def release_everything(self) -> None:
        self.both("release", self.held())
        self.look_again()

    @precondition(any_cached)
    @rule(indices=picks)
    def touch(self, indices: list[int]) -> None:
        self.both("touch", self.choose([*self.held(), *self.model.keys], indices))

    @rule(tokens=token_lists, node=which, namespace=namespaces, keys=extras)
    def find(self, tokens: list[int], node: int, namespace: bytes, keys: bytes) -> None:
        parent = self.a_node(node)
        options = {"parent": parent, "namespace": namespace, "extras": {0: keys} if keys else {}}
        self.both("find", tokens, **options)

    @precondition(any_held)
    @rule(index=which, tokens=token_lists, node=which, namespace=namespaces, keys=extras)
    def promote(
        self, index: int, tokens: list[int], node: int, namespace: bytes, keys: bytes
    ) -> None:
        held = list(dict.fromkeys(self.held()))
        start = index % len(held) if held else 0
        blocks = (held[start:] + held[:start])[: len(tokens) // self.model.block_size]
        tokens = tokens[: len(blocks) * self.model.block_size]
        parent = self.a_node(node)
        added = {0: keys} if keys and blocks else {}
        name = namespace if parent == -1 else b""
        self.both("promote", blocks, tokens, parent=parent, namespace=name, extras=added)
        if parent == -1:
            self.looked_for = [*self.looked_for[-2:], (tokens, name, added)]
        self.look_again()

    @rule(n=st.integers(1, 3), tokens=token_lists, namespace=namespaces, ends=st.integers(0, 2))
    def serve(self, n: int, tokens: list[int], namespace: bytes, ends: int) -> None:
        """Acquires found blocks, takes and caches the rest; then ends, or keeps running."""
        size = self.model.block_size
        n = min(n, len(tokens) // size)
        tokens = tokens[: n * size]
        found = self.both("find", tokens, parent=-1, namespace=namespace, extras={})
        self.both("acquire", found)
        blocks = list(found)
        fresh = self.both("take", n - len(found))
        if fresh is not None:
            parent = found[-1] if found else -1
            name = b"" if found else namespace
            rest = tokens[len(found) * size :]
            blocks += self.both("promote", fresh, rest, parent=parent, namespace=name, extras={})
        if ends:
            self.both("release", blocks[:: -1 if ends == 1 else 1])
        self.looked_for = [*self.looked_for[-2:], (tokens, namespace, {})]
        self.look_again()

    @precondition(any_cached)
    @rule(index=which)
    def compute_it_twice(self, index: int) -> None:
        """A block with the content of a cached one, in use or idle."""
        block = self.choose(sorted(self.model.keys), [index])[0]
        key = self.model.keys[block]
        self.both("take", 1)
        for own in [b for b in self.held() if b not in self.model.keys][:1]:
            parent = key.parent if isinstance(key.parent, int) else -1
            name = b"" if isinstance(key.parent, int) else key.parent
            added = {0: key.extras} if key.extras else {}
            options = {"parent": parent, "namespace": name, "extras": added}
            self.both("promote", [own], list(key.tokens), **options)

    @precondition(any_held)
    @rule(index=which, num_tokens=st.integers(0, 3))
    def make_writable(self, index: int, num_tokens: int) -> None:
        for block in self.choose(self.held(), [index]):
            self.both("make_writable", block, num_tokens)

    @precondition(any_held)
    @rule(index=which, num_tokens=st.integers(1, 3))
    def share_and_write(self, index: int, num_tokens: int) -> None:
        for block in self.choose(self.held(), [index]):
            self.both("acquire", [block])
            self.both("make_writable", block, min(num_tokens, self.model.block_size))

    @precondition(any_idle)
    @rule(n=st.sampled_from([1, 1, 2, 3, -1]))
    def evict(self, n: int) -> None:
        self.both("evict", n)
        self.look_again()

    @precondition(any_idle)
    @rule(n=st.sampled_from([1, 1, 2, 3, -1]))
    def forget(self, n: int) -> None:
        self.both("forget", n)
        self.look_again()

    @precondition(lambda self: self.model.free)
    @rule(indices=st.lists(which, max_size=4, unique=True), twice=st.sampled_from([0, 0, 0, 1]))
    def take_blocks(self, indices: list[int], twice: int) -> None:
        free = self.model.free
        blocks = [free[i] for i in dict.fromkeys(i % len(free) for i in indices)]
        self.both("take_blocks", blocks + blocks[:twice])

    @precondition(any_cached)
    @rule(indices=picks)
    def forget_blocks(self, indices: list[int]) -> None:
        self.both("forget_blocks", self.choose(sorted(self.model.keys), indices))
        self.look_again()

    @precondition(any_idle)
    @rule()
    def reset(self) -> None:
        self.both("reset")
        self.look_again()

    @precondition(any_copy)
    @rule()
    def take_copies(self) -> None:
        before = fingerprint(self.pool)
        try:
            expected = self.model.take_copies()
        except StepError:
            with pytest.raises(StepError):
                self.pool.take_copies()
            assert fingerprint(self.pool) == before
            return
        plan = self.pool.take_copies()
        assert [tuple(copy) for copy in plan] == expected
        assert plan.ticket == self.model.ticket

    @precondition(lambda self: self.model.ticket)
    @rule(
        resolve=st.sampled_from(["copies_applied", "copies_aborted"]),
        late=st.sampled_from([0, 0, 0, 1]),
    )
    def resolve(self, resolve: str, late: int) -> None:
        self.both(resolve, self.model.ticket - late)
        self.look_again()

    # ---- wrong calls ---------------------------------------------------------------------

    @precondition(lambda self: self.model.refs)
    @rule(
        name=st.sampled_from(["acquire", "release", "touch", "take_blocks", "forget_blocks"]),
        blocks=st.lists(st.integers(-1, 8), min_size=1, max_size=4),
    )
    def name_any_blocks(self, name: str, blocks: list[int]) -> None:
        """Any ids: free ones, ids out of range, or more releases than holds."""
        self.both(name, blocks)

    @rule(
        blocks=st.lists(st.integers(-1, 8), max_size=3),
        tokens=token_lists,
        parent=st.integers(-2, 8),
        namespace=namespaces,
    )
    def promote_anything(
        self, blocks: list[int], tokens: list[int], parent: int, namespace: bytes
    ) -> None:
        self.both("promote", blocks, tokens, parent=parent, namespace=namespace, extras={})

    @rule(block=st.integers(-1, 8), num_tokens=st.integers(-1, 4))
    def write_to_anything(self, block: int, num_tokens: int) -> None:
        self.both("make_writable", block, num_tokens)
