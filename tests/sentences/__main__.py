"""``python -m tests.sentences``: see the package."""

from __future__ import annotations

import argparse
import json
import sys

from tests.sentences import REGISTER, VERDICTS, found, register

HEAD = """\
# Sentences of README and docs with a number, or with "any", "never" or "always", and what stands
# behind each: the test that checks it, or why none does.
#
#   test         a test that fails if it is not true
#   definition   says what a word or an option means, or what the reader is to do
#   cited        stands in a work that the sentence names
#   generated    the page is written by a program, which a check compares
#   command      a measurement, and what repeats it
#   reason       argues for a decision, or says how something is built: review is its check
#   history      was measured once, of a build or an alternative that is not in the tree
#   open         nobody has checked it yet
#
# `python -m tests.sentences` lists what is missing here; with `--add` it is added as open.
"""


def write(entries: list[dict[str, str]]) -> None:
    lines = [HEAD]
    for entry in entries:
        lines.append("[[sentence]]")
        # A string of JSON is one of TOML.
        lines += [f"{name} = {json.dumps(entry[name], ensure_ascii=False)}" for name in entry]
        lines.append("")
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
        print(f"on no page: {entry['text']}")
    if args.open:
        for key, entry in known.items():
            if "open" in entry and key in said:
                print(f"open: {said[key].page}: {said[key].text}")
    if args.add:
        kept = [entry for key, entry in known.items() if key in said]
        write([*kept, *({"text": s.text, "open": s.page} for s in missing)])
    kinds = {kind: sum(kind in entry for entry in known.values()) for kind in ("test", *VERDICTS)}
    print(f"{len(said)} sentences, {len(missing)} missing; in the register {kinds}")
    return int(bool(missing) and not args.add)


if __name__ == "__main__":
    sys.exit(main())
