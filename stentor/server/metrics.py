"""Prometheus metrics. Names are vLLM-Omni's with our prefix, so a dashboard is ported by replacing
the prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from stentor.engine.health import Health
from stentor.server.errors import ApiError
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.schemas import ALIASES, BatchBody, SpeechBody
from stentor.server.speech.outcomes import ClientPlayback
from stentor.server.voices.recordings import Recordings

PREFIX = "stentor:"
MODEL = ("model_name",)

S = TypeVar("S")
OfHost = tuple[str, str, Callable[[ModelHost], float]]  # name, help and value of a metric
OfEngine = tuple[str, str, Callable[[Health], float]]

HOST_GAUGES: tuple[OfHost, ...] = (
    (
        "engine_up",
        "1 while the engine is alive, or unloaded and ready to be loaded",
        lambda m: float(m.serves if m.health is None else m.health.alive),
    ),
    ("model_resident", "1 while the model is in memory", lambda m: float(m.resident)),
    (
        "num_requests_waiting_for_load",
        "Requests that wait until the model is loaded again",
        lambda m: m.residency.waiting,
    ),
)
HOST_COUNTERS: tuple[OfHost, ...] = (
    ("model_loads", "Times the model was loaded", lambda m: m.residency.loads),
    (
        "model_unloads",
        "Times the model was unloaded because it was idle",
        lambda m: m.residency.unloads,
    ),
    ("engine_restarts", "Engines restarted after a crash", lambda m: m.restarts),
)
ENGINE_GAUGES: tuple[OfEngine, ...] = (
    ("num_requests_running", "Requests in slots", lambda h: h.running),
    ("num_requests_waiting", "Requests that wait for a slot", lambda h: h.queued),
    ("batch_size", "Requests that share a step now", lambda h: h.running),
    (
        "kv_usage_ratio",
        "Share of key-value pages in use",
        lambda h: 1 - h.free_pages / max(1, h.pages),
    ),
    (
        "slot_usage_ratio",
        "Share of slots in use",
        lambda h: h.running / max(1, h.running + h.free_slots),
    ),
    (
        "engine_codec_state_bytes",
        "Codec states after voices that are kept on the host",
        lambda h: h.codec_states.size,
    ),
)
ENGINE_COUNTERS: tuple[OfEngine, ...] = (
    ("engine_steps", "Decode steps", lambda h: h.stats.steps),
    ("engine_prefills", "Prefill batches", lambda h: h.stats.prefills),
    ("engine_prompt_tokens", "Tokens of prefilled prompts", lambda h: h.stats.prompt_tokens),
    (
        "engine_cached_prompt_tokens",
        "Of those, tokens whose keys and values were in the prefix cache",
        lambda h: h.stats.cached_tokens,
    ),
    (
        "engine_prefix_evictions",
        "Pages of the prefix cache that were given to requests",
        lambda h: h.evictions,
    ),
    ("engine_preemptions", "Requests that lost their pages for a while", lambda h: h.preemptions),
    (
        "engine_eager_calls",
        "Steps, prefills and codec calls that no captured graph served",
        lambda h: h.eager_calls,
    ),
    (
        "engine_reference_hits",
        "References that were encoded already, or just then for others",
        lambda h: h.references.hits,
    ),
    ("engine_reference_misses", "References encoded", lambda h: h.references.misses),
    (
        "engine_codec_state_hits",
        "Codec states after a voice that were there, or just then made for others",
        lambda h: h.codec_states.hits,
    ),
    (
        "engine_codec_state_misses",
        "Codec states after a voice that were made",
        lambda h: h.codec_states.misses,
    ),
)


OF_ENGINES = {
    PREFIX + name for name, _, _ in (*HOST_GAUGES, *HOST_COUNTERS, *ENGINE_GAUGES, *ENGINE_COUNTERS)
}
OF_ENGINES |= {PREFIX + "step_time_s", PREFIX + "gpu_memory_bytes"}
"""Metrics that each API process of a server tells of the same engines."""
SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
FAST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 15, 60)
RTF = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2, 5, 10)
FIELDS = frozenset({*SpeechBody.model_fields, *BatchBody.model_fields, *ALIASES, *ALIASES.values()})


class EngineMetrics(Collector):
    """Models, engines, caches and open sessions as they are now. live: running streams and their
    models."""

    def __init__(
        self,
        hosts: ModelHosts,
        recordings: Recordings,
        live: dict[ClientPlayback, str],
        sessions: set[object],
    ) -> None:
        self.hosts = hosts
        self.recordings = recordings
        self.live = live
        self.sessions = sessions

    def collect(self) -> Iterator[Metric]:
        models = [(host, host.name) for host in self.hosts.all]
        engines = [
            (health, host.name) for host in self.hosts.all if (health := host.health) is not None
        ]
        yield from _families(GaugeMetricFamily, HOST_GAUGES, models)
        yield from _families(GaugeMetricFamily, ENGINE_GAUGES, engines)
        yield from _families(CounterMetricFamily, HOST_COUNTERS, models)
        yield from _families(CounterMetricFamily, ENGINE_COUNTERS, engines)
        step_time = SummaryMetricFamily(
            PREFIX + "step_time_s", "Engine iterations that generated frames", labels=MODEL
        )
        for health, name in engines:
            step_time.add_metric([name], health.stats.steps, health.stats.step_seconds)
        yield step_time
        yield from self._caches()
        yield self._leads()
        yield GaugeMetricFamily(
            PREFIX + "websocket_sessions", "Open WebSockets", value=len(self.sessions)
        )

    def _leads(self) -> Metric:
        lead = GaugeMetricFamily(
            PREFIX + "playback_lead_s",
            "Audio that clients of running streams have buffered",
            labels=(*MODEL, "stat"),
        )
        for host in self.hosts.all:
            leads = [p.lead for p, name in self.live.items() if name == host.name]
            if leads:
                lead.add_metric([host.name, "min"], min(leads))
                lead.add_metric([host.name, "mean"], sum(leads) / len(leads))
        return lead

    def _caches(self) -> Iterator[Metric]:
        recordings = self.recordings
        yield CounterMetricFamily(
            PREFIX + "voice_cache_hits", "Reference audio found decoded", value=recordings.hits
        )
        yield CounterMetricFamily(
            PREFIX + "voice_cache_misses", "Reference audio decoded", value=recordings.misses
        )
        yield GaugeMetricFamily(
            PREFIX + "voice_cache_bytes",
            "Decoded reference audio kept",
            value=recordings.cache.size,
        )
        gpu = sum(host.health.gpu_bytes for host in self.hosts.all if host.health is not None)
        yield GaugeMetricFamily(
            PREFIX + "gpu_memory_bytes", "GPU memory reserved by the engines", value=gpu
        )


def _families(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    metrics: Sequence[tuple[str, str, Callable[[S], float]]],
    sources: Sequence[tuple[S, str]],
) -> Iterator[Metric]:
    """A family for each metric, with a sample of every source, which is named."""
    for name, help, value in metrics:
        family = kind(PREFIX + name, help, labels=MODEL)
        for source, label in sources:
            family.add_metric([label], value(source))
        yield family


class LabelledCollector(Collector):
    """The metrics of a registry with further labels, such as the replica that counts them."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        self.registry = registry
        self.labels = labels

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [
                s._replace(labels={**s.labels, **self.labels}) for s in metric.samples
            ]
            yield metric


