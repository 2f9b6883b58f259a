"""``python -m tests.models_sweep [NAME ...]``: a table of every model type and setting.

Exit code 1 if a model generates other tokens or raises anything but a refusal, or if the models
that run differ from the list in ``types.txt`` for this version of transformers.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter

import torch
import transformers

from tests.models_sweep import KEPT, types_kept, version_kept
from tests.models_sweep.judge import Outcome, judge
from tests.models_sweep.tiny import SETTINGS

MOST_BYTES = 4 * 2**30
BAD = ("wrong", "foreign")


def main() -> int:
    """Judges the named classes, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.models_sweep", description=__doc__)
    parser.add_argument("names", nargs="*", help="model types, such as llama; all by default")
    parser.add_argument(
        "--write", action="store_true", help=f"keep the model types that run in {KEPT.name}"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    # A model that is not tiny fails instead of taking the machine's memory.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    transformers.logging.set_verbosity_error()
    found: dict[str, dict[str, Outcome]] = {}
    classes = {c.model_type: c for c in transformers.MODEL_FOR_CAUSAL_LM_MAPPING}
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for model_type in sorted(set(options.names) or classes):
        found[model_type] = {setting: judge(classes[model_type], setting) for setting in SETTINGS}
        print(_row(model_type, found[model_type]), flush=True)
    print(f"{len(found)} model types")
    for setting in SETTINGS:
        outcomes = [each[setting] for each in found.values()]
        counts = Counter(outcome.verdict for outcome in outcomes)
        told = sum(_matters(each, setting) for each in found.values())
        print(
            f"{setting:9} " + ", ".join(f"{count} {name}" for name, count in counts.most_common()),
            f"({told} models that run say something else for it)" if setting != "plain" else "",
        )
    runs = sorted(name for name, each in found.items() if each["plain"].verdict == "equal")
    if options.write:
        header = f"# transformers {transformers.__version__}\n"
        KEPT.write_text(header + "".join(f"{name}\n" for name in runs))
    elif version_kept() == transformers.__version__:
        others = sorted(set(runs) ^ (set(types_kept()) & set(found)))
        if others:
            print(f"{KEPT.name} says otherwise of: {', '.join(others)}")
            return 1
    return int(any(o.verdict in BAD for each in found.values() for o in each.values()))


def _matters(outcomes: dict[str, Outcome], setting: str) -> bool:
    """Whether a setting, if the model runs with it, changes the tokens of ``generate``."""
    mine, plain = outcomes[setting], outcomes["plain"]
    return mine.verdict == plain.verdict == "equal" and mine.truth != plain.truth


def _row(model_type: str, outcomes: dict[str, Outcome]) -> str:
    verdicts = " ".join(f"{outcome.verdict:8}" for outcome in outcomes.values())
    reasons = dict.fromkeys(outcome.why for outcome in outcomes.values() if outcome.why)
    return f"{model_type:28} {verdicts} {' | '.join(reason[:150] for reason in reasons)}".rstrip()


if __name__ == "__main__":
    sys.exit(main())
