"""Metadata of every container by readers that did not write it, and what a watermark is held to."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import av
import mutagen
import mutagen.id3
import numpy as np
import pytest
import soundfile

import stentor
from stentor.errors import InvalidRequest, WatermarkError
from stentor.output import encode
from stentor.output.effects import EffectChain
from stentor.output.encode import CONTAINERS, FILES, encoder, file_encoder
from stentor.output.marks import SOURCE_TYPE, comment
from stentor.output.watermark import WatermarkStage, load
from tests.helpers import watermarks
from tests.helpers.server_live import samples_of
from tests.helpers.watermarks import QUIET, Tone, tone

RATE = 24_000
NOISE = np.random.default_rng(1).uniform(-0.5, 0.5, RATE).astype(np.float32)
LINE = comment("dummy:toy")
MARKED = [name for name in FILES if not FILES[name].plain]
STREAMED = [name for name in CONTAINERS if not CONTAINERS[name].plain]


def by_ffmpeg(data: bytes) -> str | None:
    """The comment of a file, where FFmpeg finds it."""
    with av.open(io.BytesIO(data)) as f:
        return {**f.streams[0].metadata, **f.metadata}.get("comment") or f.streams[0].metadata.get(
            "COMMENT"
        )


def by_others(format: str, data: bytes) -> list[str]:
    """All texts of a file's tags, by libsndfile or mutagen."""
    if format == "wav":
        with soundfile.SoundFile(io.BytesIO(data)) as f:
            return [f.comment]
    if format == "aac":  # whose frames mutagen knows by the file's name only
        return [text for frame in mutagen.id3.ID3(io.BytesIO(data)).values() for text in frame.text]
    tags = mutagen.File(io.BytesIO(data)).tags
    if format == "mp3":
        return [str(text) for frame in tags.values() for text in frame.text]
    values = tags.values() if format in ("m4a", "m4b") else [[value] for _, value in tags]
    return [str(text) for value in values for text in value]


def streamed(format: str, line: str | None, whole: bool) -> bytes:
    made = encoder(format, RATE, whole, comment=line)
    return b"".join([*(made.feed(part) for part in np.split(NOISE, 10)), made.finish()])


def filed(format: str, line: str | None) -> bytes:
    file = io.BytesIO()
    made = file_encoder(format, RATE, file, line)
    for part in np.split(NOISE, 10):
        made.feed(part)
    made.finish()
    return file.getvalue()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("format", STREAMED)
def test_the_mark_is_read_back_and_the_audio_is_the_same(format: str, whole: bool) -> None:
    marked, plain = streamed(format, LINE, whole), streamed(format, None, whole)
    assert by_ffmpeg(marked) == LINE
    assert LINE in by_others(format, marked)
    assert np.array_equal(samples_of(format, marked), samples_of(format, plain))
    assert b"AI-generated" not in plain


