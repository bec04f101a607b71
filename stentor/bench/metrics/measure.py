"""From one decoded reply to its figures, and the table of all metrics of the tool."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stentor.bench.load.record import Exchange, Failure
from stentor.bench.metrics import playback
from stentor.bench.metrics.decode import DecodedAudio

Unit = Literal["ms", "s", ""]


@dataclass(frozen=True)
class Metric:
    """A per-request figure. Times are kept in seconds and shown in `unit`."""

    name: str
    title: str
    """Heading of its block in the vLLM layout, or its row in the playback table."""
    unit: Unit

    @property
    def scale(self) -> float:
        return 1000.0 if self.unit == "ms" else 1.0

    @property
    def digits(self) -> int:
        """Decimals that are worth printing."""
        return {"ms": 2, "s": 3, "": 4}[self.unit]

    @property
    def key(self) -> str:
        """Its name in JSON keys: `mean_<key>`."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


# Blocks of the table that `vllm bench serve --omni` prints, in its order.
VLLM_METRICS = (
    Metric("e2el", "End-to-end Latency", "ms"),
    Metric("audio_ttfp", "Time to First Packet", "ms"),
    Metric("audio_rtf", "Real Time Factor", ""),
    Metric("audio_duration", "Audio Duration", "s"),
    Metric("audio_underrun", "Streaming Audio Underrun", "s"),
)
PLAYBACK_METRICS = (
    Metric("ttfb", "TTFB, headers", "ms"),
    Metric("first_pcm", "First PCM sample", "ms"),
    Metric("audible_ttfa", "Audible TTFA", "ms"),
    Metric("leading_silence", "Leading silence", "ms"),
    Metric("start_buffer", "Start buffer, gapless", "ms"),
    Metric("stall_max", "Largest stall", "ms"),
    Metric("first_chunk", "First chunk's audio", "ms"),
    Metric("rtf_gen", "RTF, generation only", ""),
)
# In the files only.
OTHER_METRICS = (
    Metric("stall_total", "Stalled, zero buffer", "ms"),
    Metric("send_lag", "Send lag", "ms"),
    Metric("client_queue", "Client queue", "ms"),
    Metric("connect", "Connect and send", "ms"),
    Metric("e2el_queued", "E2EL from planned time", "ms"),
    Metric("ws_setup", "WebSocket set-up", "ms"),
    Metric("text_ingress", "Text sending time", "ms"),
    Metric("after_text", "Last text to end", "ms"),
)
METRICS = {metric.name: metric for metric in (*VLLM_METRICS, *PLAYBACK_METRICS, *OTHER_METRICS)}


@dataclass
class RequestResult:
    """One request's row in the JSONL file. `metrics` holds seconds or ratios by metric name."""

    index: int
    text: str
    planned: float
    sent: float | None = None
    ended: float | None = None
    failure: Failure | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    chunk_times: playback.Floats = field(default_factory=lambda: np.zeros(0))
    chunk_samples: playback.Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    gaps: playback.Floats = field(default_factory=lambda: np.zeros(0))
    stalls: int = 0
    samples: int = 0
    sample_rate: int = 0
    sample_rate_source: str = "none"
    audible: bool = False
    audio_sha256: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    quality: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    in_window: bool = True

    @property
    def completed(self) -> bool:
        return self.failure is None


def measure(exchange: Exchange, audio: DecodedAudio | None) -> RequestResult:
    """Figures of one exchange. `audio` is its decoded reply, None if the request was dropped."""
    result = RequestResult(exchange.prompt.index, exchange.prompt.text, exchange.planned)
    result.metrics["send_lag"] = exchange.released - exchange.planned
    reply = exchange.reply
    if reply is None or audio is None:
        result.failure = Failure("dropped", "the limit of requests in flight was reached; it was never sent")
        return result
    result.sent, result.ended, result.failure = reply.sent, reply.ended, audio.failure
    result.sample_rate, result.sample_rate_source, result.notes = audio.rate, audio.rate_source, audio.notes
    result.input_tokens, result.output_tokens = audio.input_tokens, audio.output_tokens
    result.samples = audio.samples.size
    result.chunk_times, result.chunk_samples = audio.times, audio.counts
    result.audio_sha256 = hashlib.sha256(audio.audio).hexdigest()[:16] if audio.audio else ""
    times = {
        "ttfb": reply.headers_at,
        "audio_ttfp": audio.first_payload,
        "e2el": reply.ended,
        "connect": reply.requested,
        "text_ingress": reply.text_done,
    }
    result.metrics |= {name: at - reply.sent for name, at in times.items() if at is not None}
    result.metrics["e2el_queued"] = reply.ended - exchange.planned
    result.metrics["client_queue"] = reply.sent - (reply.setup_s or 0.0) - exchange.released
    if reply.setup_s is not None:
        result.metrics["ws_setup"] = reply.setup_s
    if reply.text_done is not None:
        result.metrics["after_text"] = reply.ended - reply.text_done
    if audio.counts.size:
        _measure_audio(result, audio, reply.sent)
    return result


def _measure_audio(result: RequestResult, audio: DecodedAudio, sent: float) -> None:
    rate, metrics = audio.rate, result.metrics
    played = playback.play(audio.times, audio.counts, rate)
    duration = audio.samples.size / rate
    first = float(audio.counts[0]) / rate
    metrics["first_pcm"] = float(audio.times[0]) - sent
    metrics["audio_duration"] = duration
    metrics["audio_rtf"] = metrics["e2el"] / duration
    if duration > first:
        metrics["rtf_gen"] = (metrics["e2el"] - metrics["first_pcm"]) / (duration - first)
    metrics["first_chunk"] = first
    metrics["audio_underrun"] = metrics["start_buffer"] = played.start_buffer
    metrics["stall_total"] = float(played.stalls.sum())
    metrics["stall_max"] = float(played.stalls.max(initial=0.0))
    result.stalls = played.stalls.size
    result.gaps = played.gaps
    onset = playback.onset(np.nan_to_num(audio.samples), rate)
    if onset is not None:
        result.audible = True
        metrics["leading_silence"] = onset / rate
        metrics["audible_ttfa"] = playback.played_at(onset, played.starts, audio.counts, rate) - sent
