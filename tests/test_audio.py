"""Reference audio is read from files as they store it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from stentor.audio import Reference, load, mono


class Counted(io.BytesIO):
    """Counts how often libsndfile asks for bytes."""

    reads = 0

    def readinto(self, buffer: bytearray) -> int:
        self.reads += 1
        return super().readinto(buffer)


def stored(samples: np.ndarray, rate: int, format: str, subtype: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, samples, rate, format=format, subtype=subtype)
    return out.getvalue()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("format", "subtype"),
    [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("WAV", "PCM_U8")],
)
def test_a_file_is_read_as_floats_whatever_it_stores(format: str, subtype: str, channels: int) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (5_000, channels))
    samples[:2] = [[-1.0], [1.0]]
    data = stored(samples, 8_000, format, subtype)
    want = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].mean(axis=1)
    with soundfile.SoundFile(io.BytesIO(data)) as f:
        found = np.full(9_000, np.nan, np.float32)
        assert [mono(f, found[:3_000]), mono(f, found[3_000:]), mono(f, found[5_000:])] == [3_000, 2_000, 0]
    assert np.abs(found[:5_000] - want).max() < 1e-7
    assert np.isnan(found[5_000:]).all()
    assert load(Reference(data), "reference", (0.1, 1.0)).samples.shape == (5_000,)


def test_16_bits_are_read_without_a_call_into_python_for_every_few_thousand_samples() -> None:
    source = Counted(stored(np.full(100_000, 0.5), 8_000, "WAV", "PCM_16"))
    with soundfile.SoundFile(source) as f:
        before = source.reads
        assert mono(f, np.empty(100_000, np.float32)) == 100_000
        assert source.reads - before <= 2  # 25 in pieces of 8 KB
