"""The statistics of managers as Prometheus metrics.

A ``ManagerCollector`` reads ``stats()`` of each manager at each scrape, and costs nothing between
scrapes. A metric that means the same as one of vLLM has its name, with the prefix ``blockmgr_``.
Queries compute ratios over any window, as in
``rate(blockmgr_prefix_cache_hits_total[5m]) / rate(blockmgr_prefix_cache_queries_total[5m])``.

Source: ``vllm/v1/metrics/loggers.py`` of vLLM 0.33.0 for the shared names and meanings.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blockmgr.stats import Stats

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("metrics", "blockmgr.metrics") from error

__all__ = ["ManagerCollector"]

_Family = CounterMetricFamily | GaugeMetricFamily


class _HasStats(Protocol):
    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class _Metric:
    """One metric family: its name after ``blockmgr_``, and the fields of ``Stats`` it shows.

    Attributes:
        name: Without the prefix, and without the ``_total`` of a counter.
        help: Its meaning and unit.
        fields: Attributes of ``Stats``, by value of ``label``.
        label: The label that distinguishes the fields; empty for a metric of one field.
        is_counter: Whether the value only grows.
    """

    name: str
    help: str
    fields: dict[str, str]
    label: str = ""
    is_counter: bool = False

    def family(self, label_names: Sequence[str]) -> _Family:
        """The family without samples."""
        kind = CounterMetricFamily if self.is_counter else GaugeMetricFamily
        labels = [*label_names, self.label] if self.label else list(label_names)
        return kind(f"blockmgr_{self.name}", self.help, labels=labels)

    def add_samples(self, family: _Family, stats: Stats, labels: Sequence[str]) -> None:
        """Adds the samples of one manager."""
        for value, field in self.fields.items():
            family.add_metric([*labels, value] if self.label else labels, getattr(stats, field))


def _gauge(name: str, help_text: str, field: str) -> _Metric:
    return _Metric(name, help_text, {"": field})


def _counter(name: str, help_text: str, field: str) -> _Metric:
    return _Metric(name, help_text, {"": field}, is_counter=True)


_METRICS = (
    # Names and meanings of vLLM.
    _gauge("kv_cache_usage_perc", "Used blocks over capacity; 1 means all.", "usage"),
    _counter("prefix_cache_queries", "Prompt tokens looked up at admission.", "query_tokens"),
    _counter("prefix_cache_hits", "Of those, tokens found in the cache.", "hit_tokens"),
    _counter("num_preemptions", "Sequences preempted.", "preemptions"),
    # Metrics that vLLM does not have, or counts differently.
    _Metric(
        "blocks",
        "Blocks by state; the sum is the capacity.",
        {
            "free": "free_blocks",
            "idle": "idle_blocks",
            "fenced": "fenced_blocks",
            "used": "used_blocks",
        },
        "state",
    ),
    _gauge("capacity_blocks", "Blocks that can be handed out at all.", "capacity"),
    _gauge("peak_used_blocks", "Largest number of used blocks so far.", "peak_used_blocks"),
    _gauge("cached_blocks", "Blocks whose content can be found, in use or not.", "cached_blocks"),
    _gauge("sequences", "Sequences alive, running or preempted.", "num_sequences"),
    _gauge("pending_copies", "Copies recorded and not taken.", "pending_copies"),
    _Metric(
        "retained_blocks",
        "Cached blocks by retention priority, the usual one left out.",
        {
            "low": "low_priority_blocks",
            "expected": "expected_blocks",
            "high": "high_priority_blocks",
        },
        "priority",
    ),
    _gauge("pinned_blocks", "Cached blocks that pins cover, each counted once.", "pinned_blocks"),
    _gauge("pins", "Pins held.", "pins"),
    _counter(
        "prefix_cache_partial_hits", "Hit tokens found in a part of a block.", "partial_hit_tokens"
    ),
    _counter(
        "prefix_cache_resumed_queries",
        "Tokens looked up by sequences that resume.",
        "resumed_query_tokens",
    ),
    _counter(
        "prefix_cache_resumed_hits", "Of those, tokens found in the cache.", "resumed_hit_tokens"
    ),
    _counter("promoted_blocks", "Blocks that became findable.", "promoted_blocks"),
    _counter(
        "deduplicated_blocks", "Full blocks found to be cached already.", "deduplicated_blocks"
    ),
    _counter("cached_tails", "Partial tails kept when a sequence ended.", "cached_tails"),
    _counter("evicted_blocks", "Idle blocks given to new content.", "evicted_blocks"),
    _counter(
        "superseded_blocks",
        "Blocks that go first since the next prompt of their session does not use them.",
        "superseded_blocks",
    ),
    _gauge("sessions", "Sessions that the manager knows.", "sessions"),
    _counter(
        "forgotten_blocks",
        "Blocks that were forgotten when the prefix cache was reset.",
        "forgotten_blocks",
    ),
    _counter("expired_blocks", "Blocks whose retention ran out.", "expired_blocks"),
    _counter(
        "evicted_pinned_blocks",
        "Pinned blocks evicted for running sequences.",
        "evicted_pinned_blocks",
    ),
    _counter(
        "touched_blocks", "Idle blocks moved to the end of the eviction order.", "touched_blocks"
    ),
    _counter("planned_copies", "Block copies recorded.", "planned_copies"),
    _counter("cancelled_copies", "Of those, copies dropped as unneeded.", "cancelled_copies"),
    _counter("forks", "Sequences made by fork.", "forks"),
)


class ManagerCollector(Collector):
    """Exports the statistics of any number of managers to Prometheus.

    Labels distinguish the managers. The collector keeps no manager alive; a deleted manager has no
    samples. Managers may be added and collected in different threads.

    Args:
        label_names: Names of the labels; each manager has a value for every one.

    >>> from blockmgr import BlockManager
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> collector = ManagerCollector(["engine"])
    >>> registry.register(collector)
    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> collector.add(manager, engine="0")
    >>> registry.get_sample_value("blockmgr_blocks", {"engine": "0", "state": "free"})
    8
    """

    def __init__(self, label_names: Sequence[str] = ()) -> None:
        if isinstance(label_names, str):
            raise TypeError(f"label_names must be a sequence of names, got {label_names!r}")
        self._label_names = tuple(label_names)
        taken = sorted({"state", "priority"}.intersection(self._label_names))
        if taken:
            raise ValueError(
                f"label_names must not contain {taken[0]!r}, which a metric has itself"
            )
        self._managers: dict[tuple[str, ...], weakref.ref[_HasStats]] = {}
        self._lock = threading.Lock()

    def add(self, manager: _HasStats, **labels: str) -> None:
        """Adds a manager.

        Args:
            manager: Any object with ``stats()`` that supports weak references.
            **labels: A value for each of ``label_names``.

        Raises:
            ValueError: The labels are not those of ``label_names``, or another live manager has the
                same values.
        """
        if set(labels) != set(self._label_names):
            raise ValueError(
                f"labels must be {', '.join(self._label_names) or 'none'}, "
                f"got {', '.join(labels) or 'none'}"
            )
        key = tuple(str(labels[name]) for name in self._label_names)
        with self._lock:
            known = self._managers.get(key)
            if known is not None and known() is not None:
                raise ValueError(f"labels must differ from those of other managers, got {labels}")
            self._managers[key] = weakref.ref(manager)

    def remove(self, manager: _HasStats) -> None:
        """Removes a manager.

        Raises:
            ValueError: The manager was never added, or has been removed.
        """
        with self._lock:
            keys = [key for key, known in self._managers.items() if known() is manager]
            if not keys:
                raise ValueError(f"manager must be one that was added, got {manager!r}")
            for key in keys:
                del self._managers[key]

    def describe(self) -> Iterator[_Family]:
        """The metric families without samples, so that registration reads no manager."""
        return (metric.family(self._label_names) for metric in _METRICS)

    def collect(self) -> Iterator[_Family]:
        """The metric families, with one consistent snapshot of each manager."""
        with self._lock:
            alive = {key: known() for key, known in self._managers.items()}
            for key in [key for key, manager in alive.items() if manager is None]:
                del self._managers[key]
        snapshots = {key: each.stats() for key, each in alive.items() if each is not None}
        for metric in _METRICS:
            family = metric.family(self._label_names)
            for key, stats in snapshots.items():
                metric.add_samples(family, stats, key)
            yield family
