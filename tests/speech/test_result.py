"""`Speech`: what it shows of itself, and the speed and format that a call asks for."""

from __future__ import annotations

import asyncio
import base64
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import stentor
from stentor import TTS, InvalidRequest, Speech
from stentor.host.installed import pip_install
from stentor.output.effects import pcm16
from stentor.output.encode import CONTAINERS
from tests.helpers.fake_loudspeaker import FakeDevice
from tests.helpers.server_live import decoded, samples_of

TEXT = "One is here. Two is here."
ASK: dict[str, Any] = {
    "seed": 3,
    "min_frames": 40,
    "max_frames": 40,
    "retries": 1,
    "split_granularity": "sentence",
}
STREAM = {name: value for name, value in ASK.items() if name != "retries"}


@pytest.fixture(scope="module")
def tts() -> Iterator[TTS]:
    with TTS("dummy:toy", memory_gb=0.01) as made:
        yield made


def test_its_repr_is_short_and_says_what_it_is(tts: TTS) -> None:
    assert (
        repr(tts.generate(TEXT, **ASK))
        == "Speech(0.95 s, 600 Hz, finish_reason='length', 2 segments, seed=3)"
    )
    found = repr(tts.generate("…", **ASK, format="wav"))
    assert (
        found == "Speech(0.30 s, 600 Hz, finish_reason='stop', 404 bytes, ignored=('…',), seed=3)"
    )


def test_a_notebook_shows_a_player_of_its_samples(tts: TTS) -> None:
    speech = tts.generate(TEXT, **ASK)
    shown = re.fullmatch(
        r'<audio controls src="data:audio/wav;base64,([A-Za-z0-9+/=]+)"></audio>',
        speech._repr_html_(),
    )
    assert shown is not None
    samples, rate = decoded(base64.b64decode(shown[1]))
    assert rate == 600
    np.testing.assert_allclose(samples, np.clip(speech.samples, -1, 1), atol=1e-4)


def test_it_plays_to_its_end(tts: TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    speech = tts.generate(TEXT, **ASK)
    speech.play()
    assert device.rate == 600
    np.testing.assert_array_equal(np.concatenate(device.written)[:, 0], speech.samples)


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (None, pip_install("play")),
        (FakeDevice(device=False), "this machine has no device to play on"),
    ],
)
def test_playing_says_what_it_needs(
    tts: TTS, device: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", device)
    with pytest.raises(InvalidRequest, match=re.escape(says)):
        tts.generate("Hi.", **ASK).play()


@pytest.mark.parametrize("format", CONTAINERS)
@pytest.mark.parametrize("speed", [1, 2.0])
def test_a_format_is_a_file_whole_and_in_parts(tts: TTS, format: str, speed: float) -> None:
    speech = tts.generate(TEXT, **ASK, format=format.upper(), speed=speed)
    chunks = list(tts.stream(TEXT, **STREAM, format=format, speed=speed))
    whole, parts = (
        samples_of(format, data) for data in (speech.data, b"".join(c.data for c in chunks))
    )
    if format == "mp3":
        parts = parts[1105 : 1105 + len(whole)]
    assert len(whole) == len(parts)
    assert np.corrcoef(whole, parts)[0, 1] > 0.99
    rate = {"pcm": 600, "wav": 600, "flac": 600, "opus": 48_000}.get(format, 8000)
    padding = 0.3 if format in ("mp3", "aac", "opus") else 1 / rate
    assert abs(len(whole) / rate - speech.duration) <= padding


@pytest.mark.parametrize("suffix", ["wav", "aiff", "w64", "flac", "au", "caf", "raw"])
def test_a_saved_file_has_the_16_bits_of_every_other_output(suffix: str, tmp_path: Path) -> None:
    samples = np.linspace(-1, 1, 70_001, dtype=np.float32)
    path = tmp_path / f"a.{suffix}"
    Speech(samples, 24_000, np.zeros((1, 1)), "stop", 0).save(path)
    if suffix == "raw":
        stored = np.frombuffer(path.read_bytes(), "<i2")
    else:
        stored = soundfile.read(path, dtype="int16")[0]
    assert np.array_equal(stored, pcm16(samples))


def test_speed_changes_samples_and_times_and_keeps_pauses(tts: TTS) -> None:
    plain = tts.generate(TEXT, **ASK)
    text = TEXT.replace(". T", ". [pause 1s] T")
    fast = tts.generate(text, **ASK, speed=2)
    one, two = fast.segments
    assert one.end == pytest.approx(plain.segments[0].end / 2)
    assert two.start - one.end == pytest.approx(1, abs=0.01)
    assert len(fast.samples) == pytest.approx((fast.segments[-1].end) * 600, abs=2)
    streamed = list(tts.stream(text, **STREAM, speed=2))
    assert sum(len(c.samples) for c in streamed) == len(fast.samples)
    assert [s for c in streamed for s in c.segments] == list(fast.segments)


def test_live_text_has_speed_and_format_too(tts: TTS) -> None:
    async def text() -> Any:
        yield "One is here. Two is"
        yield " here."

    async def check() -> list[Speech]:
        return [c async for c in tts.astream(text(), **STREAM, speed=0.5, format="wav")]

    data = b"".join(c.data for c in asyncio.run(check()))
    whole = tts.generate(TEXT, **ASK, speed=0.5, format="wav")
    assert len(decoded(data)[0]) == len(whole.samples)


WRONG = [
    ({"speed": 0.1}, "speed: must be a number from 0.25 to 4, got 0.1"),
    ({"speed": float("nan")}, "speed: must be a number"),
    ({"speed": "fast"}, "speed: must be a number"),
    ({"speed": True}, "speed: must be a number"),
    (
        {"format": "ogg"},
        "format: must be one of wav, pcm, mp3, flac, opus, aac, ulaw, alaw, got 'ogg'",
    ),
    ({"format": 3}, "format: must be one of"),
    ({"format": ["wav"]}, "format: must be one of"),
]


@pytest.mark.parametrize(("options", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_what_is_wrong_is_named(tts: TTS, options: Any, says: str) -> None:
    for call in (tts.generate, tts.stream):
        with pytest.raises(InvalidRequest) as e:
            call("Hi.", **options)
        assert str(e.value).startswith(says)


def test_without_pyav_formats_that_need_it_say_so(
    tts: TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        InvalidRequest, match=re.escape(f"format: mp3 needs PyAV: {pip_install('audio')}")
    ):
        tts.generate("Hi.", format="mp3")
    assert tts.generate("Hi.", format="ulaw", **ASK).data


def test_the_public_names_are_those_of_all() -> None:
    assert sorted(dir(stentor)) == sorted(stentor.__all__)
    own = {name for name in vars(stentor) if not name.startswith("_")}
    modules = {name for name in own if isinstance(vars(stentor)[name], type(sys))}
    assert own - modules <= set(stentor.__all__)
    for name in stentor.__all__:
        assert getattr(stentor, name) is not None
