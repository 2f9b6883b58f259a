"""Lets vLLM make models for an NVIDIA H100 on a machine without one.

vLLM chooses kernels, block sizes and pages by platform, so what its planner makes of a model on a
CPU is not what users see. Here vLLM's own CUDA platform answers as an H100 would. Parameters and
buffers are on the meta device. Compiled extensions and packages that only kernels need are replaced
by objects that accept any call: no kernel runs. Import it before anything of vLLM.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import MagicMock

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else vLLM turns Triton off, and modules use its types

import torch
import torch._ops
from torch.overrides import TorchFunctionMode

__all__ = ["OnMeta", "install"]

GIB = 2**30
KERNEL_PACKAGES = ("cuda", "cutlass", "deep_gemm", "quack", "torchvision")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by a rule, and makes them have every name."""

    def __init__(self, stands_in: Callable[[str], bool]) -> None:
        self.stands_in = stands_in

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = self.stands_in(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def _is_extension(name: str) -> bool:
    last = name.rpartition(".")[2]
    return name.startswith("vllm.") and last.startswith("_") and "_C" in last


def _is_for_kernels(name: str) -> bool:
    return name.partition(".")[0] in KERNEL_PACKAGES


class Module(types.ModuleType):
    """A module that has every name."""

    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class Nothing(MagicMock):
    """A stream or an event on which nothing runs; a class, as others ask whether they have one."""


class OnMeta(TorchFunctionMode):
    """Makes tensors for CUDA on the meta device."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _platform() -> Any:
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    class H100(CudaPlatformBase):
        """What vLLM's CUDA platform asks of the driver."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100 80GB HBM3"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 * GIB

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def device_count(cls) -> int:
            return 1

        @classmethod
        def current_device(cls) -> Any:
            return torch.device("meta")

    return H100()


def _any_kernel() -> None:
    """Operators that extensions would register; those that ask what a GPU can do answer yes."""
    original = torch._ops._OpNamespace.__getattr__

    def get(self: Any, name: str) -> Any:
        try:
            return original(self, name)
        except AttributeError:
            if name.startswith("__") or not self.name.startswith("_"):
                raise
            return MagicMock(name=f"{self.name}.{name}", return_value=True)

    torch._ops._OpNamespace.__getattr__ = get  # type: ignore[method-assign]


def install() -> None:
    """Replaces the platform, before models are imported."""
    sys.meta_path.insert(0, StandIns(_is_extension))  # they do not load without CUDA
    from vllm import platforms

    platforms._current_platform = _platform()
    torch.cuda.Stream = torch.cuda.Event = Nothing  # type: ignore[misc, assignment]
    torch.cuda.get_device_properties = MagicMock(  # type: ignore[assignment]
        return_value=MagicMock(multi_processor_count=132, major=9, minor=0)
    )
    torch.accelerator.empty_cache = MagicMock()  # type: ignore[assignment]
    # What these register, they register only if the extensions have it.
    import vllm._custom_ops
    import vllm.v1.engine.core  # noqa: F401
    from vllm.model_executor.models import registry

    _any_kernel()
    # Not before: libraries that are installed ask whether these packages are.
    sys.meta_path.append(StandIns(_is_for_kernels))

    def inspect(self: Any) -> Any:  # vLLM starts a process, which would not know this platform
        return registry._ModelInfo.from_model_cls(self.load_model_cls())

    registry._LazyRegisteredModel.inspect_model_cls = inspect  # type: ignore[method-assign]
