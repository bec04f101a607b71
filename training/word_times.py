"""How well a checkpoint's attention says when words are spoken, against the teacher's own durations.

    python -m training.word_times --model DIR --speech DIR --sentences sentences.jsonl --count 48 --json out.json

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import stentor
from stentor.models.base import Emit, Hidden, Rows
from stentor.speech.words import word_spans
from stentor.text.front_end import plain

RATE = 24_000
QUIET = 42.0


@dataclass(frozen=True)
class Utterance:
    """Speech of the teacher: float32 samples [n], its phonemes, and milliseconds at which each of them ends."""

    samples: np.ndarray
    phonemes: str
    ends: list[int]
    voice: str | None

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
            np.abs(self.samples[: len(self.samples) // window * window]).reshape(-1, window).max(1) + 1e-5
        )
        first = int(start * 100)
        loud = np.flatnonzero(level[first : int(np.ceil(end * 100))] > level.max() - QUIET)
        return (first + loud[-1] + 1) / 100 if len(loud) else end


def utterances(folder: Path, sentences: Path, voices: dict[str, str], count: int) -> Iterator[Utterance]:
    """The first of a folder."""
    texts = {
        r["id"]: r["phonemes"].strip() for r in map(json.loads, sentences.read_text(encoding="utf-8").splitlines())
    }
    for index in sorted(folder.glob("*.jsonl")):
        pcm = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
        for row in map(json.loads, index.read_text().splitlines()):
            if count == 0:
                return
            if len(row["ends"]) == len(texts[row["id"]]):
                samples = pcm[row["offset"] : row["offset"] + row["samples"]].astype(np.float32) / 32768
                yield Utterance(samples, texts[row["id"]], row["ends"], voices.get(row.get("voice", "")))
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
    """Of errors in seconds [n]: their number, and milliseconds."""
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
            spans = np.array(word_spans(attended, words, spec.hop / spec.sample_rate, lag), dtype=float)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "speech", "sentences"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--count", type=int, default=48, help="utterances")
    parser.add_argument("--voices", nargs="*", default=[], metavar="TEACHER=NAME")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    voices = dict(pair.split("=") for pair in args.voices)
    with stentor.TTS(args.model, device="cpu", max_num_seqs=1) as tts:
        found = measure(Forced(tts), list(utterances(args.speech, args.sentences, voices, args.count)))
    print(json.dumps(found, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
