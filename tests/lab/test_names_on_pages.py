"""Names are arbitrary file names: pages and pictures show them and never interpret them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from blockmgr import BlockManager
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.study import parse_capacities, study
from blockmgr.lab.trace import read_trace
from blockmgr.lab.workloads import generate

page = pytest.importorskip("blockmgr.lab.page", reason="needs matplotlib", exc_type=ImportError)
# These import matplotlib as well.
from blockmgr.lab import plot  # noqa: E402
from blockmgr.lab.block_map import as_svg, block_map, save_block_map  # noqa: E402
from blockmgr.lab.page import script_data  # noqa: E402

FORMULA = "$\\frac$_{x}^$"
NAMES = (
    "<!--<script>",
    "</script><script>alert(1)</script>",
    "-->&<b>",
    "a\u2028b\u2029c",
    "]]>\x00\x0b\x1b\ufffe\udcff",
    FORMULA,
    "'\" onload=alert(1) x='",
)


@pytest.fixture(scope="module")
def report() -> page.Report:
    sizes = parse_capacities("20%")
    trace = generate("chat", 1, conversations=8)
    options = {"capacity": sizes[0], "policies": ("lru",), "capacities": sizes}
    return page.gather(trace, ReplayConfig(), **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_report_keeps_its_script_whatever_the_trace_is_called(
    report: page.Report, name: str
) -> None:
    command = f"blockmgr report {name}".replace("\udcff", "?")  # a shell word has no lone surrogate
    text = page.as_html(replace(report, trace=name, command=command))

    # A browser ends a script at "</script", unless "<!--" and "<script" came before, so a name must
    # not produce any of the three.
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 1
    assert "<!--" not in text
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert not set(data) & set("<>&\u2028\u2029")
    assert json.loads(data)["trace"] == name
    text.encode("utf-8")


# For pixel images, only a name that looks like a formula is a separate case.
@pytest.mark.parametrize(
    ("suffix", "name"), [*((".svg", name) for name in NAMES), (".png", FORMULA)]
)
def test_pictures_show_a_name_as_letters(tmp_path: Path, name: str, suffix: str) -> None:
    shown = name.encode("ascii", "backslashreplace").decode().replace("\x00", "")
    shown = "".join(char for char in shown if char.isprintable())
    trace = replace(generate("chat", 1, conversations=8), name=shown)
    plot.save_plot(study(trace, parse_capacities("20%"), ReplayConfig()), tmp_path / f"p{suffix}")


@pytest.mark.parametrize("name", NAMES)
def test_a_block_map_is_a_document_whatever_it_shows_is_called(tmp_path: Path, name: str) -> None:
    manager = BlockManager(8, 4)
    handle = manager.admit([1, 2, 3, 4, 5])
    shown = block_map(manager, title=name, names={handle: name}, facts=[("seen with", name)])

    ET.fromstring(as_svg(shown))
    save_block_map(shown, tmp_path / "map.svg")


def test_data_of_a_script_says_what_it_said() -> None:
    for name in NAMES:
        assert json.loads(script_data({"name": name})) == {"name": name}


def test_a_trace_has_the_name_of_its_file_as_it_can_be_shown(tmp_path: Path) -> None:
    line = '{"timestamp": 0, "input_length": 1, "output_length": 0, "hash_ids": [0]}\n'
    path = tmp_path / "a\x1b[2J\udcff.jsonl"
    path.write_text(line, encoding="utf-8")
    assert read_trace(path).name == r"a\x1b[2J\xff.jsonl"
