"""``python -m tests.prose``: see the package."""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from pathlib import Path

from proselint.checks import __register__ as proselints
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, types
from proselint.tools import LintFile, LintResult

from tests.prose import ROOT, RULES, files, pattern, retired, words

OURS = "blockmgr"


def _check(name: str, phrase: str, message: str) -> Check:
    return Check(
        check_type=types.ExistenceSimple(pattern=phrase),
        path=f"{OURS}.{name}",
        message=message.replace("{", "{{").replace("}", "}}"),
        flags=CheckFlags(allow_quotes=True),
    )


def checks() -> tuple[Check, ...]:
    """Our own checks: the retired words and the rules."""
    rules = tomllib.loads(RULES.read_text(encoding="utf-8"))["rule"]
    words_gone = [
        _check("retired", pattern(each), f"'{each}' is retired: {instead}")
        for each, instead in retired().items()
    ]
    rest = [_check(rule["name"], each, rule["say"]) for rule in rules for each in rule["patterns"]]
    return (*words_gone, *rest)


def lint(paths: list[Path]) -> dict[Path, list[LintResult]]:
    """The findings in each file."""
    settings = tomllib.loads(RULES.read_text(encoding="utf-8"))
    off = dict.fromkeys(settings["off"], False)
    config = {
        "max_errors": 100_000,
        # The first key that matches a check decides.
        "checks": {OURS: True} | off | {k: v for k, v in DEFAULT["checks"].items() if k not in off},
    }
    found = {}
    for path in paths:
        if text := words(path).rstrip():
            found[path] = LintFile(str(path), text).lint(config)
    return found


def main() -> int:
    """Checks the named files, or all files."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files; all by default")
    parser.add_argument(
        "--counts", action="store_true", help="print only the number of findings by rule"
    )
    arguments = parser.parse_args()
    CheckRegistry().register_many((*checks(), *proselints))
    found = lint([path.resolve() for path in arguments.paths] or files())
    counts = Counter(each.check_result.check_path for results in found.values() for each in results)
    for path, results in found.items():
        for each in () if arguments.counts else results:
            line, column = each.pos
            where = f"{path.relative_to(ROOT)}:{line}:{column}"
            print(f"{where}: {each.check_result.check_path}: {each.check_result.message}")
    for name, number in counts.most_common() if arguments.counts else ():
        print(f"{number:5}  {name}")
    print(f"{sum(counts.values())} findings in {len(found)} files")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
