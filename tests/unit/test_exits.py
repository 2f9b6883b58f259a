"""The interpreter ends while daemon threads are inside calls.

It then never gives them its lock again. A thread that waits for it must neither end the process
from within a function that may not throw, nor keep the main thread from ending.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import blockmgr
from blockmgr import _core

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
    "numbers of a sequence in Python": """
class Tokens:
    def __len__(self): return 40
    def __getitem__(self, i): return sum([i])
def build():
    manager = BlockManager(64, 4)
    return lambda: manager.match(Tokens())
""",
    "results and errors": """
from blockmgr import BlockMgrError
class Extras(dict):
    def items(self): return [(sum([0]), b"x")]
def build():
    manager = BlockManager(8, 4, max_seqs=4, events=True, steps_in_flight=1)
    def call():
        try:
            manager.admit(range(10_000), extras=Extras())
        except BlockMgrError:
            pass
        handle = manager.admit([1, 2, 3, 4, 5, 6])
        manager.commit(handle, 6)
        children = manager.fork(handle, 2)
        manager.append(children[0], [7])
        plan = manager.take_copies()
        manager.take_remaps()
        manager.take_events()
        manager.copies_applied(plan.ticket)
        manager.complete(plan.ticket)
        for each in (handle, *children):
            manager.free(each)
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
# A publisher has a thread of its own, which is a daemon thread and calls the manager.
PUBLISHER = """
from blockmgr.events import Publisher
manager = BlockManager(200, 4, max_seqs=60, events=True, digest="sha256")
publisher = Publisher(manager, 4, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
def build():
    def call():
        serve(manager)
        publisher.publish()
    return call
"""
# A thread that never comes back from a digest in Python, and a call that would wait for it.
HELD = """
import hashlib, os, sys, threading, time, types
if not {editable}:  # the package under test is none, so an editable install must not come first
    sys.meta_path = [f for f in sys.meta_path if "editable" not in type(f).__module__]
from blockmgr import BlockManager

inside = threading.Event()
def digest(data):
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        time.sleep(3600)
    return hashlib.sha256(data).digest()

manager = BlockManager(200, 4, digest=digest)
class AtTheEnd:
    def __del__(self, manager=manager, write=os.write):
        try:
            manager.admit([1])
        except Exception as error:
            write(1, type(error).__name__.encode())

sys.modules["late"] = types.ModuleType("late")
sys.modules["late"].kept = AtTheEnd()
handle = manager.admit([*range(20)])
threading.Thread(target=manager.commit, args=(handle, 20), daemon=True).start()
assert inside.wait(30)
"""
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NEEDED = """
import sys
import numpy, xxhash, nanobind_backend
print("%d.%d" % sys.version_info[:2])
"""


def interpreters(version: str) -> list[str]:
    """Interpreters of this version other than this one; ``BLOCKMGR_PYTHONS`` may name more."""
    found = [p for p in os.environ.get("BLOCKMGR_PYTHONS", "").split(os.pathsep) if p]
    found += [str(p) for p in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")]
    if on_path := shutil.which(f"python{version}"):
        found.append(on_path)
    return found


def with_what_it_needs(version: str) -> str:
    """An interpreter of this version that has the packages which this one needs."""
    for python in interpreters(version):
        command = [python, "-c", NEEDED]
        has = subprocess.run(command, check=False, capture_output=True, text=True)
        if has.stdout.strip() == version:
            return python
    pytest.skip(f"no Python {version} with numpy, xxhash and nanobind-backend on this machine")


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, its extension and the tests, for any interpreter."""
    folder = tmp_path_factory.mktemp("package")
    ignored = shutil.ignore_patterns("csrc", "__pycache__")
    shutil.copytree(Path(blockmgr.__file__).parent, folder / "blockmgr", ignore=ignored)
    shutil.copy(Path(_core.__file__), folder / "blockmgr")
    (folder / "tests").symlink_to(Path(__file__).parents[1])
    return folder


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_of_every_python_ends_as_this_one_does(
    kind: str, version: str, portable: Path
) -> None:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        pytest.skip("the test below is about this one")
    python = with_what_it_needs(version)
    program = PROGRAM.format(build=KINDS[kind], clears=False, editable=False)
    done = subprocess.run(
        [python, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=portable,  # the current folder comes first in the path of such a program
        env={"PYTHONPATH": str(portable), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_a_process_ends_although_a_publisher_has_a_thread() -> None:
    pytest.importorskip("zmq")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(build=PUBLISHER, clears=False, editable=EDITABLE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, *filter(None, sys.path)])},
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


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


def test_a_call_at_the_very_end_waits_for_no_thread_that_is_inside_a_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELD.format(editable=EDITABLE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([PACKAGE, *filter(None, sys.path)])},
    )
    assert (done.returncode, done.stdout) == (0, "ReentrancyError"), done.stderr
