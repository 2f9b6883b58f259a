"""KV hints of routers, carried out on a manager's blocks.

vLLM and SGLang carry the same envelope from a router to the engine. ``Hints`` carries out its
actions. These modules need the extra ``hints``.
"""

from __future__ import annotations

from blockmgr.errors import MissingExtraError

try:
    import msgspec  # noqa: F401
except ImportError as error:
    raise MissingExtraError("hints", "blockmgr.hints") from error

from blockmgr.hints.hints import HintCounts, Hints
from blockmgr.hints.wire import KvHintAction, KvHintsEnvelope, Outcome, Result, decode, encode

__all__ = [
    "HintCounts",
    "Hints",
    "KvHintAction",
    "KvHintsEnvelope",
    "Outcome",
    "Result",
    "decode",
    "encode",
]
