"""Requests of a random-fault test, what they say alone, and what their callers have got."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stentor import TTS, EngineError, Reference, Speech
from stentor.engine.stream import AudioStream, Chunk
from stentor.models.base import LiveText, Prompt

ATOL = 1e-6  # float64: what other batches round differently

VOICE = Reference((np.sin(np.arange(1200) / 30).astype(np.float32), 6000))
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("a", {"seed": 1, "min_frames": 1, "max_frames": 1}),
    ("hello", {"seed": 1, "min_frames": 12, "max_frames": 12}),
    ("one two three", {"seed": 1, "max_frames": 16, "voice": "low", "flow_steps": 5}),
    ("from a reference", {"seed": 1, "max_frames": 9, "reference": VOICE}),
    ("greedy and long " * 3, {"seed": 1, "min_frames": 24, "max_frames": 24, "temperature": 0.0}),
    (
        "few codes",
        {"seed": 1, "min_frames": 5, "max_frames": 14, "top_k": 3, "cfg": 1.0, "flow_steps": 1},
    ),
]


@functools.cache
def all_alone(model: str, streaming: bool) -> dict[tuple[int, int], Speech]:
    """Audio of each kind alone in the engine, as a request's first, second or third prompt. A codec that
    looks ahead decodes what is not streamed as a whole."""
    with TTS(model, dtype="float64", max_num_seqs=1, memory_gb=0.002, threads=1) as tts:
        said = {}
        for kind, (text, options) in enumerate(KINDS):
            for seed in (1, 2, 3):
                request = tts.request(
                    text, **{**options, "seed": seed}
                )  # the text as it is, not in pieces
                said[kind, seed] = tts.speech(list(tts.submit(request, streaming)), seed)
        return said


@dataclass(eq=False)
class Talk:
    """A request whose stream was handed out, and what its caller has got of it."""

    model: str
    streaming: bool
    kinds: list[int]  # of its prompts, one after another
    stream: AudioStream | None  # None: dropped
    unsent: int = 0  # values of live text
    may_fail: list[str] = field(default_factory=list)  # words of errors that it alone may have
    chunks: list[Chunk] = field(default_factory=list)
    error: EngineError | None = None
    reader: Iterator[Chunk] | None = None

    @property
    def ended(self) -> bool:
        return self.error is not None or (bool(self.chunks) and self.chunks[-1].finish is not None)

    @property
    def complete(self) -> bool:
        """Whether the model or a limit ended it."""
        return (
            self.error is None
            and bool(self.chunks)
            and self.chunks[-1].finish in ("stop", "length")
        )

    def read(self) -> None:
        """Take what has come."""
        while self.stream is not None and not self.ended and not self.stream.outbox.empty:
            try:
                self.reader = self.reader or iter(self.stream)
                self.chunks.append(next(self.reader))
            except EngineError as e:
                self.error = e

    def forget(self) -> None:
        """Hold the stream no more."""
        self.stream = self.reader = None

    def append(self, count: int) -> None:
        """Give the request so many more values of its text."""
        assert self.stream is not None
        count = min(count, self.unsent)
        self.unsent -= count
        try:
            self.stream.append("x" * count, last=not self.unsent)
        except EngineError as e:
            if "stopped" not in str(e):
                raise

    def check(self) -> None:
        """Check that it got what it gets alone, as far as it goes. If it ended by itself, that is all of it."""
        seed = KINDS[self.kinds[0]][1]["seed"]
        alone = all_alone(self.model, self.streaming)
        whole = [alone[kind, seed + i] for i, kind in enumerate(self.kinds)]
        for name in ("frames", "samples"):
            wanted = np.concatenate([getattr(w, name) for w in whole])
            got = np.concatenate([wanted[:0], *(getattr(c, name) for c in self.chunks)])
            np.testing.assert_allclose(got, wanted[: len(got)], atol=ATOL, err_msg=str(self.kinds))
            assert not self.complete or len(got) == len(wanted), self.kinds
            if self.error is None and self.chunks[-1].finish != "cancelled":
                assert len(got) == len(wanted), self.kinds
                assert self.chunks[-1].finish == whole[-1].finish_reason


def cut_text(prompt: Prompt, known: int) -> int:
    """Make a request live whose text is known only so far. How many values are left for later."""
    left = list(prompt.columns["trail"][known:])

    def more(text: str, last: bool) -> np.ndarray:
        taken = [left.pop(0) for _ in text]
        return np.array(taken, np.int64)

    prompt.columns["trail"] = prompt.columns["trail"][:known]
    prompt.live = LiveText("trail", more)
    return len(left)
