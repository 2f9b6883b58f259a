"""Latent attention: a layer keeps one vector per token, and expands it to K and V.

transformers passes the vector to its cache in two parts, and expands what it reads back with the
layer's own ``expand_kv``. So the blocks hold the vectors, and each context is expanded when it is
read.

Source: multi-head latent attention, DeepSeek-V2, 2024, section 2.1; ``expand_kv`` of transformers
5.24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

from blockmgr.ports.transformers.past import Past, past_argument

if TYPE_CHECKING:
    from blockmgr.ports.transformers.attention import Expand

__all__ = ["check_latents", "is_latent", "latents_of"]


def is_latent(module: torch.nn.Module) -> bool:
    """Whether an attention layer expands its K and V from latents in its cache."""
    return callable(getattr(module, "expand_kv", None))


def latents_of(module: torch.nn.Module, past: Past) -> tuple[torch.Tensor, Expand]:
    """The latents that a layer passed to its cache, and the function that expands them.

    Args:
        module: The layer, which is about to attend.
        past: Its cache in this forward.

    Returns:
        Latents ``[num_tokens, 1, latent_dim]``, with rows concatenated, and a function of the
        latents of several sequences.

    Raises:
        UnsupportedModelError: The layer passed nothing, or not one vector per token.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    handed = past.handed(layer)
    if handed is None or any(each.ndim != 4 or each.shape[1] != 1 for each in handed):
        raise UnsupportedModelError(
            type(module).__name__, f"layer {layer} passes no latents of its tokens"
        )
    sizes = [each.shape[-1] for each in handed]
    make: Any = module.expand_kv

    def expand(latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = make(*latents.split(sizes, dim=-1))
        return key, value

    return torch.cat(handed, dim=-1).transpose(1, 2).flatten(0, 1), expand


class _Compared:
    """Replaces attention when only the expanded latents matter."""

    def __init__(self, past: Past) -> None:
        self._past = past

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """The values themselves, which have the size of the output."""
        del query, options
        if is_latent(module):
            latents, expand = latents_of(module, self._past)
            rows = latents.unflatten(0, (key.shape[0], -1)).transpose(1, 2)
            for ours, theirs in zip(expand(rows), (key, value), strict=True):
                if not torch.allclose(ours, theirs, equal_nan=True):
                    raise UnsupportedModelError(
                        type(module).__name__,
                        f"layer {module.layer_idx} attends to other K/V than its latents expand to",
                    )
        return value.transpose(1, 2).flatten(0, 1).contiguous()


def check_latents(model: torch.nn.Module, device: torch.device) -> None:
    """Refuses a model that changes K or V between expansion and attention.

    Args:
        model: The model with weights, which uses an attention function of ``interface``.
        device: Device of the model.

    Raises:
        UnsupportedModelError: A layer does.
    """
    past = Past(model.config, torch.zeros(2, dtype=torch.int64, device=device))  # type: ignore[arg-type]
    tokens = torch.arange(2, device=device)[None]
    model(
        input_ids=tokens,
        position_ids=tokens,
        use_cache=False,
        paged_batch=_Compared(past),
        **{past_argument(model): past},
    )
