"""A manager of the package, each call of which is made through the C interface, too.

Both have the same core, so they answer the same down to the ids of blocks: any difference is one
between the interfaces. It takes the place of a manager under test in ``tests.stress``.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    Ring,
    SlidingWindow,
    errors,
)
from blockmgr.blocks import Admission, retention_of
from blockmgr.common_calls import CommonCalls
from blockmgr.groups import is_single
from tests.library.face import statuses, struct, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from blockmgr import ManagerConfig

STATUS = statuses()
OPTIONS, GROUP, QUOTA = map(struct, ("blockmgr_options", "blockmgr_group", "blockmgr_quota"))
PROMPT, EXTRA, MATCH = map(struct, ("blockmgr_prompt", "blockmgr_extra", "blockmgr_match_result"))
VIEW, COPY, REMAP = map(struct, ("blockmgr_sequence", "blockmgr_copy", "blockmgr_remap"))
STATS = struct("blockmgr_stats")
KINDS = (FullAttention, SlidingWindow, ChunkedAttention, RecurrentState, Ring)
DETAIL = {SlidingWindow: "replay", RecurrentState: "extra_blocks", Ring: "restart"}
SKIP, LIMIT, EXACT, WATERMARK = (STATUS[name] for name in (
    "SKIP_CACHE", "LIMIT_CACHED", "EXACT_CACHED", "SET_WATERMARK"))  # fmt: skip
WITHDRAW = STATUS["WITHDRAW"]
SIGNALS = ("tool_wait", "resumed", "done")
DUE = {
    errors.OutOfSequencesError: "OUT_OF_SEQUENCES",
    errors.PinBudgetError: "PIN_BUDGET",
    errors.StaleMatchError: "STALE_MATCH",
    errors.NeverFitsError: "NEVER_FITS",
    errors.UnknownSequenceError: "UNKNOWN_SEQUENCE",
    errors.UnknownPinError: "UNKNOWN_PIN",
    errors.SequenceStateError: "SEQUENCE_STATE",
    errors.BlockStateError: "BLOCK_STATE",
    errors.StepError: "STEP",
    errors.TicketError: "TICKET",
}


class DifferenceError(AssertionError):
    """The C interface does not do what the package does."""


class Refused(Exception):
    """The C interface has refused a call."""


def status_due(error: Exception) -> int:
    if isinstance(error, errors.OutOfBlocksError):
        return STATUS["OUT_OF_NODES" if error.of_nodes else "OUT_OF_BLOCKS"]
    return STATUS[DUE.get(type(error), "BAD_VALUE")]


def same(what: str, ours: Any, theirs: Any) -> None:
    if ours != theirs:
        raise DifferenceError(f"{what}: {ours} from Python, {theirs} from C")


def numbers(values: Any, kind: Any = ctypes.c_int64) -> Any:
    listed = np.asarray(values).tolist()
    return (kind * len(listed))(*listed)


def named(text: bytes) -> tuple[Any, Any]:
    return ctypes.c_char_p(text), ctypes.c_size_t(len(text))


def options_for_c(config: ManagerConfig) -> Any:
    """The options of a manager, with what they point to."""
    options = OPTIONS(struct_size=ctypes.sizeof(OPTIONS))
    for name, *_ in OPTIONS._fields_:
        value = getattr(config, name, None)
        if isinstance(value, int):
            setattr(options, name, value)
    options.append_only = config.dedup == "append_only"
    options.prompt_end_stop = -1 if config.prompt_end_stop is None else config.prompt_end_stop
    options.digest, options.digest_size = None, 16
    groups = [
        GROUP(KINDS.index(type(group)), getattr(group, DETAIL.get(type(group), ""), 0),
              getattr(group, "width", 0))
        for group in config.groups
    ]  # fmt: skip
    sizes = numbers([getattr(group, "block_size", None) or 0 for group in config.groups])
    names = [ctypes.create_string_buffer(name, len(name) + 1) for name in config.quotas]
    quotas = [
        QUOTA(ctypes.addressof(text), len(name), blocks)
        for text, (name, blocks) in zip(names, config.quotas.items(), strict=True)
    ]
    texts = ctypes.create_string_buffer(str(config.eviction).encode())
    kept = (GROUP * len(groups))(*groups), (QUOTA * len(quotas))(*quotas)
    options.kept = *kept, sizes, names, texts
    options.group_block_sizes = ctypes.addressof(sizes)
    options.groups, options.quotas = (ctypes.addressof(each) for each in kept)
    options.num_groups, options.num_quotas = len(groups), len(quotas)
    options.eviction = ctypes.addressof(texts)
    return options


def prompt_for_c(
    tokens: Any,
    *,
    namespace: bytes = b"",
    extras: Mapping[int, bytes] | None = None,
    num_slots: int | None = None,
    read_cache: bool = True,
    match: Any = None,
    max_cached_tokens: int | None = None,
    watermark_blocks: int | None = None,
    num_loaded_tokens: int | None = None,
    session: bytes = b"",
) -> Any:
    prompt = PROMPT(struct_size=ctypes.sizeof(PROMPT), num_tokens=len(tokens))
    text, name = numbers(tokens, ctypes.c_uint32), ctypes.create_string_buffer(namespace)
    prompt.tokens, prompt.name = ctypes.addressof(text), ctypes.addressof(name)
    prompt.name_size, prompt.num_slots = len(namespace), num_slots or 0
    keys = [
        (block, ctypes.create_string_buffer(key), len(key)) for block, key in (extras or {}).items()
    ]
    listed = (EXTRA * len(keys))(
        *(EXTRA(block, ctypes.addressof(key), size) for block, key, size in keys)
    )
    prompt.extras, prompt.num_extras = ctypes.addressof(listed), len(keys)
    prompt.flags = SKIP * (not read_cache)
    if max_cached_tokens is not None:
        prompt.flags, prompt.max_cached_tokens = prompt.flags | LIMIT, max_cached_tokens
    if match is not None:
        prompt.flags, prompt.max_cached_tokens = prompt.flags | EXACT, match.num_cached_tokens
    if watermark_blocks is not None:
        prompt.flags, prompt.watermark_blocks = prompt.flags | WATERMARK, watermark_blocks
    prompt.num_loaded_tokens = num_loaded_tokens or 0
    of_session = ctypes.create_string_buffer(session)
    prompt.session, prompt.session_size = ctypes.addressof(of_session), len(session)
    prompt.kept = text, name, keys, listed, of_session
    return prompt


class InC:
    """The calls through C, with the arguments and the answers of those of the package."""

    def __init__(self, library: ctypes.CDLL, config: ManagerConfig) -> None:
        self.library, self.config = library, config
        self.manager = ctypes.c_void_p()
        self.handles: dict[int, int] = {}  # of a sequence of the package
        self.pins: dict[int, int] = {}
        options = options_for_c(config)
        self.call(library.blockmgr_create, ctypes.byref(options), ctypes.byref(self.manager))
        self.tables = [self.table_of(group) for group in range(max(1, len(config.groups)))]

    def close(self) -> None:
        self.library.blockmgr_destroy(self.manager)

    @staticmethod
    def converted(value: Any) -> Any:
        if isinstance(value, float):
            return ctypes.c_double(value)
        return ctypes.c_int64(value) if isinstance(value, int | np.integer) else value

    def call(self, function: Any, *arguments: Any) -> None:
        status = function(*map(self.converted, arguments))
        if status:
            raise Refused(status)

    def do(self, name: str, *arguments: Any) -> None:
        self.call(getattr(self.library, f"blockmgr_{name}"), self.manager, *arguments)

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_int64) -> Any:
        """The answer is a number, which the last argument points to."""
        answer = kind(-7)
        try:
            self.do(name, *arguments, ctypes.byref(answer))
        except Refused:
            same(f"the answer of a refused {name}", -7, answer.value)
            raise
        return answer.value

    def list(self, name: str, *arguments: Any, kind: Any = ctypes.c_int64) -> Any:
        """The answer takes room: asked for with none, and then with what is needed."""
        count, room = ctypes.c_int64(0), 0
        while True:
            out = (kind * room)()
            try:
                self.do(name, *arguments, out, room, ctypes.byref(count))
            except Refused as refusal:
                if refusal.args != (STATUS["TOO_SMALL"],):
                    raise
                room = count.value
                continue
            return list(out[: count.value])

    def handle(self, handle: int) -> int:
        return self.handles.get(handle, handle)

    def table_of(self, group: int) -> Any:
        table = ctypes.POINTER(ctypes.c_int32)()
        rows, width = ctypes.c_int64(), ctypes.c_int64()
        self.do("table", group, *map(ctypes.byref, (table, rows, width)))
        return np.ctypeslib.as_array(table, (rows.value, width.value))

    def view(self, handle: int) -> Any:
        view = VIEW(struct_size=ctypes.sizeof(VIEW))
        self.do("view", self.handle(handle), ctypes.byref(view))
        return view

    # ---- calls as those of the package ------------------------------------------------------

    def admit(self, tokens: Any, **key: Any) -> int:
        return int(self.number("admit", ctypes.byref(prompt_for_c(tokens, **key))))

    def can_admit(self, tokens: Any, **key: Any) -> Admission:
        prompt = ctypes.byref(prompt_for_c(tokens, **key))
        return list(Admission)[self.number("can_admit", prompt, kind=ctypes.c_int32)]

    def match(self, tokens: Any, **key: Any) -> Any:
        found = MATCH(struct_size=ctypes.sizeof(MATCH))
        asked = ctypes.byref(prompt_for_c(tokens, **key)), ctypes.byref(found)
        self.do("match", *asked, None, 0)
        blocks = (ctypes.c_int32 * found.num_blocks)()
        self.do("match", *asked, blocks, found.num_blocks)
        found.block_ids = list(blocks)
        return found

    def block_digests(self, tokens: Any, **key: Any) -> list[bytes]:
        whole = self.list(
            "block_digests", ctypes.byref(prompt_for_c(tokens, **key)), kind=ctypes.c_uint8
        )
        return [bytes(whole[at : at + 16]) for at in range(0, len(whole), 16)]

    def touch(self, tokens: Any, **key: Any) -> int:
        return int(self.number("touch", ctypes.byref(prompt_for_c(tokens, **key))))

    def pin(self, tokens: Any, **key: Any) -> int:
        return int(self.number("pin", ctypes.byref(prompt_for_c(tokens, **key))))

    def end_session(self, session: bytes, *, namespace: bytes = b"") -> int | None:
        blocks = self.number("end_session", *named(namespace), *named(session))
        return None if blocks < 0 else int(blocks)

    def signal(
        self, session: bytes, signal: str, *, expected_in: Any = None, namespace: bytes = b""
    ) -> int | None:
        terms = (
            ctypes.c_int32(SIGNALS.index(signal)),
            math.inf if expected_in is None else float(expected_in),
        )
        blocks = self.number("signal", *named(namespace), *named(session), *terms)
        return None if blocks < 0 else int(blocks)

    def retire(self, namespace: bytes = b"") -> int:
        return int(self.number("retire", *named(namespace)))

    def unpin(self, pin: int) -> None:
        self.do("unpin", pin)

    def retain_prefix(self, tokens: Any, *, priority: Any, ttl: Any = None, **key: Any) -> int:
        prompt = ctypes.byref(prompt_for_c(tokens, **key))
        return int(self.number("retain_prefix", prompt, *retention_of(priority, ttl)))

    def retain(self, handle: int, start: int, stop: int, *, priority: Any, ttl: Any = None) -> int:
        terms = (self.handle(handle), start, stop, *retention_of(priority, ttl))
        return int(self.number("retain", *terms))

    def set_time(self, seconds: float) -> None:
        self.do("set_time", float(seconds))

    def append(self, handle: int, tokens: Any) -> None:
        self.do("append", self.handle(handle), numbers(tokens, ctypes.c_uint32), len(tokens))

    def reserve(self, handle: int, num_slots: int) -> None:
        self.do("reserve", self.handle(handle), num_slots)

    def commit(self, handle: int, num_computed_tokens: int) -> None:
        self.do("commit", self.handle(handle), num_computed_tokens)

    def truncate(self, handle: int, num_tokens: int) -> int:
        return int(self.number("truncate", self.handle(handle), num_tokens))

    def place_state(self, handle: int, slot: int) -> None:
        self.do("place_state", self.handle(handle), slot)

    def cache_state(self, handle: int) -> bool:
        return bool(self.number("cache_state", self.handle(handle), kind=ctypes.c_int32))

    def decode(self, handles: Any, tokens: Any) -> Any:
        slots = (ctypes.c_int64 * len(handles))()
        of_c = numbers([self.handle(int(handle)) for handle in handles])
        self.do("decode", of_c, numbers(tokens, ctypes.c_uint32), len(handles), slots)
        return list(slots)

    def fork(self, handle: int, n: int = 1) -> Any:
        children = (ctypes.c_int64 * max(n, 0))()
        self.do("fork", self.handle(handle), n, children)
        return list(children)

    def reparent(self, handles: Any, parents: Any) -> None:
        of_c = numbers([self.handle(int(handle)) for handle in handles])
        self.do("reparent", of_c, numbers(parents), len(of_c))

    def free(self, handle: int, *, expect_reuse: Any = None, withdraw: bool = False) -> None:
        flags = WITHDRAW * withdraw
        if expect_reuse is None:
            self.do("free", self.handle(handle), flags)
        else:
            self.do("free_expecting", self.handle(handle), int(expect_reuse), flags)

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        self.do("preempt", self.handle(handle), WITHDRAW * withdraw)

    def resume(self, handle: int, *, num_slots: Any = None, read_cache: bool = True) -> None:
        self.do("resume", self.handle(handle), num_slots or 0, SKIP * (not read_cache))

    def resume_together(
        self, handles: Any, *, num_slots: Any = None, read_cache: bool = True
    ) -> None:
        of_c = numbers([self.handle(handle) for handle in handles])
        self.do("resume_together", of_c, len(of_c), num_slots or 0, SKIP * (not read_cache))

    def take_copies(self) -> Any:
        ticket, count, room = ctypes.c_int64(-7), ctypes.c_int64(), 0
        for _ in range(2):
            copies = (COPY * room)()
            try:
                self.do("take_copies", copies, room, ctypes.byref(count), ctypes.byref(ticket))
                break
            except Refused as refusal:
                if refusal.args != (STATUS["TOO_SMALL"],):
                    raise
                room = count.value
        return ticket.value, [(c.source, c.destination, c.num_tokens, c.group) for c in copies]

    def copies_applied(self, ticket: int) -> None:
        self.do("copies_applied", ticket)

    def copies_aborted(self, ticket: int) -> None:
        self.do("copies_aborted", ticket)

    def complete(self, ticket: int) -> None:
        self.do("complete", ticket)

    def take_remaps(self) -> Any:
        told = self.list("take_remaps", kind=REMAP)
        return [(r.handle, r.index, r.old_block, r.new_block) for r in told]

    def acquire(self, blocks: Any) -> None:
        self.do("acquire", numbers(blocks), len(blocks))

    def release(self, blocks: Any) -> None:
        self.do("release", numbers(blocks), len(blocks))

    def touch_blocks(self, blocks: Any) -> None:
        self.do("touch_blocks", numbers(blocks), len(blocks))

    def forget(self, blocks: Any) -> int:
        return int(self.number("forget", numbers(blocks), len(blocks)))

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True) -> int:
        return int(self.number("reset_prefix_cache", int(reset_hit_rate)))

    def shrink(self, num_blocks: int) -> int:
        return int(self.number("shrink", num_blocks))

    def grow(self, num_blocks: int) -> None:
        self.do("grow", num_blocks)

    def leaving(self) -> Any:
        return self.list("leaving")

    def slot_mapping(self, handle: int, start: int, stop: int, *, group: Any = None) -> Any:
        slots = (ctypes.c_int64 * max(stop - start, 0))(*[-1] * (stop - start))
        if group is None:
            group = self.of_tables()
            if self.config.groups and is_single(self.config.groups[group]):
                return list(slots)  # C takes groups of attention only
        self.do("slot_mapping", self.handle(handle), group, start, stop, slots)
        return list(slots)

    def of_tables(self) -> int:
        """The group of ``block_tables``."""
        kinds = [type(group) for group in self.config.groups]
        for wanted in (FullAttention, SlidingWindow, ChunkedAttention):
            if wanted is FullAttention and wanted in kinds:
                return kinds.index(wanted)
        attention = [i for i, kind in enumerate(kinds) if kind in KINDS[:3]]
        return attention[0] if attention else 0


class Twin(BlockManager):
    """A manager, and one behind the C interface to which the same happens."""

    def __init__(self, library: ctypes.CDLL, **options: Any) -> None:
        super().__init__(**options)
        self.in_c = InC(library, self.config)
        self.compared: dict[str, int] = {}

    def __del__(self) -> None:
        self.in_c.close()

    def in_both(self, name: str, args: Sequence[Any], key: Mapping[str, Any]) -> Any:
        answer, error, told, status = None, None, None, 0
        try:
            answer = getattr(BlockManager, name)(self, *args, **key)
        except (errors.BlockMgrError, ValueError) as refusal:
            error = refusal
        try:
            told = getattr(self.in_c, name)(*args, **key)
        except Refused as refusal:
            [status] = refusal.args
        what = f"{name}{tuple(args)}{dict(key)}"
        same(f"status of {what}", status_due(error) if error else 0, status)
        self.compared[name] = self.compared.get(name, 0) + (error is None)
        if error is not None:
            self.compare_refusal(what, error)
            raise error
        COMPARE.get(name, compare_values)(self, what, answer, told)
        if name not in QUESTIONS:
            self.compare(what)
        return answer

    def compare_refusal(self, what: str, error: Exception) -> None:
        told = text_of(self.in_c.library)
        if isinstance(error, errors.OutOfBlocksError):
            found = [ctypes.c_int64() for _ in range(3)]
            self.in_c.library.blockmgr_last_shortage(*map(ctypes.byref, found))
            due = [error.needed, error.available, error.reserved_by_watermark]
            same(f"shortage of {what}", due, [number.value for number in found])
            same(f"text of {what}", str(error), told)

    def compare(self, call: str) -> None:
        """Compares all that both tell."""
        c = self.in_c
        for group, table in enumerate(c.tables):
            kinds, ours = self.config.groups, self.group_table(group)
            shown = ours.shape[1] if kinds and is_single(kinds[group]) else None
            for row in np.flatnonzero((ours != table[:, :shown]).any(axis=1)).tolist():
                mine, other = ours[row].tolist(), table[row].tolist()
                raise DifferenceError(f"group {group} after {call}: {mine}, {other} from C")
        same("handles", [c.handle(h) for h in self.handles()], c.list("handles"))
        for handle in self.handles():
            ours, theirs = self.sequence(handle), c.view(handle)
            for name in VIEWED:
                same(f"{name} of {handle}", int(getattr(ours, name)), getattr(theirs, name))
            same(f"stops of {handle}", ours.stops, tuple(theirs.stops[: theirs.num_stops]))
        stats = STATS(struct_size=ctypes.sizeof(STATS))
        c.do("get_stats", ctypes.byref(stats))
        ours = self.stats()
        for name, *_ in STATS._fields_[1:]:
            same(name, getattr(ours, name), getattr(stats, name))

    def check_invariants(self) -> None:
        super().check_invariants()
        self.in_c.do("check_invariants")


VIEWED = ("num_tokens", "num_computed_tokens", "num_cached_tokens", "num_replayed_tokens",
          "num_blocks", "num_slots", "is_preempted")  # fmt: skip
QUESTIONS = frozenset({"can_admit", "match", "block_digests", "slot_mapping", "leaving"})


def compare_values(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    same(what, ours.tolist() if isinstance(ours, np.ndarray) else ours, theirs)


def compare_matches(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    for name in ours.__dataclass_fields__.keys() - {"block_ids", "stops"}:
        same(f"{name} of {what}", getattr(ours, name), getattr(theirs, name))
    same(f"blocks of {what}", ours.block_ids.tolist(), theirs.block_ids)
    same(f"stops of {what}", ours.stops, tuple(theirs.stops[: theirs.num_stops]))


def compare_plans(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    groups = [0] * len(ours.sources) if ours.groups is None else ours.groups
    due = list(zip(ours.sources, ours.destinations, ours.num_tokens, groups, strict=True))
    zeros = [] if ours.zeros is None else ours.zeros.tolist()
    same(what, ours.ticket, theirs[0])
    same(what, due, theirs[1][: len(due)])
    same(f"zeros of {what}", [(b, b) for b in zeros], [row[:2] for row in theirs[1][len(due) :]])


def note_handles(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    for handle, of_c in zip(np.ravel(ours).tolist(), np.ravel(theirs).tolist(), strict=True):
        twin.in_c.handles[handle] = of_c


def compare_remaps(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    same(what, [(twin.in_c.handle(r[0]), *r[1:]) for r in map(tuple, ours)], theirs)


def compare_leaving(twin: Twin, what: str, ours: Any, theirs: Any) -> None:
    users = {twin.in_c.handle(handle) for handles in ours.values() for handle in handles}
    same(what, sorted(users), sorted(theirs))


COMPARE: dict[str, Callable[[Twin, str, Any, Any], None]] = {
    "match": compare_matches,
    "take_copies": compare_plans,
    "take_remaps": compare_remaps,
    "leaving": compare_leaving,
    "admit": note_handles,
    "fork": note_handles,
}


def _twice(name: str) -> Any:
    def method(self: Twin, *args: Any, **key: Any) -> Any:
        return self.in_both(name, args, key)

    return method


for _name in vars(InC).keys() & (vars(BlockManager).keys() | vars(CommonCalls).keys()):
    if not _name.startswith("_"):
        setattr(Twin, _name, _twice(_name))
