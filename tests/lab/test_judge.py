"""What the judge of eviction policies concludes from hit rates."""

from __future__ import annotations

import pytest

from benchmarks.judge import Cell, by_ids, cells, verdict


def pool(lru: float, arc: float, lfuda: float, optimum: float) -> Cell:
    return Cell(
        trace="trace",
        mode="one at a time",
        share=1,
        num_blocks=1,
        optimum=optimum,
        rates={"lru": lru, "arc": arc, "lfuda": lfuda},
    )


def test_a_pool_without_a_gap_counts_for_losses_alone() -> None:
    pools = [pool(10, 12, 11, 30), pool(20, 20.5, 20, 22), pool(50, 49, 50, 50.04)]
    arc = verdict("arc", pools)
    assert arc.closed == pytest.approx((10 + 25) / 2)
    assert arc.lowest == -1
    assert arc.where is pools[2]


def test_a_tie_is_won_by_nobody() -> None:
    pools = [pool(10, 12, 12, 30), pool(10, 12, 11, 30), pool(10, 10.04, 10, 30)]
    assert verdict("arc", pools).best_in == 1
    assert verdict("lfuda", pools).best_in == 0


def test_a_policy_never_finds_more_than_the_optimum() -> None:
    trace = by_ids("few-shot")
    found = list(cells("few-shot", trace, "one at a time", ("lru", "arc"), (1, 10, 50)))
    assert [cell.share for cell in found] == [50, 10, 1]
    for cell in found:
        assert 0 < cell.rates["lru"] < cell.rates["arc"] < cell.optimum
