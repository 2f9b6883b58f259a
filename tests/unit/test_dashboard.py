"""The Grafana dashboard: each of its queries finds data in a real Prometheus."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from blockmgr import BlockManager
from tests.unit.engine import cache

pytest.importorskip("prometheus_client", reason="the extra 'metrics'")
pytest.importorskip("zmq", reason="the extra 'events'")
pytest.importorskip("httpx2", reason="asks Prometheus")

import httpx2
from prometheus_client import CollectorRegistry, start_http_server

from blockmgr.events import Publisher
from blockmgr.index import WorkerIndex
from blockmgr.index.service import Feeds, _Metrics
from blockmgr.metrics import ManagerCollector

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "blockmgr.json"
ANY = "tcp://127.0.0.1:0"


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Panels do not overlap, and each has a title and named queries."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels]
    assert len(set(places)) == len(places)
    assert all(panel["title"] and panel["description"] for panel in panels)
    assert len(queries()) >= len(panels)


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """Metrics of a manager and of an index, as two processes export them."""
    manager = BlockManager(16, 2, events=True)
    collector = ManagerCollector()
    collector.add(manager)
    feeds = Feeds(WorkerIndex(max_workers=1))
    made = CollectorRegistry()
    made.register(collector)
    made.register(_Metrics(feeds))
    with Publisher(manager, 2, ANY, ANY) as publisher:
        feeds.add("w", publisher.endpoint, publisher.replay_endpoint)
        cache(manager, [1, 2, 3, 4, 5])
        deadline = time.monotonic() + 30
        while not feeds.index.num_blocks("w"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield made
        feeds.close()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus")
def test_every_query_of_the_dashboard_finds_something(
    registry: CollectorRegistry, tmp_path: Path
) -> None:
    port, metrics_port = free_port(), free_port()
    server, thread = start_http_server(metrics_port, "127.0.0.1", registry)
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: blockmgr\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{metrics_port}']}}]\n"
    )
    command = [
        "prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        try:
            missing = queries()
            deadline = time.monotonic() + 60
            while missing and time.monotonic() < deadline:
                time.sleep(0.2)
                missing = [query for query in missing if not found(port, query)]
            assert missing == []
        finally:
            process.terminate()
            server.shutdown()
            server.server_close()
            thread.join()


def found(port: int, query: str) -> bool:
    try:
        answer = httpx2.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
    except httpx2.TransportError:
        return False  # it is starting
    if answer.status_code == 503:
        return False
    assert answer.status_code == 200, answer.text  # Prometheus accepts the query
    return bool(answer.json()["data"]["result"])
