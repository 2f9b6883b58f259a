"""``python -m tests.engines.families.table [--check]``: the table of plans in the docs.

Written from ``plans.json``. With ``--check``, exits with 1 if that would change the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, Final

__all__ = ["keep", "main", "plans", "said"]

PLANS: Final = Path(__file__).resolve().parent / "plans.json"
PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "guides" / "vllm.md"
START: Final = "<!-- Written by `python -m tests.engines.families.table`. Do not edit. -->"
END: Final = "<!-- The end of what is written. -->"
KINDS: Final = {
    "full_attention": "full attention",
    "mla_attention": "latent attention",
    "sliding_window": "window",
    "sliding_window_mla": "latent window",
    "chunked_local_attention": "chunk",
    "mamba": "state",
}
SPECS: Final = {"CircularBufferSpec": "ring"}  # of kinds for which vLLM has no name


def plans() -> dict[str, Any]:
    """The plans that are kept."""
    kept: dict[str, Any] = json.loads(PLANS.read_text(encoding="utf-8"))
    return kept


def keep(now: dict[str, Any]) -> None:
    """Writes the plans, a family a line."""
    head = json.dumps({name: value for name, value in now.items() if name != "families"})
    rows = ",\n".join(json.dumps(row) for row in now["families"])
    PLANS.write_text(f'{head[:-1]}, "families": [\n{rows}\n]}}\n', encoding="utf-8")


def _kind(group: dict[str, Any]) -> str:
    width = group.get("sliding_window") or group.get("attention_chunk_size")
    said = KINDS.get(group["kind"]) or SPECS.get(group["spec"], group["spec"])
    if width:
        said += f" {width:,}"
    if (per := group.get("tokens_per_state", 1)) > 1:
        said += f", up to {per:g} tokens an entry"
    return said if group["is_cached"] else f"{said}, not cached"


def groups_said(row: dict[str, Any]) -> str:
    """The groups, equal neighbours counted."""
    named = [f"{_kind(group)}; {group['block_size']:,}" for group in row["groups"]]
    return " + ".join(
        f"{count} x ({name})" if (count := len(list(same))) > 1 else f"({name})"
        for name, same in groupby(named)
    )


def _kib(size: int) -> str:
    return f"{size / 1024:,.4g}"


def pages_said(row: dict[str, Any]) -> str:
    """Sizes of a layer's page of each group, in KiB; one if all are equal."""
    return ", ".join(dict.fromkeys(_kib(group["page_bytes"]) for group in row["groups"]))


def verdict(row: dict[str, Any]) -> str:
    """Whether blockmgr takes it, or the port's own reasons."""
    return "; ".join(row["refused"]) or "taken"


def said(row: dict[str, Any]) -> str:
    """One line on a plan."""
    return (
        row.get("failed") or f"{groups_said(row)}, pages of {pages_said(row)} KiB: {verdict(row)}"
    )


def _is_plain(row: dict[str, Any]) -> bool:
    full = ("full_attention", "mla_attention")
    return not row["refused"] and all(group["kind"] in full for group in row["groups"])


def text() -> str:
    """The table; families with full attention alone, and those that failed, share a row."""
    kept = plans()
    made = [row for row in kept["families"] if "failed" not in row]
    plain = [row["name"] for row in made if not row["is_named"] and _is_plain(row)]
    failed = [row["name"] for row in kept["families"] if "failed" in row]
    cells = [
        (row["name"], groups_said(row), pages_said(row), verdict(row))
        for row in made
        if row["name"] not in plain
    ]
    cells.append((", ".join(sorted(plain)), "full or latent attention only", "", "taken"))
    if failed:
        why = "the default config makes no model without weights"
        cells.append((", ".join(sorted(failed)), why, "", "not known"))
    head = (
        f"model (vLLM {kept['vllm']}, transformers {kept['transformers']})",
        "groups (what a layer reads; tokens a block)",
        "page, KiB",
        "blockmgr",
    )
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]
    return "\n".join([START, "", *lines, "", END])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.engines.families.table", description=__doc__
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    args = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    after = rest.partition(END)[2]
    new = f"{before}{text()}{after}"
    if args.check:
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
