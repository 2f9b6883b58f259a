"""The radix cache equals its model under any calls."""

from __future__ import annotations

from tests.ports.radix_machine import RadixMachine

TestRadixModel = RadixMachine.TestCase
