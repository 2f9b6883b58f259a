"""Results as tables and JSON, and the facts for a bug report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from io import StringIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

from blockmgr import __version__
from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from blockmgr.lab.formats import AsRead
    from blockmgr.lab.models import Model
    from blockmgr.lab.replay_result import ReplayResult
    from blockmgr.lab.study import Study

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table
except ImportError as error:
    raise MissingExtraError("cli", "printing tables") from error

__all__ = [
    "Provenance",
    "as_json",
    "counts_of",
    "environment",
    "json_text",
    "new_table",
    "print_facts",
    "print_groups",
    "print_study",
    "print_table",
    "print_tiers",
]

# Wide enough that no line of a table is wrapped when a program reads it.
PLAIN_WIDTH: Final = 500
MICROSECONDS: Final = 1e6

HIT_RATE: Final = "hit\nrate"
HEADINGS: Final = (
    "capacity",
    "blocks",
    HIT_RATE,
    "evictions",
    "copies",
    "peak\nused",
    "waited",
    "host us\n/request",
    "host us\n/step",
)
# Only if it occurs, so that most tables fit 80 columns.
REJECTED: Final = "rejected"

GROUP_HEADINGS: Final = (
    "capacity",
    "group",
    "used",
    "cached",
    "unfilled",
    "refused\ntokens",
    "of\nprompts",
)

TIER_HEADINGS: Final = (
    "capacity",
    "tokens",
    "blocks",
    "of\nprompts",
    "stored",
    "loaded",
    "dropped",
)
LINK_HEADINGS: Final = ("link\nbusy s", "load ms\nmean", "load ms\np99")
EMPTY: Final = ""
GIB: Final = 2**30

NOT_INSTALLED: Final = "not installed"

EXTRAS: Final = MappingProxyType({"cli": ("click", "rich"), "plot": ("matplotlib", "jinja2")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The information needed to repeat a run.

    Attributes:
        command: The command line, ready for a shell.
        seed: Seed of the workload; meaningless for a trace file.
        read: How the trace file was read; None for a workload.
    """

    command: str
    seed: int
    read: AsRead | None = None

    @property
    def line(self) -> str:
        """All of it and the version, on one line."""
        return f"blockmgr {__version__}, seed {self.seed}, repeat with: {self.command}"


def as_json(study: Study, provenance: Provenance, model: Model | None = None) -> str:
    """The study as JSON with sorted keys and no host times, so equal runs give equal bytes.

    Args:
        study: The study.
        provenance: The information needed to repeat it.
        model: The model with these groups; adds bytes to blocks.
    """
    best = study.attainable
    document = {
        "attainable": None if best is None else {**asdict(best), "hit_rate": best.hit_rate},
        **_bound(study),
        "config": study.config.as_plain,
        "results": [
            {
                **counts_of(result, model, study.config.block_size),
                "capacity": capacity.text,
                "hit_rate": result.hit_rate,
            }
            for capacity, result in zip(study.capacities, study.results, strict=True)
        ],
        "trace": study.trace,
        "working_set_blocks": None if best is None else best.working_set_blocks,
    }
    if model is not None:
        document["model"] = model.as_plain(study.config.block_size)
    return json_text(document, provenance)


def json_text(document: Mapping[str, Any], provenance: Provenance) -> str:
    """Any result as JSON with sorted keys and the information needed to repeat it."""
    origin: dict[str, Any] = {
        "command": provenance.command,
        "seed": provenance.seed,
        "version": __version__,
    }
    if provenance.read is not None:
        origin["read"] = provenance.read.as_plain
    return json.dumps({**document, **origin}, indent=2, sort_keys=True)


def _bound(study: Study) -> dict[str, Any]:
    bound = study.full_attention
    return (
        {} if bound is None else {"full_attention": {**asdict(bound), "hit_rate": bound.hit_rate}}
    )


def counts_of(result: ReplayResult, model: Model | None, block_size: int) -> dict[str, Any]:
    """The counts of a replay for JSON; by group and tier with bytes, if the model is known."""
    counts = result.as_plain
    if result.by_group is not None and model is not None:
        counts["by_group"]["groups"] = result.by_group.sized(model.bytes_per_block(block_size))
    if result.by_tier is not None and model is not None:
        for tier in counts["by_tier"]["tiers"]:
            for name in ("stored", "loaded", "promoted"):
                tier[f"{name}_bytes"] = tier[f"{name}_blocks"] * model.bytes_per_block(block_size)
    return counts


