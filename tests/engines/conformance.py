"""``python -m tests.engines.conformance``: the installed vLLM against what blockmgr knows of it.

Reports signatures, fields and attributes, and whether the stand-ins have all of them, for each
tested version. Exit code 1 if something differs in a tested version, or cannot work in any version.
"""

from __future__ import annotations

import inspect
import sys

from blockmgr.ports.drift import Interface
from blockmgr.ports.vllm import blocks, coordinator, manager
from blockmgr.ports.vllm.interface import INTERFACE

STAND_INS = {
    "KVCacheManager": manager.KVCacheManager,
    "KVCacheBlocks": blocks.Blocks,
    "KVCacheBlock": blocks.Block,
    "BlockPool": blocks.BlockPool,
    "KVCacheCoordinator": coordinator.Coordinator,
}


def parameters(function: object) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters  # type: ignore[arg-type]
    return {name: parameter for name, parameter in found.items() if name != "self"}


def takes(function: object, expected: tuple[str, ...], *, all_of_them: bool) -> bool:
    """Whether that version's calls fit it; for the newest version, it must take no more."""
    ours = parameters(function)
    more = list(ours.values())[len(expected) :]
    if tuple(ours)[: len(expected)] != expected or (more and all_of_them):
        return False
    return all(parameter.default is not inspect.Parameter.empty for parameter in more)


def methods(expected: Interface) -> list[str]:
    """What is missing in our classes' methods, compared with those of a version."""
    found = []
    newest = expected.tried[-1] == INTERFACE.tried[-1]
    for path, names in expected.methods.items():
        kind, _, method = path.rpartition(":")[2].rpartition(".")
        if kind not in STAND_INS:
            continue
        if method == "__init__":
            found += constructor(names) if kind == "KVCacheManager" else []
            continue
        stand_in = STAND_INS[kind]
        ours = getattr(stand_in, method, None)
        if ours is None:
            found.append(f"{stand_in.__name__} has no {method}")
        elif not takes(ours, names, all_of_them=newest):
            found.append(f"{stand_in.__name__}.{method} takes {tuple(parameters(ours))}")
    return found


def constructor(names: tuple[str, ...]) -> list[str]:
    """Keywords that vLLM passes to its manager and that ours does not take."""
    ours = parameters(manager.KVCacheManager)
    return [f"the manager does not take {name}" for name in names if name not in ours]


def attributes(expected: Interface) -> list[str]:
    """Attributes of vLLM's classes that ours do not have."""
    found = []
    for path, names in expected.attributes.items():
        kind = path.rpartition(":")[2]
        if kind not in STAND_INS:
            continue
        stand_in = STAND_INS[kind]
        source = inspect.getsource(stand_in)
        found += [
            f"{stand_in.__name__} has no {name}"
            for name in names
            if not hasattr(stand_in, name) and f"self.{name}" not in source
        ]
    return found


def lacking() -> list[str]:
    """What is missing in our classes, for each tested version."""
    return [
        f"{version}: {line}"
        for version in INTERFACE.tried
        for line in methods(INTERFACE.as_of(version)) + attributes(INTERFACE.as_of(version))
    ]


def main() -> int:
    missing = lacking()
    print(INTERFACE.report())
    for line in missing:
        print(f"LACKING  {line}")
    if not missing:
        print(f"nothing is lacking here of vLLM {' and '.join(INTERFACE.tried)}")
    differing = INTERFACE.differences()
    fatal = any(difference.is_fatal for difference in differing)
    return int(bool(missing) or fatal or (INTERFACE.is_tried() and bool(differing)))


if __name__ == "__main__":
    sys.exit(main())
