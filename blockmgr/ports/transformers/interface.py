"""transformers' attention interface: the functions registered there, and which forwards use them.

Each layer of a model asks its config for the name of an attention function, and looks the name up
in a registry of the process. Nothing here writes to a config: while ``attending`` runs, and in its
thread alone, the configs of one model answer with a name of this module. Any other thread, and any
other model, reads what the config holds.

Source: ``AttentionInterface`` and ``AttentionMaskInterface`` of transformers 5.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from blockmgr.errors import MissingExtraError, UnsupportedModelError

try:
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ATTENTION", "TRIAL", "Attends", "AttentionConfigs", "attending", "mask_rule"]

ATTENTION: Final = "blockmgr"
"""Name under which a forward over a paged cache attends. No mask is made for it."""

TRIAL: Final = "blockmgr_trial"
"""Name for a forward without weights. A mask is made for it, and ``mask_rule`` tells by what."""


class Attends(Protocol):
    """What a forward is given as ``paged_batch``."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        """The attention of one layer; the tensors are ``[rows, heads, tokens, head_dim]``.

        Returns:
            ``[rows * tokens, heads, head_dim]``.
        """
        ...


class AttentionConfigs:
    """The configs that a model's layers ask for their attention function.

    Args:
        model: The model. Configs of its own, of its submodules and inside of configs count.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        found: dict[int, PretrainedConfig] = {}
        todo = [each for module in model.modules() for each in _configs_in(vars(module).values())]
        while todo:
            config = todo.pop()
            if id(config) not in found:
                found[id(config)] = config
                todo += _configs_in(getattr(config, name, None) for name in config.sub_configs)
        self._by_id = found  # keeps them alive, so that no id is used again

    def __contains__(self, config: PretrainedConfig) -> bool:
        return id(config) in self._by_id


def _configs_in(values: Iterable[object]) -> list[PretrainedConfig]:
    return [value for value in values if isinstance(value, PretrainedConfig)]


class _Running(threading.local):
    """Of each thread: whose forward runs in it, and under which name that one attends."""

    configs: AttentionConfigs | None = None
    name: str = ATTENTION


_running = _Running()
_stored: Final[Any] = vars(PretrainedConfig)["_attn_implementation"]  # a property
_stored_name: Final[Callable[[PretrainedConfig], str | None]] = _stored.fget


def _attn_implementation(config: PretrainedConfig) -> str | None:
    """The attention function that a config names, in place of transformers' own property."""
    running = _running.configs
    if running is not None and config in running:
        return _running.name
    return _stored_name(config)


# A property of the class, because anything kept in a model or in its config is shared by all its
# users.
PretrainedConfig._attn_implementation = property(  # type: ignore[method-assign, assignment]
    _attn_implementation, _stored.fset, _stored.fdel, _stored.__doc__
)


@contextmanager
def attending(configs: AttentionConfigs, name: str = ATTENTION) -> Iterator[None]:
    """Lets the forwards of one model attend under a name of this module, in this thread.

    Args:
        configs: Of the model.
        name: ``ATTENTION`` or ``TRIAL``.
    """
    before = _running.configs, _running.name
    _running.configs, _running.name = configs, name
    try:
        yield
    finally:
        _running.configs, _running.name = before


def _paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *,
    paged_batch: Attends | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What is registered as ``ATTENTION``."""
    if paged_batch is None:
        raise UnsupportedModelError(
            type(module).__name__,
            "it attends without the arguments of its forward: the model does not hand them on, or "
            "it was called again, by a hook, inside a forward over a paged cache",
        )
    if attention_mask is not None:
        raise UnsupportedModelError(
            type(module).__name__, "it masks its attention in a way of its own"
        )
    attended = paged_batch.attend(module, query, key, value, **options)
    return attended.unflatten(0, (query.shape[0], -1)), None


def _trial_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What is registered as ``TRIAL``: the mask is handed on with everything else."""
    return _paged_attention(module, query, key, value, None, mask=attention_mask, **options)


def _trial_mask(*, mask_function: Callable[..., Any], **_: Any) -> torch.Tensor:
    """A mask without values that remembers which keys it would let a query see."""
    mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device="meta")
    mask.blockmgr_rule = mask_function  # type: ignore[attr-defined]
    return mask


def mask_rule(mask: torch.Tensor) -> Callable[..., Any] | None:
    """What a mask of a ``TRIAL`` lets through, as transformers' ``mask_function``.

    Returns:
        A function of batch, head, query position and key position; None if a model made the mask
        itself, or has changed it.
    """
    return getattr(mask, "blockmgr_rule", None)


AttentionInterface.register(ATTENTION, _paged_attention)
AttentionInterface.register(TRIAL, _trial_attention)
AttentionMaskInterface.register(TRIAL, _trial_mask)
