"""Recordings of all kinds are decoded the same for Python and the server, within limits."""

from __future__ import annotations

import io
import os
import random
import time
import wave
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from av.stream import Discard

from scripts.audio_fuzz import CONTAINERS, mutate, outcome
from stentor.audio import Reference, load
from stentor.audio.containers import container_of
from stentor.audio.decoding import MAX_RATE, MIN_RATE, decode
from stentor.audio.ffmpeg import DECODERS, OPTIONS, first_audio
from stentor.audio.input_file import InputFile
from stentor.audio.opened import MAX_CHANNELS, BadAudio
from stentor.audio.silence import QUIET_PEAK
from stentor.errors import InvalidRequest
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.voices.references import decode as decode_for_server
from tests.helpers.audio_kinds import KINDS, SECONDS, Kind, by_ffmpeg, by_libsndfile, id3, tone, wav
from tests.helpers.patience import STUCK_S

LONGEST = 30.0
PADDED = 0.1  # seconds that lossy encoders put around the audio


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_file_gets_the_same_answer_at_both_doors(
    kind: Kind, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = kind.make()
    path = tmp_path / "recording.raw"  # a name that tells nothing
    path.write_bytes(data)
    if not kind.readable:
        for file in (data, path):
            with pytest.raises(InvalidRequest, match=r"^ref: "):
                load(Reference(file), "ref", (0.1, LONGEST))
        with pytest.raises(ApiError, match="ref"):
            decode_for_server(data, "ref", LONGEST)
    else:
        samples, rate = decode_for_server(data, "ref", LONGEST)
        assert abs(len(samples) / rate - kind.parts * SECONDS) <= PADDED * max(1, kind.parts)
        assert 0.2 < np.abs(samples).max() < 0.7
        for file in (data, path):
            recording = load(Reference(file), "ref", (0.1, LONGEST))
            assert recording.rate == rate
            assert np.array_equal(recording.samples, samples)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_mutated_file_ends_in_audio_or_a_refusal(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`python -m scripts.audio_fuzz` tries 30,000 of them."""
    data = next(kind for kind in KINDS if kind.name == name).make()
    outcomes = {outcome(mutate(data, random.Random(seed))) for seed in range(60)}
    assert "audio" in outcomes
    assert len(outcomes) > 1
    assert capfd.readouterr().err == ""


def test_only_decoders_of_sound_are_allowed() -> None:
    kinds = {av.Codec(name, "r").type for name in DECODERS if name in av.codecs_available}
    assert kinds == {"audio"}


@pytest.mark.parametrize("allowed", [True, False])
def test_pictures_beside_the_sound_are_not_decoded(allowed: bool) -> None:
    """A container may hold frames of any size, some of which FFmpeg decodes while it probes."""
    data = by_ffmpeg("matroska", "flac", picture="mjpeg")
    options = {} if allowed else dict(OPTIONS)
    with av.open(io.BytesIO(data), format="matroska", options=options) as container:
        video = container.streams.video[0]
        probed = video.codec_context is not None and video.codec_context.pix_fmt is not None
        assert probed == allowed
        assert first_audio(container).type == "audio"
        assert video.discard == Discard.all


def test_an_id3_tag_of_another_size_than_it_states_hides_nothing() -> None:
    mp3 = by_ffmpeg("mp3", "libmp3lame", 24_000)
    padded = id3() + bytes(500) + mp3
    samples, rate = decode(padded, LONGEST)
    assert len(samples) / rate == pytest.approx(SECONDS, abs=PADDED)


def test_a_decoder_that_runs_out_of_time_meets_the_end_of_its_file() -> None:
    data = wav()
    with InputFile(data, STUCK_S) as file:
        assert file.read(4) == b"RIFF"
    with InputFile(data, -1.0) as file:
        assert file.out_of_time
        assert file.read(4) == b""


@pytest.mark.parametrize("muxer", ["flac", "wav", "mp3"])
def test_a_file_that_takes_too_long_is_refused(muxer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = {"flac": "flac", "wav": "pcm_s16le", "mp3": "libmp3lame"}[muxer]
    data = by_ffmpeg(muxer, codec, 24_000)
    ticks = iter([0.0] + [1.0] * 3 + [100.0] * 100_000)
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
    with pytest.raises(BadAudio, match="takes too long to decode"):
        decode(data, LONGEST)


def test_a_broken_file_may_name_a_place_before_its_beginning() -> None:
    with InputFile(wav(), STUCK_S) as file:
        assert file.seek(10) == 10
        assert file.seek(-20, os.SEEK_CUR) == 10
        assert file.seek(-(10**9), os.SEEK_END) == 10


def test_a_small_file_with_hours_of_silence_is_refused_early() -> None:
    hours = io.BytesIO()
    soundfile.write(hours, np.zeros(16_000 * 3600, np.int16), 16_000, format="FLAC")
    with pytest.raises(BadAudio, match="is longer than 30 s"):
        decode(hours.getvalue(), LONGEST)


def test_a_change_of_rate_inside_a_file_is_refused() -> None:
    one, two = (by_ffmpeg("mp3", "libmp3lame", rate) for rate in (24_000, 16_000))
    with pytest.raises(BadAudio, match="changes to 1 channels at 16000 Hz inside"):
        decode(one + two, LONGEST)


def test_text_with_a_byte_that_looks_like_a_frame_is_no_audio() -> None:
    for data in (b"x\xff\xfb\x90\x00" + b"abc" * 500, b"\xff\xf1" + b"abc" * 500, b"\xff" * 5000):
        with pytest.raises(BadAudio, match="is not readable audio"):
            decode(data, LONGEST)


def test_python_reads_a_wav_whose_header_has_no_length_to_its_end(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(range(200)) * 80)
    data = (tmp_path / "a.wav").read_bytes()
    without = data[:40] + bytes(4) + data[44:]
    assert np.array_equal(decode(without, LONGEST)[0], decode(data, LONGEST)[0])


HISS = np.random.default_rng(0).uniform(-1, 1, 16_000).astype(np.float32)


@pytest.mark.parametrize("offset", [0.0, 0.3, -0.7])
@pytest.mark.parametrize(
    ("level", "answer"), [(0.0, "silent"), (5e-5, "silent"), (5e-4, "quiet"), (0.05, "")]
)
def test_an_offset_is_no_sound(offset: float, level: float, answer: str) -> None:
    samples = np.float32(offset) + np.float32(level) * HISS
    if answer == "silent":
        with pytest.raises(InvalidRequest, match="audio is silent"):
            load(Reference((samples, 16_000)), "ref", (0.1, LONGEST))
        return
    recording = load(Reference((samples, 16_000)), "ref", (0.1, LONGEST))
    assert (recording.peak < QUIET_PEAK) == (answer == "quiet")
    assert np.array_equal(recording.samples, samples)


def test_channels_that_cancel_each_other_are_found_behind_an_offset() -> None:
    voice = tone(16_000)[:, 0]
    channels = np.stack((voice + 0.4, 0.4 - voice), axis=1)
    recording = load(Reference((channels, 16_000)), "ref", (0.1, LONGEST))
    assert np.abs(np.abs(recording.samples - 0.4) - np.abs(voice)).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "container"),
    [("wav, 16 bits, 16 kHz", "wav"), ("flac, cut in front", "flac"), ("mp3, padded in front", "mp3"),
     ("aac, cut in front", "aac"), ("aac with an ID3 tag", "aac"), ("text", None), ("no bytes", None)],
)  # fmt: skip
def test_containers_are_recognised_by_their_contents(name: str, container: str | None) -> None:
    data = next(kind for kind in KINDS if kind.name == name).make()
    with InputFile(data, STUCK_S) as file:
        assert container_of(file) == container


def test_eight_channels_are_mixed_and_nine_are_refused() -> None:
    for file in (
        by_libsndfile("WAV", "PCM_16", 16_000, 8),
        by_libsndfile("FLAC", "PCM_24", 16_000, 8),  # of which FFmpeg makes eight planes
    ):
        samples, _ = decode(file, LONGEST)
        assert np.abs(samples - tone(16_000)[:, 0]).max() < 1e-3
    with pytest.raises(BadAudio, match="has 9 channels at 16000 Hz; at most 8"):
        decode(by_libsndfile("WAV", "PCM_16", 16_000, 9), LONGEST)


def test_the_page_of_limits_names_those_of_the_decoder() -> None:
    limits = (LIMITS.min_audio_hz, LIMITS.max_audio_hz, LIMITS.audio_channels)
    assert limits == (MIN_RATE, MAX_RATE, MAX_CHANNELS)
