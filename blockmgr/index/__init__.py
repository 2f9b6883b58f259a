"""Which workers have a prompt in their caches: an index fed by the events of many managers.

The extra ``index`` installs what these modules need; ``WorkerIndex`` alone needs ``events`` only.
"""

from __future__ import annotations

from blockmgr.index.workers import TIER_WEIGHTS, Placement, WorkerIndex

__all__ = ["TIER_WEIGHTS", "Placement", "WorkerIndex"]
