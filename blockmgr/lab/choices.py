"""Checks names that users type, and suggests the nearest valid one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from blockmgr.config import EVICTION_POLICIES, REMOVED_POLICIES

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["hint", "parse_policies", "pick", "pick_policy"]

EVERY = "all"


def hint(text: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'chat'?"`` with the name nearest to ``text``, or nothing.

    >>> hint("lfud", ["lru", "lfuda"])
    "; did you mean 'lfuda'?"
    """
    near = get_close_matches(text.lower(), list(choices), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def pick(name: str, text: str, choices: Iterable[str]) -> str:
    """``text`` if it is one of ``choices``.

    Args:
        name: Name of the choice, for the message.
        text: The user's input.
        choices: The valid names.

    Raises:
        ValueError: It is none of them; the message names the nearest one.
    """
    known = list(choices)
    if text not in known:
        one_of = f"{name} must be one of {', '.join(known)}"
        raise ValueError(f"{one_of}, got {text!r}{hint(text, known)}")
    return text


def pick_policy(text: str) -> str:
    """``text`` if it is the name of an eviction policy.

    Raises:
        ValueError: There is no such policy; the message names the nearest one or the replacement.
    """
    if text in REMOVED_POLICIES:
        one_of = f"policy must be one of {', '.join(EVICTION_POLICIES)}, got {text!r}"
        raise ValueError(f"{one_of}; {text} was removed, {REMOVED_POLICIES[text]}")
    return pick("policy", text, EVICTION_POLICIES)


def parse_policies(text: str) -> tuple[str, ...]:
    """Eviction policies from a list such as ``"lru,arc"``; ``"all"`` means all of them.

    Raises:
        ValueError: There is no such policy, or one is repeated.
    """
    if text.strip() == EVERY:
        return tuple(EVICTION_POLICIES)
    names = tuple(pick_policy(item.strip()) for item in text.split(","))
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"policies must differ, got {name!r} twice")
    return names
