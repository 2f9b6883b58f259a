"""Every call with numbers in every container: the plain list's result, or a typed error.

Under ``python -m tests.arguments`` the same tests run with sanitizers in the core and in the code
that reads the containers, so that a write past a buffer is found even if it has no visible effect.
"""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from blockmgr import Admission, BlockMgrError, _core
from tests.arguments.calls import BEHIND, CALLS, ELSEWHERE, OWNERS, Call, World, parameters, public
from tests.arguments.calls import plain as comparable
from tests.arguments.containers import (
    CONTAINERS,
    NUMBERS,
    OTHER,
    RAISED,
    REFUSED,
    SAME,
    Due,
    Kind,
    NotApplicable,
    Number,
    Stop,
    endless,
    fail,
    stop,
)

MOST_SCRATCH = 2048
ANY = SAME | REFUSED | OTHER
TYPED = (TypeError, ValueError, BlockMgrError)


def names(parameter: str, message: str) -> bool:
    """Whether a message names the argument, or is the interpreter's own about a container."""
    # Whether ``promote`` takes one block or several decides what its extras must be.
    words = [parameter.removesuffix("s"), "__len__()", "iter()"]
    return any(word in message for word in [*words, *["extras"] * (parameter == "blocks")])


def outcome(call: Call, parameter: str, kind: Kind | None) -> tuple[Due, Any]:
    """What the call did in its own world, and its result."""
    world = World()
    right = call.roles[parameter].plain(world)
    given = right if kind is None else kind.make(right if isinstance(right, list) else [right])
    before, memory = world.state(), world.memory()
    try:
        result = call(world, **{parameter: given})
    except TYPED as error:
        done, result = REFUSED, str(error) or pytest.fail(f"{error!r} says nothing")
        if type(error) in (TypeError, ValueError):
            assert names(parameter, result), f"{result!r} does not name {parameter}"
    except (Stop, LookupError) as error:
        done, result = RAISED, repr(error)
    else:
        refused = result is Admission.NEVER  # the answer of can_admit
        done, result = REFUSED if refused else SAME, (comparable(result), world.seen())
    # Room for the numbers of the largest admissible argument: tokens, blocks or handles.
    assert world.memory() <= memory + MOST_SCRATCH, "a call kept its scratch memory"
    if done != SAME:
        assert world.state() == before, "a refused call changed something"
    return done, result


def check(
    call: Call,
    parameter: str,
    kinds: tuple[Kind, ...],
    due: Callable[[Kind], Due] = lambda kind: kind.due,
) -> None:
    """Fails with a sentence for each kind whose outcome is not the expected one."""
    if found := list(faults(call, parameter, kinds, due)):
        pytest.fail("\n".join([f"{call.name}, {parameter}:", *found]), pytrace=False)


def faults(
    call: Call,
    parameter: str,
    kinds: tuple[Kind, ...],
    due: Callable[[Kind], Due],
) -> Iterator[str]:
    done, expected = outcome(call, parameter, None)
    assert done == SAME, f"{call.name} refuses plain numbers: {expected}"
    for kind in kinds:
        role = call.roles[parameter]
        if (kind.name == "None" and role.or_none) or kind.name in role.or_kinds:
            continue
        try:
            done, result = outcome(call, parameter, kind)
        except (NotApplicable, OverflowError):  # this kind cannot hold these numbers
            continue
        except Exception as error:
            yield f"{kind.name}: {error!r}"
            continue
        if done == SAME and result != expected:
            done = OTHER
        if not done & due(kind):
            yield f"{kind.name}: expected {due(kind).name}, got {done.name}, {result}"


def given(kind: str) -> Any:
    """A test for each parameter of this role."""
    pairs = [(c, p) for c in CALLS for p, role in c.roles.items() if role.kind == kind]
    ids = [f"{call.name}-{parameter}" for call, parameter in pairs]
    return pytest.mark.parametrize(("call", "parameter"), pairs, ids=ids)


@given("ints")
def test_numbers_in_any_container_are_those_of_the_plain_list(call: Call, parameter: str) -> None:
    check(call, parameter, CONTAINERS)


@given("int")
def test_a_number_of_any_kind_is_the_plain_int_or_refused(call: Call, parameter: str) -> None:
    check(call, parameter, NUMBERS)


class Keys(Mapping[int, bytes]):
    """Extra keys in a user-defined mapping class."""

    def __init__(self, pairs: dict[int, bytes]) -> None:
        self.pairs = pairs

    def __getitem__(self, key: int) -> bytes:
        return self.pairs[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)