@pytest.mark.parametrize(
    ("format", "pyav"),
    [*((name, True) for name in MARKED), *((name, False) for name in encode.LIBSNDFILE)],
)
def test_the_mark_of_a_file_is_read_back(
    format: str, pyav: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not pyav:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    marked, plain = filed(format, LINE), filed(format, None)
    assert by_ffmpeg(marked) == LINE
    assert LINE in by_others(format, marked)
    assert np.array_equal(samples_of(format, marked), samples_of(format, plain))
    assert b"AI-generated" not in plain


@pytest.mark.parametrize("format", ["pcm", "ulaw", "alaw"])
def test_samples_without_a_container_stay_as_they_are(format: str) -> None:
    assert streamed(format, LINE, True) == streamed(format, None, True)


def test_a_marked_wav_has_its_length_and_a_streamed_one_is_read_to_its_end() -> None:
    for data in (streamed("wav", LINE, True), streamed("wav", LINE, False), filed("wav", LINE)):
        assert soundfile.info(io.BytesIO(data)).frames == len(NOISE)
    assert (
        int.from_bytes(streamed("wav", LINE, True)[4:8], "little")
        == len(streamed("wav", LINE, True)) - 8
    )


def test_the_line_names_the_kind_the_software_and_the_model(tmp_path: Path) -> None:
    head = f"AI-generated; digitalSourceType={SOURCE_TYPE}; software=stentor {stentor.__version__}; model="
    assert comment(None) == head + "stentor"
    assert comment("openbmb/VoxCPM2") == head + "openbmb/VoxCPM2"
    assert comment("tenor; and\nmore ü") == head + "tenor_and_more_"
    (tmp_path / "mine").mkdir()
    assert comment(tmp_path / "mine") == comment(f"{tmp_path}/mine/") == head + "mine"


# -- watermarks --


def through(stage: WatermarkStage, cuts: list[int]) -> list[np.ndarray]:
    *parts, last = np.split(NOISE, cuts)
    return [*(stage.feed(part) for part in parts), stage.finish(last)]


@pytest.mark.parametrize("cuts", [[], [1], [100, 101, 5000], list(range(480, RATE, 480))])
def test_a_watermark_is_applied_once_and_exactly_however_audio_is_cut(cuts: list[int]) -> None:
    before = NOISE.copy()
    out = np.concatenate(through(WatermarkStage(Tone, RATE), cuts))
    assert np.array_equal(out, NOISE * QUIET + tone(RATE))
    assert np.array_equal(before, NOISE)  # it may write into what it is given


def test_it_delays_audio_by_its_look_ahead_only() -> None:
    parts = through(WatermarkStage(Tone, RATE), list(range(480, RATE, 480)))
    assert [len(part) for part in parts[:3]] == [480 - RATE // 100, 480, 480]
    assert len(parts[-1]) == 480 + RATE // 100


def test_it_marks_what_is_sent_after_speed_and_rate() -> None:
    marked, plain = (EffectChain(16_000, RATE, 1.5, make) for make in (Tone, None))
    one, other = (np.concatenate((chain.feed(NOISE), chain.finish())) for chain in (marked, plain))
    assert np.array_equal(one, other * QUIET + tone(len(other)))


def test_audio_of_no_samples_has_no_mark() -> None:
    stage = WatermarkStage(Tone, RATE)
    assert len(stage.feed(NOISE[:0])) == len(stage.finish(NOISE[:0])) == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Slow", "must hold back 0 to look_ahead = 1 samples, and holds back 8"),
        ("Short", r"flush\(\) must return the 80 samples that are left, got 79"),
        ("Doubles", r"process\(\) must return float32 \[n\], got float64 \[0\]"),
        ("NotFinite", r"process\(\) returned samples that are NaN or infinite"),
        ("Backwards", "look_ahead must be a number of samples, got -1"),
        ("HighOnly", "does not work at 8000 Hz: ValueError: needs 16 kHz"),
        ("tone", "does not work at 8000 Hz: AttributeError"),
    ],
)
def test_one_that_does_not_do_what_it_declares_is_refused_at_the_start(
    name: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as e:
        load(f"tests.helpers.watermarks:{name}")
    assert e.value.param == "watermark"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.helpers.watermarks", "must be package:function"),
        (":Tone", "must be package:function"),
        ("no_such_package:Tone", "cannot be imported: ModuleNotFoundError"),
        ("tests.helpers.watermarks:none", "cannot be imported: AttributeError"),
        ("tests.helpers.watermarks:LOUD", "must be package:function, or a function, got"),
    ],
)
def test_one_that_is_not_there_is_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        load(name)


def test_nothing_comes_out_of_one_that_has_failed() -> None:
    stage = WatermarkStage(watermarks.FailsLater, 600)
    assert len(stage.feed(NOISE[:90]))
    with pytest.raises(WatermarkError, match="RuntimeError: no more marks"):
        stage.feed(NOISE[90:300])
    with pytest.raises(WatermarkError, match="the watermark failed: it has failed before") as e:
        stage.feed(NOISE[300:])
    assert not len(stage.finish(NOISE[300:]))
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)
