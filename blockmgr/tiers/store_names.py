"""The names of the ways in which a tier gets its blocks; ``proposals`` has what they do."""

from __future__ import annotations

from typing import Literal

__all__ = ["STORES", "StoreName"]

StoreName = Literal["idle", "second_touch", "release", "commit"]
STORES: tuple[StoreName, ...] = ("idle", "second_touch", "release", "commit")