def print_study(study: Study, file: TextIO) -> None:
    """Print the study as a table, as ``print_table`` does."""
    best = study.attainable
    rejected = any(result.rejected for result in study.results)
    title = (
        f"{study.trace}: {study.results[0].requests:,} requests, "
        f"{study.results[0].query_tokens:,} prompt tokens, blocks of {study.config.block_size}"
    )
    if best is not None:
        title += f", working set {best.working_set_blocks:,} blocks"
    table = new_table((*HEADINGS, REJECTED) if rejected else HEADINGS)
    for capacity, result in zip(study.capacities, study.results, strict=True):
        host_us = result.host_s * MICROSECONDS
        row = [
            capacity.text,
            f"{result.num_blocks:,}",
            _percent(result.hit_rate),
            f"{result.evictions:,}",
            f"{result.copies:,}",
            f"{result.peak_used_blocks:,}",
            f"{result.waited:,}",
            f"{host_us / result.requests:,.1f}",
            f"{host_us / max(1, result.steps):,.1f}",
        ]
        if rejected:
            row.append(f"{result.rejected:,}")
        table.add_row(*row)
    if best is not None:
        table.add_section()
        table.add_row("unbounded", "", _percent(best.hit_rate))
    if study.full_attention is not None:
        table.add_row("full attention", "", _percent(study.full_attention.hit_rate))
    print_table(table, file, title)


def print_groups(study: Study, model: Model | None, file: TextIO) -> None:
    """Print the blocks and refused tokens of each group of layers at each pool size.

    The table is printed as in ``print_table``. Shares are fractions of the pool, as means over
    moments of the replay.
    """
    table = new_table(GROUP_HEADINGS, left="group")
    for capacity, result in zip(study.capacities, study.results, strict=True):
        if result.by_group is None:
            continue
        for cells in result.by_group.cells(result.num_blocks, result.query_tokens):
            table.add_row(capacity.text, *cells)
        table.add_section()
    size = study.config.block_size
    title = "groups of layers, in shares of the pool"
    if model is not None:
        title = f"{model.name}: {model.bytes_per_block(size):,} bytes a block; {title}"
    print_table(table, file, title)


def print_tiers(study: Study, model: Model | None, file: TextIO) -> None:
    """Print where the tokens of prompts came from at each pool size, as ``print_table`` does.

    Each token counts once: the shares of the device, of all tiers and of what was computed are 1
    together. Blocks that left the device, and that no tier had got from it or given to it, are
    dropped; so are those for which a tier had no room.
    """
    size = study.config.block_size
    block_bytes = None if model is None else model.bytes_per_block(size)
    links = any(tier.ms_per_block for tier in study.config.tiers)
    gib = ("GiB\nstored", "GiB\nloaded") if block_bytes is not None else ()
    headings = (*TIER_HEADINGS, *gib, *(LINK_HEADINGS if links else ()))
    table = new_table(headings, left="tokens", strong=TIER_HEADINGS[3])
    for capacity, result in zip(study.capacities, study.results, strict=True):
        for name, cells in _tier_lines(result, block_bytes, links=links):
            filled = [*cells, *[EMPTY] * (len(headings) - 2 - len(cells))]
            table.add_row(capacity.text, name, *filled)
        table.add_section()
    times = study.config.min_service_ms or study.config.service_ms_per_token
    title = f"where the tokens of prompts came from, store={study.config.store}"
    print_table(table, file, title + ("" if times else ", one request at a time"))


def _tier_lines(
    result: ReplayResult, block_bytes: int | None, *, links: bool
) -> Iterator[tuple[str, list[str]]]:
    """The name and the cells of each line about one replay."""
    found = result.by_tier
    assert found is not None

    def share(tokens: int) -> str:
        return _percent(found.share(tokens))

    device = [f"{result.num_blocks:,}", share(found.device_tokens), EMPTY, EMPTY]
    yield "device", [*device, f"{found.dropped_blocks:,}"]
    for counts in found.tiers:
        moved = counts.moved
        cells = [f"{counts.tier.num_blocks:,}", share(counts.hit_tokens)]
        read = moved.loaded + moved.promoted
        cells += [f"{number:,}" for number in (moved.stored, read, moved.dropped)]
        if block_bytes is not None:
            cells += [f"{n * block_bytes / GIB:,.1f}" for n in (moved.stored, read)]
        if links:
            cells.append(f"{counts.busy_ms / 1000:,.1f}")
        yield counts.tier.name, cells
    yield "computed", [EMPTY, share(found.computed_tokens)]
    waits = [f"{found.load_mean_ms:,.1f}", f"{found.load_p99_ms:,.1f}"] if links else []
    blanks = [EMPTY] * (3 + 2 * (block_bytes is not None) + links)
    yield "found", [EMPTY, _percent(result.hit_rate), *blanks, *waits]
    blocks = result.num_blocks + sum(counts.tier.num_blocks for counts in found.tiers)
    yield "one LRU pool", [f"{blocks:,}", share(found.one_pool_hit_tokens)]


