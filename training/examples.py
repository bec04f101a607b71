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
from training.tokenizer import SPECIALS, build

AUDIO_START = SPECIALS["<|audio_start|>"]
HOP_MS = 40  # of one latent
Example = tuple[np.ndarray, np.ndarray, np.ndarray]  # token ids, indices of latents, `sounding` of each latent
TAIL = 2  # silent patches after the end, so that a stop that comes late is still a stop


@dataclass
class Batch:
    """B examples. Sequence positions: `text_len[b]` ids (the last one is audio-start), then patches, then padding.

    ids [B, T] of the whole sequence (0 where no text); patches [B, N, P, D]; text_len, patch_len [B].
    The M patches that are no padding: example `row` [M], number within it `patch` [M], `last` [M]: nothing follows.
    sounding [M, P]: which of the example's ids each latent of the patch sounds, -1 where that is not known.
    """

    ids: Tensor
    patches: Tensor
    text_len: Tensor
    patch_len: Tensor
    row: Tensor
    patch: Tensor
    last: Tensor
    sounding: Tensor


def sounding(ends: list[int], frames: int) -> np.ndarray:
    """Which phoneme each of an utterance's latents sounds, from the milliseconds at which the phonemes end."""
    middle = (np.arange(frames) + 0.5) * HOP_MS
    return np.minimum(np.searchsorted(np.array(ends), middle, side="right"), len(ends) - 1)


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
        self.rows = [r for r in self.latents.index if r["frames"] >= 3 * patch]
        ends = self.latents.ends
        self.sounding = {k: sounding(ends[r["id"]], r["frames"]) for k, r in enumerate(self.rows) if r["id"] in ends}
        self.random = np.random.default_rng(0)

    def _spans(self, count: int, join: float) -> list[list[int]]:
        """Which utterances make up each of `count` examples; a share `join` takes two to four, if these are short."""
        picks = self.random.integers(len(self.rows), size=(count, 4))
        wanted = np.where(self.random.random(count) < join, self.random.integers(2, 5, count), 1)
        examples = []
        for pick, n in zip(picks, wanted, strict=True):
            members, frames = [int(pick[0])], self.rows[pick[0]]["frames"]
            for k in pick[1:n]:
                frames += self.rows[k]["frames"]
                if frames <= self.c["longest"]:
                    members.append(int(k))
            examples.append(members)
        return examples

    def example(self, members: list[int], jitter: bool) -> Example:
        """Utterances in a row, begun within the first patch; the last patch (silence) `1 + TAIL` times."""
        text, frames, sounds = [], [], []
        at = 0
        for k in members:
            row = self.rows[k]
            tokens, known = self.tokens[row["id"]], self.sounding.get(k)
            text += [tokens, np.array([self.space])]
            frames.append(np.arange(row["start"], row["start"] + row["frames"]))
            sounds.append(np.full(row["frames"], -1) if known is None else at + known)
            at += len(tokens) + 1
        text[-1] = np.array([AUDIO_START])
        skip = int(self.random.integers(self.patch)) if jitter else 0
        tail = TAIL * self.patch
        cut = slice(skip, skip + (sum(map(len, frames)) - skip) // self.patch * self.patch)
        index, sound = np.concatenate(frames)[cut], np.concatenate(sounds)[cut]
        index = np.concatenate([index, *[index[-self.patch :]] * TAIL])
        return np.concatenate(text), index, np.concatenate([sound, np.full(tail, -1)])

    def collate(self, examples: list[Example]) -> Batch:
        text_len = np.array([len(t) for t, _, _ in examples])
        patch_len = np.array([len(i) // self.patch for _, i, _ in examples])
        total = int((text_len + patch_len).max())
        ids = np.zeros((len(examples), total), np.int64)
        index = np.zeros((len(examples), int(patch_len.max()) * self.patch), np.int64)
        for row, (text, where, _) in enumerate(examples):
            ids[row, : len(text)] = text
            index[row, : len(where)] = where
        to = lambda a: torch.from_numpy(a).to(self.device, non_blocking=True)  # noqa: E731
        latents = self.latents.flat[to(index)].float() * STEP
        row, patch = np.nonzero(np.arange(patch_len.max()) < patch_len[:, None])
        last = (patch >= patch_len[row] - 1 - TAIL).astype(np.int64)
        arrays = (row, patch, last, np.concatenate([s for _, _, s in examples]).reshape(-1, self.patch))
        return Batch(
            to(ids), latents.unflatten(1, (-1, self.patch)), to(text_len), to(patch_len), *(to(a) for a in arrays)
        )

    def batches(self, positions: int, join: float) -> list[Batch]:
        """A few batches of about `positions` sequence positions each, of similar lengths within a batch."""
        examples = [self.example(members, True) for members in self._spans(positions // 10, join)]
        examples.sort(key=lambda e: len(e[0]) + len(e[1]) // self.patch)
        groups: list[list[Example]] = [[]]
        for example in examples:
            if (len(groups[-1]) + 1) * (len(example[0]) + len(example[1]) // self.patch) > positions:
                groups.append([])
            groups[-1].append(example)
        self.random.shuffle(groups)  # type: ignore[arg-type]
        return [self.collate(g) for g in groups if g]

    def everything(self, count: int) -> Batch:
        """The first `count` utterances, unchanged (validation)."""
        return self.collate([self.example([k], False) for k in range(min(count, len(self.rows)))])