def mappings() -> Iterator[Kind]:
    """Kinds made from a list of one mapping, or of None."""

    def kind(name: str, make: Callable[[dict[int, bytes]], Any], due: Due) -> Kind:
        return Kind(name, lambda given: make(given[0] or {}), due)

    for made in (dict, OrderedDict, UserDict, ChainMap, MappingProxyType, Keys):
        yield kind(made.__name__, made, SAME)
    odd: dict[str, tuple[Callable[..., Any], Due]] = {
        "__iter__ endless": (endless, REFUSED),
        "__iter__ interrupted": (stop, RAISED),
        "__iter__ failing": (fail, RAISED),
        "__len__ interrupted": (stop, RAISED),
        "__len__ huge": (lambda self: 2**62, REFUSED),
        "__len__ negative": (lambda self: -1, REFUSED),
    }
    for base in (Keys, dict):
        for name, (function, due) in odd.items():
            made = type("Odd", (base,), {name.split()[0]: function})
            yield kind(f"{base.__name__}, {name}", made, due)
    asked = type("Odd", (Keys,), {"__getitem__": stop})
    yield kind("Keys, __getitem__ interrupted", lambda d: asked(d or {0: b"x"}), RAISED)
    with_key: dict[str, tuple[Any, Due]] = {
        "a bool": (True, REFUSED),
        "a float": (0.0, REFUSED),
        "a str": ("0", REFUSED),
        "bytes": (b"0", REFUSED),
        "a negative int": (-1, REFUSED),
        "an int of 32 bits": (2**31, REFUSED),
        "an int of 101 bits": (2**100, REFUSED),
        "an interrupted __index__": (Number(0, stop), RAISED),
        "a failing __index__": (Number(0, fail), RAISED),
    }
    for name, (key, due) in with_key.items():
        yield kind(f"dict with {name} for a block", lambda d, key=key: {key: b"x"}, due)
    for name, value in {"None": None, "str": "x", "bytearray": bytearray(b"x"), "b''": b""}.items():
        yield kind(f"dict with {name} for a key", lambda d, value=value: {0: value}, REFUSED)
    yield kind("dict with 1025 bytes for a key", lambda d: {0: bytes(1025)}, REFUSED)
    for name, wrong in {
        "list": [(0, b"x")],
        "empty list": [],
        "int": 5,
        "str": "0",
        "bytes": b"0",
    }.items():
        yield kind(name, lambda d, wrong=wrong: wrong, REFUSED)


@given("keys")
def test_extra_keys_are_those_of_the_plain_dict(call: Call, parameter: str) -> None:
    check(call, parameter, tuple(mappings()))


def byte_strings() -> Iterator[Kind]:
    """Kinds made from a list of one bytes object."""
    for name, function in {"__len__": stop, "__bytes__": stop, "__iter__": stop}.items():
        made = type("Odd", (bytes,), {name: function})
        yield Kind(f"bytes subclass, {name}", lambda given, made=made: made(given[0]), SAME)
    for made in (bytearray, memoryview, list):
        yield Kind(made.__name__, lambda given, made=made: made(given[0]), REFUSED)
    for wrong in (None, "x", 5, bytes(1025), bytes(10**6)):
        yield Kind(str(wrong)[:9], lambda given, wrong=wrong: wrong, REFUSED)


@given("bytes")
def test_bytes_are_bytes(call: Call, parameter: str) -> None:
    check(call, parameter, tuple(byte_strings()))


@pytest.mark.parametrize("owner", [*OWNERS, *BEHIND])
def test_every_call_is_in_the_table_with_each_of_its_parameters(owner: str) -> None:
    """Every call, with each of its parameters, must be in ``CALLS``."""
    table = {call.name: call for call in CALLS}
    missing = []
    for name, function in public(OWNERS.get(owner) or getattr(_core, owner)):
        full = f"{owner}.{name}"
        if full in ELSEWHERE or (owner in BEHIND and hasattr(BEHIND[owner], name)):
            continue
        roles = table[full].roles if full in table else {}
        missing += [f"{full}: {p}" for p in parameters(function) if p not in roles]
    assert missing == []


def test_the_core_has_no_other_entry_points() -> None:
    """Every class and function of the extension must be in ``OWNERS`` or ``BEHIND``."""
    # The tests of blockmgr.kv pass every container through int_array. Extra keys of vLLM, and the
    # table of an index, have their own tests.
    known = {*OWNERS, *BEHIND, "SharedMemory", "int_array", "order_copies"}
    # ``Prompt`` and replays by ids use these; both have their own tests.
    known |= {"prompt_tokens", "extended_tokens", "PromptTokens"}
    known |= {"IdTrace", "IdReplays", "IdReplay", "RunPaths"}
    known |= {"cbor_of", "cbor_items", "WorkerTable", "keys_of"}
    assert {name for name in dir(_core) if not name.startswith("_")} <= known
