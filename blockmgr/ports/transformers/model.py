"""Hugging Face transformers on a paged KV cache: an unmodified model, read through block tables.

``PagedModel`` runs decoders whose layers all do plain causal attention and let the attention
function be chosen, which is what transformers calls an attention backend; docs/guides/generate.md
lists them. Sliding windows and capped scores are honoured. The needs of a model are found
out on a copy without weights, so unsupported models are refused before any load.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.kv import PagedKVCache, num_blocks_for
from blockmgr.ports.transformers.interface import AttentionConfigs, attending
from blockmgr.ports.transformers.kernels import choose_kernel
from blockmgr.ports.transformers.trial import check_config, check_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from blockmgr.ports.transformers.attention import PagedBatch, Reader
    from blockmgr.ports.transformers.kernels import KernelName

__all__ = ["PagedModel", "check_config", "load_model"]

CPU_CACHE_BYTES: Final = 2**30
GPU_CACHE_SHARE: Final = 0.8  # of the free memory; the rest is for activations


class PagedModel:
    """A transformers model that keeps its K/V in a ``PagedKVCache``.

    Nothing is written to the model, and others may use it at any moment, in other threads also
    while a ``forward`` runs: several paged models with a cache each, and its own ``generate``. In
    the thread of a ``forward``, a hook inside the model must not call that model again.

    Args:
        model: A causal language model, its weights on one device.
        cache: Of the model's ``shape``, on the model's device.
        kernel: What computes attention: ``"sdpa"`` (torch, any device), ``"flashinfer"`` or
            ``"flash_attn"`` (CUDA, float16 and bfloat16, if installed).

    Raises:
        UnsupportedModelError: The model needs something that is missing here.
        ValueError: The cache is of another shape or device, or the kernel cannot run on it.
        ImportError: The kernel's package is not installed.

    Attributes:
        model: The model.
        cache: Its K/V.
        vocab_size: Token ids are below this.
        max_tokens: Positions that the model was made for; None if its config does not say.
    """

    vocab_size: int
    max_tokens: int | None

    def __init__(
        self, model: PreTrainedModel, cache: PagedKVCache, *, kernel: KernelName = "sdpa"
    ) -> None:
        shape = check_model(model)
        if cache.shape != shape:
            raise ValueError(f"cache must have the model's shape {shape}, got {cache.shape}")
        if torch.device(cache.device) != model.device:
            raise ValueError(f"cache must be on {model.device}, got {cache.device}")
        self._set_up(model, cache, kernel)

    @classmethod
    def with_cache(
        cls,
        model: PreTrainedModel,
        num_blocks: int | None,
        block_size: int,
        *,
        layout: str = "NHD",
        kernel: KernelName = "sdpa",
    ) -> Self:
        """A model with a cache of its shape, on its device.

        Args:
            model: A causal language model, its weights on one device.
            num_blocks: Blocks of the cache; None for as many as fit 1 GiB, or on a GPU 80 % of
                its free memory.
            block_size: Tokens per block.
            layout: Of the K/V tensors, as ``PagedKVCache`` names it.
            kernel: What computes attention.

        Raises:
            UnsupportedModelError: The model needs something that is missing here.
            ValueError: A value is out of its bounds, or the kernel cannot read such a cache.
            ImportError: The kernel's package is not installed.
        """
        shape = check_model(model)
        if num_blocks is None:
            num_blocks = num_blocks_for(_cache_bytes(model.device), shape, block_size)
        cache = PagedKVCache(num_blocks, block_size, shape, layout=layout, device=model.device)
        paged = cls.__new__(cls)
        paged._set_up(model, cache, kernel)
        return paged

    def _set_up(self, model: PreTrainedModel, cache: PagedKVCache, kernel: KernelName) -> None:
        self._kernel = choose_kernel(kernel, cache)
        model.train(False)
        text = model.config.get_text_config()  # asked once: transformers takes its time to answer
        self.vocab_size = text.vocab_size
        self.max_tokens = getattr(text, "max_position_embeddings", None)
        self.model = model
        self.cache = cache
        self.model_changed()

    def model_changed(self) -> None:
        """Looks at the model again, after modules or configs of it have been replaced.

        Weights that change need no call here; what the cache holds was computed with the old ones.
        """
        self._configs = AttentionConfigs(self.model)

    @property
    def device(self) -> torch.device:
        """Where weights and K/V live."""
        device: torch.device = self.model.device
        return device

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end-of-sequence tokens of the model's generation config."""
        ids = self.model.generation_config.eos_token_id
        return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)

    def forward(self, batch: PagedBatch) -> torch.Tensor:
        """Writes the K/V of a batch's tokens and computes the logits that it asks for.

        Returns:
            ``float32[num_outputs, vocab_size]`` on the model's device.

        Raises:
            UnsupportedModelError: A layer has not attended to the cache, since modules or configs
                of the model have been replaced, say. K/V of the batch may be missing.
        """
        device = self.model.device
        paged_batch = _Forward(self.cache, self._kernel.plan(batch), batch)
        with torch.inference_mode(), attending(self._configs):
            result = self.model(
                input_ids=torch.from_numpy(batch.tokens)[None].to(device),
                position_ids=torch.from_numpy(batch.positions)[None].to(device),
                use_cache=False,
                logits_to_keep=torch.from_numpy(batch.outputs).to(device),
                paged_batch=paged_batch,
            )
        paged_batch.check_complete(self.model.config.model_type)
        logits: torch.Tensor = result.logits[0].float()
        return logits


def load_model(
    path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Loads a causal language model from a local directory, after checking its config.

    Nothing is downloaded, and no code that lies beside the weights is run.

    Args:
        path: Directory with ``config.json`` and the weights, as ``save_pretrained`` writes it.
        dtype: Of weights and K/V; by default that of the stored weights.
        device: Where the weights go.

    Raises:
        FileNotFoundError: There is no such directory, or no ``config.json`` in it.
        UnsupportedModelError: A paged cache cannot serve the model; nothing has been loaded.
        OSError: The files cannot be read.
    """
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"path must be a model directory with a config.json, got {path}")
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    check_config(config)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path, config=config, dtype=dtype or "auto", local_files_only=True
    )
    model: PreTrainedModel = loaded.to(device)
    return model


def _cache_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_CACHE_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * GPU_CACHE_SHARE)


class _Forward:
    """What the attention layers of one forward share."""

    def __init__(self, cache: PagedKVCache, reader: Reader, batch: PagedBatch) -> None:
        self._cache = cache
        self._reader = reader
        self._slots = cache.slots(batch.slots)  # checked once for all layers
        self._attended: list[int] = []

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        # [1, heads, tokens, dim] is how transformers hands it over.
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        layer: int = module.layer_idx  # type: ignore[assignment]
        self._attended.append(layer)
        self._cache.write(layer, key, value, self._slots)
        scale = options.get("scaling")
        return self._reader.attend(
            layer,
            query,
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            window=options.get("sliding_window"),
            softcap=options.get("softcap"),
        )

    def check_complete(self, model_type: str) -> None:
        """Raises unless every layer has attended here, once."""
        num_layers = self._cache.shape.num_layers
        if sorted(self._attended) != list(range(num_layers)):
            raise UnsupportedModelError(
                model_type,
                f"layers {sorted(self._attended)} of {num_layers} attended to the cache in a "
                "forward; if modules or configs were replaced, call model_changed() or reset()",
            )
