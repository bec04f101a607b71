"""Grouping of rows into codec calls: other rows and padding do not change the audio."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from stentor import TTS
from stentor.config import Policy
from stentor.engine.running.codec_calls import CallShape, rows_of_call
from stentor.engine.running.codec_runner import CodecRunner
from stentor.engine.sizes import CODEC_FRAMES
from tests.helpers.stepped_engine import hold
from tests.helpers.tiny import TEXT, VOICE, checkpoint

ROWS = {1, 2, 4, 8, 16, 20}


def cut(rows: int, frames: int, sizes: set[int]) -> list[int]:
    parts = []
    while sum(parts) < rows:
        parts.append(rows_of_call(rows - sum(parts), frames, sizes))
    return parts


def test_long_calls_hold_little_padding_and_short_ones_are_few():
    assert cut(5, 25, ROWS) == [4, 1]
    assert cut(6, 25, ROWS) == [6]  # two of eight rows are padding
    assert cut(64, 25, ROWS) == [20, 20, 20, 4]
    assert cut(5, 1, ROWS) == [5]
    assert cut(64, 1, {1, 2, 4, 8, 16, 32, 64}) == [64]
    assert cut(7, 25, set()) == [7]


@pytest.mark.parametrize("frames", [1, 4, 25])
def test_padding_is_at_most_a_quarter_of_a_call_that_is_not_small(frames):
    for rows in range(1, 65):
        for part in cut(rows, frames, ROWS):
            call = min(b for b in ROWS if b >= part)
            assert 4 * (call - part) <= call or call * frames <= 32


@dataclass
class Replayed:
    """Stands for a captured call."""

    codec: CodecRunner
    key: CallShape
    calls: list[CallShape]

    def replay(self) -> None:
        self.calls.append(self.key)
        self.codec.graphs.fn(*self.key)


def captured(tts: TTS) -> list[CallShape]:
    codec = tts.engine.codec
    calls: list[CallShape] = []
    keys = codec.calls.captured_shapes(tts.engine.sizes.slots)
    codec.graphs.graphs = {key: Replayed(codec, key, calls) for key in keys}
    return calls


def speech(tts: TTS, count: int) -> list[np.ndarray]:
    options = {"max_frames": 33, "min_frames": 33}
    streams = [tts.stream(f"number {i}", seed=i, **options) for i in range(count)]
    return [np.concatenate([chunk.samples for chunk in stream]) for stream in streams]


def test_audio_from_calls_of_fixed_sizes_equals_audio_from_calls_as_large_as_needed():
    policy = Policy(ramp=(1, 2, 4, 8, 16, 25))
    with TTS("dummy:toy", dtype="float64", max_num_seqs=6, memory_gb=0.002, policy=policy) as plain:
        want = speech(plain, 6)
        eager = plain.engine.side.eager_calls
    with TTS("dummy:toy", dtype="float64", max_num_seqs=6, memory_gb=0.002, policy=policy) as tts:
        calls = captured(tts)
        got = speech(tts, 6)
        rest = tts.engine.codec.graphs.eager_calls
    assert eager > 0
    assert rest == 0
    assert len(calls) < 6 * 6  # rows share calls
    assert {key[0] for key in calls} - {1}
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_no_captured_call_is_larger_than_what_one_may_hold():
    with TTS("dummy:toy", max_num_seqs=64, memory_gb=0.01) as tts:
        shapes = tts.engine.codec.calls.captured_shapes(64)
        assert tts.engine.sizes.codec_frames == CODEC_FRAMES
    assert max(shape.rows * shape.decodes for shape in shapes) <= CODEC_FRAMES
    assert {(64, 1, 1), (64, 8, 8), (20, 25, 25), (1, 25, 25)} <= set(shapes)
    assert shapes[0].rows * shapes[0].decodes == max(s.rows * s.decodes for s in shapes)


@pytest.mark.parametrize("family", ["qwen3_tts", "fish_s2", "qwen3_omni_talker"])
def test_calls_with_padding_may_go_on_for_days(family, tmp_path):
    """The padding row's counters begin anew with each call: RoPE's table ends after 43 minutes of audio."""
    with TTS(checkpoint(family, tmp_path), device="cpu", max_num_seqs=4, memory_gb=0.1) as tts:
        calls, states = captured(tts), tts.engine.codec.states.columns
        counters = [
            column
            for column in states.values()
            if column.ndim == 1 and not column.is_floating_point()
        ]
        for counter in counters:
            counter[-1] = 1 << 20
        go = threading.Event()
        hold(tts)(go)  # so that all three begin in the same step, and are decoded together
        streams = [tts.stream(TEXT, seed=i, max_frames=6, **VOICE[family]) for i in range(3)]
        go.set()
        assert all(sum(len(chunk.samples) for chunk in stream) for stream in streams)
    assert any(shape.rows == 4 for shape in calls)
    assert counters
    assert all(counter[-1] < 1 << 20 for counter in counters)
