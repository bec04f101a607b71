"""Batches for the language model: phoneme ids and patches of latents, drawn and joined on the fly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.store import STEP, Latents
from training.tokenizer import SPECIALS, SYMBOLS, build

AUDIO_START = SPECIALS["<|audio_start|>"]
TAIL = 2  # silent patches after the end, so that a stop that comes late is still a stop


@dataclass
class Batch:
    """B examples. Sequence positions: `text_len[b]` ids (the last one is audio-start), then patches, then padding.

    ids [B, T] of the whole sequence (0 where no text); patches [B, N, P, D]; text_len, patch_len [B].
    The M patches that are no padding: example `row` [M], number within it `patch` [M], `last` [M]: nothing follows.
    spelling: the phonemes of all examples end to end, without marks and spaces; spelling_len [B].
    """

    ids: Tensor
    patches: Tensor
    text_len: Tensor
    patch_len: Tensor
    row: Tensor
    patch: Tensor
    last: Tensor
    spelling: Tensor
    spelling_len: Tensor


class Examples:
    """Random access to utterances, by sentence id, with text as token ids."""

    def __init__(
        self, sentences: Path, folder: Path, name: str, patch: int, config: dict[str, Any], device: torch.device
    ) -> None:
        self.latents, self.patch, self.c, self.device = Latents(folder, name, device), patch, config, device
        tokenizer = build()
        texts = {r["id"]: r["phonemes"] for r in map(json.loads, sentences.read_text(encoding="utf-8").splitlines())}
        ids = {row["id"] for row in self.latents.index}
        self.tokens = {i: np.array(tokenizer.encode(texts[i].strip()).ids, np.int64) for i in ids}
        self.space = tokenizer.token_to_id(" ")
        self.sounds = np.array([tokenizer.token_to_id(s) for s in SYMBOLS if s.isalpha() and s not in "ˈˌː"])
        self.rows = [r for r in self.latents.index if r["frames"] >= 3 * patch]
        self.random = np.random.default_rng(0)

    def _spans(self, count: int, join: float) -> list[list[dict[str, int]]]:
        """Utterances of `count` examples; a share `join` of them takes two to four, as long as they stay short."""
        picks = self.random.integers(len(self.rows), size=(count, 4))
        wanted = np.where(self.random.random(count) < join, self.random.integers(2, 5, count), 1)
        examples = []
        for pick, n in zip(picks, wanted, strict=True):
            rows, frames = [self.rows[pick[0]]], self.rows[pick[0]]["frames"]
            for k in pick[1:n]:
                frames += self.rows[k]["frames"]
                if frames <= self.c["longest"]:
                    rows.append(self.rows[k])
            examples.append(rows)
        return examples

    def _example(self, rows: list[dict[str, int]], jitter: bool) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and indices of latents (a multiple of the patch), the last patch (silence) `1 + TAIL` times."""
        text, frames = [self.tokens[rows[0]["id"]]], []
        for i, row in enumerate(rows):
            if i:
                text += [np.array([self.space]), self.tokens[row["id"]]]
            frames.append(np.arange(row["start"], row["start"] + row["frames"]))
        skip = int(self.random.integers(self.patch)) if jitter else 0
        index = np.concatenate(frames)[skip:]
        index = index[: len(index) // self.patch * self.patch]
        return np.concatenate([*text, [AUDIO_START]]), np.concatenate([index, *[index[-self.patch :]] * TAIL])

    def collate(self, examples: list[tuple[np.ndarray, np.ndarray]]) -> Batch:
        text_len = np.array([len(t) for t, _ in examples])
        patch_len = np.array([len(i) // self.patch for _, i in examples])
        total = int((text_len + patch_len).max())
        ids = np.zeros((len(examples), total), np.int64)
        index = np.zeros((len(examples), int(patch_len.max()) * self.patch), np.int64)
        for row, (text, where) in enumerate(examples):
            ids[row, : len(text)] = text
            index[row, : len(where)] = where
        to = lambda a: torch.from_numpy(a).to(self.device, non_blocking=True)  # noqa: E731
        latents = self.latents.flat[to(index)].float() * STEP
        row, patch = np.nonzero(np.arange(patch_len.max()) < patch_len[:, None])
        last = (patch >= patch_len[row] - 1 - TAIL).astype(np.int64)
        spelling = [text[np.isin(text, self.sounds)] for text, _ in examples]
        arrays = (row, patch, last, np.concatenate(spelling), np.array([len(s) for s in spelling]))
        return Batch(
            to(ids), latents.unflatten(1, (-1, self.patch)), to(text_len), to(patch_len), *(to(a) for a in arrays)
        )

    def batches(self, positions: int, join: float) -> list[Batch]:
        """A few batches of about `positions` sequence positions each, of similar lengths within a batch."""
        examples = [self._example(rows, True) for rows in self._spans(positions // 10, join)]
        examples.sort(key=lambda e: len(e[0]) + len(e[1]) // self.patch)
        groups: list[list[tuple[np.ndarray, np.ndarray]]] = [[]]
        for example in examples:
            if (len(groups[-1]) + 1) * (len(example[0]) + len(example[1]) // self.patch) > positions:
                groups.append([])
            groups[-1].append(example)
        self.random.shuffle(groups)  # type: ignore[arg-type]
        return [self.collate(g) for g in groups if g]

    def everything(self, count: int) -> Batch:
        """The first `count` utterances, unchanged (validation)."""
        return self.collate([self._example([row], False) for row in self.rows[:count]])
