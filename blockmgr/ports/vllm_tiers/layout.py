"""What a slab of vLLM is for: keys, and what decides the bytes of a chunk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm.plugin import scheduler_config

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KEY_BYTES", "KEY_WORDS", "file_of", "layout_of", "words"]

KEY_BYTES = 36
"""A key of vLLM's offloading: SHA-256 of a prefix, and the number of its group."""
KEY_WORDS = KEY_BYTES // 4
CRYPTOGRAPHIC = ("sha256", "sha256_cbor")
# Of a model's configuration: they say who wrote it, not what it computes.
NOT_THE_MODEL = ("_name_or_path", "_commit_hash", "transformers_version")
INSTEAD = "Give `revision`, a name for the weights that changes whenever they do"


def words(key: bytes) -> npt.NDArray[np.uint32]:
    """A key as the tokens of a block, which the pool compares whole."""
    return np.frombuffer(key, "<u4")


def file_of(path: str, config: Any) -> str:
    """The file of this engine, of several that are data-parallel."""
    parallel = config.parallel
    is_alone = parallel.data_parallel_size == 1
    return path if is_alone else f"{path}-dp{parallel.data_parallel_index}"


def layout_of(spec: Any, revision: str) -> dict[str, str | int]:
    """What decides the bytes of a chunk, by name."""
    import vllm  # noqa: PLC0415

    config = spec.config
    parallel = config.parallel
    groups = [(g.group_id, g.tokens_per_block, g.layer_names) for g in config.groups]
    return {
        "engine": f"vLLM {vllm.__version__}",
        "model": config.model.name,
        **_weights(revision),
        "dtype": config.model.dtype,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "blocks_per_chunk": config.cache.blocks_per_chunk,
        "groups": _digest(groups),
        "rank": parallel.rank,
        "ranks": (
            f"tp {parallel.tp_size}, pp {parallel.pp_size}, pcp {parallel.pcp_size}, "
            f"dcp {parallel.dcp_size}"
        ),
        "kv_cache_layout": str(config.kv_cache_layout),
        "canonical_layout": int(config.canonical_layout),
        "replicated_layout": int(config.replicated_layout),
        "device": _device(),
    }


def _device() -> str:
    """The device, because kernels for another may pack K/V in another way."""
    from vllm.platforms import current_platform  # noqa: PLC0415

    if current_platform.device_type == "cpu":
        import torch  # noqa: PLC0415

        return f"cpu {torch.backends.cpu.get_cpu_capability()}"
    try:
        return str(current_platform.get_device_name())
    except NotImplementedError:  # vLLM has no kernels here
        return "none"


def _weights(revision: str) -> dict[str, str | int]:
    """The weights, and the settings of the model that change what they compute."""
    engine = scheduler_config()
    if engine is None:
        if not revision:
            reason = "blockmgr's plug-in of vLLM is off, so the weights are not known"
            raise UnsupportedConfigError((reason,), INSTEAD)
        return {"revision": revision}
    algorithm = engine.cache_config.prefix_caching_hash_algo
    if algorithm not in CRYPTOGRAPHIC:
        raise UnsupportedConfigError(
            (f"prefix_caching_hash_algo {algorithm!r} has no keys that stand for a prefix alone",),
            f"Use one of {', '.join(CRYPTOGRAPHIC)}",
        )
    if engine.lora_config is not None and not revision:
        reason = "keys name an adapter (LoRA), and not its weights"
        raise UnsupportedConfigError((reason,), INSTEAD)
    model = engine.model_config
    settings = {k: v for k, v in model.hf_config.to_dict().items() if k not in NOT_THE_MODEL}
    backend = getattr(getattr(engine, "attention_config", None), "backend", None)
    return {
        "revision": revision or _revision_of(model),
        "weights_dtype": str(model.dtype).removeprefix("torch."),
        "settings": _digest([settings, str(model.quantization), str(backend)]),
    }


def _revision_of(model: Any) -> str:
    """The revision that vLLM resolved; of local files, their names, sizes and times."""
    path = Path(model.model)
    if path.exists():
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return f"files {_digest(_stats(files))}"
    if model.revision is None:
        raise UnsupportedConfigError((f"vLLM does not know the revision of {path}",), INSTEAD)
    return str(model.revision)


def _stats(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    found = ((file.name, os.stat(file)) for file in files if file.is_file())
    return [(name, about.st_size, about.st_mtime_ns) for name, about in found]


def _digest(value: object) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())
