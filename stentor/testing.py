"""Parity kit: run a family in every mode of the engine against values of another
implementation.

    `PARITY = Parity("checkpoint", [Given("Hello.", frames, samples, {"temperature": 0.0})])`

    `@pytest.mark.parametrize("mode", MODES)`
    `def test_parity(mode):`
    `    PARITY.check(mode)`

Part of the interface for families from other packages (docs/families.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stentor.api import TTS
from stentor.config import Policy
from stentor.engine.running.device import pick_device
from stentor.engine.stream import AudioStream, Chunk
from stentor.errors import InvalidRequest
from stentor.models.codec_timing import CodecTiming, UtteranceTiming

MODES = (
    "single",
    "batched",
    "streamed",
    "preempted",
    "prefix_shared",
    "quantised",
    "deterministic",
)
COPIES = 4  # of each request in a batch
ROUNDS = 10  # of batches until one is preempted
PAGE = 4  # tokens: short requests take several pages


@dataclass(frozen=True)
class Given:
    """A request, and what another implementation gave for it.

    frames: [T, *frame], all audible ones. samples: float32 [n] of the whole audio. None: not
    compared. options: arguments of `TTS.request`, such as temperature=0, voice, reference and
    max_frames.
    """

    text: str
    frames: np.ndarray
    samples: np.ndarray | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tolerance:
    """frames: largest difference of a number of a frame, 0 for codes. samples: the same of the
    audio, as a share of its peak."""

    frames: float = 0.0
    samples: float = 1e-3


@dataclass(frozen=True)
class Parity:
    """The modes of one model.

    model: as for `TTS`. cases: at least one whose frames take several pages of 4 tokens. quantised:
    what the other implementation gave with the weights that `quantization="int8"` rounds. Empty:
    the family must refuse the option. load: further arguments of `TTS`.
    """

    model: str | Path
    cases: Sequence[Given]
    tolerance: Tolerance = Tolerance()
    quantised: Sequence[Given] = ()
    load: Mapping[str, Any] = field(default_factory=dict)

    def check(self, mode: str) -> None:
        """Run one of MODES. AssertionError names the request that differs, and by how much."""
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        {
            "single": self._single,
            "batched": self._batched,
            "streamed": self._streamed,
            "preempted": self._preempted,
            "prefix_shared": self._prefix_shared,
            "quantised": self._quantised,
            "deterministic": self._deterministic,
        }[mode]()

    @property
    def _on_gpu(self) -> bool:
        return pick_device(str(self.load.get("device", "auto"))) != "cpu"

    def _tts(self, **options: Any) -> TTS:
        return TTS(self.model, **{"max_num_seqs": 8, "memory_gb": 0.05, **self.load, **options})

    def _single(self) -> None:
        """Each request by itself."""
        with self._tts(max_num_seqs=1) as tts:
            for case in self.cases:
                self._compare(case, list(_submit(tts, case)), "alone")

    def _batched(self) -> None:
        """All requests at once, several times each."""
        with self._tts() as tts:
            self._together(tts)

    def _streamed(self) -> None:
        """Each request as a stream of small chunks, beside the others."""
        with self._tts(policy=Policy(ramp=(1, 2), chunk=2)) as tts:
            streams = [(case, _submit(tts, case, streaming=True)) for case in self.cases]
            for case, stream in streams:
                chunks = list(stream)
                self._compare(case, chunks, "streamed")
                if len(case.frames) > _frames_of_two_chunks(tts.spec.codec_timing):
                    assert len(chunks) > 1, f"{case.text!r} was not streamed: it came in one chunk"

    def _preempted(self) -> None:
        """Requests that take pages from each other, and compute again what these held."""
        with self._tts(page_size=PAGE, policy=Policy(reserve_tokens=1, prefix_cache=False)) as tts:
            pool = tts.engine.scheduler.pages
            max_pages = max(
                tts.prompt(_request(tts, case)).length + len(case.frames) for case in self.cases
            )
            pool.allocate(pool.available - pool.pages_for(max_pages) - 2)  # nobody frees these
            for _ in range(ROUNDS):
                self._together(tts)
                if tts.engine.health().preemptions:
                    return
        raise AssertionError("no request was preempted: give cases with more frames")

    def _prefix_shared(self) -> None:
        """Each request again, whose prompt is found in pages."""
        with self._tts(
            page_size=PAGE, policy=Policy(min_cached_tokens=PAGE, min_cached_voice_tokens=PAGE)
        ) as tts:
            for case in (*self.cases, *self.cases):
                self._compare(case, list(_submit(tts, case)), "with a shared prefix")
            assert tts.engine.health().stats.cached_tokens, (
                f"no prompt was found: give one of more than {PAGE} tokens"
            )

    def _quantised(self) -> None:
        """Weights in int8, or a refusal that names the option."""
        if self.quantised:
            # the fast product of a CPU also rounds activations, and takes no float64
            with self._tts(
                quantization="int8", **({} if self._on_gpu else {"dtype": "float64"})
            ) as tts:
                for case in self.quantised:
                    self._compare(case, list(_submit(tts, case)), "quantised")
            return
        try:
            self._tts(quantization="int8").close()
            refused = ""
        except InvalidRequest as e:
            refused = e.param
        assert refused == "quantization", (
            "it takes int8 (give what is expected then), or its error names another field"
        )

    def _deterministic(self) -> None:
        """Compare the bytes of two runs, on a GPU also in a batch, if the family is batch
        invariant."""
        with self._tts(max_num_seqs=1) as tts:
            invariant = self._on_gpu and tts.spec.batch_invariant
        with self._tts(**({"deterministic": True} if invariant else {})) as tts:
            alone = [_bytes(list(_submit(tts, case))) for case in self.cases]
            again = [list(_submit(tts, case)) for case in self.cases]
            if invariant:
                beside = [list(s) for s in [_submit(tts, case) for case in self.cases]]
            else:
                beside = again
        for case, first, *others in zip(self.cases, alone, again, beside, strict=True):
            for chunks in others:
                self._compare(case, chunks, "deterministic")
                assert _bytes(chunks) == first, f"{case.text!r} gave other bytes the second time"

    def _together(self, tts: TTS) -> None:
        streams = [(case, _submit(tts, case)) for _ in range(COPIES) for case in self.cases]
        for case, stream in streams:
            self._compare(case, list(stream), "in a batch")

    def _compare(self, case: Given, chunks: Sequence[Chunk], how: str) -> None:
        frames = np.concatenate([c.frames for c in chunks])
        what = f"{case.text!r} {how}"
        assert frames.shape == case.frames.shape, (
            f"{what}: frames {frames.shape}, given {case.frames.shape}"
        )
        apart = (
            np.abs(frames.astype(np.float64) - case.frames)
            .reshape(len(frames), -1)
            .max(1, initial=0.0)
        )
        wrong = np.flatnonzero(~(apart <= self.tolerance.frames))
        assert not len(wrong), (
            f"{what}: frame {wrong[0]} of {len(frames)} differs by {apart[wrong[0]]:.3g}"
        )
        if case.samples is None:
            return
        samples = np.concatenate([c.samples for c in chunks])
        assert samples.shape == case.samples.shape, (
            f"{what}: samples {samples.shape}, given {case.samples.shape}"
        )
        off = np.abs(samples - case.samples).max(initial=0.0)
        peak = np.abs(case.samples).max(initial=0.0)
        assert off <= self.tolerance.samples * peak, (
            f"{what}: audio differs by {off:.3g}, its peak is {peak:.3g}"
        )


def _frames_of_two_chunks(timing: CodecTiming) -> int:
    """Frames beyond which a stream of small chunks has at least two."""
    if isinstance(timing, UtteranceTiming):
        return timing.longest
    return 4


def _request(tts: TTS, case: Given) -> Any:
    return tts.request(case.text, **case.options)


def _submit(tts: TTS, case: Given, streaming: bool = False) -> AudioStream:
    return tts.submit(_request(tts, case), streaming)


def _bytes(chunks: Sequence[Chunk]) -> bytes:
    return b"".join(c.frames.tobytes() for c in chunks) + b"".join(
        c.samples.tobytes() for c in chunks
    )
