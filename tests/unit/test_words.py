"""Pages, docstrings, comments and messages use the words of the glossary, and no retired one."""

from __future__ import annotations

import re

from tests.prose import GLOSSARY, ROOT, all_files, blank, pattern, retired, words

RETIRED = re.compile("|".join(map(pattern, retired())), flags=re.IGNORECASE)
SUSPECT = re.compile("|".join(map(re.escape, retired())), flags=re.IGNORECASE)


def test_no_retired_word_is_left_in_the_tree() -> None:
    found = []
    for path in all_files():
        # The text is extracted only if one of the phrases may be in the file.
        if not SUSPECT.search(re.sub(r"\W+", " ", path.read_text(encoding="utf-8"))):
            continue
        text = words(path)
        for match in RETIRED.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            phrase = " ".join(match[0].lower().split())
            found.append(f"{path.relative_to(ROOT)}:{line}: {phrase} -> {retired()[phrase]}")
    assert not found, "\n".join(found)


def test_every_term_of_the_glossary_is_defined_once() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    terms = re.findall(r"^(\S.*)\n  \S", text, flags=re.MULTILINE)
    assert len(terms) > 50
    assert len(set(terms)) == len(terms)


def test_a_retired_phrase_is_found_across_lines_and_comment_marks() -> None:
    assert re.search(pattern("give up"), "Give\n   up".lower())
    assert not re.search(pattern("give up"), "forgive upper")


def test_code_is_no_prose() -> None:
    kept = words(ROOT / "tests" / "prose" / "__init__.py")
    assert "blank is code" not in kept
    assert "GLOSSARY" not in kept
    assert "As many characters" in kept
    assert blank("ab\nc") == "  \n "
