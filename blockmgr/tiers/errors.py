"""The errors of opening a slab, or a store that others share."""

from __future__ import annotations

from blockmgr.errors import BlockMgrError

__all__ = ["SharedStoreError", "SlabError", "SlabHeldError", "SlabMismatchError", "SlabSpaceError"]


class SharedStoreError(BlockMgrError):
    """There is no shared store at this address.

    Attributes:
        address: The address.
        problem: What is wrong.
    """

    def __init__(self, address: str, problem: str) -> None:
        self.address, self.problem = address, problem
        super().__init__(f"shared store {address}: {problem}")


class SlabError(BlockMgrError):
    """The file at this path cannot be opened as a slab, and is as it was before.

    Attributes:
        path: The path.
        problem: What is wrong with it.
    """

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"slab {path}: {problem}")


class SlabHeldError(SlabError):
    """Another process, or another object in this one, has the slab open."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "it is open already; each engine needs a slab of its own")


class SlabMismatchError(SlabError):
    """The slab was made for other blocks: another model, layout or size.

    Attributes:
        field: What differs, such as ``model``.
        found: What the file was made for.
        wanted: What it was opened for.
    """

    def __init__(self, path: str, field: str, found: object, wanted: object) -> None:
        self.field, self.found, self.wanted = field, found, wanted
        super().__init__(
            path,
            f"it was made for {field} {found!r}, not {wanted!r}; remove it, or use another path",
        )


class SlabSpaceError(SlabError):
    """The file system has no room for the slab.

    Attributes:
        needed: Bytes that the slab takes.
        available: Bytes that were free.
    """

    def __init__(self, path: str, needed: int, available: int) -> None:
        self.needed, self.available = needed, available
        super().__init__(path, f"it needs {needed} bytes, and {available} are free")
