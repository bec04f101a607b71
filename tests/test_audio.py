"""Reference audio is read from files as they store it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.audio import Reference, load
from stentor.audio.input_file import InputFile
from stentor.audio.libsndfile import open_by_libsndfile
from stentor.errors import InvalidRequest
from tests.helpers.patience import STUCK_S


class Counted(InputFile):
    """Counts how often libsndfile asks for bytes."""

    reads = 0

    def readinto(self, buffer: memoryview) -> int:
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
def test_a_file_is_read_as_floats_whatever_it_stores(
    format: str, subtype: str, channels: int
) -> None:
    samples = np.random.default_rng(0).uniform(-1, 1, (5_000, channels))
    samples[:2] = [[-1.0], [1.0]]
    data = stored(samples, 8_000, format, subtype)
    want = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0].mean(axis=1)
    recording = load(Reference(data), "reference", (0.1, 1.0))
    assert recording.samples.shape == (5_000,)
    assert np.abs(recording.samples - want).max() < 1e-7


def test_16_bits_are_read_without_a_call_into_python_for_every_few_thousand_samples() -> None:
    data = stored(np.full(100_000, 0.5), 8_000, "WAV", "PCM_16")
    with Counted(data, STUCK_S) as source, open_by_libsndfile(source) as audio:
        before = source.reads
        assert [len(block) for block in audio.blocks] == [100_000]
        assert source.reads - before <= 2  # 25 in pieces of 8 KB


TONE = (0.5 * np.sin(np.arange(16_000) / 9)).astype(np.float32)


@pytest.mark.parametrize("balance", [(1.0, -1.0), (0.9, -1.0), (1.0, -1.0, 0.02)])
def test_channels_that_cancel_each_other_out_are_heard(balance: tuple[float, ...]) -> None:
    channels = np.stack([share * TONE for share in balance], axis=1)
    loudest = channels[:, int(np.abs(balance).argmax())]
    for audio in (
        stored(channels, 16_000, "WAV", "FLOAT"),
        (channels, 16_000),
        stored(channels, 16_000, "FLAC", "PCM_16"),
    ):
        found = load(Reference(audio), "reference", (0.1, 2.0)).samples
        assert np.abs(found - loudest).max() < 1e-4


@pytest.mark.parametrize(
    "balance", [(1.0, 0.0), (1.0, 1.0), (1.0, 0.5), (0.3, 1.0, 0.0, 0.0, 0.0, 0.0), (1.0, -0.4)]
)
def test_channels_that_do_not_are_averaged(balance: tuple[float, ...]) -> None:
    channels = np.stack([share * TONE for share in balance], axis=1)
    for audio in (stored(channels, 16_000, "WAV", "FLOAT"), (channels, 16_000)):
        found = load(Reference(audio), "reference", (0.1, 2.0)).samples
        assert np.abs(found - channels.mean(axis=1)).max() < 1e-6


@pytest.mark.parametrize("riff", [0, 36, 0xFFFFFFFF, 32_036])
@pytest.mark.parametrize("chunk", [b"", b"LIST\x04\0\0\0INFO"])
def test_a_wav_whose_header_has_no_length_is_read(riff: int, chunk: bytes, tmp_path: Path) -> None:
    """A program that writes to a pipe cannot go back and fill it in."""
    data = bytearray(stored(TONE, 16_000, "WAV", "PCM_16"))
    want = load(Reference(bytes(data)), "reference", (0.1, 2.0)).samples
    data[12:12] = chunk
    data[4:8] = riff.to_bytes(4, "little")
    data[40 + len(chunk) : 44 + len(chunk)] = bytes(4)
    (tmp_path / "a.wav").write_bytes(data)
    for audio in (bytes(data), tmp_path / "a.wav"):
        assert np.array_equal(load(Reference(audio), "reference", (0.1, 2.0)).samples, want)


def test_a_wav_that_is_empty_stays_so() -> None:
    empty = stored(TONE[:0], 16_000, "WAV", "PCM_16")
    for data in (
        empty,
        empty + b"LIST\x04\0\0\0INFO",
        empty[:30],
        b"RIFF\0\0\0\0WAVE",
        b"RIFF\0\0\0\0WAVEdata",
    ):
        with pytest.raises(InvalidRequest):
            load(Reference(data), "reference", (0.1, 2.0))
