"""Every claim of the pages with a number, or without exception, has evidence."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.sentences import NAMED, claims, found, has_test, key, paragraphs, register, sentences


def test_every_sentence_that_claims_something_is_in_the_register() -> None:
    known = register()
    missing = [f"{each.page}: {each.text}" for name, each in found().items() if name not in known]
    assert not missing, "\n".join([*missing, "(`python -m tests.sentences` lists them)"])


def test_every_entry_is_a_sentence_of_a_page() -> None:
    said = found()
    assert not [entry.text for name, entry in register().items() if name not in said]


def test_every_entry_names_what_stands_behind_it() -> None:
    assert not [each for each in register().values() if each.kind in NAMED and not each.evidence]


def test_every_test_that_is_named_exists() -> None:
    named = {entry.evidence for entry in register().values() if entry.kind == "test"}
    assert named
    assert [node for node in named if not has_test(node)] == []


def test_every_command_that_is_named_exists() -> None:
    modules = {
        module
        for entry in register().values()
        if entry.kind == "command"
        for module in re.findall(r"python -m ([\w.]+)", entry.evidence)
    }
    assert modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_no_sentence_is_open() -> None:
    assert not [entry.text for entry in register().values() if entry.kind == "open"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It takes 5 ns. It is fast.", ["It takes 5 ns."]),
        ("One line\nand 2 more.", ["One line and 2 more."]),
        ("- It never waits.\n- It may.\n- Always 3.", ["It never waits.", "Always 3."]),
        ("```text\nnever 3\n```\nText.", []),
        ("    any code 3\n\nText.", []),
        ("| a | 3 |\n|---|---|\n\nText.", []),
        ("# 3 headings\n\nText.", []),
        ("See [the page](page-3.md).", []),
        ("Kwon et al. 2023 say so. Nobody else.", ["Kwon et al. 2023 say so."]),
        ("<!-- 3 hidden\nlines -->\nText.", []),
        ("Many things.", []),
    ],
)
def test_sentences_are_found_in_running_text_alone(text: str, expected: list[str]) -> None:
    assert [sentence for sentence in sentences(text) if claims(sentence)] == expected


def test_a_sentence_is_the_same_wherever_its_lines_break() -> None:
    one = "A match *never* covers the\nwhole [prompt](a.md), as `match` says."
    [other] = paragraphs("A match never covers\nthe whole prompt, as [match](b.md) says.")
    assert key(one) == key(other)
