"""Teacher speech on the training device: trimmed utterances end to end in one flat 16-bit tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

RATE = 24_000
DURATION_MS = 25  # the teacher's unit of time
_WINDOW = 240  # samples of one loudness frame, 10 ms


def trim(wave: np.ndarray, config: dict[str, Any]) -> tuple[np.ndarray, int]:
    """Cut int16 `wave` to `lead` seconds before its first and `trail` after its last loud 10 ms; and where that is."""
    frames = wave[: len(wave) // _WINDOW * _WINDOW].reshape(-1, _WINDOW).astype(np.float32)
    level = 10 * np.log10((frames**2).mean(1) + 1e-3)
    loud = np.flatnonzero(level > level.max() - config["threshold_db"])
    start = max(0, int(loud[0] * _WINDOW - config["lead"] * RATE))
    end = int((loud[-1] + 1) * _WINDOW + config["trail"] * RATE)
    return wave[start:end], start


class Speech:
    """Utterances of a folder that a teacher may still be filling; `refresh` takes in what is new.

    `flat` int16 [samples]; `spans` {sentence id: (start, end)} into it; `ends` {sentence id: milliseconds after its
    start at which each phoneme ends}.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], held_out_from: int, held_out: bool, device: torch.device
    ) -> None:
        self.folder, self.config, self.device = folder, config, device
        self.wanted = (lambda i: i >= held_out_from) if held_out else (lambda i: i < held_out_from)
        self.flat = torch.zeros(0, dtype=torch.int16, device=device)
        self.spans: dict[int, tuple[int, int]] = {}
        self.ends: dict[int, list[int]] = {}

    @property
    def hours(self) -> float:
        return len(self.flat) / RATE / 3600

    def refresh(self) -> None:
        """Read utterances that were not there at the last call."""
        waves, at = [], len(self.flat)
        for index in sorted(self.folder.glob("*.jsonl")):
            lines = index.read_text().split("\n")[:-1]  # the last one may be half written
            if not lines:
                continue
            pcm = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
            for line in lines:
                row = json.loads(line)
                if row["id"] in self.spans or not self.wanted(row["id"]):
                    continue
                wave, cut = trim(np.array(pcm[row["offset"] : row["offset"] + row["samples"]]), self.config)
                self.ends[row["id"]] = [e * DURATION_MS - cut * 1000 // RATE for e in row["ends"]]
                self.spans[row["id"]] = (at, at + len(wave))
                at += len(wave)
                waves.append(wave)
        if waves:
            new = torch.from_numpy(np.concatenate(waves)).to(self.device)
            self.flat = torch.cat((self.flat, new))

    def crops(self, count: int, samples: int) -> Tensor:
        """Random stretches, utterance borders ignored: float32 [count, 1, samples] in [-1, 1]."""
        start = torch.randint(0, len(self.flat) - samples, (count, 1), device=self.device)
        index = start + torch.arange(samples, device=self.device)
        return self.flat[index].unsqueeze(1).float() / 32768

    def utterance(self, key: int) -> Tensor:
        """One utterance, float32 [samples]."""
        start, end = self.spans[key]
        return self.flat[start:end].float() / 32768
