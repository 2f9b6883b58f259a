"""The digest callable: its arguments, and the effect of errors in it."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import hashlib
import importlib.util
import random
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import BlockManager, KeyedDigest, ReentrancyError, namespace_key
from blockmgr import digest as digest_module
from blockmgr.config import DIGEST_NAMES
from tests.fingerprints import core_testing
from tests.unit.engine import cache, serve
from tests.unit.snapshot import snapshot


class Digest:
    """A digest of sixteen bytes that misbehaves at a given later call."""

    def __init__(self) -> None:
        self.calls = 0
        self.fail_at = -1
        self.action: Callable[[], Any] = self.fail

    def __call__(self, buffer: Any) -> bytes:
        self.calls += 1
        if self.calls == self.fail_at:
            result = self.action()
            if result is not None:
                return result
        return (sum(bytes(buffer)) % 251).to_bytes(16, "little")

    @staticmethod
    def fail() -> bytes:
        raise RuntimeError("digest failed")

    def arm(self, at: int) -> None:
        self.calls, self.fail_at = 0, at


def build(digest: Digest, **options: Any) -> BlockManager:
    return BlockManager(16, 2, **{"digest": digest, "min_partial_tokens": 1, **options})


def scenario(manager: BlockManager) -> dict[str, Callable[[], object]]:
    """Every call that may hash, each with several blocks to hash."""
    cache(manager, [1] * 6, namespace=b"a")
    long = manager.admit([2] * 7)
    batch = [serve(manager, [t] * 3).handle for t in (5, 6)]
    manager.decode(batch, [5, 6])
    waiting = serve(manager, [1, 1, 1, 1, 9, 9, 9], namespace=b"a")
    waiting.preempt()
    return {
        "admit": lambda: manager.admit([1, 1, 1, 1, 8, 8, 8], namespace=b"a"),
        "admit to a new namespace": lambda: manager.admit([1] * 5, namespace=b"new"),
        "match": lambda: manager.match([1, 1, 7, 7, 7], namespace=b"a"),
        "can_admit": lambda: manager.can_admit([1, 1, 7, 7, 7], namespace=b"a"),
        "commit": lambda: manager.commit(long, 7),
        "decode": lambda: manager.decode(batch, [7, 7]),
        "resume": lambda: manager.resume(waiting.handle),
    }


NAMES = list(scenario(build(Digest())))


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
@pytest.mark.parametrize("name", NAMES)
def test_a_digest_that_raises_leaves_everything_as_it_was(name: str, dedup: str) -> None:
    """For each call of the digest, the error is passed on and nothing has changed."""
    failures = 0
    for at in range(1, 20):
        digest = Digest()
        manager = build(digest, dedup=dedup)
        call = scenario(manager)[name]
        before = snapshot(manager)
        digest.arm(at)
        try:
            call()
        except RuntimeError:
            failures += 1
            assert snapshot(manager) == before
            manager.check_invariants()
            call()  # and the next attempt succeeds
            manager.check_invariants()
        else:
            break
    # With a hinted child, no hash is needed if there is no other candidate.
    assert failures or name in ("resume",)


@pytest.mark.parametrize("name", ["commit", "admit", "decode"])
@pytest.mark.parametrize(
    ("result", "error"),
    [("text", TypeError), (b"short", ValueError), (bytes(17), ValueError), (5, TypeError)],
)
def test_a_digest_must_stay_what_it_was(name: str, result: Any, error: type[Exception]) -> None:
    digest = Digest()
    manager = build(digest)
    call = scenario(manager)[name]
    before = snapshot(manager)
    digest.action = lambda: result
    digest.arm(1)
    with pytest.raises(error, match="digest"):
        call()
    assert snapshot(manager) == before


@pytest.mark.parametrize("length", [0, 7, 65])
def test_a_digest_has_eight_to_sixty_four_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="digest"):
        BlockManager(4, 2, digest=lambda buffer: bytes(length))


@pytest.mark.parametrize("length", [8, 20, 64])
def test_any_length_between_is_fine(length: int) -> None:
    manager = BlockManager(4, 2, digest=lambda buffer: bytes(length))
    cache(manager, [1] * 4)
    assert manager.match([1] * 5).num_cached_tokens == 4


CALLS: dict[str, Callable[[BlockManager, int], object]] = {
    "admit": lambda m, h: m.admit([1]),
    "match": lambda m, h: m.match([1]),
    "can_admit": lambda m, h: m.can_admit([1]),
    "append": lambda m, h: m.append(h, [1]),
    "reserve": lambda m, h: m.reserve(h, 1),
    "commit": lambda m, h: m.commit(h, 1),
    "truncate": lambda m, h: m.truncate(h, 1),
    "fork": lambda m, h: m.fork(h),
    "reparent": lambda m, h: m.reparent([h], [0]),
    "free": lambda m, h: m.free(h),
    "preempt": lambda m, h: m.preempt(h),
    "resume": lambda m, h: m.resume(h),
    "decode": lambda m, h: m.decode([h], [1]),
    "take_copies": lambda m, h: m.take_copies(),
    "copies_applied": lambda m, h: m.copies_applied(1),
    "copies_aborted": lambda m, h: m.copies_aborted(1),
    "complete": lambda m, h: m.complete(1),
    "take_remaps": lambda m, h: m.take_remaps(),
    "stats": lambda m, h: m.stats(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_from_inside_the_digest_is_refused(name: str) -> None:
    digest = Digest()
    manager = build(digest)
    call = scenario(manager)["commit"]
    handle = manager.handles()[0]
    before = snapshot(manager)

    def reenter() -> None:
        with pytest.raises(ReentrancyError, match="inside another call"):
            CALLS[name](manager, handle)

    digest.action = reenter
    digest.arm(1)
    call()
    assert digest.calls >= 1
    after = snapshot(manager)
    assert after["stats"]["num_sequences"] == before["stats"]["num_sequences"]
    manager.check_invariants()


def test_a_manager_its_digest_refers_to_is_collected() -> None:
    """An engine that owns the manager and whose method is the digest forms a reference cycle."""

    class Engine:
        def __init__(self) -> None:
            self.manager = BlockManager(8, 2, digest=self.digest)

        def digest(self, buffer: object) -> bytes:
            return bytes(16)

    engine = Engine()
    serve(engine.manager, [1] * 5)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_the_cache_off_hashes_nothing() -> None:
    digest = Digest()
    manager = build(digest, prefix_caching=False)
    digest.calls = 0
    serve(manager, [1] * 9)
    manager.match([1] * 9, namespace=b"x")
    assert digest.calls == 0


def test_a_warm_look_up_hashes_nothing() -> None:
    """The child matched last is compared token by token, not hashed."""
    digest = Digest()
    manager = build(digest)
    cache(manager, [1] * 9)
    digest.calls = 0
    assert manager.match([1] * 9).num_cached_tokens == 8
    assert digest.calls == 0


def test_where_prompts_part_only_the_first_look_up_after_another_hashes() -> None:
    """An admission makes its blocks the ones that are compared first."""
    digest = Digest()
    manager = build(digest)
    first, one, other = [1] * 9, [1] * 4 + [2] * 5, [1] * 4 + [3] * 5
    for tokens in (first, one, other):
        cache(manager, tokens)
    for tokens in (one, other, one):
        digest.calls = 0
        manager.free(manager.admit(tokens))
        assert digest.calls == 1
        assert manager.match(tokens).num_cached_tokens == 8
        assert digest.calls == 1


def test_the_prompt_that_was_first_after_a_block_is_never_hashed_again() -> None:
    """Its blocks have consecutive ids, which the index uses."""
    digest = Digest()
    manager = build(digest)
    first, other = [1] * 9, [1] * 4 + [2] * 5
    for tokens in (first, other):
        cache(manager, tokens)
    digest.calls = 0
    for tokens in (first, other, first):
        manager.free(manager.admit(tokens))
    assert digest.calls == 0


KEY = b"0123456789abcdef"


def test_a_keyed_digest_is_blake2b_with_that_key() -> None:
    keyed = KeyedDigest(KEY)
    for message in (b"", b"block", bytearray(b"block"), bytes(1000)):
        assert keyed(message) == hashlib.blake2b(message, key=KEY, digest_size=16).digest()  # type: ignore[arg-type]
    assert keyed(b"block") != KeyedDigest(KEY[::-1])(b"block")


def test_a_manager_finds_by_keyed_digests() -> None:
    manager = BlockManager(8, 2, digest=KeyedDigest(KEY))
    manager.commit(manager.admit([1, 2, 3]), 3)
    manager.commit(manager.admit([1, 9, 3]), 3)  # the hint is wrong for the first one
    assert manager.match([1, 2, 3]).num_cached_tokens == 2


def test_a_key_shows_nowhere() -> None:
    keyed = KeyedDigest(KEY)
    shown = f"{keyed!r} {keyed} {BlockManager(8, 2, digest=keyed).config!r}"
    assert KEY.decode() not in shown
    assert KEY.hex() not in shown


@pytest.mark.parametrize(
    ("key", "error"), [(b"short", ValueError), (bytes(65), ValueError), ("0" * 16, TypeError)]
)
def test_a_key_that_is_none_is_refused(key: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="key must be"):
        KeyedDigest(key)


def test_parts_of_a_namespace_do_not_meet() -> None:
    parts: list[dict[str, bytes]] = [
        {},
        {"salt": b""},
        {"salt": b"x"},
        {"adapter": b"x"},
        {"salt": b"x", "adapter": b""},
        {"salt": b"xadapter"},
        {"salt": b"", "adapter": b"x"},
        {"salt": b"x", "adapter": b"y"},
        {"salt": b"y", "adapter": b"x"},
        {"sal": b"tx"},
    ]
    assert len({namespace_key(**part) for part in parts}) == len(parts)
    both = namespace_key(salt=b"x", adapter=b"y")
    assert both == namespace_key(adapter=b"y", salt=b"x")
    with pytest.raises(TypeError, match="salt must be bytes"):
        namespace_key(salt="x")  # type: ignore[arg-type]


@pytest.fixture
def fresh_address() -> Iterator[Callable[[], int]]:
    """Looks up the C function behind xxh3_128 as in a new process."""
    look_up = digest_module._xxh3_address
    look_up.cache_clear()
    yield look_up
    look_up.cache_clear()


@given(message=st.binary(max_size=3000))
def test_the_c_function_behind_xxh3_gives_the_bytes_of_the_python_call(message: bytes) -> None:
    address = digest_module._xxh3_address()
    if not address:
        pytest.skip("this xxhash exports no C functions")
    halves = ctypes.CFUNCTYPE(digest_module._Halves, ctypes.c_char_p, ctypes.c_size_t)(address)(
        message, len(message)
    )
    expected = xxhash.xxh3_128_digest(message)
    assert (halves.high << 64 | halves.low).to_bytes(16, "big") == expected


def test_a_c_function_that_gives_other_bytes_is_not_used(
    fresh_address: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xxhash, "xxh3_128_digest", lambda message: bytes(16))
    assert fresh_address() == 0


@pytest.mark.parametrize("file", [ctypes.util.find_library("c"), "no such library"])
def test_an_xxhash_without_c_functions_is_called_through_python(
    file: str, fresh_address: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tries a library that does not export the function, and one that cannot be opened."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: SimpleNamespace(origin=file))
    assert fresh_address() == 0
    manager = BlockManager(8, 2)
    cache(manager, [1, 2, 3, 4])
    assert manager.match([1, 2, 3, 4, 5]).num_cached_tokens == 4
    assert manager.match([1, 2, 9, 4, 5]).num_cached_tokens == 2


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_keys_may_grow_by_a_byte(name: str) -> None:
    """The input of a hash is in a buffer that grows: a byte too few is a write past its end."""
    manager = BlockManager(8, 2, digest=name)
    keys = [b"k" * length for length in range(1, 40)]
    digests = {bytes(manager.block_digests([1, 2], extras={0: key})[0]) for key in keys}
    assert len(digests) == len(keys)


@pytest.mark.parametrize("refused", ["init", "update", "final"])
def test_what_openssl_refuses_to_compute_is_an_error_and_changes_nothing(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions here call OpenSSL until one of them is made to fail."""
    own = digest_module._evp_addresses()
    if own is None:
        pytest.skip("no OpenSSL behind hashlib")
    fails = False
    place = {"init": 2, "update": 3, "final": 4}[refused]
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3)
    real = kind(own[place])

    @kind
    def function(*arguments: Any) -> int:
        return 0 if fails else int(real(*arguments))

    address = ctypes.cast(function, ctypes.c_void_p).value
    monkeypatch.setattr(
        digest_module, "_evp_addresses", lambda: (*own[:place], address, *own[place + 1 :])
    )
    manager = BlockManager(8, 2, digest="sha256")
    cache(manager, [1, 2, 3])
    before = snapshot(manager)
    fails = True
    with pytest.raises(RuntimeError, match="OpenSSL refuses to compute SHA-256"):
        manager.admit([4, 5, 6])
    assert snapshot(manager) == before
    if refused == "init":
        with pytest.raises(RuntimeError, match="OpenSSL refuses to compute SHA-256"):
            BlockManager(8, 2, digest="sha256")
    fails = False
    assert serve(manager, [1, 2, 3]).num_cached_tokens == 2


