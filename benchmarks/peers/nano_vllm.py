"""nano-vllm's block manager, reimplemented from its behaviour.

The algorithm: blocks have a reference count, a hash and their tokens. Free ids are in a deque; they
are taken from the front and returned at the back, a sequence's last block first. A dict maps a
chained 64-bit xxHash to a block id, and the tokens of a found block are compared. A freed block
keeps its hash and can be found until its id is allocated again. A request is hashed twice when it
is admitted, once to count the cached blocks and once to take them, and a third time after the
forward, from the first block that was not cached.

``NanoVllm("as it is")`` keeps its types: lists of tokens, each block through NumPy into a streaming
hash, and a deque, in which removing a cached free block takes a linear search.
``NanoVllm("tuned")`` is the same algorithm without the avoidable costs, so that it does not lose
because of its types: prompts are bytes, a prompt is hashed once, and free ids are in an ordered
dict.

It lacks: forks and copy-on-write, eviction orders other than that of the free queue,
collision-resistant digests, namespaces, extra keys, deduplication (of two equal blocks, the younger
is found), quotas, and checks of its arguments.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["NanoVllm"]

_NO_FORK = (
    "has no fork: a sequence is one sample, and a block with several holders is never written"
)
_SEARCHED = (
    "searches a deque of the whole pool for each cached block that it takes out: seconds a prompt"
)
_CANNOT: Mapping[str, Mapping[str, str]] = {
    "as it is": {
        Operation.SCATTERED: "only timed tuned, which is faster",
        Operation.ADMIT: _SEARCHED,
        Operation.FREE: _SEARCHED,  # the row admits what it frees
        Operation.REPLAY: _SEARCHED,
        Operation.GROWTH: _SEARCHED,
    },
    "tuned": {},
}
_TOKEN_BYTES = 4


class NanoVllm:
    """The algorithm, ``"as it is"`` or ``"tuned"``."""

    def __init__(self, kind: str = "tuned") -> None:
        self._cache = {"as it is": _AsItIs, "tuned": _Tuned}[kind]
        self.name = f"nano-vllm's algorithm, {kind}"
        self.cannot: Mapping[str, str] = {
            Operation.FORK: _NO_FORK,
            Operation.COPY_ON_WRITE: _NO_FORK,
            **_CANNOT[kind],
        }

    def prompt(self, tokens: npt.NDArray[np.uint32]) -> Any:
        """Tokens as lists, or as bytes in the tuned version."""
        return self._cache.prompt(tokens)

    def open(
        self,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        *,
        max_requests: int = 64,
        max_tokens: int = 1 << 18,
    ) -> Any:
        del max_requests, max_tokens  # it needs no size limits
        return self._cache(num_blocks, block_size)


class _Block:
    __slots__ = ("digest", "holders", "index", "tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.holders = 0
        self.digest = -1
        self.tokens: Any = None


class _Request:
    __slots__ = ("num_computed", "table", "tokens")

    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens
        self.table: list[int] = []
        self.num_computed = 0


class _Pool:
    """What both versions share: only the blocks."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._size = block_size
        self._blocks = [_Block(index) for index in range(num_blocks)]
        self._by_digest: dict[int, int] = {}

    def batch(self, requests: Sequence[_Request]) -> Sequence[_Request]:
        return requests

    def fork(self, request: _Request, count: int) -> Sequence[_Request]:
        raise NotImplementedError(_NO_FORK)

    def copies(self) -> int:
        return 0


