"""Teacher speech on the training device: trimmed utterances end to end in one flat 16-bit tensor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

RATE = 24_000
_WINDOW = 240  # samples of one loudness frame, 10 ms


def trim(wave: np.ndarray, config: dict[str, Any]) -> tuple[np.ndarray, int]:
    """Cut int16 `wave` to `lead` seconds before its first and `trail` after its last loud 10 ms; and where that is."""
    frames = wave[: len(wave) // _WINDOW * _WINDOW].reshape(-1, _WINDOW).astype(np.float32)
    level = 10 * np.log10((frames**2).mean(1) + 1e-3)
    loud = np.flatnonzero(level > level.max() - config["threshold_db"])
    start = max(0, int(loud[0] * _WINDOW - config["lead"] * RATE))
    end = int((loud[-1] + 1) * _WINDOW + config["trail"] * RATE)
    return wave[start:end], start


Key = tuple[int, str]  # sentence and voice


class Speech:
    """Utterances of a folder that a teacher may still be filling; `refresh` takes in what is new.

    `flat` int16 [samples]; `spans` {key: (start, end)} into it; `ends` {key: milliseconds after its start at which each
    phoneme ends}.
    """

    def __init__(self, folder: Path, wanted: Callable[[int], bool], device: torch.device) -> None:
        """wanted: whether a sentence, by its id, is taken."""
        self.folder, self.wanted, self.device = folder, wanted, device
        self.flat = torch.zeros(0, dtype=torch.int16, device=device)
        self.spans: dict[Key, tuple[int, int]] = {}
        self.ends: dict[Key, list[int]] = {}
        self._read: dict[Path, int] = {}  # bytes of each index that are taken in
        self._starts = torch.zeros(
            0, dtype=torch.long, device=device
        )  # of the utterances in `flat`

    @property
    def hours(self) -> float:
        return len(self.flat) / RATE / 3600

    def refresh(self) -> None:
        """Read utterances that were not there at the last call."""
        waves, at = [], len(self.flat)
        for index in sorted(self.folder.glob("*.jsonl")):
            done = self._read.get(index, 0)
            with index.open("rb") as f:
                f.seek(done)
                text = f.read()
            text = text[: text.rfind(b"\n") + 1]  # the last line may be half written
            self._read[index] = done + len(text)
            rows = [row for row in map(json.loads, text.splitlines()) if self.wanted(row["id"])]
            if not rows:
                continue
            pcm = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
            for row in rows:
                key = (row["id"], row["voice"])
                waves.append(pcm[row["offset"] : row["offset"] + row["samples"]])
                self.ends[key], self.spans[key] = row["ends"], (at, at + row["samples"])
                at += row["samples"]
        if waves:
            new = torch.from_numpy(np.concatenate(waves)).to(self.device)
            self.flat = torch.cat((self.flat, new))
            self._starts = torch.tensor(
                [start for start, _ in self.spans.values()], device=self.device
            )

    def crops(self, count: int, samples: int, onsets: float = 0.0) -> Tensor:
        """Random stretches, ends of utterances ignored: float32 [count, 1, samples] in [-1, 1].

        A share `onsets` of them, rounded down, begins where an utterance does. Short utterances have more part in these
        than by their length.
        """
        last = len(self.flat) - samples
        start = torch.randint(0, last, (count, 1), device=self.device)
        if first := int(onsets * count):
            drawn = torch.randint(0, len(self._starts), (first,), device=self.device)
            start[:first, 0] = self._starts[drawn].clamp(max=last)
        index = start + torch.arange(samples, device=self.device)
        return self.flat[index].unsqueeze(1).float() / 32768

    def utterance(self, key: Key) -> Tensor:
        """One utterance, float32 [samples]."""
        start, end = self.spans[key]
        return self.flat[start:end].float() / 32768
