"""OpenTelemetry spans of speech requests, with the extra `traces`. A server without an endpoint
imports none of this.

Moments are taken as they pass, in both processes on one clock. Spans are made of them once a
request has ended. The parts of a request follow each other without gaps, so that they sum to the
time to its first byte.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import stentor

if TYPE_CHECKING:
    from stentor.server.speech.outcomes import Outcome, Timing

PARTS = (
    "admission",
    "preparation",
    "queue",
    "prefill",
    "first step",
    "codec",
    "encode",
    "first byte",
)
"""Spans up to the first byte, in order."""


def parts(timing: Timing) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) of each part that a request has come through, on time.monotonic()'s
    clock."""
    moments = [timing.received, *timing.engine]
    if len(moments) == len(PARTS) - 1 and timing.encoded is not None:
        moments += [timing.encoded] if timing.flushed is None else [timing.encoded, timing.flushed]
    for name, start, end in zip(PARTS, moments, moments[1:], strict=False):
        yield name, start, max(start, end)


class Traces:
    """Sends spans to a collector, in a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """endpoint: URL that takes OTLP over HTTP. Other settings are OpenTelemetry's variables
        (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS)."""
        resource = Resource.create(
            {"service.name": "stentor", "service.version": stentor.__version__}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("stentor", stentor.__version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, outcome: Outcome, timing: Timing, parent: str | None) -> None:
        """Make the spans of a request that has ended. parent: its header traceparent."""
        epoch = time.time_ns() - time.monotonic_ns()

        def at(moment: float) -> int:
            return epoch + int(moment * 1e9)

        context = self._propagator.extract({} if parent is None else {"traceparent": parent})
        attributes = {
            "stentor.request_id": outcome.id,
            "stentor.model": outcome.model,
            "stentor.finish_reason": outcome.finish_reason or "",
            "stentor.audio_seconds": outcome.duration,
            "stentor.frames": outcome.usage.get("output_tokens", 0),
        }
        root = self._tracer.start_span(
            "speech", context, trace.SpanKind.SERVER, attributes, start_time=at(timing.received)
        )
        if outcome.status == "failed":
            root.set_status(trace.StatusCode.ERROR, str((outcome.error or {}).get("message")))
        inside = trace.set_span_in_context(root)
        for name, start, end in parts(timing):
            self._tracer.start_span(name, inside, start_time=at(start)).end(at(end))
        root.end(at(time.monotonic()))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
