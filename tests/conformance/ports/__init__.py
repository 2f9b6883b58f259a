"""Adapters of the ports for the suite in ``tests/conformance/test_ports.py``."""

from __future__ import annotations

from tests.conformance.ports import aphrodite, nano_vllm, radix, slots, tgi
from tests.conformance.ports.adapter import FEATURES, Adapter

__all__ = ["ADAPTERS", "FEATURES", "Adapter"]

ADAPTERS: dict[str, type[Adapter]] = {
    "aphrodite_naive": aphrodite.Naive,
    "aphrodite_prefix_caching": aphrodite.PrefixCaching,
    "nano_vllm": nano_vllm.Present,
    "radix": radix.Radix,
    "slots": slots.Slots,
    "tgi": tgi.Tgi,
    "tgi, simple": tgi.TgiSimple,
}
"""Name of a port, and the class that drives it; one line each."""
