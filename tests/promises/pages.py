"""The sentences of the pages that promise something to engines and to tenants.

``pages.toml`` has an entry for each sentence: the test that runs it, or why none does. Sentences
are compared as ``tests.sentences`` compares them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.sentences import END, ROOT, SHORT, key, paragraphs

PAGES = ("docs/security.md", "docs/step-contract.md")
REGISTER = Path(__file__).with_name("pages.toml")
WHY = {
    "introduces": "says what follows, or what a word means",
    "advice": "tells the reader what to do",
    "limit": "says what is not promised",
    "reason": "says why, of a promise beside it",
    "device": "is about the device or the stream, which only an engine has",
    "long": "would take hours to run",
}


def sentences(page: str) -> list[str]:
    """Every sentence of a page, whether it has a number or not."""
    found: list[str] = []
    for paragraph in paragraphs((ROOT / page).read_text(encoding="utf-8")):
        parts: list[str] = []
        for part in END.split(paragraph):
            if parts and parts[-1].endswith(SHORT):
                parts[-1] += f" {part}"
            else:
                parts.append(part)
        found += parts
    return found


def register() -> dict[str, dict[str, str]]:
    """The entries by key: each has ``text``, and ``run`` or ``why``."""
    entries = tomllib.loads(REGISTER.read_text(encoding="utf-8"))["sentence"]
    return {key(entry["text"]): entry for entry in entries}
