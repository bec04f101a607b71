"""`stentor say` and `stentor batch` with marks of a machine, and the Python API."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from stentor import TTS
from stentor.cli import main
from stentor.errors import BatchError, InvalidRequest, WatermarkError
from stentor.output.marks import comment
from stentor.speech.result import COMMENTED
from tests.batch.runs import CUT, SOME_FAILED, audio, manifest, speak
from tests.helpers.fake_loudspeaker import FakeDevice
from tests.helpers.watermarks import QUIET, FailsLater, Tone, tone

LINE = comment("dummy:toy")
TOY = ("--model", "dummy:toy", "--min-frames", "9", "--max-frames", "9", "--seed", "1")
LONG = ("--model", "dummy:toy", "--min-frames", "60", "--max-frames", "60", "--seed", "1")
PACKAGE = "tests.helpers.watermarks:"
MARKS = ("--provenance", "--watermark", PACKAGE + "Tone")
OPTIONS = {"seed": 1, "min_frames": 9, "max_frames": 9}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of each test. Files are as loud as the model speaks: marks are compared by samples."""
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text('[say]\nloudness = "off"\n')
    monkeypatch.setenv("STENTOR_CONFIG", str(config))


def samples(data: bytes | str) -> np.ndarray:
    read: np.ndarray = soundfile.read(
        io.BytesIO(data) if isinstance(data, bytes) else data, dtype="float32"
    )[0]
    return read


def line(data: bytes) -> str | None:
    with av.open(io.BytesIO(data)) as f:
        return {**f.metadata, **f.streams[0].metadata}.get("comment")


def assert_marked(marked: np.ndarray, plain: np.ndarray) -> None:
    assert len(marked) == len(plain) > 0
    assert np.abs(marked - plain * QUIET - tone(len(plain))).max() < 1.1 / 32767


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "m4a"])
def test_a_file_says_what_has_made_it(format: str) -> None:
    assert main(["say", "Hello.", "-o", f"a.{format}", *TOY, *MARKS]) == CUT
    assert line(Path(f"a.{format}").read_bytes()) == LINE


def test_a_file_has_the_watermark_at_its_own_speed() -> None:
    for name, flags in (("a.wav", MARKS), ("b.wav", ())):
        assert main(["say", "Hello.", "-o", name, "--speed", "0.5", *TOY, *flags]) == CUT
    assert_marked(samples("a.wav"), samples("b.wav"))


