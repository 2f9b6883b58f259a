"""Compares the installed SGLang with the interface that blockmgr expects.

Run ``python -m tests.engines.sglang.conformance``. Exit code 1 if something differs in a tested
version, or cannot work in any version.
"""

from __future__ import annotations

from tests.engines.sglang import stand_ins  # noqa: F401  isort: skip  before anything of SGLang

import inspect
import sys

from blockmgr.ports.sglang.cache import PrefixCache
from blockmgr.ports.sglang.interface import CACHE, INTERFACE, METHODS


def lacking() -> list[str]:
    """Methods whose parameters differ from those that SGLang passes."""
    found = []
    for path, expected in METHODS.items():
        kind, _, name = path.rpartition(".")
        if kind != CACHE:
            continue
        parameters = inspect.signature(getattr(PrefixCache, name)).parameters.values()
        takes = tuple(p.name for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD)
        asked = tuple(name for name in expected if name != "kwargs")
        if takes != asked:
            found.append(f"PrefixCache.{name} takes {takes}, not {asked}")
    return found


def main() -> int:
    """Compares and prints the differences."""
    found = lacking()
    print(INTERFACE.report())
    print("\n".join(f"LACKING  {line}" for line in found) or "nothing is lacking here")
    differences = INTERFACE.differences()
    fatal = any(difference.is_fatal for difference in differences)
    return int(bool(found) or fatal or (INTERFACE.is_tried() and bool(differences)))


if __name__ == "__main__":
    sys.exit(main())
