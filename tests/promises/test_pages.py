"""The promises of the pages on security and on steps, as ``tests.sentences`` lists them."""

from __future__ import annotations

import ast
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import blockmgr
from blockmgr import (
    BlockManager,
    FullAttention,
    ManagerConfig,
    RecurrentState,
    SlidingWindow,
    StepError,
    TicketError,
)
from tests.promises.watcher import CALLS, Watcher

# Slots and computed counts.

CONFIGS: dict[str, dict[str, Any]] = {
    "one group": {},
    "append only": {"dedup": "append_only"},
    "parts of blocks": {"min_partial_tokens": 1},
    "windows": {"groups": [FullAttention(), SlidingWindow(3)], "null_block": True},
    "states": {
        "groups": [FullAttention(), SlidingWindow(4), RecurrentState()],
        "null_block": True,
        "min_partial_tokens": 1,
    },
}


@pytest.mark.parametrize("flies", [False, True], ids=["one step", "steps in flight"])
@pytest.mark.parametrize("early", [False, True], ids=["strict", "early"])
@pytest.mark.parametrize("config", CONFIGS)
def test_slots_and_computed_tokens_change_only_by_calls_on_their_sequence(
    config: str, *, early: bool, flies: bool
) -> None:
    made: set[str] = set()
    for seed in range(12):
        watcher = Watcher(seed, early=early, flies=flies, **CONFIGS[config])
        for _ in range(150):
            watcher.make(watcher.rng.choice(CALLS))
        made |= watcher.made
    assert made == set(CALLS)


def test_reparent_gives_a_sequence_the_computed_tokens_of_its_parent() -> None:
    manager = BlockManager(16, 2)
    first, second = manager.admit([1, 2, 3]), manager.admit([4])
    manager.commit(first, 3)
    manager.reparent([first, second], [1, 1])
    assert manager.sequence(first).num_computed_tokens == 0


def test_a_promise_is_kept_unless_it_is_withdrawn() -> None:
    """What was committed early stays until the forward has written it."""
    manager = BlockManager(16, 2, early_commit=True, debug=2)
    handle = manager.admit([1, 2, 3, 4, 5])
    manager.commit(handle, 4)
    other = manager.admit([9, 9, 9])
    block = manager.block_ids(handle)[0]
    refused: list[Callable[[], object]] = [
        lambda: manager.free(handle),
        lambda: manager.preempt(handle),
        lambda: manager.fork(handle),
        lambda: manager.truncate(handle, 2),
        lambda: manager.reparent([handle, other], [1, 1]),
        lambda: manager.reparent([handle, other], [0, 0]),
        lambda: manager.forget([block]),
        lambda: manager.shrink(4),
    ]
    for call in refused:
        with pytest.raises(StepError):
            call()
    reader = manager.admit([1, 2, 3, 4, 6])
    with pytest.raises(StepError, match="shared"):
        manager.free(handle, withdraw=True)
    manager.free(reader)
    manager.preempt(handle, withdraw=True)
    assert manager.sequence(handle).num_computed_tokens == 0
    assert manager.match([1, 2, 3]).num_cached_tokens == 0


# Tickets.


def test_tickets_grow_by_one_and_are_resolved_once() -> None:
    manager = BlockManager(8, 2)
    tickets = []
    for _ in range(3):
        tickets.append(manager.take_copies().ticket)
        with pytest.raises(StepError):
            manager.take_copies()
        manager.copies_applied(tickets[-1])
        with pytest.raises(TicketError, match="resolved already"):
            manager.copies_applied(tickets[-1])
    assert tickets == [tickets[0], tickets[0] + 1, tickets[0] + 2]


@pytest.mark.parametrize("ticket", [2**63 - 1, 2**63, 2**64, 2**70, -1, -(2**70)])
def test_a_ticket_of_any_size_that_was_never_taken_is_refused(ticket: int) -> None:
    manager = BlockManager(8, 2, steps_in_flight=1)
    manager.take_copies()
    for resolve in (manager.copies_applied, manager.copies_aborted):
        with pytest.raises(TicketError, match="never taken"):
            resolve(ticket)
    with pytest.raises(StepError, match="never taken" if ticket > 0 else "ticket"):
        manager.complete(ticket)


# A process that forks inside a call.

