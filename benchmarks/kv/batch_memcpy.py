"""``cuMemcpyBatchAsync`` through ctypes: many copies in one call of the driver.

CUDA 12.8 introduced the call. The driver's symbol without a suffix keeps its first signature, while
the signature in the runtime library changed; so this module loads the symbol from the driver.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BatchMemcpy", "Unavailable"]

STREAM_ORDER = 1
"""``CU_MEMCPY_SRC_ACCESS_ORDER_STREAM``."""


class Unavailable(Exception):
    """The driver does not have the call, or refuses it here."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    """``CUmemcpyAttributes``; locations left at 0 are no hint."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_location", _Location),
        ("destination_location", _Location),
        ("flags", ctypes.c_uint),
    )


class BatchMemcpy:
    """The driver's call, tried once when built.

    Raises:
        Unavailable: With the reason.
    """

    def __init__(self) -> None:
        if torch.version.cuda is None:
            raise Unavailable("not a CUDA build of torch")
        try:
            self._call = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
        except (OSError, AttributeError) as error:
            raise Unavailable(str(error)) from None
        self._call.restype = ctypes.c_int
        self._call.argtypes = (
            ctypes.c_void_p,  # destinations
            ctypes.c_void_p,  # sources
            ctypes.c_void_p,  # sizes
            ctypes.c_size_t,  # how many
            ctypes.POINTER(_Attributes),
            ctypes.POINTER(ctypes.c_size_t),  # first copy that each attribute is for
            ctypes.c_size_t,  # attributes
            ctypes.POINTER(ctypes.c_size_t),  # index of the failed copy
            ctypes.c_void_p,  # stream; the legacy default stream is refused
        )
        self._attributes = _Attributes(source_access_order=STREAM_ORDER)
        self._first = ctypes.c_size_t(0)
        self._failed = ctypes.c_size_t(0)
        self._try()

    def _try(self) -> None:
        source = torch.arange(64, dtype=torch.uint8, device="cuda")
        destination = torch.zeros_like(source)
        addresses = [np.array([t.data_ptr()], np.uint64) for t in (destination, source)]
        self(addresses[0], addresses[1], np.array([64], np.uint64))
        if not torch.equal(source, destination):
            raise Unavailable("the call returned success and copied nothing")

    def __call__(
        self,
        destinations: npt.NDArray[np.uint64],
        sources: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.uint64],
    ) -> None:
        """Issues the copies on the current stream, which must not be the default one."""
        status = self._call(
            destinations.ctypes.data,
            sources.ctypes.data,
            sizes.ctypes.data,
            len(sizes),
            ctypes.byref(self._attributes),
            ctypes.byref(self._first),
            1,
            ctypes.byref(self._failed),
            torch.cuda.current_stream().cuda_stream,
        )
        if status:
            raise Unavailable(f"cuMemcpyBatchAsync answered CUresult {status}")
