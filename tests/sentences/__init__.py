"""Claims of README and the pages with a number, or with "any", "never" or "always".

Of the pages that promise something to engines and to tenants, every sentence is a claim. ``python
-m tests.sentences`` lists the sentences that are missing in ``register.toml``, and entries whose
sentence is on no page; ``--add`` adds the former as open and drops the latter. Sentences are
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
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
REGISTER = Path(__file__).with_name("register.toml")

# A number, or a word that leaves no exception.
CLAIM = re.compile(r"(?<![\w.])\d|\b(any|never|always)\b", re.IGNORECASE)
END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])")
# Words that end with a dot without ending a sentence.
SHORT = ("e.g.", "i.e.", "vs.", "al.", "No.", "Fig.", "St.")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
PROMISES = ("docs/security.md", "docs/step-contract.md")
# What stands behind a sentence: see register.toml. Of some, there is nothing more to say.
BARE = ("definition", "reason", "limit", "engine", "cited")
NAMED = ("test", "generated", "command", "history", "open")


class Entry(NamedTuple):
    """What stands behind a sentence, and which one: a test, a command; empty for most verdicts."""

    text: str
    kind: str
    evidence: str


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
    """Every sentence in the running text of a page."""
    for paragraph in paragraphs(text):
        parts: list[str] = []
        for part in END.split(paragraph):
            if parts and parts[-1].endswith(SHORT):
                parts[-1] += f" {part}"
            else:
                parts.append(part)
        yield from parts


def claims(text: str) -> bool:
    """Whether a sentence has a number, or leaves no exception."""
    return bool(CLAIM.search(re.sub(r"\]\([^)]*\)", "]", text)))


def found() -> dict[str, Sentence]:
    """Every sentence that needs an entry, by its key."""
    every: dict[str, Sentence] = {}
    for path in pages():
        page = str(path.relative_to(ROOT))
        for text in sentences(path.read_text(encoding="utf-8")):
            if page in PROMISES or claims(text):
                every.setdefault(key(text), Sentence(text, page))
    return every


def register() -> dict[str, Entry]:
    """The entries, by key.

    Raises:
        ValueError: A kind of evidence that is none, or a sentence that is there twice.
    """
    kinds = tomllib.loads(REGISTER.read_text(encoding="utf-8"))
    if unknown := kinds.keys() - {*BARE, *NAMED}:
        raise ValueError(f"{REGISTER.name}: no kind of evidence is called {unknown}")
    bare = [Entry(text, kind, "") for kind in BARE for text in kinds.get(kind, [])]
    named = [Entry(text, kind, kinds[kind][text]) for kind in NAMED for text in kinds.get(kind, {})]
    entries = {key(entry.text): entry for entry in (*bare, *named)}
    if len(entries) < len(bare) + len(named):
        raise ValueError(f"{REGISTER.name} has a sentence twice")
    return entries


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
