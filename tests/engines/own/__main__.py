"""``python -m tests.engines.own FOLDER MODEL``: vLLM's own tests, on its manager and on ours.

FOLDER has ``tests`` from the source of the installed vLLM, which ``tests/engines/run`` fetches. A
test that passes with vLLM's manager must pass on blockmgr, or be listed in ``verdicts.toml`` with
the reason. Exit code 1 if a failing test is not listed, or a listed test passes. Some tests fail
with either manager, because one tiny model replaces every model that they name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
CORE = "tests/v1/core"
CONNECTORS = "tests/v1/kv_connector/unit"
FILES = (
    f"{CORE}/test_scheduler.py",
    f"{CORE}/test_async_scheduler.py",
    f"{CORE}/test_priority_scheduler_random.py",
    f"{CORE}/test_priority_preemption_bug.py",
    f"{CORE}/test_deferred_block_free.py",
    f"{CORE}/test_output.py",
    f"{CORE}/test_prefix_replay.py",
    f"{CORE}/test_swa_inflight_window_free.py",
    f"{CORE}/test_worker_slot_overflow.py",
    f"{CONNECTORS}/test_kv_load_failure_recovery.py",
    f"{CONNECTORS}/test_invalid_blocks_correctness.py",
    f"{CONNECTORS}/test_cache_pollution_prevention.py",
    f"{CONNECTORS}/test_error_propagation.py",
    f"{CONNECTORS}/test_kv_connector_lifecycle.py",
    f"{CONNECTORS}/test_remote_prefill_lifecycle.py",
    f"{CONNECTORS}/test_remote_decode_lifecycle.py",
    f"{CONNECTORS}/test_bidirectional_kv_transfer.py",
    f"{CONNECTORS}/test_moriio_hma_scheduler.py",
    f"{CONNECTORS}/test_nixl_connector_hma.py",
    f"{CONNECTORS}/offloading_connector/test_scheduler.py",
)
# Fixtures of a folder; those above it need packages that are not installed.
FIXTURES = f"{CONNECTORS}/offloading_connector/conftest".replace("/", ".")


def failures(folder: Path, model: Path, arm: str) -> dict[str, str]:
    """The failure message of each test; empty for a test that passes."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q"]
        command += ["-p", "vllm_arm", "-p", FIXTURES]
        command += ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir=.", "--noconftest"]
        command += ["--continue-on-collection-errors", f"--junitxml={report}", *FILES]
        environment = {
            **os.environ,
            "BLOCKMGR_ARM": arm,
            "BLOCKMGR_TINY_MODEL": str(model.resolve()),
            "PYTHONPATH": str(HERE),
        }
        subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False)
        cases = list(ElementTree.parse(report).iter("testcase"))
    said = {}
    for case in cases:
        file = case.get("classname", "")
        for folder_name in (CORE, CONNECTORS):
            file = file.removeprefix(folder_name.replace("/", ".") + ".")
        name = f"{file}::{case.get('name')}"
        bad = [child for child in case if not child.tag.startswith("system")]
        said[name] = " ".join(child.get("message") or child.tag for child in bad)
    return said


def compare(stock: dict[str, str], ours: dict[str, str], verdicts: dict[str, str]) -> list[str]:
    """Differences from the list. A listed test must fail with the listed words."""
    found = []
    for name, said in stock.items():
        if said:
            continue
        expected, failed = verdicts.get(name), ours.get(name, "it is gone")
        if failed and (expected is None or expected not in failed):
            found.append(f"NOT LISTED  {name}: {failed[:200]}")
        if expected is not None and not failed:
            found.append(f"listed, and passes  {name}")
    return found + [
        f"listed, and not passed by vLLM's own  {n}" for n in verdicts if stock.get(n, 1)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.own", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", type=Path)
    args = parser.parse_args()
    import vllm

    tables = tomllib.loads((HERE / "verdicts.toml").read_text(encoding="utf-8"))["verdict"]
    verdicts = {name: table["says"] for table in tables for name in table["tests"]}
    stock, ours = (failures(args.folder, args.model, arm) for arm in ("stock", "blockmgr"))
    passing = [name for name, said in stock.items() if not said]
    both = [name for name in passing if not ours.get(name, "it is gone")]
    print(
        f"vLLM {vllm.__version__}, its own tests: {len(passing)} of {len(stock)} pass with its "
        f"manager, {len(both)} of these on blockmgr"
    )
    for table in tables:
        print(f"  {len(table['tests'])} fail: {table['why']}")
    wrong = compare(stock, ours, verdicts)
    print("\n".join(wrong) or "what fails is what is listed")
    return int(bool(wrong) or not passing)


if __name__ == "__main__":
    sys.exit(main())
