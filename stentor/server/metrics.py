"""Prometheus metrics. Names are vLLM-Omni's with our prefix, so a dashboard is ported by replacing the prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stentor.server.engine_metrics import MODEL, PREFIX, EngineMetrics
from stentor.server.errors import ApiError
from stentor.server.model_hosts import ModelHosts
from stentor.server.schemas import ALIASES, BatchBody, SpeechBody
from stentor.server.speech.playback import ClientPlayback
from stentor.server.voices.recordings import Recordings

SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
FAST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 15, 60)
RTF = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2, 5, 10)
FIELDS = frozenset({*SpeechBody.model_fields, *BatchBody.model_fields, *ALIASES, *ALIASES.values()})


class LabelledCollector(Collector):
    """The metrics of a registry with further labels, such as the replica that counts them."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self.registry, self.labels = registry, labels

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [s._replace(labels={**s.labels, **self.labels}) for s in metric.samples]
            yield metric


class Metrics:
    """All metrics of /metrics, in their own registry. `labels` are added to each when it is read."""

    def __init__(self, hosts: ModelHosts, recordings: Recordings, labels: Mapping[str, str]) -> None:
        r = self.registry = CollectorRegistry()
        self.labelled = LabelledCollector(r, labels)
        self.http = self._count("http_requests", "HTTP responses", ("path", "status"))
        self.success = self._count("requests_success", "Requests completed", (*MODEL, "finished_reason"))
        self.failed = self._count("requests_failed", "Requests that failed in the engine")
        self.rejected = self._count("rejected", "Requests refused", ("reason",))
        self.prompt_tokens = self._count("prompt_tokens", "Prompt positions")
        self.generation_tokens = self._count("generation_tokens", "Frames generated")
        self.audio_frames = self._count("audio_frames", "Samples generated")
        self.streams_completed = self._count("speech_stream_completed", "Streams that ended well")
        self.streams_aborted = self._count(
            "speech_stream_aborted",
            "Streams that did not (cancelled, closed, engine_dead, error, slow_client, timeout)",
            (*MODEL, "reason"),
        )
        self.guard = self._count("runaway_guard", "Run-on speech: cut or spoken again", (*MODEL, "action"))
        self.e2e = self._seconds("e2e_request_latency_s", "Request to last audio", SECONDS)
        self.queue = self._seconds("request_queue_wait_s", "Request to accepted by the engine, prepared", FAST)
        self.ttfp = self._seconds("audio_ttfp_s", "Request to first audio", FAST)
        self.audible = self._seconds("audio_audible_ttfa_s", "Request to first sample above -45 dBFS, as played", FAST)
        self.duration = self._seconds("audio_duration_s", "Length of the audio", SECONDS)
        self.rtf = self._seconds("audio_rtf", "e2e / duration", RTF)
        self.underrun = self._seconds("audio_underrun_s", "Largest stall of a client that plays at once", FAST)
        self.continuous = self._count(
            "audio_continuity_ok", "Streams without a stall above the threshold", (*MODEL, "threshold_ms")
        )
        self.live: dict[ClientPlayback, str] = {}  # running streams and their models
        self.sessions: set[object] = set()  # open WebSocket sessions
        r.register(EngineMetrics(hosts, recordings, self.live, self.sessions))

    def text(self) -> str:
        """All of them as this process counts them, in Prometheus's text format."""
        return generate_latest(self.labelled).decode()

    def count_refusal(self, error: ApiError) -> None:
        """Count a request or a message that was refused, by a reason of a fixed set: clients choose names of fields."""
        wrong_field = f"invalid_{error.param}" if error.param in FIELDS else "invalid"
        self.rejected.labels(error.code or wrong_field).inc()

    def count_response(self, route: str, status: int) -> None:
        """Count an HTTP response, and a refusal by its reason."""
        self.http.labels(route, str(status)).inc()
        refusals = {401: "invalid_api_key", 413: "body_too_large", 429: "too_many_requests"}
        if status in refusals:
            self.rejected.labels(refusals[status]).inc()

    def _count(self, name: str, help: str, labels: tuple[str, ...] = MODEL) -> Counter:
        return Counter(PREFIX + name, help, labels, registry=self.registry)

    def _seconds(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, help, MODEL, buckets=buckets, registry=self.registry)
