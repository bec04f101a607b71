"""Measure whether Perth's mark is found after codecs, in whole answers and in streams of the built-in voice.

Run: python benchmarks/watermark.py --out FILE       needs the extra `perth`
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

import av
import numpy as np

import stentor
from stentor.output.encode import encoder
from stentor.output.perth import Perth, detect
from stentor.output.watermark import WatermarkStage

TEXTS = (
    "The herald has fifty voices.",
    "The quick brown fox jumps over the lazy dog near the old stone bridge.",
    "It rained all night, and in the morning the river stood in the lower gardens.",
    "Please hold the line. The next free person will speak to you in a moment.",
)
FORMATS = {"wav": 24_000, "mp3": 24_000, "opus": 24_000, "ulaw": 8_000}
PART = 1_920  # samples of a stream's part


def marked(samples: np.ndarray, rate: int, part: int) -> np.ndarray:
    """Samples with the mark, fed in parts."""
    stage = WatermarkStage(Perth, rate)
    parts = [stage.feed(samples[i : i + part]) for i in range(0, len(samples), part)]
    return np.concatenate((*parts, stage.finish(np.zeros(0, np.float32))))


def through(samples: np.ndarray, rate: int, format: str) -> np.ndarray:
    """Samples that were encoded and decoded again."""
    codec = encoder(format, rate, whole=True)
    data = codec.feed(samples) + codec.finish()
    if format == "ulaw":
        file = av.open(io.BytesIO(data), format="mulaw", options={"sample_rate": str(rate)})
    else:
        file = av.open(io.BytesIO(data))
    with file:
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate)
        frames = [r for f in file.decode(audio=0) for r in resampler.resample(f)]
        return np.concatenate([frame.to_ndarray()[0] for frame in frames])


def main() -> None:
    """Print the confidence by format, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    results = []
    with stentor.TTS() as tts:
        for seed, text in enumerate(TEXTS):
            speech = tts.generate(text, seed=seed)
            for format, rate in FORMATS.items():
                samples = resampled(speech.samples, speech.sample_rate, rate)
                begin = time.perf_counter()
                whole = marked(samples, rate, len(samples))
                seconds = time.perf_counter() - begin
                streamed = marked(samples, rate, PART)
                results.append(
                    {
                        "text": text,
                        "format": format,
                        "rate": rate,
                        "equal": bool(np.array_equal(whole, streamed)),
                        "marked": detect(through(streamed, rate, format), rate),
                        "unmarked": detect(through(samples, rate, format), rate),
                        "snr_db": snr(samples, whole),
                        "rtf": seconds * rate / len(samples),
                    }
                )
                print(json.dumps(results[-1]))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """float32 samples at another rate."""
    import soxr

    return np.asarray(soxr.resample(samples, rate, wanted), np.float32)


def snr(samples: np.ndarray, marked: np.ndarray) -> float:
    """How far the mark lies below the speech, in dB."""
    return float(10 * np.log10(np.sum(samples**2) / np.sum((marked - samples) ** 2)))


if __name__ == "__main__":
    main()
