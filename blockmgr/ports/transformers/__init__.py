"""Hugging Face transformers on a paged KV cache, with unmodified models.

``PagedModel`` is a model without a generation loop, for your own engine; ``blockmgr.ports.engine``
has a loop.
"""

from blockmgr.ports.transformers.attention import GroupTables, PagedBatch
from blockmgr.ports.transformers.model import PagedModel, load_model
from blockmgr.ports.transformers.trial import check_config

__all__ = [
    "GroupTables",
    "PagedBatch",
    "PagedModel",
    "check_config",
    "load_model",
]