class _AsItIs(_Pool):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._free = deque(range(num_blocks))
        self._used: set[int] = set()

    @staticmethod
    def prompt(tokens: npt.NDArray[np.uint32]) -> list[int]:
        return tokens.tolist()

    @staticmethod
    def _digest(tokens: list[int], parent: int) -> int:
        state = xxhash.xxh64()
        if parent != -1:
            state.update(parent.to_bytes(8, "little"))
        state.update(np.array(tokens).tobytes())
        return state.intdigest()

    def _tokens(self, request: _Request, i: int) -> list[int]:
        return request.tokens[i * self._size : (i + 1) * self._size]

    def _take(self) -> int:
        index = self._free.popleft()
        block = self._blocks[index]
        if block.digest != -1 and self._by_digest.get(block.digest) == index:
            del self._by_digest[block.digest]
        block.holders, block.digest, block.tokens = 1, -1, []
        self._used.add(index)
        return index

    def _count_cached(self, request: _Request) -> tuple[int, int]:
        """Leading cached blocks, and how many of those are in use."""
        digest, cached, in_use = -1, 0, 0
        # All blocks but the last, so that a token is left to compute.
        for i in range((len(request.tokens) - 1) // self._size):
            tokens = self._tokens(request, i)
            digest = self._digest(tokens, digest)
            index = self._by_digest.get(digest, -1)
            if index == -1 or self._blocks[index].tokens != tokens:
                break
            cached += 1
            in_use += index in self._used
        return cached, in_use

    def match(self, prompt: list[int]) -> int:
        return self._count_cached(_Request(prompt))[0] * self._size

    def admit(self, prompt: list[int]) -> _Request:
        request = _Request(prompt.copy())
        num_blocks = -(-len(prompt) // self._size)
        cached, in_use = self._count_cached(request)
        if num_blocks - in_use > len(self._free):
            raise MemoryError("nano-vllm has too few blocks")
        digest = -1
        for i in range(cached):
            digest = self._digest(self._tokens(request, i), digest)
            index = self._by_digest[digest]
            if index in self._used:
                self._blocks[index].holders += 1
            else:
                self._blocks[index].holders = 1
                self._free.remove(index)
                self._used.add(index)
            request.table.append(index)
        for _ in range(cached, num_blocks):
            request.table.append(self._take())
        request.num_computed = cached * self._size
        self._publish(request, len(prompt) - request.num_computed)
        return request

    def _publish(self, request: _Request, num_new: int) -> None:
        """Promotes the blocks that the last forward filled."""
        start = request.num_computed // self._size
        request.num_computed += num_new
        stop = request.num_computed // self._size
        if start == stop:
            return
        digest = self._blocks[request.table[start - 1]].digest if start else -1
        for i in range(start, stop):
            block = self._blocks[request.table[i]]
            tokens = self._tokens(request, i)
            digest = self._digest(tokens, digest)
            block.digest, block.tokens = digest, tokens
            self._by_digest[digest] = block.index

    def free(self, request: _Request) -> None:
        for index in reversed(request.table):
            block = self._blocks[index]
            block.holders -= 1
            if not block.holders:
                self._used.remove(index)
                self._free.append(index)
        request.table.clear()

    def step(self, batch: Sequence[_Request], tokens: list[int]) -> None:
        for request, token in zip(batch, tokens, strict=True):
            request.tokens.append(token)
            if len(request.tokens) % self._size == 1:
                if not self._free:
                    raise MemoryError("nano-vllm has too few blocks")
                request.table.append(self._take())
            self._publish(request, 1)

    def num_free(self) -> int:
        return len(self._free)

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        self._free = deque(order.tolist())


class _Tuned(_Pool):
    """Here ``tokens`` are bytes, 4 for each token; a block's hash is that of a slice."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._free = OrderedDict.fromkeys(range(num_blocks))
        self._bytes = block_size * _TOKEN_BYTES

    @staticmethod
    def prompt(tokens: npt.NDArray[np.uint32]) -> bytes:
        return tokens.tobytes()

    def _find(self, tokens: bytes) -> tuple[list[int], bytes]:
        """The leading cached blocks, and the digest to which the next block is chained."""
        found: list[int] = []
        digest = b""
        hashed, get, blocks, size = (
            xxhash.xxh64_digest,
            self._by_digest.get,
            self._blocks,
            self._bytes,
        )
        for start in range(0, len(tokens) - size, size):
            part = tokens[start : start + size]
            chained = hashed(digest + part)
            index = get(chained)
            if index is None or blocks[index].tokens != part:
                break
            found.append(index)
            digest = chained
        return found, digest

    def match(self, prompt: bytes) -> int:
        return len(self._find(prompt)[0]) * self._size

    def _take(self) -> int:
        index = self._free.popitem(last=False)[0]
        block = self._blocks[index]
        if block.tokens is not None:
            if self._by_digest.get(block.digest) == index:
                del self._by_digest[block.digest]
            block.tokens = None
        block.holders = 1
        return index

    def admit(self, prompt: bytes) -> _Request:
        request = _Request(bytearray(prompt))
        table, digest = self._find(prompt)
        blocks, free, size = self._blocks, self._free, self._bytes
        num_new = -(-len(prompt) // size) - len(table)
        if num_new + sum(not blocks[index].holders for index in table) > len(free):
            raise MemoryError("nano-vllm has too few blocks")
        for index in table:
            block = blocks[index]
            if not block.holders:
                del free[index]
            block.holders += 1
        start = len(table) * size
        table.extend([self._take() for _ in range(num_new)])
        request.table = table
        hashed, by_digest = xxhash.xxh64_digest, self._by_digest
        for i in range(start // size, len(prompt) // size):
            part = prompt[i * size : (i + 1) * size]
            digest = hashed(digest + part)
            block = blocks[table[i]]
            block.digest, block.tokens = digest, part
            by_digest[digest] = table[i]
        return request

    def free(self, request: _Request) -> None:
        blocks, free = self._blocks, self._free
        for index in reversed(request.table):
            block = blocks[index]
            block.holders -= 1
            if not block.holders:
                free[index] = None
        request.table.clear()

    def step(self, batch: Sequence[_Request], tokens: bytes) -> None:
        size, blocks = self._bytes, self._blocks
        for i, request in enumerate(batch):
            sequence, table = request.tokens, request.table
            sequence += tokens[i * _TOKEN_BYTES : (i + 1) * _TOKEN_BYTES]
            if len(sequence) % size == _TOKEN_BYTES:
                if not self._free:
                    raise MemoryError("nano-vllm has too few blocks")
                table.append(self._take())
            if not len(sequence) % size:
                parent = blocks[table[-2]].digest if len(table) > 1 else b""
                block = blocks[table[-1]]
                block.tokens = bytes(sequence[-size:])
                block.digest = xxhash.xxh64_digest(parent + block.tokens)
                self._by_digest[block.digest] = block.index

    def num_free(self) -> int:
        return len(self._free)

    def scatter(self, order: npt.NDArray[np.int64]) -> None:
        self._free = OrderedDict.fromkeys(order.tolist())
