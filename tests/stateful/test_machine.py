"""The manager against its model, under any sequence of calls."""

from __future__ import annotations

from blockmgr import BlockManager
from tests.stateful.machine import ManagerMachine


class DrawnDigestMachine(ManagerMachine):
    """Digest drawn with the rest of the configuration."""

    manager = BlockManager


class ConstantDigestMachine(ManagerMachine):
    """Every block collides with every other."""

    manager = BlockManager
    digest = "constant"


TestAnyDigest = DrawnDigestMachine.TestCase
TestConstantDigest = ConstantDigestMachine.TestCase
