"""A KV-cache block manager for paged attention.

``BlockManager`` decides which physical block holds which tokens. Start there.
"""

from importlib.metadata import version as _version

from blockmgr.blocks import PAD_SLOT, Admission, BlockCopy, CopyPlan, Match, Remap
from blockmgr.config import ManagerConfig
from blockmgr.digest import namespace_key
from blockmgr.errors import (
    BlockMgrError,
    InvariantError,
    MissingExtraError,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    ReentrancyError,
    SequenceStateError,
    StepError,
    TicketError,
    TraceFormatError,
    UnknownSequenceError,
)
from blockmgr.manager import BlockManager, Sequence
from blockmgr.stats import Stats

__all__ = [
    "PAD_SLOT",
    "Admission",
    "BlockCopy",
    "BlockManager",
    "BlockMgrError",
    "CopyPlan",
    "InvariantError",
    "ManagerConfig",
    "Match",
    "MissingExtraError",
    "NeverFitsError",
    "OutOfBlocksError",
    "OutOfSequencesError",
    "ReentrancyError",
    "Remap",
    "Sequence",
    "SequenceStateError",
    "Stats",
    "StepError",
    "TicketError",
    "TraceFormatError",
    "UnknownSequenceError",
    "namespace_key",
]

__version__ = _version("blockmgr")
