"""``python -m tests.engines.tiers MODEL``: a real vLLM that answers from tiers.

Conversations whose blocks are evicted from the device come back for further turns. Each arm runs in
its own process: no cache, the device alone, host memory with each of our eviction policies, host
memory with vLLM's ``fs`` tier, and with a slab: new, after a restart, with one byte flipped in
every payload, after a reset and a restart, and with all conversations at once. Those with a slab
run with vLLM's manager and with blockmgr's. Then the same with a real Mooncake Store, where it is
installed: each arm finds what the one before stored, in memory that this process lends; one has
prompts with another salt, and during the last one the master is killed. All texts must be those
without a cache.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
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
LENT = 256 << 20
POLICIES = ("S3FifoPolicy", "ArcPolicy", "LfudaPolicy")


def offload(model: str, arm: str, folder: Path, master: str) -> dict[str, Any]:
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
    elif master:
        store = {"type": "MooncakeStoreTier", "module_path": "blockmgr.ports.vllm_tiers"}
        extra["secondary_tiers"] = [{**store, "master": master, "timeout": 10.0}]
    else:
        slab = {"type": "SlabTier", "module_path": "blockmgr.ports.vllm_tiers"}
        slab |= {"path": str(folder / "kv.slab"), "bytes_to_use": 512 * CHUNK}
        extra["secondary_tiers"] = [slab]
    connector = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    return {"kv_transfer_config": {**connector, "kv_connector_extra_config": extra}}


def run(
    model: str, arm: str, folder: Path, *, ours: bool, at_once: bool, master: str, kill: int
) -> dict[str, Any]:
    """Runs one arm in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    names = names_put()
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
        **offload(model, arm, folder, master),
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
            salt = {"cache_salt": "another"} if arm == "salted" else {}
            asked = [{"prompt_token_ids": prompts[i], **salt} for i in batch]
            answers = llm.generate(asked, sampling, use_tqdm=False)
            for i, answer in zip(batch, answers, strict=True):
                said = list(answer.outputs[0].token_ids)
                texts.append(said)
                cached[-1] += answer.num_cached_tokens
                prompts[i] = prompts[i] + said + tokens(rng, 20)
        if arm == "reset" and turn == 0:
            assert llm.reset_prefix_cache(reset_connector=True)
        if kill and turn == 0:
            os.kill(kill, signal.SIGKILL)
    core = llm.llm_engine.engine_core.engine_core
    manager = core.scheduler.kv_cache_manager
    if is_ours := hasattr(manager, "manager"):
        manager.manager.check_invariants()
    counts = counts_of(core.scheduler)
    llm.llm_engine.engine_core.shutdown()
    return {"ours": is_ours, "texts": texts, "cached": cached, "counts": counts, "names": names}


def names_put() -> list[str]:
    """The names of what will be put into Mooncake Store, which cannot list them."""
    from blockmgr.tiers.mooncake import MooncakeStore

    names: list[str] = []
    plain = MooncakeStore.put

    def put(self: MooncakeStore, some: Any, data: Any) -> list[bool]:
        names.extend(some)
        return plain(self, some, data)

    MooncakeStore.put = put  # type: ignore[method-assign]
    return names


def counts_of(scheduler: Any) -> dict[str, int] | None:
    """What our tier says happened."""
    if scheduler.connector is None:
        return None
    manager = scheduler.connector.connector_scheduler.manager
    for tier in getattr(manager, "secondary_tiers", ()):
        if hasattr(tier, "counts"):
            if hasattr(tier, "_pool"):
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


def has_mooncake() -> bool:
    """Whether Mooncake is installed, with the libraries that it needs."""
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        print(f"without Mooncake Store: {error}")
        return False
    return True


def flip_objects(store: Any, names: list[str]) -> int:
    """Flips one byte of each object that is there; how many."""
    count = 0
    for i, name in enumerate(dict.fromkeys(names)):
        if data := bytearray(store._client.get(name)):
            data[-1 - i] ^= 1
            assert store._client.remove(name, True) == store._client.put(name, bytes(data)) == 0
            count += 1
    return count


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
            f"{name:32} {manager:9} cached {found['cached']!s:22} {texts}; {said}; {verdict}",
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

    def mooncake(self, *options: str) -> None:
        """The arms with Mooncake Store, whose objects are in memory of this process."""
        from blockmgr.tiers.mooncake import MooncakeStore
        from tests.engines.mooncake import master

        with contextlib.ExitStack() as stack:
            address, process = stack.enter_context(master())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            store = MooncakeStore(address, lent_bytes=LENT)
            options += ("--master", address)

            def row(name: str, arm: str, *more: str, **least: int) -> dict[str, Any]:
                name = f"host, Mooncake{name}"
                return self.row(name, arm, folder, *options, *more, **least)

            first = row("", "mooncake", written=1, read=1, refused=0, failed_calls=0)
            found = row(", another process", "mooncake", read=1, missing=0, refused=0)
            self.is_good = self.is_good and found["cached"][0] > first["cached"][0]
            salted = row(", another salt", "salted", written=1, refused=0)
            self.is_good = self.is_good and salted["cached"][0] == first["cached"][0]
            count = flip_objects(store, first["names"])
            print(f"a byte flipped in each of {count} objects")
            row(", damaged", "mooncake", refused=1, written=1)
            row(", mended", "mooncake", read=1, refused=0)
            row(", reset", "reset", read=1)
            row(", all at once", "mooncake", "--at-once", read=1, refused=0)
            row(", master killed", "mooncake", "--kill", str(process.pid), read=1, failed_calls=1)
            store.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.tiers", description=__doc__)
    parser.add_argument("model", help="folder of a tiny model")
    parser.add_argument("--arm", help="run one arm here")
    parser.add_argument("--folder", type=Path, help="where that arm keeps its files")
    parser.add_argument("--ours", action="store_true", help="with blockmgr's manager")
    parser.add_argument("--at-once", action="store_true", help="all conversations at once")
    parser.add_argument("--master", default="", help="a master of Mooncake Store, for that arm")
    parser.add_argument("--kill", type=int, default=0, help="kill this process after a turn")
    parser.add_argument("--only", choices=("slab", "mooncake"), help="only this tier")
    args = parser.parse_args()
    if args.arm is not None:
        how = {"ours": args.ours, "at_once": args.at_once, "master": args.master}
        answers = run(args.model, args.arm, args.folder, kill=args.kill, **how)
        (args.folder / "answers.json").write_text(json.dumps(answers))
        return 0
    table = Table(args.model)
    if args.only != "mooncake":
        slab_rows(table)
    if args.only != "slab" and has_mooncake():
        table.mooncake()
        table.mooncake("--ours")
    return int(not table.is_good)


def slab_rows(table: Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        table.row("device", "device", Path(name))
        table.row("host, fs", "fs", Path(name))
        for policy in POLICIES:
            table.row(f"host, {policy}", policy, Path(name))
    table.slab()
    table.slab("--ours")


if __name__ == "__main__":
    sys.exit(main())
