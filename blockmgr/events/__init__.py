"""Events on the wire: the formats others read, a publisher, and a subscriber that mends gaps.

The extra ``events`` installs what these modules need.
"""

from __future__ import annotations

from blockmgr.errors import MissingExtraError

try:
    import msgspec  # noqa: F401
    import zmq  # noqa: F401
except ImportError as error:
    raise MissingExtraError("events", "blockmgr.events") from error

from blockmgr.events.codec import Encoder, decode
from blockmgr.events.dialects import DynamoEncoder, SglangEncoder, TrtllmEncoder
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
    "DynamoEncoder",
    "Encoder",
    "Publisher",
    "Reader",
    "SglangEncoder",
    "Sink",
    "Subscriber",
    "TrtllmEncoder",
    "decode",
]
