"""The interpreter ends while daemon threads are inside calls.

It then never gives them its lock again. A thread that waits for it must neither end the process
from within a function that may not throw, nor keep the main thread from ending.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import blockmgr

EDITABLE = any("editable" in type(finder).__module__ for finder in sys.meta_path)
PACKAGE = str(Path(blockmgr.__file__).parents[1])

# One call of a loop that daemon threads run: it makes what the loop needs, and returns the call.
KINDS = {
    "manager": """
def build():
    manager = BlockManager(200, 4, max_seqs=60)
    return lambda: serve(manager)
""",
    "items with __index__": """
class Number:
    def __init__(self, value): self.value = value
    def __index__(self): return self.value
def build():
    manager = BlockManager(200, 4, max_seqs=60)
    def call():
        manager.free(manager.admit([Number(n) for n in range(200)]))
    return call
""",
    "digest": """
def build():
    manager = BlockManager(200, 4, max_seqs=60, digest=lambda m: hashlib.md5(m).digest())
    return lambda: serve(manager)
""",
    "policy": """
def build():
    manager = BlockManager(200, 4, max_seqs=60, eviction=Lru)
    return lambda: serve(manager)
""",
    "pool": """
def build():
    pool = BlockPool(200, 4, eviction=Lru, digest=lambda m: hashlib.md5(m).digest())
    def call():
        blocks = pool.take(20)
        pool.promote(blocks, range(80))
        pool.release(blocks)
        pool.evict(20)
    return call
""",
    "prompt": """
def build():
    manager = BlockManager(200, 4, max_seqs=60, digest=lambda m: hashlib.md5(m).digest())
    def call():
        manager.match(Prompt(list(range(200)), namespace=b"n", extras={1: b"x"}))
    return call
""",
    "nano_vllm": """
from blockmgr.ports import nano_vllm
class Seq:
    def __init__(self):
        self.token_ids, self.block_table = list(range(200)), []
        self.num_cached_tokens = self.num_scheduled_tokens = 0
def build():
    blocks = nano_vllm.BlockManager(200, 4, eviction=Lru)
    def call():
        seq = Seq()
        blocks.allocate(seq, blocks.can_allocate(seq))
        blocks.deallocate(seq)
    return call
""",
    "radix": """
from blockmgr.ports import radix
def build():
    cache = radix.CacheManager(None, 400, eviction=Lru)
    root = radix.RadixCacheHandle(0, cache.manager.root_node)
    def call():
        tokens = [next(counter) for _ in range(20)]
        cache.free_and_cache_finished_req(root, tokens, cache.allocate(20))
    return call
""",
    "slots": """
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
def build():
    slots = SlotAllocator(8)
    cache = PrefixCacheManager(400, slots=slots)
    def call():
        slot = slots.alloc()
        tokens = [next(counter) for _ in range(20)]
        cache.insert(tokens, slot, slots.version(slot))
        cache.release(tokens)
        slots.free(slot)
    return call
""",
    "aphrodite": """
from blockmgr.ports.aphrodite import BlockTable, CpuGpuBlockAllocator
def build():
    pools = CpuGpuBlockAllocator.create("prefix_caching", 200, 0, 4)
    def call():
        table = BlockTable(4, pools)
        table.allocate(list(range(80)))
        table.free()
    return call
""",
    "tgi": """
import asyncio
from blockmgr.ports.tgi import BlockAllocator
def build():
    async def loop():
        allocator = BlockAllocator(800, 4, eviction=Lru)
        while True:
            async with await allocator.allocate(60, list(range(50))):
                pass
    return lambda: asyncio.run(loop())
""",
}
CORE = ("manager", "items with __index__", "digest", "policy", "pool", "prompt")
PROGRAM = """
import hashlib, itertools, os, sys, threading, time, types
if not {editable}:  # the package under test is none, so an editable install must not come first
    sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
from blockmgr import BlockManager, Prompt
from blockmgr.pool import BlockPool
from tests.reference_policies import Lru

counter = itertools.count()

def serve(manager):
    handle = manager.admit(list(range(200)))
    manager.commit(handle, 200)
    manager.free(handle)

{build}

call = build()
begun = threading.Semaphore(0)
def run():
    begun.release()
    while True:
        try:
            call()
        except Exception:
            pass

class AtTheEnd:
    # Dropped when the interpreter clears its modules, and threads do not run any more.
    def __del__(self, write=os.write):
        try:
            call()
            write(1, b"done\\n")
        except Exception as error:
            write(1, b"done\\n")
            if type(error).__name__ not in ("ReentrancyError", "OutOfBlocksError"):
                raise

if {clears}:
    sys.modules["late"] = types.ModuleType("late")
    sys.modules["late"].kept = AtTheEnd()
sys.setswitchinterval(1e-5)
for _ in range(4):
    threading.Thread(target=run, daemon=True).start()
for _ in range(4):
    begun.acquire()
time.sleep(0.05)
print("ends", flush=True)
"""


def ends(kind: str, clears: bool) -> None:
    for _ in range(2):
        program = PROGRAM.format(build=KINDS[kind], clears=clears, editable=EDITABLE)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, *filter(None, sys.path)])},
        )
        said = "ends\ndone\n" if clears else "ends\n"
        assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_ends_although_daemon_threads_are_inside_calls(kind: str) -> None:
    ends(kind, clears=False)


@pytest.mark.parametrize("kind", CORE)
def test_a_call_at_the_very_end_waits_for_no_thread_that_has_ended(kind: str) -> None:
    """Ports wait for one another by locks of Python, of which this does not hold."""
    ends(kind, clears=True)
