"""Measure how surely Perth's watermark is detected after codecs, and what it costs.

Run: python scripts/perth_figures.py --out FILE
Needs: `pip install '.[perth,server]'`. It speaks sentences with the built-in voice, marks them in
parts of 20 ms, encodes them as the server does, decodes them, and detects. As JSON: by codec, the
share of sentences that `detect` finds with and without the mark (more than 0.5), and the lowest and
the highest confidence. Seconds of processor time are by one thread.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile

import stentor
from stentor.audio import resample
from stentor.output.encode import encoder
from stentor.output.perth import Perth, detect
from stentor.text.sentences import sentences

STORY = Path(__file__).resolve().parents[1] / "benchmarks" / "voice" / "story.txt"
PART_S = 0.02
SURE = 0.5


class Codec(NamedTuple):
    """A format of the server's, with its rate and bits per second. None: the model's and the
    format's own."""

    format: str
    rate: int | None = None
    bit_rate: int | None = None


CODECS = {
    "samples": Codec("wav"),
    "mp3, 64 kbit/s": Codec("mp3", None, 64_000),
    "mp3, 32 kbit/s": Codec("mp3", None, 32_000),
    "opus, 64 kbit/s": Codec("opus", 48_000, 64_000),
    "opus, 24 kbit/s": Codec("opus", 48_000, 24_000),
    "opus, 12 kbit/s": Codec("opus", 48_000, 12_000),
    "u-law, 8 kHz": Codec("ulaw", 8_000),
}


def marked(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples with the mark, taken in short parts."""
    watermark = Perth(rate)
    part = int(PART_S * rate)
    places = np.arange(part, len(samples), part)
    parts = [watermark.process(part.copy()) for part in np.split(samples, places)]
    return np.concatenate((*parts, watermark.flush()))


def coded(samples: np.ndarray, rate: int, codec: Codec) -> tuple[np.ndarray, int]:
    """Samples after a codec, and their rate."""
    sent = codec.rate or rate
    encode = encoder(codec.format, sent, whole=True, bit_rate=codec.bit_rate)
    data = encode.feed(resample(samples, rate, sent))
    data += encode.finish()
    if codec.format == "ulaw":
        raw = {"format": "RAW", "subtype": "ULAW", "samplerate": sent, "channels": 1}
    else:
        raw = {}
    decoded, decoded_rate = soundfile.read(io.BytesIO(data), dtype="float32", **raw)
    return decoded, decoded_rate


def figures(values: list[float]) -> dict[str, Any]:
    """Summary of the confidences of sentences."""
    return {
        "found": sum(value > SURE for value in values),
        "lowest": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "highest": round(max(values), 3),
    }


def signal_to_mark(samples: np.ndarray, with_mark: np.ndarray) -> float:
    """How much louder the audio is than the mark, in dB."""
    signal = np.square(samples).sum()
    mark = np.square(with_mark - samples).sum()
    return float(10 * np.log10(signal / mark))


def measured(plain: list[np.ndarray], rate: int) -> dict[str, Any]:
    """Figures of sentences at a rate."""
    marked(plain[0], rate)  # reads the weights
    began = time.process_time()
    with_mark = [marked(samples, rate) for samples in plain]
    seconds = time.process_time() - began

    lengths = [len(samples) / rate for samples in plain]
    levels = map(signal_to_mark, plain, with_mark)
    codecs = {}
    for name, codec in CODECS.items():
        confidences = [detect(*coded(samples, rate, codec)) for samples in with_mark]
        mistaken = [detect(*coded(samples, rate, codec)) for samples in plain]
        codecs[name] = {"with": figures(confidences), "without": figures(mistaken)}
    return {
        "sentences": len(plain),
        "audio_seconds": round(sum(lengths), 1),
        "shortest_seconds": round(min(lengths), 2),
        "cpu_seconds_per_audio_second": round(seconds / sum(lengths), 4),
        "look_ahead_seconds": Perth(rate).look_ahead / rate,
        "median_signal_to_mark_db": round(statistics.median(levels), 1),
        "codecs": codecs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    story = STORY.read_text(encoding="utf-8")
    texts = [sentence.text for sentence in sentences(story)]
    with stentor.TTS() as tts:
        rate = tts.sample_rate
        plain = [tts.generate(text, seed=1).samples for text in texts[: arguments.sentences]]
    report = json.dumps(measured(plain, rate), indent=1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(report + "\n")
    print(report)


if __name__ == "__main__":
    main()
