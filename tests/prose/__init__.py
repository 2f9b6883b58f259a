"""The words of pages, docstrings, comments and messages, and the rules for them.

``python -m tests.prose`` runs proselint over all text, with the rules of ``rules.toml`` and the
retired words of the glossary. ``tests/unit/test_words.py`` looks only for the retired words and
needs no extra packages.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
RULES = Path(__file__).with_name("rules.toml")

PAGES = ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/**/*.md", "tests/**/*.md")
CODE = ("blockmgr/**/*.py", "blockmgr/**/*.cc", "blockmgr/**/*.h", "examples/*.py")
# Texts about releases and recorded results keep their original words.
LEFT_OUT = ("CHANGELOG.md", "SECURITY.md", "docs/benchmarks.md")
# Files that are checked only for retired words.
BESIDE = (
    *("tests/**/*.py", "tests/**/*.cc", "tests/**/*.h", "benchmarks/**/*.py", "benchmarks/**/*.cc"),
    *("docs/**/*.py", "docs/images/*.svg"),
)
# Files with quoted code of the core, or with the retired words themselves.
CODE_AS_TEXT = ("tests/mutants/", "tests/unit/test_words.py")

TAG = re.compile(r"<[^>]*>")
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1\S*$|^(?: {4}|\t).*$", flags=re.MULTILINE | re.DOTALL)
MARKUP = re.compile(r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+", flags=re.DOTALL)
RETIRED = re.compile(r"^## Retired words$.*?(?=^## |\Z)", flags=re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", flags=re.DOTALL)
EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\.) .*$", flags=re.MULTILINE)
# Markers at the start of a comment line.
LEAD = re.compile(r"^([ \t]*)(?://+|#+|\*+)", flags=re.MULTILINE)


def blank(text: str) -> str:
    """As many characters on the same lines, but all blank."""
    return re.sub(r"[^\n]", " ", text)


def files() -> list[Path]:
    """All files with text for readers."""
    return sorted(path for path in _found(*PAGES, *CODE) if _name(path) not in LEFT_OUT)


def all_files() -> list[Path]:
    """Those, and also texts with original words, tests, benchmarks and pictures."""
    found = _found(*PAGES, *CODE, *BESIDE)
    return sorted(path for path in found if not _name(path).startswith(CODE_AS_TEXT))


def _found(*patterns: str) -> set[Path]:
    return {path for pattern in patterns for path in ROOT.glob(pattern)}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def words(path: Path) -> str:
    """The text of a file with blank code, at the same positions."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # Only the glossary contains the retired words.
        text = RETIRED.sub(lambda match: blank(match[0]), text)
        text = FENCED.sub(lambda match: blank(match[0]), text)
    elif path.suffix == ".py":
        text = _of_python(text)
    elif path.suffix == ".svg":
        text = TAG.sub(lambda match: blank(match[0]), text)
    else:
        kept = [match.span() for match in COMMENT.finditer(text)]
        text = LEAD.sub(lambda match: " " * len(match[0]), _only(text, kept))
    return MARKUP.sub(lambda match: blank(match[0]), text)


def _only(text: str, spans: list[tuple[int, int]]) -> str:
    parts, end = [], 0
    for start, stop in spans:
        parts += [blank(text[end:start]), text[start:stop]]
        end = stop
    return "".join([*parts, blank(text[end:])])


def _of_python(text: str) -> str:
    """Comments, docstrings, and strings of several words, which are messages."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    docs = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    kept = []
    strings = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_message = token.type in strings and (
            token.start in docs or len(token.string.split()) > 2
        )
        if token.type == tokenize.COMMENT or is_message:
            (row, column), (last, stop) = token.start, token.end
            kept.append((starts[row - 1] + column, starts[last - 1] + stop))
    shown = EXAMPLE.sub(lambda match: blank(match[0]), _only(text, kept))
    return LEAD.sub(lambda match: " " * len(match[0]), shown)


def retired() -> dict[str, str]:
    """The retired words and phrases, each with its replacement."""
    table = GLOSSARY.read_text(encoding="utf-8").partition("\n## Retired words\n")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]
    return {form.strip(): rest[0] for first, *rest in rows[2:] for form in first.split(",")}


def pattern(phrase: str) -> str:
    """A regular expression for a phrase, in any case and with any line breaks."""
    return r"\b" + r"\s+".join(re.escape(word) for word in phrase.split()) + r"\b"