def environment() -> list[tuple[str, str]]:
    """Versions, extras and devices, as pairs of a name and what was found.

    Imports torch if it is installed, to list devices; imports nothing else. Asks the compiler that
    a build from source would use for its version.
    """
    facts = [
        ("blockmgr", __version__),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("platform", platform.platform()),
        ("executable", sys.executable),
    ]
    facts += [(name, _version(name)) for name in ("numpy", "xxhash", "nanobind-backend")]
    for extra, packages in EXTRAS.items():
        found = ", ".join(f"{package} {_version(package)}" for package in packages)
        missing = any(_version(package) == NOT_INSTALLED for package in packages)
        hint = f"; in a clone of blockmgr: pip install '.[{extra}]'" if missing else ""
        facts.append((f"extra {extra}", found + hint))
    facts += [(name, _version(name)) for name in ("torch", "triton", "vllm")]
    facts.append(("compiler", _compiler()))
    facts.append(("device", _device()))
    return facts


def print_facts(facts: Iterable[tuple[str, str]], file: TextIO) -> None:
    """Print names and what was found, such as ``environment()``, one fact per line."""
    table = Table(show_header=False, box=None)
    for name, found in facts:
        table.add_row(name, found)
    print_table(table, file)


def new_table(headings: Iterable[str], *, left: str = "", strong: str = HIT_RATE) -> Table:
    """An empty table of numbers for ``print_table``.

    Args:
        headings: Headings of its columns; a line break may end up as a space.
        left: Heading of the column of texts, which begin at its left.
        strong: Heading of the column that stands out.
    """
    # The box draws a space between columns, because 80 characters have no room for more.
    table = Table(box=box.SIMPLE, padding=0)
    for heading in headings:
        style = "bold cyan" if heading == strong else ""
        table.add_column(heading, justify="left" if heading == left else "right", style=style)
    return table


def print_table(table: Table, file: TextIO, *title: str) -> None:
    """Print lines, then a table: drawn on a terminal, plain aligned lines elsewhere.

    A terminal that is too narrow for the table also gets plain, complete lines.
    """
    console = _console(file)
    if console.no_color:
        # Without colours, rich would still write bold text, which NO_COLOR users do not want
        # either.
        console = _console(file, color_system=None)
    plain = _console(StringIO(), color_system=None, width=PLAIN_WIDTH)
    if console.is_terminal and _fit(table, plain, console.width):
        console.print(*title, table, sep="\n")
        return
    table.box = None
    table.pad_edge = False
    table.padding = (0, 2, 0, 0)
    for column in table.columns:
        column.header = str(column.header).replace("\n/", "/").replace("\n", " ")
    with plain.capture() as capture:
        plain.print(*title, table, sep="\n")
    for line in capture.get().splitlines():
        file.write(line.rstrip() + "\n")
    file.flush()  # before the command writes to stderr, because the buffer may hold the whole table


def _fit(table: Table, measuring: Console, columns: int) -> bool:
    """Whether the table, without its outer edge if necessary, fits this many columns."""
    if measuring.measure(table).maximum > columns:
        table.show_edge = False
    return measuring.measure(table).maximum <= columns


def _console(file: TextIO, **options: Any) -> Console:
    # File names and '.[cli]' must not be parsed as markup.
    return Console(file=file, highlight=False, markup=False, emoji=False, **options)


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _compiler() -> str:
    """The C++ compiler of a build from source, as far as its environment decides."""
    chosen = os.environ.get("CXX", "").split()
    for command in [chosen] if chosen else (["c++"], ["g++"], ["clang++"]):
        if shutil.which(command[0]) is None:
            continue
        asked = [*command, "--version"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
        except (OSError, ValueError, subprocess.SubprocessError):
            return f"{command[-1]}, which does not print its version"
        return done.stdout.splitlines()[0] if done.stdout else command[-1]
    return f"{NOT_INSTALLED}; a build from source needs one"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _device() -> str:
    try:
        # The import takes seconds, so only this function may do it.
        torch = import_module("torch")
    except ModuleNotFoundError:
        return "none looked for: torch is not installed"
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "cpu only"
    return ", ".join(
        torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())
    )
