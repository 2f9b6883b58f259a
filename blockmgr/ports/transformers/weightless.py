"""Builds models without weights, and without changing anything that other threads see.

transformers makes a model of another element type by changing torch's default for the whole
process while it builds: tensors that another thread makes meanwhile have that type, too, and if two
threads build, the wrong default can stay. Here the type belongs to one thread.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["build"]

# Functions that make tensors of torch's default type unless they are given one.
MAKERS: Final = frozenset(
    getattr(torch, name)
    for name in (
        "arange", "as_tensor", "empty", "empty_permuted", "empty_strided", "eye", "full",
        "linspace", "logspace", "normal", "ones", "rand", "randn", "range", "scalar_tensor",
        "tensor", "zeros",
    )
)  # fmt: skip


class _Typed(TorchFunctionMode):
    """New tensors of floats have this type, in this thread."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        named = kwargs or {}
        made = func(*args, **named)
        if func not in MAKERS or named.get("dtype") is not None:
            return made
        # A tensor that the caller passed keeps its type: ``as_tensor`` returns it.
        is_default = isinstance(made, torch.Tensor) and made.dtype == torch.get_default_dtype()
        return made.to(self._dtype) if is_default and not _is_given(made, args) else made


def _is_given(made: torch.Tensor, args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor) and made.dtype == args[0].dtype


def build(
    make: Callable[..., PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """A model on the meta device, with this element type.

    Args:
        make: Makes it from a config, as transformers' ``from_config``: a config without an element
            type leaves torch's default alone.
        config: Its config, which stays as it is.
        dtype: Element type of its parameters, except where the model chooses another one.
    """
    own = copy.deepcopy(config)
    _forget_type(own)
    with torch.device("meta"), _Typed(dtype):
        return make(own)


def _forget_type(config: PretrainedConfig) -> None:
    """Parts that a model builds from their own configs must not change the default type either."""
    config.dtype = None
    for name in config.sub_configs:
        if (part := getattr(config, name, None)) is not None:
            _forget_type(part)
