"""``python -m tests.sentences``: see the package."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable

from tests.sentences import BARE, NAMED, REGISTER, Entry, found, register

HEAD = """\
# Sentences of README and docs with a number, or with "any", "never" or "always", and every sentence
# of the pages that promise something to engines and to tenants; by what stands behind them.
#
#   definition   says what a word or an option means, what follows, or what the reader is to do
#   reason       argues for a decision, or says how something is built: review is its check
#   limit        says what is not promised
#   engine       is about the device or the stream, which only an engine has
#   cited        stands in a work that the sentence names
#   test         a test that fails if it is not true
#   generated    the page is written by a program, which a check compares
#   command      a measurement, and what repeats it
#   history      was measured once, of a build or an alternative that is not in the tree
#   open         nobody has checked it yet
#
# `python -m tests.sentences` lists what is missing here; with `--add` it is added as open.
"""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a string of JSON is one of TOML


def write(entries: Iterable[Entry]) -> None:
    by_kind: dict[str, list[Entry]] = {kind: [] for kind in (*BARE, *NAMED)}
    for entry in entries:
        by_kind[entry.kind].append(entry)
    lines = [HEAD]
    for kind in BARE:
        lines += [f"{kind} = [", *(f"  {quoted(e.text)}," for e in by_kind[kind]), "]", ""]
    for kind in NAMED:
        rows = (f"{quoted(e.text)} = {quoted(e.evidence)}" for e in by_kind[kind])
        lines += [f"[{kind}]", *rows, ""]
    REGISTER.write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sentences", description=__doc__)
    parser.add_argument("--add", action="store_true", help="Add what is missing, as open.")
    parser.add_argument("--open", action="store_true", help="List unchecked sentences.")
    args = parser.parse_args()
    said, known = found(), register()
    missing = [sentence for key, sentence in said.items() if key not in known]
    gone = [entry for key, entry in known.items() if key not in said]
    for sentence in missing:
        print(f"missing: {sentence.page}: {sentence.text}")
    for entry in gone:
        print(f"on no page: {entry.text}")
    if args.open:
        for key, entry in known.items():
            if entry.kind == "open" and key in said:
                print(f"open: {said[key].page}: {said[key].text}")
    if args.add:
        kept = [entry for key, entry in known.items() if key in said]
        write([*kept, *(Entry(each.text, "open", each.page) for each in missing)])
    kinds = dict(Counter(entry.kind for entry in known.values()))
    print(f"{len(said)} sentences, {len(missing)} missing; in the register {kinds}")
    return int(bool(missing) and not args.add)


if __name__ == "__main__":
    sys.exit(main())