# Digests that are made up to share a place of a table.


GOLDEN = 0x9E3779B97F4A7C15
CROWDED: dict[str, Callable[[int], int]] = {
    "small first four bytes": lambda r: r >> 32 << 32 | (r & 0x7FFF),
    "small multiples of the inverse of the golden ratio": lambda r: (
        pow(GOLDEN, -1, 2**64) * (r & 0x7FFF)
    ),
    "no pattern": lambda r: r,
}


def crowded(name: str, count: int) -> bytes:
    rng = random.Random(name)
    keys = [CROWDED[name](rng.getrandbits(64)) % 2**64 for _ in range(count)]
    return b"".join(key.to_bytes(8, "little") + rng.randbytes(8) for key in keys)


@pytest.mark.parametrize("name", CROWDED)
def test_few_digests_share_a_place_of_a_table(name: str) -> None:
    """A table without a secret sends all 8,000 to the same place: 700 buckets, 8,000 tags."""
    for _ in range(5):
        buckets, tags = core_testing().longest_runs(crowded(name, 8000))
        assert buckets < 350
        assert tags < 4000


def test_each_table_of_digests_has_a_secret_of_its_own() -> None:
    digests = crowded("no pattern", 500)
    runs = {core_testing().longest_runs(digests) for _ in range(30)}
    assert len({buckets for buckets, _ in runs}) > 1
    assert len({tags for _, tags in runs}) > 1
