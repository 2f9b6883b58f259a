"""Hypothesis strategies shared by the tests: tiny worlds with many collisions."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.stress.profiles import DIGESTS

__all__ = ["DIGESTS", "prompts", "token"]

# With two token values, prefixes collide in almost every run, which exposes bugs.
token = st.sampled_from([0, 0, 1])
prompts = st.lists(token, min_size=1, max_size=8)