def test_what_is_piped_and_played_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    assert main(["say", "Hello.", "--play", "-o", "a.wav", *TOY, *MARKS]) == CUT
    assert main(["say", "Hello.", "-o", "b.wav", *TOY]) == CUT
    assert_marked(np.concatenate(device.written)[:, 0], samples("b.wav"))
    assert_marked(samples("a.wav"), samples("b.wav"))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--provenance", "--format", "raw"], "provenance: raw holds samples only"),
        (["--provenance", "-o", "a.ulaw"], "provenance: ulaw holds samples only"),
        (["--watermark", "none"], "watermark: must be package:function"),
        (
            ["--watermark", PACKAGE + "Short"],
            "watermark: does not work at 8000 Hz: flush() must return",
        ),
    ],
)
def test_what_cannot_be_marked_is_told_before_anything_is_loaded(
    flags: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stentor.api.TTS", None)
    assert main(["say", "Hello.", *TOY, *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_watermark_that_fails_ends_the_command_and_the_file_has_only_marked_audio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["say", "Hello.", "-o", "a.wav", *LONG, "--watermark", PACKAGE + "FailsLater"]) == 1
    assert "stentor: the watermark failed: RuntimeError: no more marks" in capsys.readouterr().err
    assert main(["say", "Hello.", "-o", "b.wav", *LONG]) == CUT
    kept = samples("a.wav")
    assert 0 < len(kept) < len(samples("b.wav"))
    assert_marked(kept, samples("b.wav")[: len(kept)])


# -- batch --

ITEMS = [{"id": "a", "text": "One."}, {"id": "b", "text": "Two.", "speed": 0.5}]


def test_every_item_of_a_batch_is_marked(tmp_path: Path) -> None:
    for name, flags in (("one", MARKS), ("two", ())):
        (tmp_path / name).mkdir()
        assert speak(tmp_path / name, ITEMS, *flags) == CUT
    marked, plain = audio(tmp_path / "one" / "out"), audio(tmp_path / "two" / "out")
    for id, data in marked.items():
        assert line(data) == LINE
        assert_marked(samples(data), samples(plain[id]))


def test_a_run_goes_on_with_the_marks_that_it_began_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert speak(tmp_path, ITEMS, *MARKS) == CUT
    assert speak(tmp_path, ITEMS, "--resume") == 2
    assert "provenance: was True when the run began" in capsys.readouterr().err
    assert speak(tmp_path, ITEMS, *MARKS, "--resume") == CUT


def test_an_item_whose_watermark_fails_is_no_file_and_the_others_are_spoken(tmp_path: Path) -> None:
    items = [{**ITEMS[0], "min_frames": 60, "max_frames": 60}, {"id": "c", "text": "Three."}]
    assert speak(tmp_path, items, "--watermark", PACKAGE + "FailsLater") == SOME_FAILED
    assert [row["status"] for row in manifest(tmp_path / "out")] == ["error", "ok"]
    assert list(audio(tmp_path / "out")) == ["c"]


@pytest.mark.parametrize(
    "flags", [("--provenance", "--format", "raw"), ("--watermark", PACKAGE + "Doubles")]
)
def test_wrong_marks_of_a_batch_are_told_and_nothing_is_written(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    assert speak(tmp_path, ITEMS, *flags) == 2
    assert not (tmp_path / "out").exists()


# -- Python --


@pytest.mark.parametrize("watermark", [Tone, PACKAGE + "Tone"])
def test_samples_and_files_of_the_python_api_are_marked(watermark: object) -> None:
    with TTS("dummy:toy", memory_gb=0.002) as tts:
        plain = tts.generate("Hello.", **OPTIONS)
        streamed = np.concatenate([p.samples for p in tts.stream("Hello.", **OPTIONS)])
    with TTS("dummy:toy", memory_gb=0.002, provenance=True, watermark=watermark) as tts:
        marked = tts.generate("Hello.", format="flac", **OPTIONS)
        parts = list(tts.stream("Hello.", format="wav", **OPTIONS))
        several = tts.generate(["Hello.", "Hello."], **OPTIONS)
    assert plain.provenance is None
    assert np.array_equal(marked.samples, plain.samples * QUIET + tone(len(plain.samples)))
    assert np.array_equal(
        np.concatenate([p.samples for p in parts]), streamed * QUIET + tone(len(streamed))
    )
    assert [np.allclose(s.samples, marked.samples, atol=1e-6) for s in several] == [True, True]
    assert {marked.provenance, *(p.provenance for p in parts), line(marked.data)} == {LINE}
    assert line(b"".join(p.data for p in parts)) == LINE
    for suffix in COMMENTED:
        replace(marked, sample_rate=24_000).save("a" + suffix)  # mp3 takes no 600 Hz
        with soundfile.SoundFile("a" + suffix) as f:
            assert f.comment == LINE
    with pytest.raises(
        InvalidRequest, match=r"path: \.au has no room for provenance; use \.wav, \.flac"
    ):
        marked.save("a.au")
    plain.save("a.au")
    assert "AI-generated" in str(base64.b64decode(marked._repr_html_().split("base64,")[1][:300]))


def test_a_failure_of_a_watermark_is_of_its_text_alone() -> None:
    with TTS("dummy:toy", memory_gb=0.002, watermark=FailsLater) as tts:
        long = {**OPTIONS, "min_frames": 60, "max_frames": 60}
        parts = []
        with pytest.raises(WatermarkError, match="no more marks"):
            parts.extend(tts.stream("Hello.", **long))
        with pytest.raises(BatchError) as e:
            tts.generate(
                ["One is here. Two is here.", "Hi."], split_granularity="sentence", **OPTIONS
            )
        assert [type(r).__name__ for r in e.value.results] == ["WatermarkError", "Speech"]

        async def again() -> None:
            with pytest.raises(WatermarkError):
                async for _ in tts.astream("Hello.", **long):
                    pass

        asyncio.run(again())
        assert len(tts.generate("Hi.", **OPTIONS).samples) == 54


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"provenance": "yes"}, "provenance: must be true or false, got 'yes'"),
        ({"watermark": 7}, "watermark: must be package:function, or a function, got 7"),
    ],
)
def test_wrong_marks_are_told_before_a_model_is_loaded(
    options: dict[str, object], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        TTS("dummy:toy", **options)
