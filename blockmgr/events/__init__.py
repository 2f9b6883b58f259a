"""Events on the wire: formats of other systems, a publisher, a subscriber that fills gaps.

These modules need the extra ``events``.
"""

from __future__ import annotations

from blockmgr.errors import MissingExtraError

try:
    import msgspec  # noqa: F401
    import zmq  # noqa: F401
except ImportError as error:
    raise MissingExtraError("events", "blockmgr.events") from error

from blockmgr.events.codec import Encoder, decode
from blockmgr.events.dialects import SglangEncoder
from blockmgr.events.publisher import Publisher
from blockmgr.events.reader import Reader, Sink
from blockmgr.events.subscriber import Subscriber
from blockmgr.events.wire import About, AllBlocksCleared, Batch, BlockRemoved, BlockStored

__all__ = [
    "About",
    "AllBlocksCleared",
    "Batch",
    "BlockRemoved",
    "BlockStored",
    "Encoder",
    "Publisher",
    "Reader",
    "SglangEncoder",
    "Sink",
    "Subscriber",
    "decode",
]
