"""Batches for the language model: phoneme ids and patches of latents, drawn and joined on the fly."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.store import STEP, Latents
from training.tokenizer import SPECIALS, build

AUDIO_START = SPECIALS["<|audio_start|>"]
REFERENCE_START, REFERENCE_END = (
    SPECIALS["<|audio_prompt_start|>"],
    SPECIALS["<|audio_prompt_end|>"],
)
HOP_MS = 40  # of one latent
BUCKET = 64  # lengths of batches are multiples of it
TAIL = 2  # silent patches after the end, so that a stop that comes late is still a stop


@dataclass(frozen=True)
class Example:
    """One sequence: ids [T] before its audio (0 where the reference stands), indices of its reference's latents and of
    its own, and which position each of its own sounds (-1: not known)."""

    ids: np.ndarray
    reference: np.ndarray
    index: np.ndarray
    sounding: np.ndarray


@dataclass
class Batch:
    """B examples. Sequence positions: reference-start, R patches of a reference, reference-end, the text, audio-start
    (`text_len[b]` positions up to here), then patches, then padding. Without references (R = 0) the text comes first.

    ids [B, T] of the whole sequence (0 where no text); reference [B, R, P, D]; patches [B, N, P, D]; text_len,
    patch_len [B].
    M patches that are no padding (all, or a random choice where M is fixed): example `row` [M], number within it
    `patch` [M], `last` [M]: nothing follows. sounding [M, P]: which of the example's ids each latent of the patch
    sounds, -1 where that is not known.
    """

    ids: Tensor
    reference: Tensor
    patches: Tensor
    text_len: Tensor
    patch_len: Tensor
    row: Tensor
    patch: Tensor
    last: Tensor
    sounding: Tensor

    def shape(self) -> Hashable:
        return self.ids.shape

    def overwrite(self, other: Batch) -> None:
        for field in dataclasses.fields(Batch):
            getattr(self, field.name).copy_(getattr(other, field.name), non_blocking=True)


def sounding(ends: list[int], frames: int) -> np.ndarray:
    """Find which phoneme each of an utterance's latents sounds, from the milliseconds at which the phonemes end."""
    middle = (np.arange(frames) + 0.5) * HOP_MS
    return np.minimum(np.searchsorted(np.array(ends), middle, side="right"), len(ends) - 1)


@dataclass(frozen=True)
class Shape:
    """Sizes of a batch: examples, positions and patches of each, patches drawn for the losses."""

    examples: int
    positions: int
    patches: int
    drawn: int


