"""Prometheus metrics. Names are vLLM-Omni's with our prefix, so a dashboard is ported by replacing the prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from stentor.server.audio.playback import ClientPlayback
from stentor.server.errors import ApiError
from stentor.server.model_hosts import ModelHosts
from stentor.server.schemas import ALIASES, BatchBody, SpeechBody
from stentor.server.voices.recordings import Recordings

PREFIX = "stentor:"
SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
FAST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 15, 60)
RTF = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5, 2, 5, 10)
MODEL = ("model_name",)
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
        self.http = Counter(PREFIX + "http_requests", "HTTP responses", ("path", "status"), registry=r)
        self.success = Counter(
            PREFIX + "requests_success", "Requests completed", (*MODEL, "finished_reason"), registry=r
        )
        self.failed = Counter(PREFIX + "requests_failed", "Requests that failed in the engine", MODEL, registry=r)
        self.rejected = Counter(PREFIX + "rejected", "Requests refused", ("reason",), registry=r)
        self.prompt_tokens = Counter(PREFIX + "prompt_tokens", "Prompt positions", MODEL, registry=r)
        self.generation_tokens = Counter(PREFIX + "generation_tokens", "Frames generated", MODEL, registry=r)
        self.audio_frames = Counter(PREFIX + "audio_frames", "Samples generated", MODEL, registry=r)
        self.streams_completed = Counter(
            PREFIX + "speech_stream_completed", "Streams that ended well", MODEL, registry=r
        )
        self.streams_aborted = Counter(
            PREFIX + "speech_stream_aborted",
            "Streams that did not (cancelled, closed, engine_dead, error, slow_client, timeout)",
            (*MODEL, "reason"),
            registry=r,
        )
        self.guard = Counter(
            PREFIX + "runaway_guard", "Run-on speech: cut or spoken again", (*MODEL, "action"), registry=r
        )
        self.e2e = self._seconds("e2e_request_latency_s", "Request to last audio", SECONDS)
        self.queue = self._seconds("request_queue_wait_s", "Request to accepted by the engine, prepared", FAST)
        self.ttfp = self._seconds("audio_ttfp_s", "Request to first audio", FAST)
        self.audible = self._seconds("audio_audible_ttfa_s", "Request to first sample above -45 dBFS, as played", FAST)
        self.duration = self._seconds("audio_duration_s", "Length of the audio", SECONDS)
        self.rtf = self._seconds("audio_rtf", "e2e / duration", RTF)
        self.underrun = self._seconds("audio_underrun_s", "Largest stall of a client that plays at once", FAST)
        self.continuous = Counter(
            PREFIX + "audio_continuity_ok",
            "Streams without a stall above the threshold",
            (*MODEL, "threshold_ms"),
            registry=r,
        )
        self.live: dict[ClientPlayback, str] = {}  # running streams and their models
        self.sessions: set[object] = set()  # open WebSocket sessions
        r.register(_Snapshot(hosts, recordings, self.live, self.sessions))

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

    def _seconds(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, help, MODEL, buckets=buckets, registry=self.registry)


class _Snapshot(Collector):
    """Metrics that are read from the engines on each scrape."""

    def __init__(
        self, hosts: ModelHosts, recordings: Recordings, live: dict[ClientPlayback, str], sessions: set[object]
    ) -> None:
        self.hosts, self.recordings, self.live, self.sessions = hosts, recordings, live, sessions

    def collect(self) -> Iterator[Metric]:
        gauges = {
            name: GaugeMetricFamily(PREFIX + name, help, labels=MODEL)
            for name, help in (
                ("num_requests_running", "Requests in slots"),
                ("num_requests_waiting", "Requests that wait for a slot"),
                ("batch_size", "Requests that share a step now"),
                ("kv_usage_ratio", "Share of key-value pages in use"),
                ("slot_usage_ratio", "Share of slots in use"),
                ("engine_codec_state_bytes", "Codec states after voices that are kept on the host"),
                ("engine_up", "1 while the engine is alive, or unloaded and ready to be loaded"),
                ("model_resident", "1 while the model is in memory"),
                ("num_requests_waiting_for_load", "Requests that wait until the model is loaded again"),
            )
        }
        counters = {
            name: CounterMetricFamily(PREFIX + name, help, labels=MODEL)
            for name, help in (
                ("engine_steps", "Decode steps"),
                ("engine_prefills", "Prefill batches"),
                ("engine_prompt_tokens", "Tokens of prefilled prompts"),
                ("engine_cached_prompt_tokens", "Of those, tokens whose keys and values were in the prefix cache"),
                ("engine_preemptions", "Requests that lost their pages for a while"),
                ("engine_eager_calls", "Steps, prefills and codec calls that no captured graph served"),
                ("engine_reference_hits", "References that were encoded already, or just then for others"),
                ("engine_reference_misses", "References encoded"),
                ("engine_codec_state_hits", "Codec states after a voice that were there, or just then made for others"),
                ("engine_codec_state_misses", "Codec states after a voice that were made"),
                ("engine_restarts", "Engines restarted after a crash"),
                ("model_loads", "Times the model was loaded"),
                ("model_unloads", "Times the model was unloaded because it was idle"),
            )
        }
        step_time = SummaryMetricFamily(PREFIX + "step_time_s", "Engine iterations that generated frames", labels=MODEL)
        for host in self.hosts.all:
            h = host.health
            label = [host.name]
            away = host.serves and h is None
            gauges["engine_up"].add_metric(label, float(away or (h is not None and h.alive)))
            gauges["model_resident"].add_metric(label, float(host.resident))
            gauges["num_requests_waiting_for_load"].add_metric(label, host.residency.waiting)
            counters["model_loads"].add_metric(label, host.residency.loads)
            counters["model_unloads"].add_metric(label, host.residency.unloads)
            counters["engine_restarts"].add_metric(label, host.restarts)
            if h is None:
                continue
            gauges["num_requests_running"].add_metric(label, h.running)
            gauges["num_requests_waiting"].add_metric(label, h.queued)
            gauges["batch_size"].add_metric(label, h.running)
            gauges["kv_usage_ratio"].add_metric(label, 1 - h.free_pages / max(1, h.pages))
            gauges["slot_usage_ratio"].add_metric(label, h.running / max(1, h.running + h.free_slots))
            counters["engine_steps"].add_metric(label, h.stats.steps)
            counters["engine_prefills"].add_metric(label, h.stats.prefills)
            counters["engine_prompt_tokens"].add_metric(label, h.stats.prompt_tokens)
            counters["engine_cached_prompt_tokens"].add_metric(label, h.stats.cached_tokens)
            counters["engine_reference_hits"].add_metric(label, h.references.hits)
            counters["engine_reference_misses"].add_metric(label, h.references.misses)
            counters["engine_codec_state_hits"].add_metric(label, h.codec_states.hits)
            counters["engine_codec_state_misses"].add_metric(label, h.codec_states.misses)
            gauges["engine_codec_state_bytes"].add_metric(label, h.codec_states.held)
            counters["engine_preemptions"].add_metric(label, h.preemptions)
            counters["engine_eager_calls"].add_metric(label, h.eager_calls)
            step_time.add_metric(label, h.stats.steps, h.stats.step_seconds)
        yield from gauges.values()
        yield from counters.values()
        yield step_time
        yield from self._caches()
        yield self._leads()
        yield GaugeMetricFamily(PREFIX + "websocket_sessions", "Open WebSockets", value=len(self.sessions))

    def _leads(self) -> Metric:
        lead = GaugeMetricFamily(
            PREFIX + "playback_lead_s", "Audio that clients of running streams have buffered", labels=(*MODEL, "stat")
        )
        for host in self.hosts.all:
            leads = [p.lead for p, name in self.live.items() if name == host.name]
            if leads:
                lead.add_metric([host.name, "min"], min(leads))
                lead.add_metric([host.name, "mean"], sum(leads) / len(leads))
        return lead

    def _caches(self) -> Iterator[Metric]:
        cache = self.recordings.cache
        yield CounterMetricFamily(PREFIX + "voice_cache_hits", "Reference audio found decoded", value=cache.hits)
        yield CounterMetricFamily(PREFIX + "voice_cache_misses", "Reference audio decoded", value=cache.misses)
        yield GaugeMetricFamily(PREFIX + "voice_cache_bytes", "Decoded reference audio kept", value=cache.bytes)
        gpu = sum(torch.cuda.memory_reserved(i) for i in range(torch.cuda.device_count()))
        yield GaugeMetricFamily(PREFIX + "gpu_memory_bytes", "GPU memory reserved by this process", value=gpu)
