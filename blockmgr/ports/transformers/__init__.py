"""Hugging Face transformers on a paged KV cache: an unmodified model, read through block tables.

``PagedModel`` is a model without a loop around it, for engines of one's own; the loop is in
``blockmgr.ports.engine``.
"""

from blockmgr.ports.transformers.attention import (
    GroupTables,
    Kernel,
    PagedBatch,
    Reader,
    SdpaKernel,
)
from blockmgr.ports.transformers.kernels import FlashAttnKernel, FlashInferKernel
from blockmgr.ports.transformers.model import PagedModel, load_model
from blockmgr.ports.transformers.trial import check_config

__all__ = [
    "FlashAttnKernel",
    "FlashInferKernel",
    "GroupTables",
    "Kernel",
    "PagedBatch",
    "PagedModel",
    "Reader",
    "SdpaKernel",
    "check_config",
    "load_model",
]
