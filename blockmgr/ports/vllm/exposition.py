"""The block manager's metrics for Prometheus, served by the engine's own process.

Another process serves vLLM's ``/metrics``, and it does not have the block manager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from blockmgr.metrics import ManagerCollector
from blockmgr.ports.vllm.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from wsgiref.simple_server import WSGIServer

    from blockmgr.ports.vllm.report import Report

__all__ = ["registry_of", "serve"]


class ReportCollector(Collector):
    """Hit rates of this pool and of larger ones, missed tokens and ignored wishes."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metric families without samples."""
        yield GaugeMetricFamily(
            "blockmgr_hit_rate",
            "Share of the last prompt tokens that a pool of so many blocks finds in whole blocks.",
            labels=["blocks"],
        )
        yield CounterMetricFamily(
            "blockmgr_missed_tokens", "Prompt tokens not found, by reason.", labels=["reason"]
        )
        yield CounterMetricFamily(
            "blockmgr_ignored_wishes", "Invalid wishes in vllm_xargs, by name.", labels=["wish"]
        )

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The metric families with current values."""
        rates, missed, ignored = self.describe()
        for num_blocks, rate in self._report.hit_rates().items():
            rates.add_metric([str(num_blocks)], rate)
        for reason, count in self._report.missed_tokens().items():
            missed.add_metric([reason.name.lower()], count)
        for name, number in self._report.ignored_wishes.items():
            ignored.add_metric([name], number)
        yield rates
        yield missed
        yield ignored


def registry_of(report: Report) -> CollectorRegistry:
    """All metrics of a block manager."""
    registry = CollectorRegistry()
    manager = ManagerCollector()
    manager.add(report.manager)
    registry.register(manager)
    registry.register(ReportCollector(report))
    return registry


def serve(report: Report, host: str, port: int) -> WSGIServer:
    """Serves ``http://HOST:PORT/metrics`` in a thread until the process ends.

    Raises:
        OptionError: The server cannot listen at this address.
    """
    try:
        server, _ = start_http_server(port, host, registry_of(report))
    except OSError as error:
        raise OptionError(
            f"blockmgr.metrics_port: nothing can listen on {host}:{port} ({error})"
        ) from error
    return server
