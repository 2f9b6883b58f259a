"""The namespace and the extra keys of a request."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys

from blockmgr.ports.vllm.options import namespace_of

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["extras_of", "namespace", "session_of"]

MAX_KEY = 1024  # bytes
MAX_SESSION = 256  # bytes


def namespace(request: Request) -> bytes:
    """A namespace from the cache salt and the adapter's name and path."""
    if not request.lora_request:
        return namespace_of(request.cache_salt, None)
    adapter = request.lora_request
    return namespace_of(request.cache_salt, adapter.lora_name, adapter.lora_path)


def session_of(request: Request) -> bytes:
    """The session that the request names (``session_id`` in ``vllm_xargs``, since vLLM 0.33)."""
    name = getattr(request, "session_id", None)
    if type(name) is not str:
        return b""
    session = name.encode(errors="surrogatepass")
    return session if len(session) <= MAX_SESSION else hashlib.sha256(session).digest()


def extras_of(request: Request, block_size: int) -> dict[int, bytes] | None:
    """Extra keys for images and embeddings by block, as in vLLM.

    Different keys have different ``repr``, because they are tuples of texts, numbers and bytes.
    """
    if not request.mm_features and request.prompt_embeds is None:
        return None
    extras, index = {}, 0
    for block in range(-(-request.num_tokens // block_size)):
        start = block * block_size
        keys, index = generate_block_hash_extra_keys(request, start, start + block_size, index)
        # The namespace has the others. With them, prompts with and without images share no block.
        if keys := tuple(each for each in keys or () if each[0] not in {"lora", "cache_salt"}):
            key = repr(keys).encode()
            extras[block] = key if len(key) <= MAX_KEY else hashlib.sha256(key).digest()
    return extras
