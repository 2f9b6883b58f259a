"""``python -m tests.engines.tiers MODEL``: a real vLLM that answers from host memory and a slab.

Conversations whose blocks are evicted from the device come back for further turns. Each arm runs in
its own process: no cache, the device alone, host memory with each of our eviction policies, host
memory with vLLM's ``fs`` tier, and with a slab: new, after a restart, with one byte flipped in
every payload, after a reset and a restart, and with all conversations at once. Those with a slab
run with vLLM's manager and with blockmgr's. All texts must be those without a cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.engines.offline import config_of, tokens

SIZE = 32  # tokens of a block
CHUNK = 2 * 2 * SIZE * 64 * 4  # bytes of K and V in the two layers that a block covers
TURNS = 3
DEVICE_BLOCKS = {"llama": 40, "gemma3_text": 120}
HOST_CHUNKS = {"llama": 24, "gemma3_text": 80}
POLICIES = ("S3FifoPolicy", "ArcPolicy", "LfudaPolicy")


def offload(model: str, arm: str, folder: Path) -> dict[str, Any]:
    """vLLM's configuration of an arm."""
    kind = config_of(model)["model_type"]
    if arm in ("none", "device"):
        return {"enable_prefix_caching": arm == "device"}
    extra: dict[str, Any] = {
        "spec_module_path": "tests.engines.cpu_offload",
        "spec_name": "HostAndTiers",
        "offload_prompt_only": False,
        "cpu_bytes_to_use": HOST_CHUNKS.get(kind, 24) * CHUNK,
    }
    if arm in POLICIES:
        extra |= {"spec_name": "Host", "eviction_policy": arm, "cpu_bytes_to_use": 96 * CHUNK}
        extra |= {"cache_policy_module_path": "blockmgr.ports.vllm_tiers"}
    elif arm == "fs":
        extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(folder / "fs")}]
    else:
        slab = {"type": "SlabTier", "module_path": "blockmgr.ports.vllm_tiers"}
        slab |= {"path": str(folder / "kv.slab"), "bytes_to_use": 512 * CHUNK}
        extra["secondary_tiers"] = [slab]
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**connector, "kv_connector_extra_config": extra}}


