"""What README and the pages claim with a number, or with "any", "never" or "always".

``python -m tests.sentences`` lists the sentences that ``register.toml`` does not have, and those it
has that no page says any more; ``--add`` writes the first into it as open, and drops the second.
Sentences are compared by their letters and digits alone, so that line breaks, links, emphasis and
moves from page to page change nothing.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
REGISTER = Path(__file__).with_name("register.toml")

# A number, or a word that leaves no exception.
CLAIM = re.compile(r"(?<![\w.])\d|\b(any|never|always)\b", re.IGNORECASE)
END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")
# What ends in a dot and no sentence.
SHORT = ("e.g.", "i.e.", "vs.", "al.", "No.", "Fig.", "St.")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
VERDICTS = ("definition", "reason", "cited", "generated", "command", "history", "open")


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the first page that has it."""

    text: str
    page: str

    @property
    def key(self) -> str:
        return key(self.text)


def key(text: str) -> str:
    """What two spellings of one sentence have in common."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paragraphs(text: str) -> Iterator[str]:
    """Running text: no code, no tables, no headings, no directives; each list item by itself."""
    lines: list[str] = []
    fenced = False
    hidden = False
    for each in [*text.splitlines(), ""]:
        fence = FENCE.match(each)
        fenced ^= bool(fence)
        if fenced:
            continue
        line = "" if fence else each
        hidden = (hidden or "<!--" in line) and "-->" not in line
        bare = line.strip()
        indented = line.startswith("    ") and not lines
        ends = not bare or indented or hidden or bare.startswith(("|", "#", "<", "![", ":", ">"))
        if (ends or ITEM.match(line)) and lines:
            yield " ".join(lines)
            lines = []
        if not ends:
            lines.append(ITEM.sub("", line).strip())


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page that claim something."""
    for paragraph in paragraphs(text):
        parts: list[str] = []
        for part in END.split(paragraph):
            if parts and parts[-1].endswith(SHORT):
                parts[-1] += f" {part}"
            else:
                parts.append(part)
        yield from (part for part in parts if CLAIM.search(re.sub(r"\]\([^)]*\)", "]", part)))


def found() -> dict[str, Sentence]:
    """Every sentence that needs an entry, by its key."""
    every: dict[str, Sentence] = {}
    for page in pages():
        for text in sentences(page.read_text(encoding="utf-8")):
            every.setdefault(key(text), Sentence(text, str(page.relative_to(ROOT))))
    return every


def register() -> dict[str, dict[str, str]]:
    """The entries, by key: each with ``text``, and one of ``test`` and the verdicts."""
    entries = tomllib.loads(REGISTER.read_text(encoding="utf-8"))["sentence"]
    return {key(entry["text"]): entry for entry in entries}


def has_test(node: str) -> bool:
    """Whether a test of this name is there, without running or importing anything."""
    path, _, name = node.partition("::")
    file = ROOT / path
    if not file.is_file():
        return False
    if not name:
        return True
    return any(
        isinstance(part, ast.FunctionDef | ast.ClassDef) and part.name == name.split("[")[0]
        for part in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    )
