"""Registers attention functions in transformers, and selects the forwards that use them.

Each layer of a model reads the name of an attention function from its config, and looks the name up
in a registry of the process. This module does not write to configs: inside ``attending``, and only
in its thread, the configs of one model return a name of this module. Other threads and other models
read the config's own value.

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
"""Name of the attention function for a forward over a paged cache, without a mask."""

TRIAL: Final = "blockmgr_trial"
"""Name for a forward without weights, with a mask for which ``mask_rule`` has the rule."""


class Attends(Protocol):
    """The object that a forward gets as ``paged_batch``."""

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
        model: The model. Includes configs of submodules and nested configs.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        found: dict[int, PretrainedConfig] = {}
        todo = [each for module in model.modules() for each in _configs_in(vars(module).values())]
        while todo:
            config = todo.pop()
            if id(config) not in found:
                found[id(config)] = config
                todo += _configs_in(getattr(config, name, None) for name in config.sub_configs)
        self._by_id = found  # keeps them alive, so that no id is reused

    def __contains__(self, config: PretrainedConfig) -> bool:
        return id(config) in self._by_id


def _configs_in(values: Iterable[object]) -> list[PretrainedConfig]:
    return [value for value in values if isinstance(value, PretrainedConfig)]


class _Running(threading.local):
    """For each thread: the model whose forward runs in it, and its attention function."""

    configs: AttentionConfigs | None = None
    name: str = ATTENTION


_running = _Running()
_stored: Final[Any] = PretrainedConfig._attn_implementation  # a property, read off its class
_stored_name: Final[Callable[[PretrainedConfig], str | None]] = _stored.fget


def _attn_implementation(config: PretrainedConfig) -> str | None:
    """The attention function of a config; replaces transformers' own property."""
    running = _running.configs
    if running is not None and config in running:
        return _running.name
    return _stored_name(config)


# A property of the class, because all users share the objects of a model and its config.
PretrainedConfig._attn_implementation = property(  # type: ignore[method-assign, assignment]
    _attn_implementation, _stored.fset, _stored.fdel, _stored.__doc__
)


@contextmanager
def attending(configs: AttentionConfigs, name: str = ATTENTION) -> Iterator[None]:
    """Makes forwards of one model in this thread use an attention function of this module.

    Args:
        configs: The configs of the model.
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
    """The function registered as ``ATTENTION``."""
    if paged_batch is None:
        raise UnsupportedModelError(
            type(module).__name__,
            "it attends without the arguments of its forward: the model does not hand them on, or "
            "it was called again, by a hook, inside a forward over a paged cache",
        )
    if attention_mask is not None:
        raise UnsupportedModelError(type(module).__name__, "it uses an attention mask of its own")
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
    """The function registered as ``TRIAL``, which also passes the mask."""
    return _paged_attention(module, query, key, value, None, mask=attention_mask, **options)


def _trial_mask(*, mask_function: Callable[..., Any], **_: Any) -> torch.Tensor:
    """A mask without values that stores its mask function."""
    mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device="meta")
    mask.blockmgr_rule = mask_function  # type: ignore[attr-defined]
    return mask


def mask_rule(mask: torch.Tensor) -> Callable[..., Any] | None:
    """The ``mask_function`` of transformers behind a mask of a ``TRIAL``.

    Returns:
        A function of batch, head, query position and key position; None if the model created or
        changed the mask itself.
    """
    return getattr(mask, "blockmgr_rule", None)


AttentionInterface.register(ATTENTION, _paged_attention)
AttentionInterface.register(TRIAL, _trial_attention)
AttentionMaskInterface.register(TRIAL, _trial_mask)