def run(model: str, arm: str, folder: Path, *, ours: bool, at_once: bool) -> dict[str, Any]:
    """Runs one arm in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        enforce_eager=True,
        dtype=config_of(model)["dtype"],
        block_size=SIZE,
        max_num_seqs=8,
        max_model_len=576,
        max_num_batched_tokens=1024,
        num_gpu_blocks_override=DEVICE_BLOCKS.get(config_of(model)["model_type"], 40),
        gpu_memory_utilization=0.2,  # share of the machine's memory
        disable_log_stats=False,
        additional_config={"blockmgr": {}} if ours else {},
        **offload(model, arm, folder),
    )
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)
    rng = random.Random(5)
    head = tokens(rng, 128)
    prompts = [head + tokens(rng, rng.randint(100, 300)) for _ in range(8)]
    texts: list[list[int]] = []
    cached = []
    for turn in range(TURNS):
        batches = [range(len(prompts))] if at_once else [[i] for i in range(len(prompts))]
        cached.append(0)
        for batch in batches:
            asked = [{"prompt_token_ids": prompts[i]} for i in batch]
            answers = llm.generate(asked, sampling, use_tqdm=False)
            for i, answer in zip(batch, answers, strict=True):
                said = list(answer.outputs[0].token_ids)
                texts.append(said)
                cached[-1] += answer.num_cached_tokens
                prompts[i] = prompts[i] + said + tokens(rng, 20)
        if arm == "reset" and turn == 0:
            assert llm.reset_prefix_cache(reset_connector=True)
    core = llm.llm_engine.engine_core.engine_core
    manager = core.scheduler.kv_cache_manager
    if is_ours := hasattr(manager, "manager"):
        manager.manager.check_invariants()
    counts = counts_of(core.scheduler)
    llm.llm_engine.engine_core.shutdown()
    return {"ours": is_ours, "texts": texts, "cached": cached, "counts": counts}


def counts_of(scheduler: Any) -> dict[str, int] | None:
    """What the slab says happened."""
    if scheduler.connector is None:
        return None
    manager = scheduler.connector.connector_scheduler.manager
    for tier in getattr(manager, "secondary_tiers", ()):
        if hasattr(tier, "counts"):
            tier._pool.check_invariants()
            return dict(tier.counts)
    return None


def in_a_process(model: str, arm: str, folder: Path, *options: str) -> dict[str, Any]:
    out = folder / "answers.json"
    command = [sys.executable, "-m", "tests.engines.tiers", model, "--arm", arm]
    command += ["--folder", str(folder), *options]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",  # threads that spin make a busy machine many times slower
        **os.environ,
    }
    subprocess.run(command, check=True, env=environment)
    answers: dict[str, Any] = json.loads(out.read_text())
    return answers


def flip(path: Path) -> int:
    """Flips one byte in the payload of every slot that has one; how many."""
    from blockmgr.tiers.records import PAGE, Identity, Records, up

    with path.open("r+b") as file:
        identity = Identity.read(file.read(PAGE))
        assert identity is not None
        records = Records(identity)
        file.seek(3 * PAGE)
        found = records.scan(file.read(records.size * identity.num_blocks))
        first = 3 * PAGE + up(records.size * identity.num_blocks)
        for block in found["block"].tolist():
            at = first + block * up(identity.block_bytes) + block % identity.block_bytes
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
    return int(found.size)


class Table:
    """Runs arms and prints a row for each."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.is_good = True
        with tempfile.TemporaryDirectory() as folder:
            self.plain = in_a_process(model, "none", Path(folder))

    def row(self, name: str, arm: str, folder: Path, *options: str, **least: int) -> dict[str, Any]:
        """An arm; the counts of its slab must be at least these, or 0 if they are 0."""
        found = in_a_process(self.model, arm, folder, *options)
        counts = found["counts"] or {}
        good = found["texts"] == self.plain["texts"] and found["ours"] == ("--ours" in options)
        good = good and all(counts[key] >= n if n else counts[key] == 0 for key, n in least.items())
        self.is_good = self.is_good and good
        manager = "blockmgr" if found["ours"] else "vLLM"
        said = ", ".join(f"{n} {key}" for key, n in counts.items() if n) or "-"
        texts = "texts equal" if found["texts"] == self.plain["texts"] else "TEXTS DIFFER"
        verdict = "good" if good else "NOT GOOD"
        print(
            f"{name:28} {manager:9} cached {found['cached']!s:22} {texts}; {said}; {verdict}",
            flush=True,
        )
        return found

    def slab(self, *options: str) -> None:
        """The arms with a slab, one after another on the same file."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.row("host, slab", "slab", folder, *options, stored=1, loaded=1, refused=0)
            self.row("host, slab, restarted", "slab", folder, *options, restored=1, refused=0)
            print(f"a byte flipped in each of {flip(folder / 'kv.slab')} payloads")
            self.row("host, slab, damaged", "slab", folder, *options, refused=1, stored=1)
            self.row("host, slab, mended", "slab", folder, *options, restored=1, refused=0)
            self.row("host, slab, reset", "reset", folder, *options, restored=1)
            self.row("host, slab, restarted after", "slab", folder, *options, restored=0)
            options += ("--at-once",)
            self.row("host, slab, all at once", "slab", folder, *options, restored=1, loaded=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.tiers", description=__doc__)
    parser.add_argument("model", help="folder of a tiny model")
    parser.add_argument("--arm", help="run one arm here")
    parser.add_argument("--folder", type=Path, help="where that arm keeps its files")
    parser.add_argument("--ours", action="store_true", help="with blockmgr's manager")
    parser.add_argument("--at-once", action="store_true", help="all conversations at once")
    args = parser.parse_args()
    if args.arm is not None:
        answers = run(args.model, args.arm, args.folder, ours=args.ours, at_once=args.at_once)
        (args.folder / "answers.json").write_text(json.dumps(answers))
        return 0
    table = Table(args.model)
    with tempfile.TemporaryDirectory() as name:
        table.row("device", "device", Path(name))
        table.row("host, fs", "fs", Path(name))
        for policy in POLICIES:
            table.row(f"host, {policy}", policy, Path(name))
    table.slab()
    table.slab("--ours")
    return int(not table.is_good)


if __name__ == "__main__":
    sys.exit(main())
