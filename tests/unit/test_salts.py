"""A namespace may be a tenant's secret: it is never printed, logged or raised."""

from __future__ import annotations

import base64
import inspect as python_inspect
import logging
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import blockmgr
from blockmgr import BlockManager, BlockMgrError, KeyedDigest, ManagerConfig, namespace_key
from blockmgr.config import Quotas
from blockmgr.inspect import describe
from blockmgr.lab.trace import Request, Trace, read_trace, write_trace
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint
from tests.unit.engine import serve

SALT = b"S4lt!-of-tenant-1"
OTHER = b"\x00\xfe other tenant \xff"
SECRETS = {"salt": SALT, "other": OTHER, "key": namespace_key(salt=SALT, adapter=b"lora")}
PROMPT = [11, 12, 13, 14, 15]


def spellings(secret: bytes) -> Iterator[str]:
    """The forms in which these bytes could appear in a text."""
    yield secret.decode("latin-1")
    yield repr(secret)[2:-1]
    yield secret.hex()
    yield secret.hex().upper()
    yield str(list(secret))[1:-1]
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for skip in range(3):  # at any offset in a longer text
            yield encode(secret[skip:])[: len(secret) // 3 * 4 - 4].decode()


def leaks(text: str) -> list[str]:
    return [
        f"{who}: {s}" for who, secret in SECRETS.items() for s in spellings(secret) if s in text
    ]


def texts_of(value: object) -> Iterator[str]:
    """All printed forms of an object."""
    yield repr(value)
    yield str(value)
    yield f"{value}"
    if is_dataclass(value) and not isinstance(value, type):
        yield str({field.name: getattr(value, field.name) for field in fields(value) if field.repr})
    if isinstance(value, BaseException):
        yield str(vars(value))
        yield repr(value.args)
        for cause in (value.__cause__, value.__context__):
            if cause is not None:
                yield from texts_of(cause)


@pytest.fixture
def manager() -> BlockManager:
    """A manager with every kind of object that has a namespace."""
    manager = BlockManager(24, 2, quotas={SALT: 8, SECRETS["key"]: 6}, min_partial_tokens=1)
    for namespace in (*SECRETS.values(), b""):
        serve(manager, PROMPT, namespace=namespace)
    [child] = manager.fork(manager.handles()[0])
    manager.append(child, [7])
    return manager


def objects(manager: BlockManager) -> Iterator[object]:
    """At least one object of every kind that the library returns."""
    yield manager
    yield manager.config
    yield manager.config.quotas
    yield replace(manager.config, debug=1)
    yield manager._core
    yield manager.stats()
    for namespace in SECRETS.values():
        yield manager.quota_usage(namespace)
        yield manager.match(PROMPT, namespace=namespace)
        yield manager.can_admit(PROMPT, namespace=namespace)
    for handle in manager.handles():
        yield manager.sequence(handle)
    plan = manager.take_copies()
    yield plan
    yield from plan
    manager.copies_applied(plan.ticket)
    yield from manager.take_remaps()
    blocks = manager.blocks()
    yield blocks
    yield blocks.state
    yield [blockmgr.BlockState(int(state)) for state in np.unique(np.asarray(blocks.state))]
    yield blockmgr.Pin(1, 1)
    yield blockmgr.DigestPin(1, 1, 1, 1, b"d" * 16)
    yield blockmgr.Remap(1, 2, 3, 4)
    yield blockmgr.Priority.HIGH
    yield KeyedDigest(SALT)
    yield blockmgr.VllmDigest("0")  # vLLM's seed is not a secret
    yield BlockManager(8, 2, digest=KeyedDigest(SALT)).config
    pool = BlockPool(8, 2)
    pool.promote(pool.take(2), PROMPT[:4], namespace=SALT)
    yield pool
    yield from of_the_idle()
    yield manager.explain([*PROMPT, 1, 2], namespace=SALT)
    yield from manager.explain([*PROMPT, 1, 2], namespace=SALT).misses
    yield from blockmgr.MissReason
    followed = BlockManager(8, 2, ghost_blocks=4)
    serve(followed, PROMPT, namespace=SALT)
    yield followed.config
    yield followed.hit_rate_curve()
    yield manager.recent_hits()
    told = BlockManager(8, 2, events=True)
    serve(told, PROMPT, namespace=SALT, extras={0: SALT})
    yield told.config
    events = told.take_events()
    yield events
    yield from events
    yield blockmgr.EventKind.STORED
    yield blockmgr.Tier.DEVICE
    yield blockmgr.Prompt(PROMPT, namespace=SALT, extras={0: SALT})
    yield from of_groups()
    yield Request(arrival_ms=0, prompt=np.array(PROMPT), num_output_tokens=1, namespace=SALT)


def of_the_idle() -> Iterator[object]:
    kept = BlockManager(24, 2)
    serve(kept, PROMPT, namespace=SALT, extras={0: SALT})
    for handle in kept.handles():
        kept.free(handle)
    front = kept.idle_front(1)
    yield front
    prefix = kept.prefix_of(int(front.block_ids[0]))
    yield prefix
    yield prefix.parts


def of_groups() -> Iterator[object]:
    layers = [
        blockmgr.FullAttention(),
        blockmgr.SlidingWindow(4),
        blockmgr.ChunkedAttention(4),
        blockmgr.RecurrentState(),
        blockmgr.Ring(8),
    ]
    yield layers
    hybrid = BlockManager(64, 2, null_block=True, groups=layers)
    serve(hybrid, PROMPT, namespace=SALT)
    yield hybrid.config
    yield hybrid.blocks()


def test_nothing_that_is_handed_out_prints_a_namespace(manager: BlockManager) -> None:
    for value in objects(manager):
        for text in texts_of(value):
            assert not leaks(text), f"{type(value).__name__}: {text}"


def test_every_public_class_was_looked_at(manager: BlockManager) -> None:
    """Ensures that no class is forgotten."""
    seen: set[type] = set()
    for value in objects(manager):
        seen.update(type(item) for item in (value if isinstance(value, list) else [value]))
    public = [getattr(blockmgr, name) for name in blockmgr.__all__]
    classes = {c for c in public if isinstance(c, type) and not issubclass(c, BaseException)}
    assert classes <= seen


WRONG: list[Callable[[BlockManager], object]] = [
    lambda m: m.admit(range(100), namespace=SALT),
    lambda m: m.admit(range(100), namespace=OTHER),
    lambda m: [m.admit([i] * 6, namespace=SALT) for i in range(9)],
    lambda m: [m.admit([i] * 6, namespace=OTHER) for i in range(9)],
    lambda m: m.decode(m.handles() * 2, [0] * 2 * len(m.handles())),
    lambda m: m.admit([], namespace=SALT),
    lambda m: m.admit([-1], namespace=SALT),
    lambda m: m.admit(PROMPT, namespace=SALT.decode()),  # type: ignore[arg-type]
    lambda m: m.admit(PROMPT, namespace=bytearray(SALT)),  # type: ignore[arg-type]
    lambda m: m.admit(PROMPT, namespace=SALT * 100),
    lambda m: m.admit(PROMPT, namespace=[SALT]),  # type: ignore[arg-type]
    lambda m: m.admit(SALT.decode(), namespace=SALT),  # type: ignore[arg-type]
    lambda m: m.admit([SALT], namespace=SALT),  # type: ignore[list-item]
    lambda m: m.admit(PROMPT, extras={0: SALT.decode()}),  # type: ignore[dict-item]
    lambda m: m.admit(PROMPT, extras={0: SALT * 100}),
    lambda m: m.admit(PROMPT, extras={SALT: b"x"}),  # type: ignore[dict-item]
    lambda m: m.admit(PROMPT, extras=[SALT]),  # type: ignore[arg-type]
    lambda m: m.match([], namespace=SALT),
    lambda m: m.block_digests([], namespace=SALT),
    lambda m: m.block_digests(PROMPT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.match(PROMPT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.can_admit(PROMPT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.touch(PROMPT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.explain(PROMPT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.quota_usage(SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.quota_usage(SALT * 100),
    lambda m: m.end_session(SALT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.end_session(SALT, namespace=SALT),
    lambda m: m.end_session(SALT.decode(), namespace=SALT),  # type: ignore[arg-type]
    lambda m: m.signal(SALT * 100, "done", namespace=SALT),
    lambda m: m.signal(SALT, "done", expected_in=1, namespace=SALT),
    lambda m: m.admit(PROMPT, session=SALT, namespace=SALT),
    lambda m: m.admit(PROMPT, session=SALT.decode(), namespace=SALT),  # type: ignore[arg-type]
    lambda m: m.retire(SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.shrink(99),
    lambda m: m.grow(99),
    lambda m: m.session_digests(SALT, namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.session_digests(SALT.decode(), namespace=SALT),  # type: ignore[arg-type]
    lambda m: m.retain_digests([SALT], priority=None, namespace=SALT),
    lambda m: m.pin_digests([SALT], namespace=SALT),
    lambda m: m.pin_digests([b"d" * 16], namespace=SALT.hex()),  # type: ignore[arg-type]
    lambda m: m.append(m.handles()[0], range(100)),
    lambda m: m.reserve(m.handles()[0], 100),
    lambda m: m.free(SALT),  # type: ignore[arg-type]
    lambda m: m.resume(m.handles()[0]),
    lambda m: m.resume_together(m.handles()),
    lambda m: m.truncate(m.handles()[0], 0),
    lambda m: m.fork(m.handles()[0], 1000),
    lambda m: m.copies_applied(99),
    lambda m: m.complete(99),
    lambda m: m.pin(PROMPT, namespace=SALT),
    lambda m: (m.preempt(m.handles()[0]), m.append(m.handles()[0], [1])),
    lambda m: m.sequence(-5),
    lambda _: BlockManager(24, 2, quotas={SALT.decode(): 8}),  # type: ignore[dict-item]
    lambda _: BlockManager(24, 2, quotas={SALT * 100: 8}),
    lambda _: BlockManager(24, 2, quotas={SALT: 25}),
    lambda _: BlockManager(24, 2, quotas={SALT: 0}),
    lambda _: BlockManager(24, 2, quotas={SALT: 1.0}),  # type: ignore[dict-item]
    lambda _: BlockManager(24, 2, quotas={SALT: SALT}),  # type: ignore[dict-item]
    lambda _: BlockManager(24, 2, quotas={SALT: SALT.decode()}),  # type: ignore[dict-item]
    lambda _: BlockManager(24, 2, quotas=[SALT]),  # type: ignore[arg-type]
    lambda _: BlockManager(24, 2, quotas=SALT),  # type: ignore[arg-type]
    lambda m: m.hit_rate_curve(SALT.decode()),
    lambda m: m.hit_rate_curve(SALT),
    lambda _: Quotas({OTHER: 1})[SALT],
    lambda _: namespace_key(salt=SALT.decode()),  # type: ignore[arg-type]
    lambda _: KeyedDigest(SALT.decode()),  # type: ignore[arg-type]
    lambda _: KeyedDigest(SALT[:8]),
    lambda _: BlockPool(8, 2).find(PROMPT, namespace=SALT.decode()),  # type: ignore[arg-type]
    lambda _: BlockPool(8, 2).children(namespace=SALT * 100),
    lambda _: BlockPool(8, 2, quotas={SALT: 9}),
    lambda _: BlockPool(8, 2, quotas={SALT: 4}).take(5, namespace=SALT),
    lambda _: BlockPool(8, 2, quotas={SALT: 4}).take(1, namespace=SALT.decode()),  # type: ignore[arg-type]
    lambda _: BlockPool(8, 2, quotas={SALT: 4}).evict(1, namespace=SALT),
    lambda _: BlockPool(8, 2, quotas={SALT: 4}).forget(1, namespace=SALT * 100),
    lambda _: BlockPool(8, 2).acquire_prefix(PROMPT, namespace=SALT.decode()),  # type: ignore[arg-type]
    lambda _: BlockPool(8, 2).quota_usage(SALT * 100),
    lambda _: BlockPool(8, 2).hit_rate_curve(SALT),
    lambda _: (pool := BlockPool(8, 2, quotas={SALT: 4})).promote(
        int(pool.take()[0]), [1, 2], namespace=SALT
    ),
    lambda _: (pool := BlockPool(8, 2, quotas={SALT: 4})).promote_end(
        int(pool.take()[0]), [1], namespace=SALT
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_no_error_names_a_namespace(
    manager: BlockManager, wrong: Callable[[BlockManager], object]
) -> None:
    with pytest.raises((BlockMgrError, ValueError, TypeError, KeyError)) as caught:
        wrong(manager)
    for text in texts_of(caught.value):
        assert not leaks(text), text


def test_a_mistyped_namespace_in_a_trace_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    request = Request(arrival_ms=0, prompt=np.array(PROMPT), num_output_tokens=1, namespace=SALT)
    write_trace(Trace("trace", (request,)), path)
    whole = path.read_text(encoding="utf-8")
    for wrong in (SALT.hex()[:-1], SALT.decode()):
        path.write_text(whole.replace(SALT.hex(), wrong), encoding="utf-8")
        with pytest.raises(blockmgr.TraceFormatError, match="namespace") as caught:
            list(read_trace(path).requests)
        for text in texts_of(caught.value):
            assert SALT.hex()[:-1] not in text
            assert not leaks(text), text


def test_nothing_is_logged_or_written(
    manager: BlockManager, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        manager.debug = 2
        serve(manager, PROMPT, namespace=SALT)
        manager.check_invariants()
    assert not caplog.text
    assert capfd.readouterr() == ("", "")


def test_pictures_and_descriptions_of_the_blocks_show_no_namespace(
    manager: BlockManager, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from blockmgr.lab.block_map import block_map, save_block_map

    text = save_block_map(block_map(manager), tmp_path / "map.svg").read_text(encoding="utf-8")
    assert len(text) > 1_000
    assert not leaks(text)
    assert not leaks(describe(manager, max_lines=1_000))


def test_the_invariants_tell_of_a_broken_namespace_without_its_name(manager: BlockManager) -> None:
    error = blockmgr.InvariantError(tuple(manager._core.violations()))
    assert not leaks(str(error))
    assert not leaks(fingerprint(manager).decode("latin-1"))


def test_the_search_would_find_a_namespace_however_it_is_spelled() -> None:
    for secret in (SALT, OTHER):
        for text in (repr(secret), secret.hex(), str({secret: 1}), f"key {list(secret)}"):
            assert leaks(text), text
        for before in (b"", b"x", b"xy"):
            assert leaks(base64.b64encode(before + secret).decode())


def test_a_config_is_carried_to_another_process_with_its_namespaces() -> None:
    config = ManagerConfig(num_blocks=8, block_size=2, quotas={SALT: 3, OTHER: 2})
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert hash(copy) == hash(config)
    assert dict(copy.quotas) == {SALT: 3, OTHER: 2}
    assert repr(config.quotas) == "<Quotas: 2 namespaces, 3 and 2 blocks>"


def test_every_parameter_called_namespace_is_tried_above() -> None:
    """Every call that takes a namespace must be in a list above."""
    takes = {
        name
        for owner in (BlockManager, BlockPool)
        for name, call in python_inspect.getmembers(owner, python_inspect.isfunction)
        if "namespace" in python_inspect.signature(call).parameters
    }
    tried = {
        "explain",
        "admit",
        "match",
        "can_admit",
        "touch",
        "quota_usage",
        "pin",
        "block_digests",
        "find",
        "children",
        "hit_rate_curve",
        "take",
        "evict",
        "forget",
        "acquire_prefix",
        "end_session",
        "signal",
        "retire",
        "session_digests",
        "retain_digests",
        "pin_digests",
    }
    assert takes <= tried | {"retain_prefix", "promote", "promote_end"}
