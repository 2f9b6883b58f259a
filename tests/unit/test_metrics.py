"""The Prometheus collector: every number of ``stats()``, under stable names."""

from __future__ import annotations

import dataclasses
import gc

import pytest

from blockmgr import BlockManager, Stats
from tests.unit.engine import serve

prometheus_client = pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from blockmgr.metrics import _METRICS, ManagerCollector  # noqa: E402


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def busy_manager() -> BlockManager:
    manager = BlockManager(16, 4)
    first = serve(manager, list(range(10)))
    second = serve(manager, [*range(8), 90, 91])
    manager.fork(first.handle)
    second.preempt()
    return manager


def test_every_figure_of_stats_is_a_sample(registry: CollectorRegistry) -> None:
    manager = busy_manager()
    collector = ManagerCollector()
    registry.register(collector)
    collector.add(manager)
    stats = manager.stats()
    shown = set()
    for metric in _METRICS:
        name = f"blockmgr_{metric.name}" + ("_total" if metric.is_counter else "")
        for value, field in metric.fields.items():
            labels = {metric.label: value} if metric.label else {}
            assert registry.get_sample_value(name, labels) == getattr(stats, field), name
            shown.add(field)
    assert {field.name for field in dataclasses.fields(Stats)} <= shown
    assert registry.get_sample_value("blockmgr_prefix_cache_hits_total") == 8
    assert registry.get_sample_value("blockmgr_num_preemptions_total") == 1


def test_what_is_exposed_is_read_by_prometheus_own_parser(registry: CollectorRegistry) -> None:
    manager = busy_manager()
    collector = ManagerCollector(["engine"])
    registry.register(collector)
    collector.add(manager, engine='a "quoted"\nname')
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert {family.name for family in families} == {f"blockmgr_{m.name}" for m in _METRICS}
    states = next(family for family in families if family.name == "blockmgr_blocks")
    assert sum(sample.value for sample in states.samples) == manager.stats().capacity
    assert {sample.labels["engine"] for sample in states.samples} == {'a "quoted"\nname'}


def test_managers_are_told_apart_by_their_labels(registry: CollectorRegistry) -> None:
    collector = ManagerCollector(["engine", "model_name"])
    registry.register(collector)
    small, large = BlockManager(4, 2), BlockManager(8, 2)
    collector.add(small, engine="0", model_name="m")
    collector.add(large, model_name="m", engine="1")
    for engine, capacity in ("0", 4), ("1", 8):
        labels = {"engine": engine, "model_name": "m"}
        assert registry.get_sample_value("blockmgr_capacity_blocks", labels) == capacity


def test_a_manager_that_is_gone_has_no_samples(registry: CollectorRegistry) -> None:
    collector = ManagerCollector(["engine"])
    registry.register(collector)
    manager = BlockManager(4, 2)
    collector.add(manager, engine="0")
    del manager
    gc.collect()
    assert registry.get_sample_value("blockmgr_capacity_blocks", {"engine": "0"}) is None
    successor = BlockManager(6, 2)
    collector.add(successor, engine="0")
    assert registry.get_sample_value("blockmgr_capacity_blocks", {"engine": "0"}) == 6
    collector.remove(successor)
    assert registry.get_sample_value("blockmgr_capacity_blocks", {"engine": "0"}) is None


def test_wrong_labels_and_strangers_are_refused() -> None:
    with pytest.raises(TypeError, match="label_names"):
        ManagerCollector("engine")
    with pytest.raises(ValueError, match="label_names must not contain 'state'"):
        ManagerCollector(["state"])
    collector = ManagerCollector(["engine"])
    manager, other = BlockManager(4, 2), BlockManager(4, 2)
    for labels in {}, {"rank": "0"}, {"engine": "0", "rank": "0"}:
        with pytest.raises(ValueError, match="labels must be engine, got"):
            collector.add(manager, **labels)
    with pytest.raises(ValueError, match="one that was added"):
        collector.remove(manager)
    collector.add(manager, engine="0")
    with pytest.raises(ValueError, match="must differ"):
        collector.add(other, engine="0")
    with pytest.raises(ValueError, match="one that was added"):
        collector.remove(other)
