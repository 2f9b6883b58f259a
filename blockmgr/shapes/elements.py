"""Element types of a cache: torch's, or names and sizes for those who make no tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import torch

__all__ = ["ELEMENTS", "Element", "check_dtype", "element_of", "torch_dtype"]


class Element(NamedTuple):
    """An element type without torch, for sizes alone."""

    name: str
    itemsize: int
    """Bytes."""

    def __str__(self) -> str:
        return self.name


ELEMENTS: Final = {
    name: Element(name, itemsize)
    for name, itemsize in (
        ("float32", 4),
        ("bfloat16", 2),
        ("float16", 2),
        ("float8_e4m3fn", 1),
        ("float8_e5m2", 1),
        ("int8", 1),
    )
}
"""Element types of caches, by torch's name."""


def element_of(value: object) -> Element:
    """The element type that a config names, without torch."""
    name = str(value).removeprefix("torch.")
    if name not in ELEMENTS:
        _refuse_none(value)
        known = ", ".join(ELEMENTS)
        raise ValueError(f"dtype of the config must be one of {known}, got {value!r}; pass dtype")
    return ELEMENTS[name]


def torch_dtype(value: Any) -> torch.dtype:
    """The element type that a config names or has."""
    _refuse_none(value)
    import torch  # noqa: PLC0415  # takes seconds, and a replay does without

    named = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else value
    if not isinstance(named, torch.dtype):
        raise ValueError(f"dtype of the config names no torch.dtype: {value!r}; pass dtype")
    return named


def _refuse_none(value: object) -> None:
    if value is None:
        raise ValueError("config has no dtype or torch_dtype; pass dtype")


def check_dtype(dtype: object) -> None:
    """Refuses what is no element type."""
    kind = type(dtype)
    if kind is not Element and f"{kind.__module__}.{kind.__name__}" != "torch.dtype":
        raise TypeError(f"dtype must be a torch.dtype, got {dtype!r}")
