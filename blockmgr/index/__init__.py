"""An index of the prompts that workers have in their caches, fed by their events.

These modules need the extra ``index``; ``WorkerIndex`` needs only the extra ``events``.
"""

from __future__ import annotations

from blockmgr.index.workers import TIER_WEIGHTS, Placement, WorkerIndex

__all__ = ["TIER_WEIGHTS", "Placement", "WorkerIndex"]
