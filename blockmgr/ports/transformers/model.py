"""Hugging Face transformers on a paged KV cache, with unmodified models.

``PagedModel`` runs decoders whose layers either compute plain causal attention over all tokens, a
window or a chunk, with a selectable attention function (an attention backend of transformers), or
keep a recurrent state in transformers' cache; docs/guides/generate.md lists them. Capped scores are
supported. A trial on a copy without weights determines the needs of a model, so unsupported models
are refused before their weights load.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from blockmgr.errors import MissingExtraError

try:
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.kv import GroupedKVCache, HybridShape, PagedKVCache, num_blocks_for
from blockmgr.ports.transformers.forward import Forward, StateMemory, resumes
from blockmgr.ports.transformers.interface import AttentionConfigs, attending
from blockmgr.ports.transformers.latents import check_latents
from blockmgr.ports.transformers.parts import parts_of
from blockmgr.ports.transformers.past import Past, past_argument
from blockmgr.ports.transformers.trial import check_config, needs_of_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from blockmgr.groups import Group
    from blockmgr.ports.transformers.attention import PagedBatch
    from blockmgr.ports.transformers.needs import Needs, Windows

__all__ = ["PagedModel", "check_config", "load_model"]

_loading = threading.Lock()

CPU_CACHE_BYTES: Final = 2**30
BLOCK_SIZE: Final = 16
GPU_CACHE_SHARE: Final = 0.8  # of the free memory; the rest is for activations


class PagedModel:
    """A transformers model that keeps its K/V and its states in the blocks of a cache.

    It does not write to the model, so other threads may use the model even while a ``forward``
    runs: in other paged models with their own caches, or with its own ``generate``. In the thread
    of a ``forward``, a hook inside the model must not call that model again.

    Args:
        model: A causal language model, its weights on one device.
        cache: A cache of a shape that ``check_config`` returns for the model, on the model's
            device.

    Raises:
        UnsupportedModelError: The model needs something that is missing here.
        ValueError: The cache is of another shape or device.

    Attributes:
        model: The model.
        cache: Its K/V and states.
        groups: Groups of its layers, for a manager; empty for a single group with full attention.
        vocab_size: Bound of token ids.
        max_tokens: Most positions that the model supports; None if its config does not have it.
    """

    groups: tuple[Group, ...]
    vocab_size: int
    max_tokens: int | None

    def __init__(self, model: PreTrainedModel, cache: PagedKVCache) -> None:
        needs = needs_of_model(model)
        shapes = [needs.shape(windows, cache.block_size) for windows in ("masks", None)]
        if cache.shape not in shapes:
            raise ValueError(f"cache must have the model's shape {shapes[0]}, got {cache.shape}")
        if torch.device(cache.device) != model.device:
            raise ValueError(f"cache must be on {model.device}, got {cache.device}")
        self._set_up(model, cache, needs)

    @classmethod
    def with_cache(
        cls,
        model: PreTrainedModel,
        num_blocks: int | None,
        block_size: int | None,
        *,
        layout: str | None = None,
        windows: Windows | None = None,
    ) -> Self:
        """A paged model with a new cache of its shape, on its device.

        Args:
            model: A causal language model, its weights on one device.
            num_blocks: Blocks of the cache; None for as many as fit 1 GiB, or on a GPU 80 % of
                its free memory.
            block_size: Tokens per block; None for 16, or more if a recurrent state needs more, or
                layers whose K/V differ.
            layout: Layout of the K/V tensors, as in ``PagedKVCache``; None for the default.
            windows: ``"groups"``: layers with a window or a chunk keep only the K/V that they read.
                ``"masks"``: they keep the K/V of all tokens. None for groups if a layer has full
                attention, which groups need, else for masks.

        Raises:
            UnsupportedModelError: The model needs something that is missing here.
            PageSizeError: A block is too small for a recurrent state.
            ValueError: A value is out of its bounds.
        """
        if windows not in (None, "groups", "masks"):
            raise ValueError(f"windows must be 'groups', 'masks' or None, got {windows!r}")
        needs = needs_of_model(model)
        shape = needs.shape(windows, block_size)
        if block_size is None:
            block_size = BLOCK_SIZE
            if isinstance(shape, HybridShape):
                block_size = shape.block_size_for(BLOCK_SIZE)
        if num_blocks is None:
            num_blocks = num_blocks_for(_cache_bytes(model.device), shape, block_size)
        kind = GroupedKVCache if isinstance(shape, HybridShape) else PagedKVCache
        cache: Any = kind(num_blocks, block_size, shape, layout=layout, device=model.device)  # type: ignore[arg-type]
        paged = cls.__new__(cls)
        paged._set_up(model, cache, needs)
        return paged

    def _set_up(self, model: PreTrainedModel, cache: PagedKVCache, needs: Needs) -> None:
        self._needs = needs
        model.train(False)
        text = model.config.get_text_config()  # asked once, because transformers is slow to answer
        self.vocab_size = text.vocab_size
        self.max_tokens = getattr(text, "max_position_embeddings", None)
        self.model = model
        self.cache = cache
        self.groups = cache.shape.groups if isinstance(cache.shape, HybridShape) else ()
        self.model_changed()

    def model_changed(self) -> None:
        """Inspects the model again, after modules or configs were replaced.

        Changes of weights do not need this call, but the cache then holds K/V of the old weights.
        """
        self._configs = AttentionConfigs(self.model)
        self._states: StateMemory | None = None
        if self._needs.has_latents:
            with torch.inference_mode(), attending(self._configs):
                check_latents(self.model, self.device)
        if self._needs.has_states and isinstance(self.cache, GroupedKVCache):
            self._states = StateMemory(self.cache, self.model.config, self._needs)
            with torch.inference_mode(), attending(self._configs):
                self._resumes = resumes(self.model, self._needs, self.device)

    @property
    def device(self) -> torch.device:
        """Device of weights and K/V."""
        device: torch.device = self.model.device
        return device

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end-of-sequence tokens of the model's generation config."""
        ids = self.model.generation_config.eos_token_id
        return () if ids is None else tuple(ids) if isinstance(ids, list) else (ids,)

    def forward(self, batch: PagedBatch) -> torch.Tensor:
        """Writes the K/V of a batch and computes the requested logits.

        Returns:
            ``float32[num_outputs, vocab_size]`` on the model's device.

        Raises:
            ValueError: The batch has no tables for the groups of the cache.
            UnsupportedModelError: A layer did not use the cache, for instance because modules or
                configs of the model were replaced. K/V of the batch may be missing.
        """
        if len(batch.groups) != len(self.groups):
            raise ValueError(
                f"batch.groups must have tables for {len(self.groups)} groups, got "
                f"{len(batch.groups)}"
            )
        if self._states is None:
            return self._end_to_end(batch)
        return self._in_parts(batch, self._states)

    def _end_to_end(self, batch: PagedBatch) -> torch.Tensor:
        """All sequences in one row."""
        arguments: dict[str, Any] = {"use_cache": False}
        if self._needs.asks_length or self._needs.has_latents:
            # The difference between a token's position and its index in the row.
            ahead = torch.from_numpy(batch.positions - np.arange(len(batch.tokens)))
            arguments[past_argument(self.model)] = Past(self.model.config, ahead.to(self.device))
        outputs = torch.from_numpy(batch.outputs).to(self.device)
        return self._run(batch, 1, outputs, arguments)[0]

    def _in_parts(self, batch: PagedBatch, states: StateMemory) -> torch.Tensor:
        """One row per sequence, so that each has its own state."""
        logits = torch.empty(len(batch.outputs), self.vocab_size, device=self.device)
        parts = parts_of(batch, resumes=self._resumes, by_start=self._needs.asks_length)
        for part, rows, is_fresh in parts:
            past = states.load(part, is_fresh=is_fresh)
            count = int(part.query_lens[0])
            # The indices in a row at which any sequence needs logits.
            row, column = np.divmod(part.outputs, count)
            columns = np.unique(column) if len(column) else np.array([count - 1])
            arguments = {"use_cache": True, past_argument(self.model): past}
            kept = torch.from_numpy(columns).to(self.device)
            found = self._run(part, len(part.query_lens), kept, arguments)
            states.store(part, past)
            logits[torch.from_numpy(rows)] = found[row, np.searchsorted(columns, column)]
        return logits

    def _run(
        self, batch: PagedBatch, num_rows: int, kept: torch.Tensor, arguments: dict[str, Any]
    ) -> torch.Tensor:
        """A forward of the model: ``float32[num_rows, len(kept), vocab_size]``."""
        past = arguments.get(past_argument(self.model))
        paged_batch = Forward(self.cache, batch, self._needs, past)
        with torch.inference_mode(), attending(self._configs):
            result = self.model(
                input_ids=torch.from_numpy(batch.tokens).view(num_rows, -1).to(self.device),
                position_ids=torch.from_numpy(batch.positions).view(num_rows, -1).to(self.device),
                logits_to_keep=kept,
                paged_batch=paged_batch,
                **arguments,
            )
        paged_batch.check_complete(self.model.config.model_type)
        logits: torch.Tensor = result.logits.float()
        return logits


def load_model(
    path: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """Loads a causal language model from a local directory, after checking its config.

    It downloads nothing, and runs no code from the directory. While transformers loads weights of
    another element type, it changes torch's default type for the whole process: tensors that other
    threads make meanwhile should have an explicit type. Two calls of this function wait for each
    other.

    Args:
        path: Directory with ``config.json`` and the weights, as ``save_pretrained`` writes it.
        dtype: Element type of weights and K/V; by default that of the stored weights.
        device: Device of the weights.

    Raises:
        FileNotFoundError: There is no such directory, or no ``config.json`` in it.
        UnsupportedModelError: A paged cache cannot serve the model; nothing has been loaded.
        OSError: The files cannot be read.
    """
    if not (Path(path) / "config.json").is_file():
        raise FileNotFoundError(f"path must be a model directory with a config.json, got {path}")
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    check_config(config)
    with _loading:
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
