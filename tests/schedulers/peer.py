"""An engine's scheduler and block manager, taken from its wheel without what they need to serve.

The modules of the scheduler, of sequences and of blocks are the engine's own, unchanged. All else
that they import is a stand-in: names without a meaning, or the few lines that are needed.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.util
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class Device(enum.Enum):
    """The engine's own, of which ours is another."""

    GPU = enum.auto()
    CPU = enum.auto()


class PyObjectCache:
    """Objects that are built once and used over and over."""

    def __init__(self, build: Any) -> None:
        self._build = build
        self._used = 0
        self._objects: list[Any] = []

    def get_object(self) -> Any:
        if self._used == len(self._objects):
            self._objects.append(self._build())
        self._used += 1
        return self._objects[self._used - 1]

    def reset(self) -> None:
        self._used = 0


def chunk_list(items: list[Any], size: int) -> Iterator[list[Any]]:
    for i in range(0, len(items), size):
        yield items[i : i + size]


REAL_VALUES: dict[str, dict[str, Any]] = {
    "utils": {
        "Device": Device,
        "PyObjectCache": PyObjectCache,
        "cdiv": lambda a, b: -(-a // b),
        "chunk_list": chunk_list,
    },
    "logger": {"init_logger": logging.getLogger},
    "inputs.parse": {"is_valid_encoder_decoder_llm_inputs": lambda inputs: False},
    "platforms": {"current_platform": SimpleNamespace(is_hpu=lambda: False)},
    "envs": defaultdict(bool),
    "multimodal": {"MultiModalKwargs": dict, "MultiModalDataDict": dict},
}


class StandIn(ModuleType):
    """A module of which every name is a class of nothing, but for those that are given."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = next((v for k, v in REAL_VALUES.items() if self.__name__.endswith("." + k)), {})
        value = known[name] if name in known else type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an engine's own modules where they are own, and a stand-in otherwise."""

    def __init__(self, package: str, folder: Path, own: tuple[str, ...]) -> None:
        self.package = package
        self.folder = folder
        self.own = own

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top == "torch" and name not in sys.modules:
            return ModuleSpec(name, self, is_package=True)
        if top != self.package:
            return None
        if any(rest == own or rest.startswith(own + ".") for own in self.own):
            place = self.folder / Path(*rest.split("."))
            if place.is_dir():
                return ModuleSpec(name, None, is_package=True) if not (place / "__init__.py").exists() \
                    else importlib.util.spec_from_file_location(
                        name, place / "__init__.py", submodule_search_locations=[str(place)])  # fmt: skip
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do."""


class Peer:
    """One engine.

    Args:
        package: ``"vllm"`` or ``"aphrodite"``.
        folder: Where its wheel was unpacked to: the folder of the package.
    """

    def __init__(self, package: str, folder: Path) -> None:
        self.package = package
        core, sequence = {"vllm": ("core", "sequence"), "aphrodite": ("processing", "common.sequence")}[
            package
        ]  # fmt: skip
        logging.getLogger().setLevel(logging.CRITICAL)
        sys.meta_path.insert(0, Finder(package, folder, (core, sequence)))
        load = importlib.import_module
        if importlib.util.find_spec("loguru"):
            load("loguru").logger.remove()
        self.sequence: Any = load(f"{package}.{sequence}")
        self.interfaces: Any = load(f"{package}.{core}.interfaces")
        self.scheduler: Any = load(f"{package}.{core}.scheduler")
        self.has_extra_hash = hasattr(self.sequence.Sequence, "extra_hash")

    def own_manager(self) -> Any:
        """The class of its own block manager."""
        choose = self.interfaces.BlockSpaceManager.get_block_space_manager_class
        return choose("selfattn" if self.package == "vllm" else "v2")

    def make_scheduler(self, manager: Any, options: SimpleNamespace) -> Any:
        """Its scheduler, on a manager of its own or of ours."""
        space = self.interfaces.BlockSpaceManager
        before = space.__dict__["get_block_space_manager_class"]
        space.get_block_space_manager_class = staticmethod(lambda version: manager)
        try:
            return self.scheduler.Scheduler(options.scheduler, options.cache, None)
        finally:
            space.get_block_space_manager_class = before

    def make_group(self, name: int, prompt: list[int], adapter: Any) -> Any:
        """A request of one sequence, computed with an adapter or None."""
        inputs: Any = {"type": "token", "prompt": "", "prompt_token_ids": list(prompt)}
        seq = self.sequence.Sequence(name, inputs, 4, lora_request=adapter)
        return self.sequence.SequenceGroup(
            str(name), [seq], arrival_time=float(name), lora_request=adapter
        )
