"""Reference audio from requests: every way in, and files that are broken, huge or elsewhere."""

from __future__ import annotations

import base64
import io
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_from_bytes

import av
import numpy as np
import pytest

from stentor.audio import Recording
from stentor.server.errors import ApiError
from stentor.server.voices.recordings import RecordingCache
from stentor.server.voices.references import decode
from tests.helpers.server_live import Live, assert_same_speech, pcm, serving, tone_wav

ASK = {"input": "Hello there, you.", "seed": 5, "response_format": "pcm", "guard": False}


WAV = tone_wav()


B64 = base64.b64encode(WAV).decode()


def compressed(samples: np.ndarray, rate: int, muxer: str, codec: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=muxer) as f:
        stream = f.add_stream(codec, rate=rate, layout="mono")
        for i in range(0, len(samples), 48_000):
            part = (samples[i : i + 48_000] * 32767).astype(np.int16)[None]
            frame = av.AudioFrame.from_ndarray(part, format="s16", layout="mono")
            frame.sample_rate, frame.pts = rate, i
            f.mux(stream.encode(frame))
        f.mux(stream.encode(None))
    return out.getvalue()


def test_each_way_to_send_a_reference_is_the_same_voice(live: Live) -> None:
    plain = live.speech(**ASK).content
    ways = [
        {"ref_audio": f"data:audio/wav;base64,{B64}"},
        {"ref_audio": "data:audio/wav," + quote_from_bytes(WAV)},
        {"ref_audio": B64},
        {"ref_audio": "\r\n".join(B64[i : i + 76] for i in range(0, len(B64), 76))},
        {"ref_audio": [B64]},
        {"references": [{"audio": B64}]},
        {"references": [{"audio_path": f"data:audio/wav;base64,{B64}"}]},
        {"references": [{"data": B64, "media_type": "audio/wav"}]},
    ]
    first, *others = (live.speech(**ASK, **way).content for way in ways)
    assert np.abs(pcm(first) - pcm(plain)).max() > 1000 / 32767
    for other in others:
        assert_same_speech(other, first)