class Metrics:
    """All metrics of /metrics, in their own registry. `labels` are added to each when it is
    read."""

    def __init__(
        self, hosts: ModelHosts, recordings: Recordings, labels: Mapping[str, str]
    ) -> None:
        r = self.registry = CollectorRegistry()
        self.labelled = LabelledCollector(r, labels)
        self.http = self._count("http_requests", "HTTP responses", ("path", "status"))
        self.success = self._count(
            "requests_success", "Requests completed", (*MODEL, "finished_reason")
        )
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
        self.guard = self._count(
            "runaway_guard", "Run-on speech: cut or spoken again", (*MODEL, "action")
        )
        self.e2e = self._seconds("e2e_request_latency_s", "Request to last audio", SECONDS)
        self.queue = self._seconds(
            "request_queue_wait_s", "Request to accepted by the engine, prepared", FAST
        )
        self.ttfp = self._seconds("audio_ttfp_s", "Request to first audio", FAST)
        self.audible = self._seconds(
            "audio_audible_ttfa_s", "Request to first sample above -45 dBFS, as played", FAST
        )
        self.duration = self._seconds("audio_duration_s", "Length of the audio", SECONDS)
        self.rtf = self._seconds("audio_rtf", "e2e / duration", RTF)
        self.underrun = self._seconds(
            "audio_underrun_s", "Largest stall of a client that plays at once", FAST
        )
        self.continuous = self._count(
            "audio_continuity_ok",
            "Streams without a stall above the threshold",
            (*MODEL, "threshold_ms"),
        )
        self.live: dict[ClientPlayback, str] = {}  # running streams and their models
        self.sessions: set[object] = set()  # open WebSocket sessions
        r.register(EngineMetrics(hosts, recordings, self.live, self.sessions))

    def text(self) -> str:
        """All of them as this process counts them, in Prometheus's text format."""
        return generate_latest(self.labelled).decode()

    def count_refusal(self, error: ApiError) -> None:
        """Count a request or a message that was refused, by a reason of a fixed set: clients choose
        names of fields."""
        if error.param in FIELDS:
            wrong_field = f"invalid_{error.param}"
        else:
            wrong_field = "invalid"
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
