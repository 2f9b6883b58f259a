"""The picture: its format, the data beside it, and the same file for the same study."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.study import Study, parse_capacities, study
from blockmgr.lab.workloads import generate

if TYPE_CHECKING:
    from pathlib import Path

plot = pytest.importorskip("blockmgr.lab.plot", reason="needs matplotlib", exc_type=ImportError)


@pytest.fixture(scope="module")
def outcome() -> Study:
    trace = generate("chat", 1, conversations=10)
    return study(trace, parse_capacities("50%,10%,200"), ReplayConfig(block_size=8))


def test_a_png_is_written_with_its_data_beside_it(outcome: Study, tmp_path: Path) -> None:
    picture, data = plot.save_plot(outcome, tmp_path / "curve.png")

    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    assert data == tmp_path / "curve.csv"
    with data.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["capacity"] for row in rows] == ["50%", "10%", "200"]
    for row, result in zip(rows, outcome.results, strict=True):
        assert int(row["num_blocks"]) == result.num_blocks
        assert float(row["hit_rate"]) == result.hit_rate
        assert float(row["attainable_hit_rate"]) == outcome.attainable.hit_rate


def test_the_same_study_gives_the_same_svg(outcome: Study, tmp_path: Path) -> None:
    one, _ = plot.save_plot(outcome, tmp_path / "one.svg")
    other, _ = plot.save_plot(outcome, tmp_path / "other.SVG")
    assert b"<svg" in one.read_bytes()
    assert one.read_bytes() == other.read_bytes()


def test_the_picture_says_the_rates_and_the_ceiling(outcome: Study, tmp_path: Path) -> None:
    text = plot.save_plot(outcome, tmp_path / "curve.svg")[0].read_text(encoding="utf-8")
    assert f"attainable, unbounded pool: {100 * outcome.attainable.hit_rate:.1f} %" in text
    assert f"{100 * outcome.results[0].hit_rate:.1f} %" in text
    assert f"{outcome.results[0].num_blocks:,}" in text


def test_one_capacity_is_enough_for_a_picture(tmp_path: Path) -> None:
    one = study(generate("chat", 1, conversations=2), parse_capacities("70%"), ReplayConfig())
    assert plot.save_plot(one, tmp_path / "one.png")[0].exists()


def test_labels_that_would_collide_are_left_out(tmp_path: Path) -> None:
    trace = generate("chat", 1, conversations=2)
    close = study(trace, parse_capacities("10,1000,1001,1002,10000"), ReplayConfig())
    text = plot.save_plot(close, tmp_path / "close.svg")[0].read_text(encoding="utf-8")
    assert ">1,000<" in text
    assert ">1,001<" not in text
    assert ">10,000<" in text


@pytest.mark.parametrize("name", ["curve.pdf", "curve", "png"])
def test_another_suffix_is_refused_before_anything_is_written(
    outcome: Study, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match=r"plot must end in \.png or \.svg"):
        plot.save_plot(outcome, tmp_path / name)
    assert not list(tmp_path.iterdir())
