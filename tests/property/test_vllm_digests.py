"""``sha256_cbor`` hashes vLLM's bytes; ``cbor2`` and ``hashlib`` are the reference."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import BlockManager, VllmDigest, _core, namespace_key, vllm_extras
from blockmgr import digest as digest_module
from blockmgr.vllm_keys import Keys, vllm_keys
from tests.unit.engine import cache, serve

cbor2 = pytest.importorskip("cbor2", reason="the reference for canonical CBOR")

# Values of vLLM 0.33.0: NONE_HASH, and the first block of the tokens 0 to 15.
ROOT = "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
FIRST = "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749"

SIZE = 4
tokens = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]),
)
texts = st.text(max_size=30)


def sha256_cbor(value: Any) -> bytes:
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


def chain(
    prompt: list[int], size: int, keys: dict[int, Keys], seed: str = "vllm-none-hash"
) -> list[bytes]:
    """The digests of a prompt by vLLM's ``hash_block_tokens``."""
    parent = sha256_cbor(seed)
    digests = []
    for block in range(len(prompt) // size):
        part = tuple(prompt[block * size : (block + 1) * size])
        parent = sha256_cbor((parent, part, keys.get(block)))
        digests.append(parent)
    return digests


def test_the_golden_values_of_vllm() -> None:
    manager = BlockManager(8, 16, digest="sha256_cbor")
    [digest] = manager.block_digests(list(range(16)))
    assert digest.hex() == FIRST
    assert sha256_cbor("vllm-none-hash").hex() == ROOT


@given(
    size=st.integers(1, 300),
    prompt=st.lists(tokens, min_size=1, max_size=700),
    native=st.booleans(),
)
def test_the_digests_are_those_of_canonical_cbor(
    size: int, prompt: list[int], native: bool
) -> None:
    """Whether OpenSSL's functions are found, or Python is called."""
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(digest_module, "_evp_addresses", lambda: None)
        manager = BlockManager(4, size, digest="sha256_cbor")
    assert manager.block_digests(prompt) == chain(prompt, size, {})


# Value of vLLM 0.33.0 with PYTHONHASHSEED set: the first block of the tokens 0 to 15.
SEEDED = {
    "0": "d830de3d42c00f25a2949b5d12d98642664a44872c1614c5b0147556276afc9c",
    "42": "63876f948a5f9ef88191c7d6554fbeeea5c622d4da15d0d527bd352623590b0d",
    "vllm-none-hash": FIRST,
}


@pytest.mark.parametrize("seed", SEEDED)
def test_the_golden_values_of_vllm_with_a_seed(seed: str) -> None:
    manager = BlockManager(8, 16, digest=VllmDigest(seed))
    [digest] = manager.block_digests(list(range(16)))
    assert digest.hex() == SEEDED[seed]


@given(seed=st.text(max_size=300), prompt=st.lists(tokens, min_size=1, max_size=40))
def test_a_seed_is_the_root_of_all_digests(seed: str, prompt: list[int]) -> None:
    try:
        seed.encode()
    except UnicodeEncodeError:
        with pytest.raises(ValueError, match="seed must be UTF-8 text"):
            VllmDigest(seed)
        return
    manager = BlockManager(4, SIZE, digest=VllmDigest(seed))
    assert manager.block_digests(prompt) == chain(prompt, SIZE, {}, seed)


def test_the_environment_does_not_choose_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    [digest] = BlockManager(8, 16, digest="sha256_cbor").block_digests(list(range(16)))
    assert digest.hex() == FIRST


def test_a_seed_changes_only_digests_and_not_namespaces() -> None:
    """A namespace has its own root; cached blocks can still be found."""
    name, prompt = namespace_key(salt=b"tenant"), list(range(SIZE))
    plain, seeded = (BlockManager(8, SIZE, digest=d) for d in ("sha256_cbor", VllmDigest("7")))
    assert plain.block_digests(prompt) != seeded.block_digests(prompt)
    named = [each.block_digests(prompt, namespace=name) for each in (plain, seeded)]
    assert named[0] == named[1]
    cache(seeded, [*prompt, 1])
    assert seeded.match([*prompt, 2]).num_cached_tokens == SIZE


@pytest.mark.parametrize("seed", [0, b"0", None], ids=repr)
def test_a_seed_that_is_no_text_is_refused(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed must be a str, got"):
        VllmDigest(seed)


@given(
    lora=st.one_of(st.none(), texts),
    path=st.one_of(st.none(), texts),
    salt=st.one_of(st.none(), texts),
    images=st.lists(st.tuples(texts, st.integers(0, 6), st.integers(1, 9)), max_size=3),
    embeds=st.dictionaries(st.integers(0, 3), st.binary(min_size=32, max_size=32), max_size=2),
)
def test_extra_keys_are_tagged_and_ordered_as_vllm_has_them(
    lora: str | None,
    path: str | None,
    salt: str | None,
    images: list[tuple[str, int, int]],
    embeds: dict[int, bytes],
) -> None:
    """The adapter, then images by offset relative to the block, the salt, the embeddings."""
    prompt = list(range(4 * SIZE))
    adapter = path if lora is not None else None
    placed, start = [], 0
    for name, gap, length in images:
        placed.append((name, start + gap, length))
        start += gap + length
    expected: dict[int, Keys] = {}
    for block in range(4):
        low, high = block * SIZE, (block + 1) * SIZE
        keys: list[Any] = []
        if lora is not None:
            keys.append(("lora", lora) if adapter is None else ("lora", lora, adapter))
        keys += [("mm", n, at - low) for n, at, count in placed if at < high and at + count > low]
        keys += [("cache_salt", salt)] if salt and block == 0 else []
        keys += [("prompt_embeds", embeds[block])] if block in embeds else []
        if keys:
            expected[block] = tuple(keys)
    extras = vllm_extras(
        len(prompt),
        SIZE,
        lora=lora,
        lora_path=adapter,
        salt=salt,
        multimodal=placed,
        embeds=embeds,
    )
    assert {block: vllm_keys(key) for block, key in extras.items()} == expected
    assert extras == {block: cbor2.dumps(keys, canonical=True) for block, keys in expected.items()}
    manager = BlockManager(8, SIZE, digest="sha256_cbor")
    assert manager.block_digests(prompt, extras=extras) == chain(prompt, SIZE, expected)


def test_what_is_cached_has_these_digests_too() -> None:
    """A prompt with the same extra keys hits the committed blocks; without the salt it misses."""
    extras = vllm_extras(3 * SIZE, SIZE, salt="tenant")
    prompt = list(range(100, 100 + 3 * SIZE))
    manager = BlockManager(8, SIZE, digest="sha256_cbor")
    cache(manager, prompt, extras=extras)
    assert manager.match([*prompt, 1], extras=extras).num_cached_tokens == 3 * SIZE
    assert manager.match([*prompt, 1]).num_cached_tokens == 0


def test_a_namespace_has_digests_of_its_own() -> None:
    """vLLM has no namespaces, so none of its prompts can have these digests."""
    manager = BlockManager(8, SIZE, digest="sha256_cbor")
    prompt = list(range(SIZE))
    name = namespace_key(salt=b"tenant")
    [digest] = manager.block_digests(prompt, namespace=name)
    assert digest == sha256_cbor((sha256_cbor(name), tuple(prompt), None))
    assert digest != manager.block_digests(prompt)[0]
    serve(manager, [*prompt, 1], namespace=name)
    assert manager.match([*prompt, 1]).num_cached_tokens == 0


@pytest.mark.parametrize(
    "keys", [(), ("text",), (b"bytes", -1, 2**62, (0, ("deep",))), ("é" * 300,)]
)
def test_keys_come_back_as_they_were(keys: Keys) -> None:
    data = cbor2.dumps(keys, canonical=True)
    assert vllm_keys(data) == keys


@given(data=st.binary(max_size=40))
def test_foreign_bytes_are_keys_or_a_value_error(data: bytes) -> None:
    try:
        keys = vllm_keys(data)
    except ValueError:
        return
    assert isinstance(keys, tuple)


@given(
    keys=st.recursive(
        st.one_of(texts, st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1)),
        lambda inner: st.lists(inner, max_size=4).map(tuple),
        max_leaves=8,
    ).map(lambda key: key if isinstance(key, tuple) else (key,)),
    at=st.integers(0, 200),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_damaged_keys_are_keys_or_a_value_error(keys: Keys, at: int, byte: int, cut: bool) -> None:
    """Complete ones are accepted: the reader takes what ``cbor2`` writes."""
    data = bytearray(cbor2.dumps(keys, canonical=True))
    assert vllm_keys(bytes(data)) == keys
    assert _core.cbor_of(keys) == data
    at %= len(data)
    damaged = bytes(data[:at]) if cut else bytes([*data[:at], byte, *data[at + 1 :]])
    try:
        read = vllm_keys(damaged)
    except ValueError:
        return
    assert isinstance(read, tuple)
    assert cbor2.loads(damaged) is not None


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"lora": b"sql"}, TypeError, "lora must be a str, got bytes"),
        ({"salt": 5}, TypeError, "salt must be a str"),
        ({"lora_path": "/adapter"}, ValueError, "lora_path must be None without lora"),
        ({"multimodal": [("image", -1, 3)]}, ValueError, "multimodal offset must be in"),
        ({"multimodal": [("image", 1, 0)]}, ValueError, "multimodal length must be in"),
        ({"multimodal": [(b"image", 1, 2)]}, TypeError, "multimodal identifiers must be str"),
        ({"embeds": {9: bytes(32)}}, ValueError, "embeds block must be in"),
        ({"embeds": {0: "text"}}, TypeError, "embeds must map to bytes"),
    ],
)
def test_wrong_keys_are_refused_by_name(
    wrong: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        vllm_extras(8, 4, **wrong)


def test_bytes_that_are_no_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="extras must be the CBOR of an array"):
        vllm_keys(cbor2.dumps("text"))
    with pytest.raises(TypeError, match="extras must be bytes"):
        vllm_keys("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="data must be the CBOR"):
        vllm_keys(b"\x81" * 40)


def test_a_library_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python is then called, and the digests are still right."""
    digest_module._evp_addresses.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(digest_module, "_EVP", (*digest_module._EVP[:4], "EVP_DigestUpdate"))
        assert digest_module._evp_addresses() is None
    digest_module._evp_addresses.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(digest_module, "_EVP", (*digest_module._EVP[:4], "no such function"))
        assert digest_module._evp_addresses() is None
        manager = BlockManager(8, 16, digest="sha256_cbor")
        assert manager.block_digests(list(range(16)))[0].hex() == FIRST
    digest_module._evp_addresses.cache_clear()
    assert digest_module._evp_addresses() is not None


@pytest.mark.parametrize("key", [1.5, None, True, [1], {"a": 1}, ("a", 1.5)], ids=repr)
def test_a_key_of_another_type_is_refused(key: object) -> None:
    with pytest.raises(TypeError, match="keys must be str, bytes, int or tuples of them, got"):
        _core.cbor_of(key)