FORKED = """
import inspect, os, signal, sys, threading
from blockmgr import BlockManager, ForkError, Priority
from blockmgr.pool import BlockPool

inside, go, stays = threading.Event(), threading.Event(), False

def digest(message):
    if stays:
        inside.set()
        assert go.wait(60)
    return bytes(16)

options = {"digest": digest, "retention": True, "events": True}
if sys.argv[1] == "manager":
    owner = BlockManager(16, 2, steps_in_flight=1, max_pinned_blocks=2, **options)
    handle = owner.admit([1, 2, 3, 4, 5])
    call = (owner.commit, (handle, 5))
else:
    owner = BlockPool(8, 2, **options)
    handle = 1
    call = (owner.promote, (owner.take(2), [1, 2, 3, 4]))
stays = True
KNOWN = {"handle": handle, "handles": [handle], "parents": [0], "seconds": 9.0, "blocks": [1]}

def tried(name):
    # Arguments that are not known by their name are a number or a list, whichever is accepted.
    for guess in (0, 1, [1], [1, 2, 3]):
        try:
            value = getattr(owner, name)
            if not callable(value):
                return "answered"
            wanted = inspect.signature(value).parameters.values()
            wanted = [one for one in wanted if one.default is one.empty and one.kind < 4]
            wanted = [one for one in wanted if one.kind != one.VAR_POSITIONAL]
            given = {one.name: KNOWN.get(one.name, guess) for one in wanted}
            if "priority" in given:
                given["priority"] = Priority.HIGH
            positional = [given.pop(one.name) for one in wanted if one.kind != one.KEYWORD_ONLY]
            value(*positional, **given)
        except ForkError:
            return "refused"
        except Exception:
            continue
        return "answered"
    return "arguments"

thread = threading.Thread(target=call[0], args=call[1])
thread.start()
inside.wait()
child = os.fork()
if not child:
    signal.alarm(60)
    names = [name for name in dir(type(owner)) if not name.startswith("_")]
    for name in names:
        print(name, tried(name))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
go.set()
thread.join()
owner.check_invariants()
"""
READ_WITHOUT_A_LOCK = {
    "manager": {"config", "debug", "block_tables", "seq_lens", "group_table"},
    "pool": {"block_size", "capacity", "num_blocks"},
}
NO_CALL = {"compiled", "check_policy", "from_config"}
"""Answers are those of this process: no state of the manager is in them."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX systems fork")
@pytest.mark.parametrize("owner", ["manager", "pool"])
def test_every_call_in_a_child_that_was_forked_inside_a_call_is_refused(owner: str) -> None:
    command = [sys.executable, "-c", FORKED, owner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split() for line in done.stdout.splitlines())
    answered = {name for name, outcome in outcomes.items() if outcome == "answered"}
    assert answered - NO_CALL == READ_WITHOUT_A_LOCK[owner]
    refused = [name for name, outcome in outcomes.items() if outcome == "refused"]
    assert len(refused) > 0.75 * len(outcomes), outcomes


# What leaves a process.

QUIET = """
import logging, sys

events = []
import blockmgr, numpy  # all that is imported on the way is imported here
from blockmgr import BlockManager
from blockmgr.pool import BlockPool

def work():
    manager = BlockManager(32, 4, events=True, retention=True, quotas={b"t": 8})
    for namespace in (b"", b"t", b"secret"):
        handle = manager.admit(list(range(9)), namespace=namespace)
        manager.commit(handle, 9)
        manager.copies_applied(manager.take_copies().ticket)
        [child] = manager.fork(handle)
        manager.append(child, [5])
        manager.decode([handle, child], [1, 2])
        manager.preempt(child)
        manager.resume(child)
        manager.explain(list(range(12)), namespace=namespace)
        for each in (handle, child):
            manager.free(each)
    manager.take_events(), manager.stats(), manager.blocks(), repr(manager)
    try:
        manager.admit([1] * 10**4)
    except blockmgr.NeverFitsError:
        pass
    pool = BlockPool(8, 4)
    pool.release(pool.take(2))
    manager.check_invariants()

work()
class Seen(logging.Handler):
    def emit(self, record):
        events.append(record.getMessage())
logging.getLogger().addHandler(Seen())
logging.getLogger().setLevel(0)
sys.addaudithook(lambda name, args: events.append(name))
work()
seen = [e for e in events if e.startswith(("open", "socket", "pickle", "subprocess", "os."))]
sys.exit(repr(seen) if seen or not all("." in e or e.islower() for e in events) else 0)
"""


def test_a_manager_and_a_pool_log_nothing_and_open_no_file_and_no_socket() -> None:
    command = [sys.executable, "-c", QUIET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def imports() -> Iterator[tuple[str, str]]:
    """Each module of the package, and the first name of each module that it imports."""
    root = Path(blockmgr.__file__).parent
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).as_posix()
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(part, ast.Import):
                yield from ((module, alias.name.partition(".")[0]) for alias in part.names)
            elif isinstance(part, ast.ImportFrom) and part.module and not part.level:
                yield module, part.module.partition(".")[0]


def users_of(*names: str) -> set[str]:
    return {module for module, name in imports() if name in names}


ROOMS_THAT_LOG = (
    "events/",
    "index/",
    "ports/vllm/",
    "ports/vllm_tiers/",
    "ports/sglang/",
    "ports/hinted.py",
    "ports/outages.py",
)


def test_only_events_the_index_and_the_ports_of_engines_log() -> None:
    logs = users_of("logging")
    assert logs
    assert all(module.startswith(ROOMS_THAT_LOG) for module in logs)


def test_only_events_the_index_a_sweep_on_ray_and_a_client_of_mooncake_open_sockets() -> None:
    opens = users_of("socket", "zmq", "http", "urllib", "requests", "httpx", "uvicorn", "ray")
    assert opens
    allowed = ("events/", "index/", "cli/", "lab/workers.py", "tiers/mooncake.py")
    assert [module for module in opens if not module.startswith(allowed)] == []


def test_nothing_is_unpickled_or_executed() -> None:
    assert users_of("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib") == set()
    root = Path(blockmgr.__file__).parent
    calls = {
        part.func.id
        for path in root.rglob("*.py")
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
    }
    assert not calls & {"eval", "exec", "compile"}


def test_a_pickled_config_contains_the_names_of_quotas() -> None:
    config = ManagerConfig(num_blocks=8, block_size=2, quotas={b"a secret name": 4})
    assert b"a secret name" in pickle.dumps(config)
    assert "a secret name" not in repr(config)
