"""Runs every causal language model of transformers: the same tokens, or a refusal.

``python -m tests.models_sweep`` runs them all; ``tests/ports/test_engine_sweep.py`` runs some.
"""

from pathlib import Path

__all__ = ["KEPT", "types_kept", "version_kept"]

KEPT = Path(__file__).with_name("types.txt")
"""The model types that run, one per line, and above them the version of transformers."""


def types_kept() -> list[str]:
    """The model types that run, sorted."""
    return KEPT.read_text().splitlines()[1:]


def version_kept() -> str:
    """The version of transformers for which the list was made."""
    return KEPT.read_text().splitlines()[0].removeprefix("# transformers ")
