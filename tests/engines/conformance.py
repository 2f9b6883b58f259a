"""``python -m tests.engines.conformance``: the installed vLLM against what blockmgr knows of it.

One readable report of signatures and attributes, and whether the stand-ins have them all. Exit code
1 if something differs in a version that was tried, or cannot work in any.
"""

from __future__ import annotations

import inspect
import sys

from blockmgr.ports.vllm import blocks, coordinator, manager
from blockmgr.ports.vllm.expected import ATTRIBUTES, METHODS
from blockmgr.ports.vllm.interface import INTERFACE

STAND_INS = {
    "KVCacheManager": manager.KVCacheManager,
    "KVCacheBlocks": blocks.Blocks,
    "KVCacheBlock": blocks.Block,
    "BlockPool": blocks.BlockPool,
    "KVCacheCoordinator": coordinator.Coordinator,
}


def parameters(function: object) -> tuple[str, ...]:
    names = inspect.signature(function).parameters  # type: ignore[arg-type]
    return tuple(name for name in names if name != "self")


def stand_ins() -> list[str]:
    """What our classes lack of what vLLM's have."""
    found = []
    for path, expected in METHODS.items():
        kind, _, method = path.rpartition(":")[2].rpartition(".")
        if kind not in STAND_INS or method == "__init__":
            continue
        ours = getattr(STAND_INS[kind], method, None)
        if ours is None:
            found.append(f"{STAND_INS[kind].__name__} has no {method}")
        elif parameters(ours) != expected:
            found.append(f"{STAND_INS[kind].__name__}.{method} takes {parameters(ours)}")
    for path, names in ATTRIBUTES.items():
        kind = path.rpartition(":")[2]
        if kind in STAND_INS:
            source = inspect.getsource(STAND_INS[kind])
            source += "".join(inspect.getsource(base) for base in STAND_INS[kind].__bases__[:-1])
            found += [
                f"{STAND_INS[kind].__name__} has no {name}"
                for name in names
                if not hasattr(STAND_INS[kind], name) and f"self.{name}" not in source
            ]
    return found


def constructor() -> list[str]:
    """What vLLM hands its manager, and ours does not take."""
    expected = METHODS["vllm.v1.core.kv_cache_manager:KVCacheManager.__init__"]
    ours = parameters(manager.KVCacheManager)
    return [f"the manager does not take {name}" for name in expected if name not in ours]


def main() -> int:
    lacking = stand_ins() + constructor()
    print(INTERFACE.report())
    print("\n".join(f"LACKING  {line}" for line in lacking) or "nothing is lacking here")
    differing = INTERFACE.differences()
    fatal = any(difference.is_fatal for difference in differing)
    return int(bool(lacking) or fatal or (INTERFACE.is_tried() and bool(differing)))


if __name__ == "__main__":
    sys.exit(main())
