"""Metrics that are read from the engines on each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from stentor.health import Health
from stentor.server.model_hosts import ModelHost, ModelHosts
from stentor.server.speech.playback import ClientPlayback
from stentor.server.voices.recordings import Recordings

PREFIX = "stentor:"
MODEL = ("model_name",)

S = TypeVar("S")
OfHost = tuple[str, str, Callable[[ModelHost], float]]  # name, help and value of a metric
OfEngine = tuple[str, str, Callable[[Health], float]]

HOST_GAUGES: tuple[OfHost, ...] = (
    ("engine_up", "1 while the engine is alive, or unloaded and ready to be loaded", lambda m: float(_up(m))),
    ("model_resident", "1 while the model is in memory", lambda m: float(m.resident)),
    (
        "num_requests_waiting_for_load",
        "Requests that wait until the model is loaded again",
        lambda m: m.residency.waiting,
    ),
)
HOST_COUNTERS: tuple[OfHost, ...] = (
    ("model_loads", "Times the model was loaded", lambda m: m.residency.loads),
    ("model_unloads", "Times the model was unloaded because it was idle", lambda m: m.residency.unloads),
    ("engine_restarts", "Engines restarted after a crash", lambda m: m.restarts),
)
ENGINE_GAUGES: tuple[OfEngine, ...] = (
    ("num_requests_running", "Requests in slots", lambda h: h.running),
    ("num_requests_waiting", "Requests that wait for a slot", lambda h: h.queued),
    ("batch_size", "Requests that share a step now", lambda h: h.running),
    ("kv_usage_ratio", "Share of key-value pages in use", lambda h: 1 - h.free_pages / max(1, h.pages)),
    ("slot_usage_ratio", "Share of slots in use", lambda h: h.running / max(1, h.running + h.free_slots)),
    (
        "engine_codec_state_bytes",
        "Codec states after voices that are kept on the host",
        lambda h: h.codec_states.held,
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
    ("engine_prefix_evictions", "Pages of the prefix cache that were given to requests", lambda h: h.evictions),
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
    ("engine_codec_state_misses", "Codec states after a voice that were made", lambda h: h.codec_states.misses),
)


def _up(host: ModelHost) -> bool:
    health = host.health
    return host.serves if health is None else health.alive


OF_ENGINES = {PREFIX + name for name, _, _ in (*HOST_GAUGES, *HOST_COUNTERS, *ENGINE_GAUGES, *ENGINE_COUNTERS)}
OF_ENGINES |= {PREFIX + "step_time_s", PREFIX + "gpu_memory_bytes"}
"""Metrics that each API process of a server tells of the same engines."""


class EngineMetrics(Collector):
    """Models, engines, caches and open sessions as they are now. live: running streams and their models."""

    def __init__(
        self, hosts: ModelHosts, recordings: Recordings, live: dict[ClientPlayback, str], sessions: set[object]
    ) -> None:
        self.hosts, self.recordings, self.live, self.sessions = hosts, recordings, live, sessions

    def collect(self) -> Iterator[Metric]:
        models = [(host, host.name) for host in self.hosts.all]
        engines = [(health, host.name) for host in self.hosts.all if (health := host.health) is not None]
        yield from _families(GaugeMetricFamily, HOST_GAUGES, models)
        yield from _families(GaugeMetricFamily, ENGINE_GAUGES, engines)
        yield from _families(CounterMetricFamily, HOST_COUNTERS, models)
        yield from _families(CounterMetricFamily, ENGINE_COUNTERS, engines)
        step_time = SummaryMetricFamily(PREFIX + "step_time_s", "Engine iterations that generated frames", labels=MODEL)
        for health, name in engines:
            step_time.add_metric([name], health.stats.steps, health.stats.step_seconds)
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
        found = self.recordings
        yield CounterMetricFamily(PREFIX + "voice_cache_hits", "Reference audio found decoded", value=found.hits)
        yield CounterMetricFamily(PREFIX + "voice_cache_misses", "Reference audio decoded", value=found.misses)
        yield GaugeMetricFamily(PREFIX + "voice_cache_bytes", "Decoded reference audio kept", value=found.cache.held)
        gpu = sum(host.health.gpu_bytes for host in self.hosts.all if host.health is not None)
        yield GaugeMetricFamily(PREFIX + "gpu_memory_bytes", "GPU memory reserved by the engines", value=gpu)


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
