"""The only boundary between host and device: rows go in, steps are launched, reports and audio come out.

Nothing here waits for the device, except `encode` (its callers' own threads) and a ticket's `result`.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from stentor.config import EngineConfig
from stentor.engine import step
from stentor.engine.device import Device, Event
from stentor.engine.graphs import GraphLadder
from stentor.engine.kv import PagedKV
from stentor.engine.memory import Sizes
from stentor.engine.scheduler import AudioJob
from stentor.engine.sequence import Sequence
from stentor.engine.slots import RUNNING, SlotTable
from stentor.models.base import Prompt, PromptRows, SpeechModel, State

T = TypeVar("T")

VOICES_KEPT = 64  # encoded references and primed codec states in the caches


@dataclass
class Ticket:
    """A launched step: which requests it names, and where their report will be."""

    sequences: list[Sequence]
    report: Tensor  # host [slots + 1, 2]: frames made, stop value
    done: Event

    def result(self) -> list[list[int]]:
        """(made, stop) of each named request; waits until the step has run."""
        self.done.wait_host()
        table: list[list[int]] = self.report.tolist()
        return [table[s.slot] for s in self.sequences]


@dataclass
class AudioTicket:
    """Launched codec work: samples [B, n * hop] and frames [B, n, *frame] of `jobs`, on the host once `done`."""

    jobs: list[AudioJob]
    samples: Tensor
    frames: Tensor
    done: Event


class Worker:
    """Owns the device's buffers and streams. All methods but `encode` are called from the engine's thread."""

    def __init__(self, model: SpeechModel, sizes: Sizes, config: EngineConfig, device: Device) -> None:
        self.model, self.sizes, self.device = model, sizes, device
        where = device.torch
        self.slots = SlotTable(model.spec, sizes.slots, sizes.max_frames, where)
        self.kv = PagedKV(model.spec.kv, sizes.slots, sizes.pages, sizes.page, sizes.max_pages, where)
        self.state = self._silent(sizes.slots + 1)
        self.batch_sizes = config.batch_sizes or (_default_batches(sizes.slots) if device.cuda else ())
        self.idx = torch.full((max((sizes.slots, *self.batch_sizes)),), sizes.slots, dtype=torch.int64, device=where)
        self._idx_host: list[int] = []
        self.lm, self.codec = device.stream(-1), device.stream(0)
        self.ladder = GraphLadder("decode", self._decode, device, config.require_graphs)
        self._features = _Cache[dict[str, np.ndarray]]()
        self._primed = _Cache[State]()
        self._encoding = threading.Lock()

    # -- start --

    def warm_up(self) -> None:
        """Capture every graph that steady serving needs."""
        work = self.model.spec.work
        spans = sorted({min(self.sizes.max_pages, s) for s in (32, 128, self.sizes.max_pages)}, reverse=True)
        with torch.inference_mode(), self.lm.active():
            self.ladder.capture((b, s, work) for b in sorted(self.batch_sizes, reverse=True) for s in spans)

    # -- host to device --

    def admit(self, seq: Sequence, prompt: Prompt, seed: int) -> None:
        """Write a fresh row: every column is its fill, then the request's own values; codec state starts silent."""
        given = {
            "seed": seed,
            "limit": prompt.limit,
            "min_frames": prompt.min_frames,
            "stop": RUNNING,
            **prompt.columns,
        }
        with self.lm.active():
            for name, column in self.slots.columns.items():
                row = self.slots.table[name][seq.slot]
                row.fill_(column.fill)
                if name in given:
                    self._write(row, given[name])
        with self.codec.active():
            primed = self._prime(prompt.prime) if len(prompt.prime) else None
            for name, column in self.model.codec.columns.items():
                row = self.state[name][seq.slot]
                row.fill_(column.fill) if primed is None else row.copy_(primed[name][0])

    def _write(self, row: Tensor, value: Any) -> None:
        """A scalar, or an array no longer than the row."""
        if isinstance(value, np.ndarray) and value.ndim:
            source = self.device.upload(value)
            row[: len(value)].copy_(source.to(row.dtype), non_blocking=True)
        else:
            row.fill_(value)

    def set_pages(self, seq: Sequence) -> None:
        """The device's page table row of a request."""
        with self.lm.active():
            row = self.kv.table[seq.slot]
            row.fill_(self.sizes.pages)
            row[: len(seq.pages)].copy_(self.device.upload(seq.pages), non_blocking=True)

    def _prime(self, frames: np.ndarray) -> State:
        """Codec state after hearing `frames` [m, *frame], cached by content."""
        key = _digest(frames)
        state = self._primed.get(key)
        if state is None:
            spec = self.model.spec
            state = self._silent(1)
            source = self.device.upload(frames)[None].to(spec.frame.dtype)
            for start in range(0, len(frames), spec.codec_chunk):
                _, state = self.model.codec.decode(source[:, start : start + spec.codec_chunk], state)
            self._primed.put(key, state)
        return state

    def _silent(self, rows: int) -> State:
        """Codec state of `rows` fresh streams."""
        columns, where = self.model.codec.columns, self.device.torch
        return {n: torch.full((rows, *c.shape), c.fill, dtype=c.dtype, device=where) for n, c in columns.items()}

    # -- steps --

    def prefill(self, group: Seq[tuple[Sequence, Prompt]]) -> Ticket:
        """Prompts (and, for resumed requests, the frames they had made) of several requests, and their next frame."""
        with self.lm.active():
            step.prefill(self.model, self.slots, self.kv, self._pack(group))
            return self._ticket([seq for seq, _ in group])

    def decode(self, sequences: list[Sequence]) -> Ticket:
        """One frame for each request."""
        tokens = max(s.length + s.launched - 1 for s in sequences)
        span = min(_power_of_two(-(-tokens // self.sizes.page)), self.sizes.max_pages)
        work = max(s.work for s in sequences)
        batch = min((b for b in self.batch_sizes if b >= len(sequences)), default=len(sequences))
        key = self.ladder.fit((batch, span, work))
        rows = [s.slot for s in sequences] + [self.sizes.slots] * (key[0] - len(sequences))
        with self.lm.active():
            if rows != self._idx_host:
                self.idx[: len(rows)].copy_(self.device.upload(rows), non_blocking=True)
                self._idx_host = rows
            self.ladder(*key)
            return self._ticket(sequences)

    def _decode(self, batch: int, span: int, work: int) -> None:
        step.decode(self.model, self.slots, self.kv, self.idx[:batch], span, work)

    def _ticket(self, sequences: list[Sequence]) -> Ticket:
        ticket = Ticket(sequences, self.device.download(self.slots.report), self.device.event())
        ticket.done.record()
        return ticket

    def _pack(self, group: Seq[tuple[Sequence, Prompt]]) -> step.PrefillBatch:
        up, spec = self.device.upload, self.model.spec
        prompts = [p for _, p in group]
        past = [seq.launched - 1 for seq, _ in group]
        lengths = np.array([p.length + n for p, n in zip(prompts, past, strict=True)])
        starts = np.cumsum([0, *(p.length for p in prompts)])
        ends = np.cumsum(lengths)
        replayed = np.cumsum([0, *past])
        order = [
            part
            for i, p in enumerate(prompts)
            for part in (starts[i] + np.arange(p.length), starts[-1] + replayed[i] + np.arange(past[i]))
        ]
        rows = {n: up(np.concatenate([p.rows[n] for p in prompts])).to(c.dtype) for n, c in spec.prompt_rows.items()}
        return step.PrefillBatch(
            idx=up([seq.slot for seq, _ in group]),
            row=up(np.repeat(np.arange(len(group)), lengths)),
            pos=up(np.concatenate([np.arange(n) for n in lengths])),
            last=up(ends - 1),
            length=up(lengths),
            order=up(np.concatenate(order)),
            prompt=PromptRows(
                rows,
                up(np.concatenate([p.frames for p in prompts])).to(spec.frame.dtype),
                up(
                    np.concatenate([p.frame_at + s for p, s in zip(prompts, starts[:-1], strict=True)]).astype(np.int64)
                ),
            ),
            replay_slot=up(np.repeat([seq.slot for seq, _ in group], past).astype(np.int64)),
            replay_step=up(np.concatenate([np.arange(1, n + 1) for n in past]).astype(np.int64)),
            span=int(-(-lengths.max() // self.sizes.page)),
            width=int(lengths.max()),
            work=max(seq.work for seq, _ in group),
        )

    # -- audio --

    def audio(self, jobs: list[AudioJob]) -> list[AudioTicket]:
        """Decode chunks: those of equal length together, those of one request in order."""
        rounds: dict[tuple[int, int], list[AudioJob]] = {}
        turn: dict[int, int] = {}
        for job in jobs:
            turn[job.seq.id] = turn.get(job.seq.id, -1) + 1
            rounds.setdefault((turn[job.seq.id], job.count), []).append(job)
        with self.codec.active():
            return [self._decode_audio(rounds[key]) for key in sorted(rounds)]

    def _decode_audio(self, jobs: list[AudioJob]) -> AudioTicket:
        idx = self.device.upload([j.seq.slot for j in jobs])
        start = self.device.upload([j.start for j in jobs])
        at = start[:, None] + torch.arange(jobs[0].count, device=self.device.torch)
        frames = self.slots.frames[idx[:, None], at]
        samples, new = self.model.codec.decode(frames, {n: t[idx] for n, t in self.state.items()})
        for name, value in new.items():
            self.state[name][idx] = value.to(self.state[name].dtype)
        ticket = AudioTicket(jobs, self.device.download(samples), self.device.download(frames), self.device.event())
        ticket.done.record()
        return ticket

    # -- reference audio --

    def encode(self, samples: np.ndarray, role: str) -> dict[str, np.ndarray]:
        """Features of reference audio (mono float32 at the family's rate), cached by content. From any thread."""
        key = _digest(samples) + role
        with self._encoding:
            features = self._features.get(key)
            if features is None:
                with torch.inference_mode():
                    wav = torch.from_numpy(samples).to(self.device.torch)
                    features = {n: t.cpu().numpy() for n, t in self.model.encode(wav, role).items()}
                self._features.put(key, features)
        return features


class _Cache(Generic[T]):
    """The last VOICES_KEPT values, by key."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, T] = OrderedDict()

    def get(self, key: str) -> T | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: str, value: T) -> None:
        self._items[key] = value
        if len(self._items) > VOICES_KEPT:
            self._items.popitem(last=False)


def _digest(a: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() + str((a.shape, a.dtype))


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _default_batches(slots: int) -> tuple[int, ...]:
    return (*(b for b in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if b < slots), slots)
