"""``os.fork`` and signals while a call runs or waits for another one.

Each test has its own process, in which a hanging thread can be killed.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")

COMMON = """
import os, signal, sys, threading
from blockmgr import BlockManager, ForkError
from blockmgr.pool import BlockPool

inside, go = threading.Event(), threading.Event()

def digest(message):
    if stays:
        inside.set()
        assert go.wait(60)
    return bytes(16)

stays = False
manager, pool = BlockManager(16, 2, digest=digest), BlockPool(8, 2, digest=digest)
idle, idle_pool = BlockManager(16, 2), BlockPool(8, 2)
handle = manager.admit([1, 2, 3, 4, 5])
blocks = pool.take(2)
kept = idle.admit([1, 2, 3])
stays = True

def in_child(check):
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            check()
        except BaseException as error:
            print("in the child:", repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def refused(*calls):
    for call in calls:
        try:
            call()
        except ForkError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError(call)
"""

FORK_AROUND_A_MANAGER = """
worker = threading.Thread(target=manager.commit, args=(handle, 5))
worker.start()
inside.wait()

def check():
    refused(manager.stats, lambda: manager.admit([1]), lambda: manager.free(handle))
    refused(manager.check_invariants, manager.take_copies, lambda: manager.sequence(handle))
    worker_in_child = threading.Thread(target=lambda: refused(manager.stats))
    worker_in_child.start()
    worker_in_child.join()
    idle.append(kept, [4])  # nobody was inside of it
    idle.check_invariants()
    other = BlockManager(4, 2)
    other.free(other.admit([1, 2, 3]))

in_child(check)
go.set()
worker.join()
assert manager.stats().cached_blocks == 2
manager.check_invariants()
in_child(manager.check_invariants)
"""

FORK_AROUND_A_POOL = """
worker = threading.Thread(target=pool.promote, args=(blocks, [1, 2, 3, 4]))
worker.start()
inside.wait()

def check():
    refused(lambda: pool.take(1), lambda: pool.release(blocks), lambda: pool.num_used)
    refused(pool.take_copies, pool.check_invariants)
    idle_pool.release(idle_pool.take(1))

in_child(check)
go.set()
worker.join()
assert pool.num_cached == 2
pool.check_invariants()
"""

FORK_INSIDE_A_CALL = """
children = []

def digest(message):
    if forks:
        children.append(os.fork())
    return bytes(16)

forks = False
manager = BlockManager(16, 2, digest=digest)
handle = manager.admit([1, 2, 3])
forks = True
manager.commit(handle, 3)
forks = False
manager.check_invariants()
assert manager.stats().cached_blocks == 1
if not children[0]:
    os._exit(0)
assert os.waitpid(children[0], 0)[1] == 0
"""

# More signals than can be handled between two instructions: most arrive while the call waits.
INTERRUPT = """
SIGNALS = 20
handled = threading.Semaphore(0)
seen = []

def handler(number, frame):
    seen.append(number)
    handled.release()
    if len(seen) == SIGNALS:
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handler)
calls = {
    "manager": (manager, lambda: manager.commit(handle, 5), lambda: manager.free(handle)),
    "pool": (pool, lambda: pool.promote(blocks, [1, 2, 3, 4]), lambda: pool.release(blocks)),
}
owner, long_call, call = calls[sys.argv[1]]
worker = threading.Thread(target=long_call)
worker.start()
inside.wait()
about_to_wait, outcome = threading.Event(), []

def interrupt():
    about_to_wait.wait()
    for _ in range(SIGNALS):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if not handled.acquire(timeout=30):
            outcome.append("a signal was not looked at")
            break
    go.set()

interrupter = threading.Thread(target=interrupt)
interrupter.start()
try:
    about_to_wait.set()
    call()
    outcome.append("the call was made")
except KeyboardInterrupt:
    pass
interrupter.join()
worker.join()
assert not outcome, outcome
owner.check_invariants()
call()  # nothing of it had been done
owner.check_invariants()
"""


def run(code: str, *arguments: str) -> None:
    command = [sys.executable, "-c", COMMON + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_child_is_refused_a_manager_that_another_thread_was_inside_of() -> None:
    run(FORK_AROUND_A_MANAGER)


def test_a_child_is_refused_a_pool_that_another_thread_was_inside_of() -> None:
    run(FORK_AROUND_A_POOL)


def test_a_fork_from_inside_a_call_goes_on_in_parent_and_child() -> None:
    run(FORK_INSIDE_A_CALL)


@pytest.mark.parametrize("kind", ["manager", "pool"])
def test_a_call_that_waits_can_be_interrupted_and_has_done_nothing(kind: str) -> None:
    run(INTERRUPT, kind)
