"""What clients know and say in a replay: a table of models, by the name that ``--hints`` takes.

A replay knows the future of its trace, so it can give a client any knowledge. A model states which
knowledge that is. ``blockmgr.lab.hints.Clients`` carries it out; a further model is a further row.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HINT_MODELS", "HintModel", "HintName"]

HintName = Literal["none", "session", "tool", "ended_session", "truth"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HintModel:
    """What clients say with their requests, and after them.

    Attributes:
        text: The same in a few words.
        foretells: At the end of each request, whether its conversation continues.
        names: The session of each request.
        waits: After an answer that calls a tool, that the session waits for it, and about how long.
        ends: After the last request of a session, that it has ended.
    """

    text: str
    foretells: bool = False
    names: bool = False
    waits: bool = False
    ends: bool = False


HINT_MODELS: Final[Mapping[HintName, HintModel]] = MappingProxyType(
    {
        "none": HintModel(text="nothing"),
        "session": HintModel(text="the session of each request", names=True),
        "tool": HintModel(
            text="that, and after an answer that calls a tool, about how long the tool takes",
            names=True,
            waits=True,
        ),
        "ended_session": HintModel(
            text="the session of each request, and its end", names=True, ends=True
        ),
        "truth": HintModel(
            text="at the end of each request, whether its conversation continues", foretells=True
        ),
    }
)
"""The models by name."""
