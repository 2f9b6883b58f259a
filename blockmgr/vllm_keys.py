"""vLLM's extra keys of blocks: for ``digest="sha256_cbor"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from blockmgr import _core
from blockmgr.arguments import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Keys", "vllm_extras", "vllm_keys"]

Keys: TypeAlias = tuple["str | bytes | int | Keys", ...]
"""Extra keys of a block, each a tuple that begins with its kind: ``("lora", name)``."""

_MOST_TOKENS = 2**31 - 1


def vllm_extras(
    num_tokens: int,
    block_size: int,
    *,
    lora: str | None = None,
    lora_path: str | None = None,
    salt: str | None = None,
    multimodal: Sequence[tuple[str, int, int]] = (),
    embeds: Mapping[int, bytes] | None = None,
) -> dict[int, bytes]:
    """Extra keys of a prompt's blocks, for ``extras``, that give them vLLM's digests.

    For ``digest="sha256_cbor"``. vLLM has no namespaces: a salt is an extra key of the first block,
    and an adapter one of every block. So leave ``namespace`` empty if digests must equal vLLM's;
    these keys separate the prompts.

    Args:
        num_tokens: Length of the prompt and its output, which sets the number of blocks with the
            adapter.
        block_size: Tokens per block of the manager.
        lora: Name of the adapter.
        lora_path: Its path, which vLLM 0.32 digests as well; None for other versions.
        salt: The request's ``cache_salt``.
        multimodal: (identifier, offset, length) of each image or other item, in tokens of the
            prompt, in order of their offsets.
        embeds: SHA-256 of the prompt embeddings of single blocks, by block.

    Returns:
        The keys of each block that has any, as the bytes to digest.

    Raises:
        ValueError: A value is out of its bounds, or a path is given without its adapter.
        TypeError: A value is of the wrong type.

    >>> sorted(vllm_extras(6, 2, salt="tenant", multimodal=[("image", 3, 2)]))
    [0, 1, 2]
    >>> vllm_extras(6, 2, lora="sql") == dict.fromkeys(range(3), vllm_extras(2, 2, lora="sql")[0])
    True

    Source: ``generate_block_hash_extra_keys`` in vLLM 0.33, ``v1/core/kv_cache_utils.py``.
    """
    size = whole("block_size", block_size, 1, 65535)
    num_blocks = -(-whole("num_tokens", num_tokens, 0, _MOST_TOKENS) // size)
    named = {"lora": lora, "lora_path": lora_path, "salt": salt}
    for name, value in named.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    if lora_path is not None and lora is None:
        raise ValueError("lora_path must be None without lora")
    adapter: Keys = ()
    if lora is not None:
        adapter = (("lora", lora) if lora_path is None else ("lora", lora, lora_path),)
    keys: dict[int, list[str | bytes | int | Keys]] = {}
    if adapter:
        keys = {block: [*adapter] for block in range(num_blocks)}
    for block, key in _media(multimodal, size, num_blocks):
        keys.setdefault(block, []).append(key)
    if salt and num_blocks:
        keys.setdefault(0, []).append(("cache_salt", salt))
    for block, digest in (embeds or {}).items():
        index = whole("embeds block", block, 0, max(0, num_blocks - 1))
        if not isinstance(digest, bytes):
            raise TypeError(f"embeds must map to bytes, got {type(digest).__name__}")
        keys.setdefault(index, []).append(("prompt_embeds", digest))
    shared = _core.cbor_of(adapter)
    return {
        block: shared if len(of) == len(adapter) else _core.cbor_of(tuple(of))
        for block, of in sorted(keys.items())
    }


def _media(
    multimodal: Sequence[tuple[str, int, int]], size: int, num_blocks: int
) -> Iterator[tuple[int, Keys]]:
    """Each block that has part of an item, and its key."""
    for identifier, offset, length in multimodal:
        start = whole("multimodal offset", offset, 0, _MOST_TOKENS)
        count = whole("multimodal length", length, 1, _MOST_TOKENS)
        if not isinstance(identifier, str):
            raise TypeError(f"multimodal identifiers must be str, got {type(identifier).__name__}")
        for block in range(start // size, min(num_blocks, (start + count - 1) // size + 1)):
            yield block, ("mm", identifier, start - block * size)


def vllm_keys(extras: bytes) -> Keys:
    """The keys that the extras of one block encode.

    Raises:
        ValueError: ``vllm_extras`` did not make these bytes.
        TypeError: They are not bytes.

    >>> vllm_keys(vllm_extras(2, 2, salt="tenant")[0])
    (('cache_salt', 'tenant'),)
    """
    if not isinstance(extras, bytes):
        raise TypeError(f"extras must be bytes, got {type(extras).__name__}")
    keys = _core.cbor_items(extras)
    if not isinstance(keys, tuple):
        raise ValueError("extras must be the CBOR of an array of keys")
    return keys
