"""Claims of README and the pages with a number, or with "any", "never" or "always".

``python -m tests.sentences`` lists the sentences that are missing in ``register.toml``, and entries
whose sentence is on no page; ``--add`` adds the former as open and drops the latter. Sentences are
compared only by letters and digits, so that line breaks, links, emphasis and moves between pages do
not matter.
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
# Words that end with a dot without ending a sentence.
SHORT = ("e.g.", "i.e.", "vs.", "al.", "No.", "Fig.", "St.")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
VERDICTS = ("definition", "reason", "cited", "generated", "command", "history", "open")


@dataclass(frozen=True)
class Sentence:
    """A sentence and the first page that has it."""

    text: str
    page: str

    @property
    def key(self) -> str:
        return key(self.text)


def key(text: str) -> str:
    """The key that is equal for all spellings of a sentence."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def paragraphs(text: str) -> Iterator[str]:
    """Running text without code, tables, headings and directives; each list item separately."""
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
    """The sentences of a page that make a claim."""
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
    """Whether a test of this name exists, without running or importing anything."""
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
