"""Spans: what they contain, and what they must not contain."""

from __future__ import annotations

import pytest

from blockmgr import BlockManager, NeverFitsError
from tests.unit.engine import cache

pytest.importorskip("opentelemetry.sdk", reason="the SDK records spans")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from blockmgr.tracing import TracedManager


class Recorded:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.manager = BlockManager(16, 2)
        self.traced = TracedManager(self.manager, provider.get_tracer("test"))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


def test_an_admission_says_how_much_it_found() -> None:
    recorded = Recorded()
    cache(recorded.manager, [1, 2, 3, 4, 5])
    handle = recorded.traced.admit([1, 2, 3, 4, 5, 6], namespace=b"")
    [span] = recorded.spans()
    assert span.name == "blockmgr.admit"
    assert dict(span.attributes or {}) == {
        "blockmgr.num_tokens": 6, "blockmgr.num_cached_tokens": 4, "blockmgr.num_blocks": 3,
    }  # fmt: skip
    recorded.traced.preempt(handle)
    recorded.traced.resume(handle)
    assert [span.name for span in recorded.spans()] == ["blockmgr.admit", "blockmgr.resume"]
    recorded.traced.preempt(handle)
    recorded.traced.resume_together([handle])
    span = recorded.spans()[-1]
    assert span.name == "blockmgr.resume_together"
    assert dict(span.attributes or {}) == {"blockmgr.num_sequences": 1}


def test_a_refusal_is_told_by_its_kind_and_nothing_of_the_prompt() -> None:
    recorded = Recorded()
    with pytest.raises(NeverFitsError):
        recorded.traced.admit([7] * 100, namespace=b"a secret salt")
    [span] = recorded.spans()
    assert span.status.description == "NeverFitsError"
    assert not span.events
    assert "secret" not in span.to_json()


def test_a_load_is_a_span_of_the_callers_own() -> None:
    recorded = Recorded()
    with recorded.traced.span("load", num_blocks=3, tier="host"):
        pass
    [span] = recorded.spans()
    assert span.name == "blockmgr.load"
    assert dict(span.attributes or {}) == {"blockmgr.num_blocks": 3, "blockmgr.tier": "host"}


def test_all_else_is_the_managers_own() -> None:
    recorded = Recorded()
    assert recorded.traced.num_available == 16
    assert recorded.traced.config is recorded.manager.config
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        recorded.traced.unheard_of  # noqa: B018
    assert recorded.spans() == ()