class Examples:
    """Random access to utterances, by sentence id, with text as token ids."""

    def __init__(
        self,
        sentences: Path,
        folder: Path,
        name: str,
        patch: int,
        config: dict[str, Any],
        device: torch.device,
        seed: int = 0,
    ) -> None:
        self.latents, self.patch, self.c, self.device = (
            Latents(folder, name, device),
            patch,
            config,
            device,
        )
        tokenizer = build()
        texts = {
            r["id"]: r["phonemes"]
            for r in map(json.loads, sentences.read_text(encoding="utf-8").splitlines())
        }
        ids = {row["id"] for row in self.latents.index}
        self.tokens = {i: np.array(tokenizer.encode(texts[i].strip()).ids, np.int64) for i in ids}
        self.space = tokenizer.token_to_id(" ")
        self.rows = [r for r in self.latents.index if r["frames"] >= 3 * patch]
        self.sounding = {
            k: sounding(r["ends"], r["frames"]) for k, r in enumerate(self.rows) if r["ends"]
        }
        self.random = np.random.default_rng(seed)
        self.members: dict[
            str, np.ndarray
        ] = {}  # of each voice: rows, and those long enough for a reference
        self.referable: dict[str, np.ndarray] = {}
        for voice in {r["voice"] for r in self.rows}:
            mine = [k for k, r in enumerate(self.rows) if r["voice"] == voice]
            self.members[voice] = np.array(mine)
            long = [k for k in mine if self.rows[k]["frames"] >= self.reference_latents]
            self.referable[voice] = np.array(long or mine)

    @property
    def reference_latents(self) -> int:
        """Latents of a reference."""
        return int(self.c["reference"]) * self.patch

    def _spans(self, count: int, join: float) -> list[list[int]]:
        """Pick the utterances of each of `count` examples; a share `join` takes two to four, if they are short."""
        firsts = self.random.integers(len(self.rows), size=count)
        wanted = np.where(self.random.random(count) < join, self.random.integers(2, 5, count), 1)
        examples = []
        for first, n in zip(firsts, wanted, strict=True):
            members, frames = [int(first)], self.rows[first]["frames"]
            for k in self.random.choice(self.members[self.rows[first]["voice"]], n - 1):
                frames += self.rows[k]["frames"]
                if frames <= self.c["longest"]:
                    members.append(int(k))
            examples.append(members)
        return examples

    def _reference(self, voice: str) -> np.ndarray:
        """Indices of latents from somewhere in an utterance of the voice, repeated where it is too short."""
        row, count = self.rows[self.random.choice(self.referable[voice])], self.reference_latents
        skip = int(self.random.integers(max(1, row["frames"] - count + 1)))
        return row["start"] + (skip + np.arange(count)) % row["frames"]

    def example(self, members: list[int], jitter: bool) -> Example:
        """Utterances in a row, begun within the first patch; the last patch (silence) `1 + TAIL` times."""
        reference = self._reference(self.rows[members[0]]["voice"])
        patches = len(reference) // self.patch
        text = [np.array([REFERENCE_START, *[0] * patches, REFERENCE_END])] if patches else []
        at = sum(map(len, text))
        frames, sounds = [], []
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
        sound = np.concatenate([sound, np.full(tail, -1)])
        return Example(np.concatenate(text), reference, index, sound)

    def collate(self, examples: list[Example], shape: Shape | None = None) -> Batch:
        """One batch; with `shape` padded to it, and its patches drawn at random, so that all sizes are fixed."""
        text_len = np.array([len(e.ids) for e in examples])
        patch_len = np.array([len(e.index) // self.patch for e in examples])
        whole = Shape(len(examples), int((text_len + patch_len).max()), int(patch_len.max()), 0)
        size = shape or whole
        ids = np.zeros((size.examples, size.positions), np.int64)
        index = np.zeros((size.examples, size.patches * self.patch), np.int64)
        reference = np.zeros((size.examples, self.reference_latents), np.int64)
        for row, e in enumerate(examples):
            ids[row, : len(e.ids)] = e.ids
            index[row, : len(e.index)] = e.index
            reference[row] = e.reference
        row, patch = np.nonzero(np.arange(size.patches) < patch_len[:, None])
        sound = np.concatenate([e.sounding for e in examples]).reshape(-1, self.patch)
        if shape is not None:
            drawn = np.resize(self.random.permutation(len(row)), shape.drawn)
            row, patch, sound = row[drawn], patch[drawn], sound[drawn]
        last = (patch >= patch_len[row] - 1 - TAIL).astype(np.int64)
        lengths = [np.pad(n, (0, size.examples - len(n))) for n in (text_len, patch_len)]
        latents = [
            (self.latents.flat[self._send(i)].float() * STEP).unflatten(
                1, (i.shape[1] // self.patch, self.patch)
            )
            for i in (reference, index)
        ]
        sent = [self._send(a) for a in (*lengths, row, patch, last, sound)]
        return Batch(self._send(ids), *latents, *sent)

    def _send(self, array: np.ndarray) -> Tensor:
        """To the device, without waiting for it."""
        host = torch.from_numpy(array)
        return (
            host.pin_memory().to(self.device, non_blocking=True)
            if self.device.type == "cuda"
            else host
        )

    def batches(self, positions: int, drawn: int, join: float) -> Iterator[Batch]:
        """Batches of about `positions` sequence positions, for ever: similar lengths together, in few shapes."""
        waiting: dict[int, list[Example]] = {}
        while True:
            for members in self._spans(256, join):
                example = self.example(members, True)
                patches = len(example.index) // self.patch
                length = -(-max(len(example.ids) + patches, 2 * patches) // BUCKET) * BUCKET
                group = waiting.setdefault(length, [])
                group.append(example)
                if len(group) == max(1, positions // length):
                    yield self.collate(
                        waiting.pop(length), Shape(len(group), length, length // 2, drawn)
                    )

    def everything(self, count: int) -> Batch:
        """The first `count` utterances, unchanged (validation)."""
        return self.collate([self.example([k], False) for k in range(min(count, len(self.rows)))])
