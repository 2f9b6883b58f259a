"""An engine's scheduler and block manager from its wheel, without the rest of the engine.

The modules of the scheduler, of sequences and of blocks are the engine's own, unchanged. Everything
else that they import is a stand-in: empty classes, or the few lines that are needed.
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
from typing import Any, ClassVar


class Device(enum.Enum):
    """The engine's own class, which ours replaces."""

    GPU = enum.auto()
    CPU = enum.auto()


class PyObjectCache:
    """A cache of objects that are reused."""

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


class Inputs:
    """A prompt with only tokens."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        self.inputs = inputs
        self.prompt_token_ids = inputs["prompt_token_ids"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


REAL_VALUES: dict[str, dict[str, Any]] = {
    "utils": {
        "Device": Device,
        "PyObjectCache": PyObjectCache,
        "cdiv": lambda a, b: -(-a // b),
        "chunk_list": chunk_list,
    },
    "logger": {"init_logger": logging.getLogger},
    "inputs": {"SingletonInputsAdapter": Inputs},
    "inputs.parse": {"is_valid_encoder_decoder_llm_inputs": lambda inputs: False},
    "platforms": {"current_platform": SimpleNamespace(is_hpu=lambda: False)},
    "envs": defaultdict(bool),
    "multimodal": {"MultiModalKwargs": dict, "MultiModalDataDict": dict},
}


class StandIn(ModuleType):
    """A module with the given names, in which every other name is an empty class."""

    __path__: ClassVar[list[str]] = []  # type: ignore[misc]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = next((v for k, v in REAL_VALUES.items() if self.__name__.endswith("." + k)), {})
        value = known[name] if name in known else type(name, (), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds an engine's own modules, and a stand-in for all others."""

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
                init, inside = place / "__init__.py", [str(place)]
                return importlib.util.spec_from_file_location(
                    name, init, submodule_search_locations=inside
                )
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do."""


class Peer:
    """An engine.

    Args:
        package: ``"vllm"`` or ``"aphrodite"``.
        folder: The folder of the package in its unpacked wheel.
    """

    def __init__(self, package: str, folder: Path) -> None:
        self.package = package
        places = {"vllm": ("core", "sequence"), "aphrodite": ("processing", "common.sequence")}
        core, sequence = places[package]
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
        """Its scheduler, on its own manager or on ours."""
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
