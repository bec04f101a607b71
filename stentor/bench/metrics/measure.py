"""From one decoded reply to its figures, and the table of all metrics of the tool."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stentor.audio.silence import AUDIBLE_DBFS
from stentor.bench.load.record import Exchange, Failure, Floats, Ints, Samples
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
        if self.unit == "ms":
            return 1000.0
        return 1.0

    @property
    def digits(self) -> int:
        """Decimals that are worth printing."""
        return {"ms": 2, "s": 3, "": 4}[self.unit]

    @property
    def key(self) -> str:
        """Its name in JSON keys: `mean_<key>`."""
        if self.unit:
            return f"{self.name}_{self.unit}"
        return self.name


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
    chunk_times: Floats = field(default_factory=lambda: np.zeros(0))
    chunk_samples: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    gaps: Floats = field(default_factory=lambda: np.zeros(0))
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


def measure(
    exchange: Exchange, audio: DecodedAudio | None, silence_is_audio: bool = False
) -> RequestResult:
    """Figures of one exchange. `audio` is its decoded reply, None if the request was dropped.
    silence_is_audio: its first sample counts as audible."""
    result = RequestResult(exchange.prompt.index, exchange.prompt.text, exchange.planned)
    result.metrics["send_lag"] = exchange.released - exchange.planned
    reply = exchange.reply
    if reply is None or audio is None:
        result.failure = Failure(
            "dropped", "the limit of requests in flight was reached; it was never sent"
        )
        return result
    result.sent = reply.sent
    result.ended = reply.ended
    result.failure = audio.failure
    result.sample_rate = audio.rate
    result.sample_rate_source = audio.rate_source
    result.notes = audio.notes
    result.input_tokens = audio.input_tokens
    result.output_tokens = audio.output_tokens
    result.samples = audio.samples.size
    result.chunk_times = audio.times
    result.chunk_samples = audio.counts
    if audio.audio:
        result.audio_sha256 = hashlib.sha256(audio.audio).hexdigest()[:16]
    else:
        result.audio_sha256 = ""
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
        _measure_audio(result, audio, reply.sent, silence_is_audio)
    return result


def _measure_audio(
    result: RequestResult, audio: DecodedAudio, sent: float, silence_is_audio: bool
) -> None:
    rate = audio.rate
    metrics = result.metrics
    played = play(audio.times, audio.counts, rate)
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
    first_heard = 0 if silence_is_audio else onset(np.nan_to_num(audio.samples), rate)
    if first_heard is not None:
        result.audible = True
        metrics["leading_silence"] = first_heard / rate
        metrics["audible_ttfa"] = played_at(first_heard, played.starts, audio.counts, rate) - sent


# ---- playback: pure functions of chunk arrivals and samples
#
# Chunk k of a stream brings `counts[k]` samples at `times[k]` (seconds, any fixed origin).
# Definitions: docs/benchmarking.md, "Playback". The detector and the resetting underrun rule follow
# the public method of nari-labs' tts_bench, the non-resetting rule that of vLLM-Omni's
# `audio_underrun`.

FRAME_S = 0.020
HOP_S = 0.010
FRAMES_IN_A_ROW = 2
_CELL_S = 0.001
_AUDIBLE_POWER = 10 ** (AUDIBLE_DBFS / 10)


@dataclass(frozen=True)
class PlaybackTimes:
    """How a stream plays, in seconds. `stalls` holds only chunks that came after the buffer had run
    dry."""

    starts: Floats
    """When each chunk begins to play with no start buffer, the clock resetting after a stall. Shape
    [chunks]."""
    stalls: Floats
    """Length of each stall under that rule. Shape [stalls]."""
    start_buffer: float
    """Largest lateness against a player that never resets: waiting this long before playing removes
    every stall."""
    gaps: Floats
    """Time between consecutive chunks. Shape [chunks - 1]."""


def play(times: Floats, counts: Ints, rate: int) -> PlaybackTimes:
    """Play the stream with no buffer, from the arrival of its first chunk. Needs at least one
    chunk."""
    lengths = counts / rate
    before = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    # Chunk k starts at max over j <= k of (arrival_j + audio between j and k): the recursion
    # start_k = max(arrival_k, start_{k-1} + length_{k-1}) without its loop.
    starts = np.maximum.accumulate(times - before) + before
    idle = starts[1:] - (starts[:-1] + lengths[:-1])
    return PlaybackTimes(
        starts=starts,
        # Rounding in the sums above is far below a sample. A "stall" of a nanosecond is not one.
        stalls=idle[idle > 1e-9],
        start_buffer=float(max(0.0, np.max(times - times[0] - before))),
        gaps=np.diff(times),
    )


def onset(samples: Samples, rate: int) -> int | None:
    """Index of the first audible sample, or None if there is none.

    Audible: two 20 ms frames in a row, 10 ms apart, whose RMS is at least -45 dBFS (RMS 1.0 = 0
    dBFS). Within the first of them the onset is the first millisecond that reaches that level,
    since a frame's start alone would put an abrupt onset up to 20 ms too early.
    """
    cell = max(1, round(rate * _CELL_S))
    cells = samples.size // cell
    power = np.mean(
        np.square(samples[: cells * cell].reshape(cells, cell), dtype=np.float64), axis=1
    )
    frame = round(FRAME_S / _CELL_S)
    hop = round(HOP_S / _CELL_S)
    if cells < frame + hop * (FRAMES_IN_A_ROW - 1):
        return None
    total = np.concatenate([[0.0], np.cumsum(power)])
    loud = (total[frame::hop] - total[: total.size - frame : hop]) / frame >= _AUDIBLE_POWER
    both = loud[:-1] & loud[1:]
    if not both.any():
        return None
    first = int(np.argmax(both)) * hop
    # Some millisecond reaches the mean of its frame. The factor absorbs the rounding of the running
    # sum.
    inside = power[first : first + frame] >= _AUDIBLE_POWER * (1 - 1e-9)
    return (first + int(np.argmax(inside))) * cell


def played_at(index: int, starts: Floats, counts: Ints, rate: int) -> float:
    """When sample `index` plays, on the time line of `PlaybackTimes.starts`."""
    ends = np.cumsum(counts)
    chunk = int(np.searchsorted(ends, index, side="right"))
    offset = index - (ends[chunk] - counts[chunk])
    return float(starts[chunk] + offset / rate)
