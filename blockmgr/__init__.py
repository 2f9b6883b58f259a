"""A KV-cache block manager for paged attention.

``BlockManager`` decides which physical block holds which tokens. Start there.
"""

import sys
from importlib import import_module

from blockmgr import interrupt

# The imports below take long enough to be interrupted; a command then prints one line about it.
if interrupt.is_command(sys.argv, sys.orig_argv):
    interrupt.end_at_once()

try:
    import_module("blockmgr._core")
except ModuleNotFoundError as error:
    if error.name != "blockmgr._core":
        raise
    # In a clone, this folder has the sources only; the compiled core is installed elsewhere.
    from pathlib import Path

    from blockmgr.installed import folder_with_core

    __path__.append(str(folder_with_core(Path(__file__).parent)))

from blockmgr.blocks import (
    PAD_SLOT,
    Admission,
    BlockCopy,
    BlockSnapshot,
    BlockState,
    CachedPrefix,
    CopyPlan,
    DigestPin,
    IdleFront,
    Match,
    Pin,
    PrefixParts,
    Priority,
    Remap,
)
from blockmgr.config import ManagerConfig
from blockmgr.digest import KeyedDigest, VllmDigest, namespace_key
from blockmgr.errors import (
    BlockMgrError,
    BlockStateError,
    ClusterLostError,
    CopyError,
    EndpointError,
    ForkError,
    HintError,
    InvariantError,
    LayoutError,
    MissingExtraError,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    PageSizeError,
    PinBudgetError,
    PolicyError,
    ReentrancyError,
    SequenceStateError,
    StaleMatchError,
    StepError,
    TicketError,
    TraceFormatError,
    UnknownPinError,
    UnknownSequenceError,
    UnsupportedModelError,
)
from blockmgr.event_columns import Event, EventKind, Events, Tier
from blockmgr.explain import Explanation, Miss, MissReason
from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    Ring,
    SlidingWindow,
    prefix_granularity,
)
from blockmgr.manager import BlockManager, Sequence
from blockmgr.prompt import Prompt
from blockmgr.stats import HitRateCurve, QuotaUsage, RecentHits, Stats
from blockmgr.vllm_keys import vllm_extras

__all__ = [
    "PAD_SLOT",
    "Admission",
    "BlockCopy",
    "BlockManager",
    "BlockMgrError",
    "BlockSnapshot",
    "BlockState",
    "BlockStateError",
    "CachedPrefix",
    "ChunkedAttention",
    "ClusterLostError",
    "CopyError",
    "CopyPlan",
    "DigestPin",
    "EndpointError",
    "Event",
    "EventKind",
    "Events",
    "Explanation",
    "ForkError",
    "FullAttention",
    "HintError",
    "HitRateCurve",
    "IdleFront",
    "InvariantError",
    "KeyedDigest",
    "LayoutError",
    "ManagerConfig",
    "Match",
    "Miss",
    "MissReason",
    "MissingExtraError",
    "NeverFitsError",
    "OutOfBlocksError",
    "OutOfSequencesError",
    "PageSizeError",
    "Pin",
    "PinBudgetError",
    "PolicyError",
    "PrefixParts",
    "Priority",
    "Prompt",
    "QuotaUsage",
    "RecentHits",
    "RecurrentState",
    "ReentrancyError",
    "Remap",
    "Ring",
    "Sequence",
    "SequenceStateError",
    "SlidingWindow",
    "StaleMatchError",
    "Stats",
    "StepError",
    "TicketError",
    "Tier",
    "TraceFormatError",
    "UnknownPinError",
    "UnknownSequenceError",
    "UnsupportedModelError",
    "VllmDigest",
    "namespace_key",
    "prefix_granularity",
    "vllm_extras",
]


def __getattr__(name: str) -> str:
    # Lazily: reading the installed metadata takes longer than importing the library itself.
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("blockmgr")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
