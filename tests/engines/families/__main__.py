"""See the package."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from tests.engines.families import hopper, table

SECONDS = 900  # for a plan of some seconds; a process that a signal ends would give none


def outcome(number: int) -> dict[str, Any]:
    """The plan of one family, in a process of its own: vLLM keeps state of an engine."""
    from tests.engines.families.configs import families
    from tests.engines.families.plan import plan

    family = families()[number]
    try:
        return plan(family.make(), **family.engine)
    except Exception as error:  # of whatever kind, it is the outcome
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def planned() -> dict[str, Any]:
    """The plans of all families, by the installed vLLM."""
    hopper.install()
    import transformers
    import vllm

    from tests.engines.families import plan  # noqa: F401  once, before processes are forked
    from tests.engines.families.configs import families

    rows = []
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        found = families()
        outcomes = pool.imap(outcome, range(len(found)))
        for family in found:
            got = outcomes.next(timeout=SECONDS)
            row = {"name": family.name, "architecture": family.architecture, **got}
            rows.append({**row, "is_named": family.is_named})
            print(family.name, got.get("failed") or got.get("refused") or "taken", flush=True)
    return {"vllm": vllm.__version__, "transformers": transformers.__version__, "families": rows}


def differences(kept: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """One line for each family whose plan is another one."""
    before, after = ({row["name"]: row for row in plans["families"]} for plans in (kept, now))
    found = [f"{name}: is new" for name in after if name not in before]
    found += [f"{name}: is gone" for name in before if name not in after]
    for name, row in before.items():
        if name in after and after[name] != row:
            found.append(f"{name}: {table.said(row)}\n  now {table.said(after[name])}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.families", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args()
    now = planned()
    if not args.check:
        table.keep(now)
        return table.main([])
    kept = table.plans()
    found = differences(kept, now)
    print(f"vLLM {now['vllm']} plans {len(found)} families otherwise than {kept['vllm']} did")
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