@pytest.mark.parametrize(
    ("muxer", "codec"),
    [("mp4", "aac"), ("webm", "libopus"), ("adts", "aac"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("flac", "flac")],
)
def test_what_phones_and_browsers_record_is_read(live: Live, muxer: str, codec: str) -> None:
    tone = 0.3 * np.sin(np.arange(96_000) / 20)
    data = compressed(tone, 48_000, muxer, codec)
    samples, rate = decode(data, "ref_audio", 5.0)
    assert len(samples) / rate == pytest.approx(2.0, abs=0.1)
    middle = samples[rate // 2 : rate]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.3 / 2**0.5, rel=0.1)
    answer = live.speech(**ASK, ref_audio="data:;base64," + base64.b64encode(data).decode())
    assert answer.status_code == 200


BOMBS = {
    "flac": ("flac", "flac", 1200),
    "opus": ("ogg", "libopus", 600),
    "m4a": ("mp4", "aac", 600),
    "webm": ("webm", "libopus", 600),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_small_files_that_unfold_to_hours_are_stopped_early(kind: str) -> None:
    muxer, codec, seconds = BOMBS[kind]
    data = compressed(np.zeros(8000 * seconds, np.float32), 8000, muxer, codec)
    tracemalloc.start()
    with pytest.raises(ApiError) as e:
        decode(data, "ref_audio", 5.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (e.value.status, e.value.param) == (400, "ref_audio")
    assert "longer than 5 s" in e.value.message
    assert peak < len(data) * 2 + 2_000_000


def hostile_wavs() -> Iterator[bytes]:
    yield WAV[:43]
    yield WAV[:4] + b"\xff\xff\xff\xff" + WAV[8:20]
    yield WAV[:22] + (65535).to_bytes(2, "little") + WAV[24:]  # channels
    yield WAV[:24] + (0).to_bytes(4, "little") + WAV[28:]  # rate
    yield WAV[:24] + (2**31 - 1).to_bytes(4, "little") + WAV[28:]
    yield WAV[:34] + (0).to_bytes(2, "little") + WAV[36:]  # bits
    yield b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    yield b"ffconcat version 1.0\nfile /etc/passwd\n"
    yield b"\x1a\x45\xdf\xa3" + bytes(200)
    yield b"\x00\x00\x00\x20ftypM4A " + bytes(200)
    yield b"\xff\xf1" * 500
    yield b"<html>" * 100
    yield b"PK\x03\x04" + bytes(100)


@pytest.mark.parametrize("data", list(hostile_wavs()), ids=range(13))
def test_broken_and_disguised_files_get_400(live: Live, data: bytes) -> None:
    answer = live.speech(**ASK, ref_audio="data:audio/wav;base64," + base64.b64encode(data).decode())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


@pytest.mark.parametrize("box", [b"stsd", b"stbl", b"minf", b"trak"])
def test_an_mp4_that_does_not_describe_its_samples_is_refused(live: Live, box: bytes) -> None:
    data = compressed(0.3 * np.sin(np.arange(48_000) / 20), 48_000, "mp4", "aac").replace(box, b"free")
    answer = live.speech(**ASK, ref_audio=base64.b64encode(data).decode())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


def test_cut_off_audio_is_read_as_far_as_it_goes_or_refused_never_a_crash(live: Live) -> None:
    for muxer, codec in (("mp4", "aac"), ("webm", "libopus"), ("flac", "flac"), ("mp3", "libmp3lame")):
        data = compressed(0.3 * np.sin(np.arange(96_000) / 20), 48_000, muxer, codec)
        for share in (0.2, 0.6, 0.95):
            cut = base64.b64encode(data[: int(len(data) * share)]).decode()
            assert live.speech(**ASK, ref_audio=cut).status_code in (200, 400)


def test_references_must_be_long_enough_and_not_silent(live: Live) -> None:
    for data in (tone_wav(0.01), tone_wav(6.0), tone_wav()[:44] + bytes(8000)):
        answer = live.speech(**ASK, ref_audio=base64.b64encode(data).decode())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ref_audio")


def test_local_files_are_read_only_inside_the_allowed_directory(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "allowed", tmp_path / "secret.wav"
    allowed.mkdir()
    secret.write_bytes(WAV)
    (allowed / "good one.wav").write_bytes(WAV)
    (allowed / "link.wav").symlink_to(secret)
    with serving(tmp_path / "voices", allowed_local_media_path=str(allowed)) as live:
        for good in (f"{allowed}/good one.wav", "file://" + quote(f"{allowed}/good one.wav")):
            assert live.speech(**ASK, ref_audio=good).status_code == 200
        for bad in (
            str(secret), f"file://{secret}", f"{allowed}/../secret.wav", f"file://{allowed}/%2e%2e/secret.wav",
            f"{allowed}/link.wav", str(allowed), str(tmp_path), f"file://evil.example{allowed}/good one.wav", f"{allowed}/none.wav", "file://[x/y",
            "/proc/self/environ", "/dev/zero", f"{allowed}/\x00",
        ):  # fmt: skip
            answer = live.speech(**ASK, ref_audio=bad)
            assert answer.status_code == 400, bad
            assert answer.json()["error"]["code"] == "path_not_allowed"
            assert ("is a directory" in answer.json()["error"]["message"]) == (bad == str(allowed))


def silence(count: int) -> Recording:
    return Recording(np.zeros(count, np.float32), 16_000)


def test_the_cache_of_references_is_bounded() -> None:
    cache = RecordingCache(4000, 60.0)
    for i in range(10):
        cache.put(str(i), silence(100))
        assert cache.bytes <= 4000
    assert cache.get("0") is not None
    for i in range(10, 16):
        cache.put(str(i), silence(200))
    assert cache.bytes <= 4000
    assert cache.get("1") is None
    assert cache.get("15") is not None
    cache.put("large", silence(10_000))
    assert cache.get("large") is None


def test_references_that_nobody_uses_any_more_leave_the_cache() -> None:
    """They stayed until the cache was full, so that a server's memory grew for hours."""
    now = 0.0
    cache = RecordingCache(1 << 20, 60.0, lambda: now)
    for i in range(100):
        now = 10.0 * i
        cache.put(str(i), silence(100))
    assert len(cache) == 7
    assert cache.bytes == 7 * 400
    assert cache.get("99") is not None
    now += 61
    assert cache.get("99") is None
    assert len(cache) == 6
