"""How well a checkpoint's attention, or an aligner, says when words are spoken, against the teacher's own durations.

    python -m training.word_times --model DIR --speech DIR --sentences sentences.jsonl --count 48 --json out.json
    python -m training.word_times --aligner plain mp3 telephone --speech DIR --sentences sentences.jsonl --json out.json

`--aligner` measures the one for English (stentor/align) in place of a checkpoint, on the audio as it is, through an mp3
of 64 kbit/s and through 8 kHz, with seconds of a thread per second of audio (`rtf`). `--heads TEXTS` compares it with
the heads of the built-in voice, on what this makes of the lines of a file, each in the next of its voices.

Every utterance is forced: its latents take the place of what the model would make, through the same steps and the same
code that serve a request. `--speech` has pairs of NAME.pcm (16 bits, the checkpoint's rate) and NAME.jsonl, whose rows
are {id, offset, samples, ends}: where the samples lie, and the milliseconds after them at which each symbol of the
sentence's `phonemes` ends. A row may have a `voice`, which `--voices teacher=name ...` calls as the checkpoint does.

The teacher counts a pause into the phoneme before it. Ends are therefore compared with where the word's sound ends
(`ends`), and with the durations as they are (`ends_with_pauses`). The first word begins after a silence, which `ends`
lacks, and is left out. `lag` is what config.json should say: the median by which starts come late with a lag of 0.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stentor
from stentor.align.english import EnglishAlignment
from stentor.align.network import RATE as ALIGNED
from stentor.align.path import class_of
from stentor.models.base import Emit, Hidden, Rows
from stentor.speech.words import word_spans
from stentor.text import plain
from stentor.text.trace import Trace, is_sound
from training.train_aligner import through_mp3, through_telephone

RATE = 24_000
QUIET = 42.0


@dataclass(frozen=True)
class Utterance:
    """Speech of the teacher: float32 samples [n], its phonemes, and milliseconds at which each of them ends."""

    samples: np.ndarray
    phonemes: str
    ends: list[int]
    voice: str | None
    teacher: str = ""
    """The teacher's name of the voice."""

    def borders(self, words: tuple[range, ...]) -> np.ndarray:
        """Seconds [words, 3] at which words begin, at which their sound ends, and at which they end with the pause
        behind them. The first word begins at NaN: after a silence of which the end is not known."""
        found = []
        for word in words:
            start = self.ends[word.start - 1] / 1000 if word.start else np.nan
            end = self.ends[word.stop - 1] / 1000
            found.append((start, min(end, self._sounds_until(np.nan_to_num(start), end)), end))
        return np.array(found)

    def _sounds_until(self, start: float, end: float) -> float:
        """Where the last 10 ms between two times end that are not `QUIET` dB below the loudest."""
        window = RATE // 100
        level = 20 * np.log10(
            np.abs(self.samples[: len(self.samples) // window * window]).reshape(-1, window).max(1)
            + 1e-5
        )
        first = int(start * 100)
        loud = np.flatnonzero(level[first : int(np.ceil(end * 100))] > level.max() - QUIET)
        return (first + loud[-1] + 1) / 100 if len(loud) else end


def utterances(
    folder: Path, sentences: Path, voices: dict[str, str], count: int
) -> Iterator[Utterance]:
    """The first of a folder."""
    texts = {
        r["id"]: r["phonemes"].strip()
        for r in map(json.loads, sentences.read_text(encoding="utf-8").splitlines())
    }
    for index in sorted(folder.glob("*.jsonl")):
        pcm = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
        for row in map(json.loads, index.read_text().splitlines()):
            if count == 0:
                return
            if len(row["ends"]) == len(texts[row["id"]]):
                samples = (
                    pcm[row["offset"] : row["offset"] + row["samples"]].astype(np.float32) / 32768
                )
                teacher = row.get("voice", "")
                yield Utterance(
                    samples, texts[row["id"]], row["ends"], voices.get(teacher), teacher
                )
                count -= 1


class Forced:
    """A loaded model that says what it is given: `emit` gives these frames [n, *frame] in place of its own."""

    def __init__(self, tts: stentor.TTS) -> None:
        self.tts, self.model = tts, tts._model
        self._emit, self._frames = self.model.emit, torch.zeros(0)
        self.model.prompts.front_end = plain  # a text is phonemes already
        self.model.emit = self.emit

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """The given frames in the place of those that the model makes, after the last one a stop."""
        out: Emit = self._emit(h, rows, u)
        at = rows["step"].clamp_max(len(self._frames) - 1)
        return out._replace(frame=self._frames[at].to(out.frame), stop=at == len(self._frames) - 1)

    def attended(self, said: Utterance) -> tuple[np.ndarray, tuple[range, ...]]:
        """Where in the phonemes each of its frames looks, and where its words are."""
        self._frames = self.model.encode(torch.from_numpy(said.samples), "reference")["patches"]
        steps = {"min_frames": 0, "flow_steps": 1, "cfg": 1.0}
        request = self.tts.request(said.phonemes, voice=said.voice, seed=1, **steps)
        prompt = self.tts.prompt(request)
        prompt.max_frames = len(self._frames) + 1
        chunks = list(self.tts.engine.submit(prompt, 1, streaming=False))
        return np.concatenate([c.attended for c in chunks if len(c.frames)]), prompt.words


def figures(error: np.ndarray) -> dict[str, Any]:
    """Statistics of errors in seconds [n]: their number, and milliseconds."""
    ms = 1000 * error[np.isfinite(error)]
    size = np.abs(ms)
    return {
        "borders": len(ms),
        "late": round(float(np.median(ms)), 1),
        "median": round(float(np.median(size)), 1),
        "p95": round(float(np.percentile(size, 95)), 1),
        "largest": round(float(size.max()), 1),
    }


def measure(forced: Forced, spoken: list[Utterance]) -> dict[str, Any]:
    """Errors of where words begin and end, with the checkpoint's lag, and the lag that would be best."""
    spec = forced.tts.spec
    if spec.alignment is None:
        raise SystemExit("the checkpoint has no alignment heads: stentor.alignment of config.json")
    found: dict[float, list[np.ndarray]] = {0.0: [], spec.alignment.lag: []}
    for said in spoken:
        attended, words = forced.attended(said)
        words = tuple(w for w in words if w)
        borders = said.borders(words)
        for lag, errors in found.items():
            spans = np.array(
                word_spans(attended, words, spec.hop / spec.sample_rate, lag), dtype=float
            )
            errors.append(spans[:, [0, 1, 1]] - borders)
    plainly, own = (np.concatenate(found[lag]) for lag in (0.0, spec.alignment.lag))
    return {
        "utterances": len(spoken),
        "lag": round(float(np.nanmedian(plainly[:, 0])), 3),
        "starts": figures(own[:, 0]),
        "ends": figures(own[:, 1]),
        "starts_and_ends": figures(own[:, :2]),
        "ends_with_pauses": figures(own[:, 2]),
    }


THROUGH: dict[str, Callable[[np.ndarray], tuple[np.ndarray, int]]] = {
    "plain": lambda samples: (samples, RATE),
    "mp3": lambda samples: (through_mp3(samples, RATE, 64_000), RATE),
    "telephone": lambda samples: (through_telephone(samples, RATE), ALIGNED),
}
CHUNK = 0.32
"""Seconds of audio that the aligner gets at a time."""


def measure_aligner(spoken: list[Utterance], through: str) -> dict[str, Any]:
    """Errors of where words begin and end by the aligner for English, as a whole and of each voice."""
    errors: dict[str, list[np.ndarray]] = {}
    seconds = worked = 0.0
    for said in spoken:
        words = tuple(w for w in Trace.of(said.phonemes).places(is_sound) if w)
        sounds = [
            [kind for sign in said.phonemes[w.start : w.stop] if (kind := class_of(sign))]
            for w in words
        ]
        samples, rate = THROUGH[through](said.samples)
        began = time.thread_time()
        alignment, step = EnglishAlignment(rate), int(CHUNK * rate)
        for at in range(0, len(samples), step):
            alignment.add(samples[at : at + step])
        spans = np.array(alignment.spans_of(sounds), dtype=float)
        worked += time.thread_time() - began
        seconds += len(samples) / rate
        errors.setdefault(said.teacher, []).append(spans[:, [0, 1, 1]] - said.borders(words))
    whole = np.concatenate([e for of_voice in errors.values() for e in of_voice])
    return {
        "utterances": len(spoken),
        "seconds": round(seconds, 1),
        "rtf": round(worked / seconds, 4),
        "starts": figures(whole[:, 0]),
        "ends": figures(whole[:, 1]),
        "starts_and_ends": figures(whole[:, :2]),
        "ends_with_pauses": figures(whole[:, 2]),
        "voices": {voice: figures(np.concatenate(e)[:, :2]) for voice, e in sorted(errors.items())},
    }


def measure_heads(texts: Path) -> dict[str, Any]:
    """Differences of the aligner for English from the heads of the built-in voice, on lines that it speaks."""
    found = []
    with stentor.TTS(device="cpu", max_num_seqs=1) as tts:
        for i, text in enumerate(texts.read_text(encoding="utf-8").splitlines()):
            voice = tts.voices[i % len(tts.voices)]
            speech = tts.generate(
                text, voice=voice, seed=1, retries=1, split_granularity="none", word_timestamps=True
            )
            alignment = EnglishAlignment(speech.sample_rate)
            alignment.add(speech.samples)
            spans = [span for span in alignment.spans(text.split()) if span is not None]
            found.append(np.array(spans) - [(w.start, w.end) for w in speech.words])
    whole = np.concatenate(found)
    return {"utterances": len(found), "starts": figures(whole[:, 0]), "ends": figures(whole[:, 1])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    measured = parser.add_mutually_exclusive_group(required=True)
    measured.add_argument("--model", type=Path)
    measured.add_argument(
        "--aligner", nargs="+", choices=THROUGH, metavar="THROUGH", help=", ".join(THROUGH)
    )
    measured.add_argument("--heads", type=Path, metavar="TEXTS")
    for name in ("speech", "sentences"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--count", type=int, default=48, help="utterances")
    parser.add_argument("--voices", nargs="*", default=[], metavar="TEACHER=NAME")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    voices = dict(pair.split("=") for pair in args.voices)
    if args.heads is None and None in (args.speech, args.sentences):
        parser.error("--speech and --sentences are needed")
    spoken = [] if args.heads else list(utterances(args.speech, args.sentences, voices, args.count))
    if args.heads:
        found = measure_heads(args.heads)
    elif args.aligner:
        found = {through: measure_aligner(spoken, through) for through in args.aligner}
    else:
        with stentor.TTS(args.model, device="cpu", max_num_seqs=1) as tts:
            found = measure(Forced(tts), spoken)
    print(json.dumps(found, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
