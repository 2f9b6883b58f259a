"""The manager against its model, under any sequence of calls."""

from __future__ import annotations

from blockmgr import BlockManager
from blockmgr.config import EVICTION_POLICIES
from tests.reference_policies import Lru
from tests.stateful.machine import ManagerMachine


class DrawnDigestMachine(ManagerMachine):
    """The digest is drawn with the rest of the configuration."""

    manager = BlockManager


class ConstantDigestMachine(ManagerMachine):
    """Every block collides with every other."""

    manager = BlockManager
    digest = "constant"


class PolicyMachine(ManagerMachine):
    """Every eviction policy; the model gets the manager's victims."""

    manager = BlockManager
    evictions = (*EVICTION_POLICIES[1:], Lru)


TestAnyPolicy = PolicyMachine.TestCase
TestAnyDigest = DrawnDigestMachine.TestCase
TestConstantDigest = ConstantDigestMachine.TestCase
