"""Sites of mutants, their names, and the random order in which they are drawn."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

WIDEST = 160  # characters of a line in a name


@dataclass(frozen=True, slots=True)
class Site:
    """One change of one file, by an operator.

    Its name has no line number, so that a verdict on it is valid as long as its function and its
    line do not change.
    """

    file: str
    """From the root of the tree, such as ``blockmgr/csrc/places/pool.cc``."""

    function: str
    """Qualified as far as the file says; empty outside every function and class."""

    operator: str
    line: int
    """From 1 on, of the file as it is now."""

    start: int
    end: int
    """Bytes of the file that are replaced."""

    text: bytes
    """What replaces them."""

    before: str
    after: str
    """The lines it touches, without and with the change, each run of white space as one space."""

    nth: int = 0
    """Number among sites that differ from it only in their position."""

    @property
    def place(self) -> str:
        return f"{self.file}::{self.function} {self.before}"

    @property
    def name(self) -> str:
        which = f" #{self.nth}" if self.nth else ""
        return (
            f"{self.file}::{self.function} [{self.operator}] {self.before} => {self.after}{which}"
        )

    def planted(self, source: bytes) -> bytes:
        """The file with the change and with the same number of lines."""
        lost = source[self.start : self.end].count(b"\n") - self.text.count(b"\n")
        return source[: self.start] + self.text + b"\n" * max(lost, 0) + source[self.end :]


def site(
    source: bytes, file: str, function: str, operator: str, change: tuple[int, int, bytes]
) -> Site:
    """A site with the texts that name it."""
    start, end, text = change
    first = source.rfind(b"\n", 0, start) + 1
    last = source.find(b"\n", end)
    last = len(source) if last < 0 else last
    before = source[first:last]
    after = source[first:start] + text + source[end:last]
    line = source.count(b"\n", 0, start) + 1
    return Site(
        file, function, operator, line, start, end, text, on_one_line(before), on_one_line(after)
    )


def on_one_line(text: bytes) -> str:
    """A long text with its middle replaced by a hash."""
    line = " ".join(text.decode().split())
    if len(line) <= WIDEST:
        return line
    tag = hashlib.sha256(line.encode()).hexdigest()[:8]
    return f"{line[: WIDEST // 2]} ...{tag}... {line[-WIDEST // 2 :]}"


def numbered(sites: Iterable[Site]) -> list[Site]:
    """Numbers sites that would have the same name, in the order of the file."""
    times: dict[str, int] = defaultdict(int)
    result = []
    for one in sites:
        result.append(replace(one, nth=times[one.name]))
        times[one.name] += 1
    return result


def rank(seed: int, words: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{words}".encode()).digest()


def drawn(sites: Iterable[Site], seed: int) -> Iterator[Site]:
    """All sites in a random order: a line, then an operator that has a site on it, then a site.

    The order comes from hashes of their names, so a change in one function does not change the
    order of other sites. A line is drawn again only after every other line.
    """
    lines: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for one in sites:
        lines[one.file, one.line].append(one)
    rounds: list[tuple[int, bytes, Site]] = []
    for found in lines.values():
        by_operator: dict[str, list[Site]] = defaultdict(list)
        for one in found:
            by_operator[one.operator].append(one)
        key = f"{found[0].place} {found[0].nth}"
        for group in by_operator.values():
            group.sort(key=lambda one: rank(seed, one.name))
        number = 0
        while by_operator:
            operator = min(by_operator, key=lambda name: rank(seed, f"{number} {name} {key}"))
            one = by_operator[operator].pop(0)
            if not by_operator[operator]:
                del by_operator[operator]
            rounds.append((number, rank(seed, f"{number} {one.name}"), one))
            number += 1
    rounds.sort(key=lambda entry: entry[:2])
    return (one for _, _, one in rounds)
