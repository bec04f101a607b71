"""The only boundary between host and device: rows go in, steps are launched, reports and audio come out.

Nothing here waits for the device, except `encode` (its callers' own threads) and a ticket's `result`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from stentor.config import EngineConfig
from stentor.engine import step
from stentor.engine.cuda_graphs import GraphLadder
from stentor.engine.device import Device, Parcel
from stentor.engine.inflight import AudioTicket, Ticket
from stentor.engine.kv_cache import PagedKV
from stentor.engine.prefill_batch import Group, Layout, StaticPrefill, exact, layout
from stentor.engine.scheduler import RAMP, AudioJob
from stentor.engine.sequence import RUNNING, Phase, Sequence
from stentor.engine.sizing import GIB, Sizes
from stentor.engine.slot_table import RowBlock, SlotTable
from stentor.models.base import Prompt, SpeechModel

log = logging.getLogger("stentor.engine")

T = TypeVar("T")

PREFILL_TOKENS = {
    1: (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 32),
    8: (2048, 1536, 1024, 768, 512, 256, 128),
    16: (2048, 1536, 1024, 512),
    32: (2048, 1536, 1024, 512),
}
"""Captured prefills: tokens by number of rows; as many rows as there are slots take what the last have."""
SMALL_CALL = 32  # rows times frames of a codec call that takes no longer when padded
VOICES_KEPT = 64  # encoded references and primed codec states in the caches


class Worker:
    """Owns the device's buffers and streams. All methods but `encode` are called from the engine's thread."""

    def __init__(self, model: SpeechModel, sizes: Sizes, config: EngineConfig, device: Device) -> None:
        self.model, self.sizes, self.device = model, sizes, device
        where = device.torch
        self.slots = SlotTable(model.spec, sizes.slots, sizes.max_frames, where)
        self.kv = PagedKV(model.spec.kv, sizes.slots, sizes.pages, sizes.page, sizes.max_pages, where)
        self.heard = RowBlock(model.codec.columns, sizes.slots + 1, where)
        self.state = self.heard.columns
        self.batch_sizes = config.batch_sizes or (_default_batches(sizes.slots) if device.cuda else ())
        self.idx = torch.full((max((sizes.slots, *self.batch_sizes)),), sizes.slots, dtype=torch.int64, device=where)
        self._idx_host: list[int] = []
        self.lm, self.codec = device.stream(-1), device.stream(0)
        self.copies = device.stream(0)  # of audio to the host, beside the codec's next call
        must = config.require_graphs
        self.ladder = GraphLadder("decode", self._decode, device, self.lm, must)
        self.prefill_ladder = GraphLadder("prefill", self._prefill, device, self.lm, must, beside=self.ladder)
        self.codec_ladder = GraphLadder("codec", self._codec, device, self.codec, must)
        longest = max(PREFILL_TOKENS[1]) if device.cuda else 0
        frames = longest if model.spec.takes_reference else 0
        self.packed = StaticPrefill(model.spec, Layout(longest, sizes.slots, frames), sizes.slots, device)
        self.codec_counts = sorted({*(config.policy.ramp or RAMP), config.policy.chunk})
        rows = max((sizes.slots, *self.batch_sizes))
        self.codec_in = torch.zeros(2, rows, dtype=torch.int64, device=where)  # slots; first frames
        self.codec_in[0] = sizes.slots
        self.codec_out: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # samples and frames of the last run
        self._features = _Cache[dict[str, np.ndarray]]()
        self._primed = _Cache[RowBlock]()
        self._ahead: dict[int, tuple[AudioTicket, int]] = {}  # by request: its row of a call
        self._encoding = threading.Lock()

    # -- start --

    def warm_up(self) -> None:
        """Capture every graph that steady serving needs, largest first."""
        self.device.synchronize()  # weights and buffers were made on another stream
        started, held = time.monotonic(), self.device.allocated_bytes()
        num_evals, slots = self.model.spec.num_evals, self.sizes.slots
        batches = sorted(self.batch_sizes, reverse=True)
        spans = sorted({min(self.sizes.max_pages, s) for s in (32, 128, self.sizes.max_pages)}, reverse=True)
        if self.kv.fused:
            spans = [self.sizes.max_pages]
        with torch.inference_mode():
            with self.lm.active():
                self.ladder.capture((b, s, num_evals) for b in batches for s in spans)
                if self.kv.fused and self.device.cuda:
                    self.prefill_ladder.capture(self._prefill_keys(slots, num_evals))
            with self.codec.active():
                self.codec_ladder.capture(self._codec_keys(slots))
        if self.device.cuda:
            graphs = sum(len(x.graphs) for x in self._ladders)
            taken = (self.device.allocated_bytes() - held) / GIB
            log.info("captured %d graphs in %.1f s, %.2f GiB", graphs, time.monotonic() - started, taken)

    def _prefill_keys(self, slots: int, num_evals: int) -> Iterator[tuple[int, int, int, int]]:
        """(tokens, rows, given frames, work): as many frames as tokens, or none."""
        sizes = {n: tokens for n, tokens in PREFILL_TOKENS.items() if n < slots}
        sizes[slots] = PREFILL_TOKENS[max(PREFILL_TOKENS)] if slots > 1 else PREFILL_TOKENS[1]
        for rows, counts in sorted(sizes.items(), reverse=True):
            for tokens in counts:
                for frames in (tokens, 0) if self.model.spec.takes_reference else (0,):
                    yield (tokens, rows, frames, num_evals)

    def _codec_keys(self, slots: int) -> list[tuple[int, int]]:
        """(rows, frames), largest first: rows by powers of two, up to as many as one call holds."""
        keys = set()
        for frames in self.codec_counts:
            most = max(1, min(slots, self.sizes.codec_frames // frames))
            keys |= {(min(1 << i, most), frames) for i in range(most.bit_length() + 1)}
        return sorted(keys, key=lambda k: k[0] * k[1], reverse=True)

    @property
    def _ladders(self) -> tuple[GraphLadder, ...]:
        return self.ladder, self.prefill_ladder, self.codec_ladder

    @property
    def eager_calls(self) -> int:
        """Launches, since start, that no graph served."""
        return sum(x.eager_calls for x in self._ladders)

    # -- host to device --

    def admit(self, new: list[tuple[Sequence, Prompt, int]]) -> None:
        """Write rows of requests, with their seeds; their codecs start silent. As many launches for many as for one."""
        with self.lm.active():
            self.slots.admit([(seq.slot, _columns(prompt, seed)) for seq, prompt, seed in new], self.device)
        with self.codec.active():
            self.heard.reset(self.device.upload([seq.slot for seq, _, _ in new]))
            for seq, prompt, _ in new:
                if len(prompt.codec_prefix):
                    self.heard.copy(seq.slot, self._prime(prompt.codec_prefix))

    def extend(self, seq: Sequence, name: str, start: int, values: np.ndarray) -> None:
        """Values of a column from index `start` on, of a request that has a slot."""
        with self.lm.active():
            self._write(self.slots.table[name][seq.slot][start:], values)

    def _write(self, row: Tensor, value: Any) -> None:
        """A scalar, or an array no longer than the row."""
        if isinstance(value, np.ndarray) and value.ndim:
            source = self.device.upload(value)
            row[: len(value)].copy_(source.to(row.dtype), non_blocking=True)
        else:
            row.fill_(value)

    def set_pages(self, sequences: list[Sequence]) -> None:
        """The device's page table rows of requests."""
        count, width = len(sequences), self.sizes.max_pages
        parcel = Parcel({"slot": ((count,), torch.int64), "pages": ((count, width), torch.int64)}, self.device)
        table = np.full((count, width), self.sizes.pages)
        for row, seq in zip(table, sequences, strict=True):
            row[: len(seq.pages)] = seq.pages
        parcel.host["slot"].copy_(torch.tensor([seq.slot for seq in sequences]))
        parcel.host["pages"].copy_(torch.from_numpy(table))
        with self.lm.active():
            sent = parcel.send()
            self.kv.table.index_copy_(0, sent["slot"], sent["pages"])

    def _prime(self, frames: np.ndarray) -> RowBlock:
        """Codec state after hearing `frames` [m, *frame], cached by content."""
        key = _digest(frames)
        primed = self._primed.get(key)
        if primed is None:
            spec, codec = self.model.spec, self.model.codec
            primed = RowBlock(codec.columns, 1, self.device.torch)
            source = self.device.upload(frames)[None].to(spec.frame.dtype)
            for start in range(0, len(frames), spec.codec_chunk):
                _, state = codec.decode(source[:, start : start + spec.codec_chunk], primed.columns)
                primed.write(state.items())
            self._primed.put(key, primed)
        return primed

    # -- steps --

    def prefill(self, group: Group) -> Ticket:
        """Prompts (and, for resumed requests, the frames they had made) of several requests, and their next frame."""
        launched = time.monotonic()
        resumed = any(seq.launched > 1 for seq, _ in group)
        need = layout(group)
        key = (need.tokens, need.rows, need.frames, max(seq.num_evals for seq, _ in group))
        fit = self.prefill_ladder.fit(key)
        with self.lm.active():
            if resumed or fit not in self.prefill_ladder.graphs:
                self.prefill_ladder.eager_calls += 1
                step.prefill(
                    self.model, self.slots, self.kv, exact(group, self.model.spec, self.sizes.page, self.device)
                )
            else:
                self.packed.write(group, Layout(*fit[:3]))
                self.prefill_ladder(*fit)
            return self._ticket([seq for seq, _ in group], launched, True)

    def _prefill(self, tokens: int, rows: int, frames: int, num_evals: int) -> None:
        step.prefill(self.model, self.slots, self.kv, self.packed.batch(Layout(tokens, rows, frames), num_evals))

    def decode(self, sequences: list[Sequence]) -> Ticket:
        """One frame for each request."""
        launched = time.monotonic()
        tokens = max(s.length + s.launched - 1 for s in sequences)
        span = min(_power_of_two(-(-tokens // self.sizes.page)), self.sizes.max_pages)
        if self.kv.fused:
            span = self.sizes.max_pages  # which no shape depends on
        num_evals = max(s.num_evals for s in sequences)
        batch = min((b for b in self.batch_sizes if b >= len(sequences)), default=len(sequences))
        key = self.ladder.fit((batch, span, num_evals))
        rows = [s.slot for s in sequences] + [self.sizes.slots] * (key[0] - len(sequences))
        with self.lm.active():
            if rows != self._idx_host:
                self.device.fill(self.idx, rows)
                self._idx_host = rows
            self.ladder(*key)
            return self._ticket(sequences, launched, False)

    def _decode(self, batch: int, span: int, num_evals: int) -> None:
        step.decode(self.model, self.slots, self.kv, self.idx[:batch], span, num_evals)

    def _ticket(self, sequences: list[Sequence], launched: float, prefill: bool) -> Ticket:
        report = self.device.download(self.slots.progress[:2])
        ticket = Ticket(sequences, report, self.device.event(), prefill, launched)
        ticket.done.record()
        return ticket

    # -- audio --

    def audio(self, jobs: list[AudioJob]) -> list[AudioTicket]:
        """Decode chunks: those of equal length together, those of one request in order."""
        known = [job for job in jobs if job.start == 0 and job.seq.id in self._ahead]
        return [*self._known(known), *self._decode_rounds([job for job in jobs if job not in known])]

    def audio_ahead(self, sequences: list[Sequence]) -> None:
        """Decode frame 0 of each behind the prefill that was launched last, in the device's own order, and before the
        next step, which would slow it down more than it is delayed.

        `audio` will be asked for it when the host knows that there is such a frame. If there is none, the request has
        ended and its codec state is needed no more.
        """
        made, heard = self.device.event(), self.device.event()
        with self.lm.active():
            made.record()
        with self.codec.active():
            made.wait_stream()
        self._ahead = {id: at for id, at in self._ahead.items() if at[0].jobs[at[1]].seq.phase is not Phase.DONE}
        for ticket in self._decode_rounds([AudioJob(seq, 0, 1, False) for seq in sequences]):
            self._ahead |= {job.seq.id: (ticket, row) for row, job in enumerate(ticket.jobs)}
        with self.codec.active():
            heard.record()
        with self.lm.active():
            heard.wait_stream()

    def _known(self, jobs: list[AudioJob]) -> Iterator[AudioTicket]:
        """What `audio_ahead` has launched of these jobs, by its calls."""
        calls: dict[int, tuple[AudioTicket, list[AudioJob], list[int]]] = {}
        for job in jobs:
            assert job.count == 1
            ticket, row = self._ahead.pop(job.seq.id)
            _, own, rows = calls.setdefault(id(ticket), (ticket, [], []))
            own.append(job)
            rows.append(row)
        for ticket, own, rows in calls.values():
            yield replace(ticket, jobs=own, rows=rows)

    def _decode_rounds(self, jobs: list[AudioJob]) -> Iterator[AudioTicket]:
        rounds: dict[tuple[int, int], list[AudioJob]] = {}
        turn: dict[int, int] = {}
        for job in jobs:
            turn[job.seq.id] = turn.get(job.seq.id, -1) + 1
            rounds.setdefault((turn[job.seq.id], job.count), []).append(job)
        with self.codec.active():
            for key in sorted(rounds):
                for part in self._parts(rounds[key]):
                    yield self._decode_audio(part)

    def _parts(self, jobs: list[AudioJob]) -> list[list[AudioJob]]:
        """Jobs of equal length, cut so that the captured calls they take hold few rows of padding."""
        sizes = {b for b, n in self.codec_ladder.graphs if n >= jobs[0].count}
        parts, at = [], 0
        while at < len(jobs):
            rows = _rows_of_call(len(jobs) - at, jobs[0].count, sizes)
            parts.append(jobs[at : at + rows])
            at += rows
        return parts

    def _decode_audio(self, jobs: list[AudioJob]) -> AudioTicket:
        batch, count = self._codec_key(jobs)
        rows = [[j.seq.slot for j in jobs], [j.start for j in jobs]]
        rows[0] += [self.sizes.slots] * (batch - len(jobs))
        rows[1] += [0] * (batch - len(jobs))
        for target, values in zip(self.codec_in, rows, strict=True):
            self.device.fill(target, values)
        self.codec_ladder(batch, count)
        samples, frames = self.codec_out[batch, count]
        used = jobs[0].count
        samples, frames = samples[: len(jobs), : used * self.model.spec.hop], frames[: len(jobs), :used]
        staged = self.device.stage(samples), self.device.stage(frames)
        decoded = self.device.event()
        decoded.record()
        with self.copies.active():
            decoded.wait_stream()
            on_host = [self.device.download(t) for t in staged]
            ticket = AudioTicket(jobs, range(len(jobs)), on_host[0], on_host[1], self.device.event(), staged)
            ticket.done.record()
        return ticket

    def _codec_key(self, jobs: list[AudioJob]) -> tuple[int, int]:
        """Rows and frames to decode. A stream's last chunk may be padded: its state matters no more."""
        need, last = jobs[0].count, all(j.last for j in jobs)
        fits = [k for k in self.codec_ladder.graphs if k[0] >= len(jobs) and (k[1] == need or (last and k[1] > need))]
        batch, count = min(fits, key=lambda k: (k[1], k[0]), default=(len(jobs), need))
        return batch, count

    def _codec(self, batch: int, count: int) -> None:
        idx, start = self.codec_in[0, :batch], self.codec_in[1, :batch]
        at = start[:, None] + torch.arange(count, device=self.device.torch)
        frames = self.slots.frames[idx[:, None], at.clamp_max(self.sizes.max_frames - 1)]
        samples, new = self.model.codec.decode(frames, self.heard.gather(idx))
        self.heard.store(idx, new)
        self.codec_out[batch, count] = samples, frames

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


def _rows_of_call(waiting: int, frames: int, sizes: set[int]) -> int:
    """How many of the rows that wait for calls of so many frames the next one takes; `sizes`: rows of captured calls.
    Padding may be a quarter of a call, or more where the call is small."""
    fitting = min((b for b in sizes if b >= waiting), default=0)
    if not sizes or (fitting and (3 * fitting <= 4 * waiting or fitting * frames <= SMALL_CALL)):
        return waiting
    return max((b for b in sizes if b <= waiting), default=waiting)


def _columns(prompt: Prompt, seed: int) -> dict[str, Any]:
    """What a request says of its row."""
    given = {"seed": seed, "max_frames": prompt.max_frames, "min_frames": prompt.min_frames, "stop": RUNNING}
    return {**given, **prompt.columns}


def _digest(a: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() + str((a.shape, a.dtype))


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _default_batches(slots: int) -> tuple[int, ...]:
    return (*(b for b in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if b < slots), slots)
