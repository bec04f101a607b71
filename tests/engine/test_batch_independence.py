"""Requests in company: who comes, goes or is cancelled beside a request does not change what it says.

On a GPU 500 requests per family, captured; elsewhere fewer, unless FULL_SIZE=1. In float32 rounding is some 1e-6 of the
logits, so a request may differ only from a draw on that is no further than that from another code. Latents may differ
by what rounding grows to from frame to frame: each must follow from those before it, but for levels that were no
further than that from another.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor import TTS
from stentor.config import Policy
from stentor.engine.running.prefill_batch import build_eager_batch, pieces_of
from tests.helpers.draws import apart
from tests.helpers.patience import STUCK_S
from tests.helpers.tiny import DEVICE, EVERY, FAMILIES, VOICE, WORDS, Bench, checkpoint

CUDA = DEVICE == "cuda"
FULL = CUDA or os.environ.get("FULL_SIZE") == "1"
REQUESTS, KINDS, SLOTS, FRAMES = (500, 40, 16, 12) if FULL else (16, 8, 4, 6)
ROUNDS = 20  # at most
EDGE = 1e-5  # of the largest logit or level, or of u: what is so near to another code is decided by rounding
JUDGED = 24  # distinct differences: more are no accident


@dataclass(frozen=True)
class Kind:
    """A request: its text and options, and how long it speaks."""

    text: str
    options: dict[str, Any]


def kinds(tts: TTS, family: str) -> list[Kind]:
    rng = random.Random(3)
    known = tts.spec.options
    out = []
    for i in range(KINDS):
        options: dict[str, Any] = {"seed": i, "max_frames": rng.randint(1, FRAMES), **VOICE[family]}
        choices = {
            "temperature": (0.0, 0.7, 1.2), "top_k": (0, 3, 20), "top_p": (1.0, 0.7), "cfg": (1.0, 2.0, 3.5),
            "flow_steps": (4, 7, 10), "repetition_penalty": (1.0, 1.3), "ignore_eos": (True, True, False),
        }  # fmt: skip
        options |= {k: rng.choice(v) for k, v in choices.items() if k in known}
        out.append(Kind(" ".join(rng.choices(WORDS, k=rng.randint(1, 14))), options))
    return out


def close(a: np.ndarray, b: np.ndarray, atol: float) -> bool:
    """Whether a begins b."""
    return len(a) <= len(b) and np.allclose(a, b[: len(a)], atol=atol)


class Crowd:
    """Many callers at once; counts what did not equal the request alone."""

    def __init__(self, tts: TTS, asked: list[Kind]) -> None:
        self.tts, self.asked = tts, asked
        self.alone = [tts.generate(k.text, retries=1, **k.options) for k in asked]
        self.lock = threading.Lock()
        self.done = self.cancelled = 0
        self.different: list[
            tuple[int, bool, np.ndarray, np.ndarray]
        ] = []  # which, whole or not, frames, samples

    def call(self, seed: int) -> None:
        rng = random.Random(seed)
        at = rng.randrange(len(self.asked))
        kind, want = self.asked[at], self.alone[at]
        time.sleep(rng.random() * 0.01)
        stream = self.tts.submit(self.tts.request(kind.text, **kind.options))
        leave = rng.randint(1, 3) if rng.random() < 0.3 else None
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            if leave is not None and len(chunks) == leave:
                stream.cancel()
        frames = np.concatenate([c.frames for c in chunks])
        samples = np.concatenate([c.samples for c in chunks])
        whole = chunks[-1].finish != "cancelled"
        least = len(want.frames) if whole else 0
        same = least <= len(frames) <= len(want.frames) and close(frames, want.frames, 1e-3)
        with self.lock:
            self.done += 1
            self.cancelled += not whole
            if not (same and close(samples, want.samples, 2e-3)):
                self.different.append((at, whole, frames, samples))

    def judged(self, path: Path, family: str) -> list[tuple[float, str]]:
        """Find the first distinct ways in which requests differ: how far rounding would have to go, and what it is."""
        found = []
        counts = Counter((at, frames.tobytes()) for at, _, frames, _ in self.different)
        first = {(d[0], d[2].tobytes()): d for d in reversed(self.different)}
        for key, (at, whole, frames, samples) in list(first.items())[:JUDGED]:
            kind, want = self.asked[at], self.alone[at]
            expected = want.frames if whole else want.frames[: len(frames)]
            by, same, where = apart(path, family, kind.text, kind.options, expected, frames)
            if not close(samples[: same * self.tts.spec.hop], want.samples, 2e-3):
                by, where = float("inf"), f"audio of the first {same} frames"
            found.append(
                (
                    by,
                    f"{counts[key]} times {where}, by a nudge of {by}: {kind.text!r} {kind.options}",
                )
            )
        return sorted(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_request_says_what_belongs_to_another(family, tmp_path):
    path, few = checkpoint(family, tmp_path), Policy(reserve_tokens=1)
    with TTS(
        path,
        device=DEVICE,
        dtype="float32",
        max_num_seqs=SLOTS,
        memory_gb=0.02,
        page_size=4,
        policy=few,
    ) as tts:
        crowd = Crowd(tts, kinds(tts, family))
        pool = tts.engine.scheduler.pages
        most = max(
            tts.prompt(tts.request(k.text, **k.options)).length + k.options["max_frames"]
            for k in crowd.asked
        )
        pages = pool.pages_for(most) + 2 * SLOTS
        pool.allocate(
            pool.available - pages
        )  # from now on there are too few for all, so some are preempted
        with ThreadPoolExecutor(2 * SLOTS) as callers:
            for first in range(
                0, ROUNDS * REQUESTS, REQUESTS
            ):  # one, but where every cancel came too late
                list(callers.map(crowd.call, range(first, first + REQUESTS)))
                if crowd.cancelled:
                    break
        end = time.monotonic() + STUCK_S
        while tts.engine.health().running and time.monotonic() < end:  # what was cancelled last
            time.sleep(0.01)
        health = tts.engine.health()
    judged = crowd.judged(path, family)
    for _, what in judged:
        print(family, "differs", what)
    print(
        family,
        crowd.done,
        "done",
        crowd.cancelled,
        "cancelled",
        len(crowd.different),
        "different",
        health.preemptions,
    )
    assert crowd.done == first + REQUESTS
    assert crowd.cancelled
    assert not [what for by, what in judged if by > EDGE]
    assert len(judged) < JUDGED
    assert health.free_slots == SLOTS
    assert health.free_pages == pages
    assert health.preemptions or not CUDA  # few requests need not run into one another
    assert health.stats.failed == 0


@pytest.mark.parametrize("family", EVERY)
def test_a_row_in_bfloat16_depends_on_its_company_only_by_rounding(family, tmp_path):
    bench = Bench(checkpoint(family, tmp_path), DEVICE, torch.bfloat16, slots=16)
    texts = [" ".join(WORDS[: 1 + i % 12]) for i in range(16)]
    group = [bench.admit(family, i, seed=i, text=t) for i, t in enumerate(texts)]
    w, spec = bench.runner, bench.model.spec

    def hidden(rows: list[int]) -> torch.Tensor:
        """Row 3, prefilled and decoded in company of `rows`; the keys and values it stored are kept apart."""
        w.kv.pool.zero_()
        pieces = pieces_of([group[i] for i in rows])
        p = build_eager_batch(pieces, spec, bench.sizes.page_size, bench.where)
        view = w.kv.prefill_view(p.pieces, p.row, p.slot, p.pos, p.max_pages, p.max_seqlen)
        h = bench.model.backbone(bench.model.embed_prompt(p.prompt, w.slots.rows(p.slot, 0)), view)[
            0
        ]
        first = h[p.last[rows.index(3)]]
        pos = torch.tensor([group[i][1].length for i in rows], device=bench.where.torch)
        w.slots.table["step"][p.idx] = 1
        x = bench.model.embed_frame(w.slots.rows(p.idx, spec.num_evals))
        then = bench.model.backbone(x, w.kv.decode_view(p.idx, pos, bench.sizes.max_pages))[0][
            rows.index(3)
        ]
        return torch.cat((first, then)).float()

    with torch.inference_mode():
        alone = hidden([3])
        for rows in ([3, 4], [0, 1, 2, 3], list(range(16)), [15, 3, 7]):
            error = (hidden(rows) - alone).norm() / alone.norm()
            assert error <= 2e-2, (rows, float(error))
