"""``Prompt``: the same results as its parts, but converted once; it can grow at its end."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager, Priority, Prompt, ReentrancyError, StaleMatchError
from tests.fingerprints import fingerprint

TOKENS = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def a_manager() -> BlockManager:
    manager = BlockManager(32, 4, retention=True, max_pinned_blocks=8, ghost_blocks=8)
    for namespace, extras in ((b"", None), (b"a", None), (b"a", {1: b"image"})):
        handle = manager.admit(TOKENS, namespace=namespace, extras=extras)
        manager.commit(handle, len(TOKENS))
        manager.free(handle)
    return manager


def plain(value: Any) -> Any:
    """The state that must be equal in two managers."""
    if hasattr(value, "block_ids"):
        return (value.num_cached_tokens, value.block_ids.tolist(), value.num_idle_blocks)
    return repr(value)


CALLS: dict[str, Any] = {
    "match": lambda m, *t, **k: plain(m.match(*t, **k)),
    "can_admit": lambda m, *t, **k: m.can_admit(*t, num_slots=20, **k),
    "admit": lambda m, *t, **k: m.sequence(m.admit(*t, **k)).num_computed_tokens,
    "explain": lambda m, *t, **k: plain(m.explain(*t, **k)),
    "block_digests": lambda m, *t, **k: m.block_digests(*t, **k),
    "pin": lambda m, *t, **k: plain(m.pinned(m.pin(*t, **k))),
    "retain_prefix": lambda m, *t, **k: m.retain_prefix(*t, priority=Priority.HIGH, **k),
    "touch": lambda m, *t, **k: m.touch(*t, **k),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "given",
    [{}, {"namespace": b"a"}, {"namespace": b"a", "extras": {1: b"image"}}, {"namespace": b"b"}],
)
def test_a_call_does_the_same_with_a_prompt_as_with_its_parts(
    name: str, given: dict[str, Any]
) -> None:
    one, other = a_manager(), a_manager()
    tokens = [*TOKENS, 10]
    expected = CALLS[name](one, tokens, **given)
    assert CALLS[name](other, Prompt(tokens, **given)) == expected
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("given", [{"namespace": b"a"}, {"extras": {}}, {"extras": {0: b"x"}}])
def test_parts_beside_a_prompt_are_refused(name: str, given: dict[str, Any]) -> None:
    manager = a_manager()
    before = fingerprint(manager)
    with pytest.raises(ValueError, match="namespace and extras"):
        CALLS[name](manager, Prompt(TOKENS), **given)
    assert fingerprint(manager) == before


def test_a_prompt_keeps_what_it_was_made_of() -> None:
    tokens, extras = list(TOKENS), {1: b"image"}
    array = np.array(TOKENS, np.uint32)
    prompt, of_array = Prompt(tokens, namespace=b"a", extras=extras), Prompt(array)
    tokens[0] = array[0] = 99
    extras[1] = b"other"
    assert prompt.tokens.tolist() == of_array.tokens.tolist() == TOKENS
    assert prompt.tokens.dtype == np.uint32
    assert (prompt.namespace, prompt.extras, len(prompt)) == (b"a", {1: b"image"}, 9)
    prompt.extras[2] = b"more"
    assert prompt.extras == {1: b"image"}
    with pytest.raises(ValueError, match="read-only"):
        prompt.tokens[0] = 5
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        prompt.tokens.flags.writeable = True
    with pytest.raises(ValueError, match="cannot resize"):
        prompt.tokens.resize((0,), refcheck=False)


@pytest.mark.filterwarnings("ignore:Setting the:DeprecationWarning")  # from NumPy 2.5 on
def test_no_attribute_of_its_tokens_changes_a_prompt() -> None:
    """NumPy lets anybody set the shape and the type of any array, a read-only one too."""
    prompt = Prompt([*TOKENS, 10], extras={1: b"image"})
    seen = prompt.tokens
    seen.shape = (2, 5)
    other = prompt.tokens
    other.dtype = np.uint8
    assert memoryview(seen.base).readonly  # type: ignore[arg-type]
    assert prompt.tokens.tolist() == [*TOKENS, 10]
    assert len(prompt) == 10
    for each in (copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):
        assert each.tokens.tolist() == [*TOKENS, 10]
    assert BlockManager(32, 4).admit(prompt) >= 0


def test_a_prompt_shows_no_content() -> None:
    text = repr(Prompt([123456789], namespace=b"secret", extras={0: b"hidden"}))
    assert text == "<Prompt: 1 tokens>"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_copy_is_as_good(copied: Any) -> None:
    prompt = Prompt(TOKENS, namespace=b"a", extras={1: b"image"})
    other = copied(prompt)
    assert other.tokens.tolist() == TOKENS
    assert (other.namespace, other.extras) == (b"a", {1: b"image"})
    assert not other.tokens.flags.writeable


def test_a_prompt_of_bad_parts_is_not_made() -> None:
    with pytest.raises(ValueError, match="tokens must not be empty"):
        Prompt([])
    with pytest.raises(ValueError, match="tokens"):
        Prompt([2**32])
    with pytest.raises(TypeError, match="tokens"):
        Prompt("words")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tokens"):
        Prompt(Prompt(TOKENS))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="namespace"):
        Prompt(TOKENS, namespace=b"x" * 1025)
    with pytest.raises(TypeError, match="namespace"):
        Prompt(TOKENS, namespace="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"extras\[0\]"):
        Prompt(TOKENS, extras={0: b""})
    with pytest.raises(TypeError, match="subclassed"):
        type("Own", (Prompt,), {})


def test_a_prompt_serves_a_whole_admission() -> None:
    manager = a_manager()
    prompt = Prompt([*TOKENS, 10], namespace=b"a")
    match = manager.match(prompt)
    handle = manager.admit(prompt, match=match)
    assert manager.sequence(handle).num_computed_tokens == match.num_cached_tokens == 8
    manager.free(handle)
    manager.reset_prefix_cache()
    with pytest.raises(StaleMatchError):
        manager.admit(prompt, match=match)


def test_random_prompts_meet_the_same_cache() -> None:
    draw = random.Random(4)
    one, other = (BlockManager(24, 2, max_seqs=6) for _ in range(2))
    for _ in range(400):
        tokens = [draw.randrange(3) for _ in range(draw.randint(1, 9))]
        given: dict[str, Any] = {"namespace": draw.choice([b"", b"n"])}
        if draw.random() < 0.3:
            given["extras"] = {draw.randrange(3): b"x"}
        prompt = Prompt(tokens, **given)
        assert one.can_admit(tokens, **given) is other.can_admit(prompt)
        if one.can_admit(tokens, **given).name != "NOW":
            continue
        first, second = one.admit(tokens, **given), other.admit(prompt)
        for manager, handle in ((one, first), (other, second)):
            manager.commit(handle, len(tokens))
            manager.free(handle)
        assert fingerprint(one) == fingerprint(other)


def test_an_extended_prompt_does_what_a_new_one_does() -> None:
    """Prompts that are copied and extended in any order, from lists and from arrays."""
    draw = random.Random(7)
    known: list[tuple[Prompt, list[int]]] = []
    for _ in range(600):
        if not known or draw.random() < 0.05:
            tokens = [draw.randrange(2**32) for _ in range(draw.randint(1, 12))]
            known.append((Prompt(tokens), tokens))
        number = draw.randrange(len(known))
        prompt, tokens = known[number]
        if draw.random() < 0.3:
            known.append((copy.copy(prompt), tokens))
        more = [draw.randrange(2**32) for _ in range(draw.randint(0, 5))]
        prompt.extend(np.array(more, np.uint32) if draw.random() < 0.5 else more)
        known[number] = prompt, tokens + more
    for prompt, tokens in known:
        assert prompt.tokens.tolist() == tokens
        assert len(prompt) == len(tokens)


def test_the_next_turn_of_a_session_extends_the_prompt_of_the_one_before() -> None:
    manager, ids = BlockManager(32, 4), list(TOKENS)
    prompt = Prompt(ids)
    handle = manager.admit(prompt)
    manager.commit(handle, len(ids))
    ids += range(20, 40)
    prompt.extend(ids[len(prompt) :])
    assert manager.sequence(handle).num_tokens == len(TOKENS)
    assert plain(manager.match(prompt)) == plain(manager.match(ids))
    assert manager.sequence(manager.admit(prompt)).tokens.tolist() == ids


def test_what_was_read_from_a_prompt_does_not_change_as_it_grows() -> None:
    prompt = Prompt(TOKENS)
    seen, twin = prompt.tokens, copy.deepcopy(prompt)
    for _ in range(9):
        prompt.extend([7, 8])
        twin.extend([9])
    assert seen.tolist() == TOKENS
    assert prompt.tokens.tolist() == [*TOKENS, *[7, 8] * 9]
    assert twin.tokens.tolist() == [*TOKENS, *[9] * 9]


@pytest.mark.parametrize(
    ("tokens", "extras", "error", "words"),
    [
        ([1, 2**32], None, ValueError, "tokens must be in .* at index 1"),
        ([1, -1], None, ValueError, "tokens must be in"),
        ([1, "2"], None, TypeError, "tokens must be ints"),
        ("words", None, TypeError, "tokens must be a list"),
        (Prompt([1]), None, TypeError, "tokens must be a list"),
        ([1], {0: b""}, ValueError, r"extras\[0\]"),
        ([1], {"0": b"x"}, TypeError, "extras index"),
        ([1], [(0, b"x")], TypeError, "extras must map"),
    ],
)
def test_a_refused_extension_changes_nothing(
    tokens: Any, extras: Any, error: type[Exception], words: str
) -> None:
    prompt = Prompt(TOKENS, extras={1: b"image"})
    with pytest.raises(error, match=words):
        prompt.extend(tokens, extras=extras)
    assert prompt.tokens.tolist() == TOKENS
    assert prompt.extras == {1: b"image"}
    prompt.extend([10])
    assert prompt.tokens.tolist() == [*TOKENS, 10]


def test_extra_keys_are_added_by_block_of_the_whole_prompt() -> None:
    prompt = Prompt(TOKENS, namespace=b"a", extras={1: b"image"}, session=b"s")
    prompt.extend([10, 11, 12, 13], extras={2: b"other", 1: b"new"})
    assert prompt.extras == {1: b"new", 2: b"other"}
    assert (prompt.namespace, prompt.session) == (b"a", b"s")
    one, other = a_manager(), a_manager()
    whole = Prompt([*TOKENS, 10, 11, 12, 13], namespace=b"a", extras={1: b"new", 2: b"other"})
    assert one.block_digests(prompt) == other.block_digests(whole)


def test_a_prompt_is_not_extended_by_code_that_an_extension_runs() -> None:
    prompt = Prompt(TOKENS)

    class Token:
        def __index__(self) -> int:
            prompt.extend([77])
            return 5

    with pytest.raises(ReentrancyError, match="extended while"):
        prompt.extend([Token()])  # type: ignore[list-item]
    assert prompt.tokens.tolist() == [*TOKENS, 77]
