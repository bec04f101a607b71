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
import soundfile

from stentor.audio import Recording
from stentor.engine.once import LruCache
from stentor.server.errors import ApiError
from stentor.server.voices.references import decode, from_base64
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
    [
        ("mp4", "aac"),
        ("webm", "libopus"),
        ("adts", "aac"),
        ("mp3", "libmp3lame"),
        ("ogg", "libopus"),
        ("flac", "flac"),
    ],
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
    answer = live.speech(
        **ASK, ref_audio="data:audio/wav;base64," + base64.b64encode(data).decode()
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


@pytest.mark.parametrize("box", [b"stsd", b"stbl", b"minf", b"trak"])
def test_an_mp4_that_does_not_describe_its_samples_is_refused(live: Live, box: bytes) -> None:
    data = compressed(0.3 * np.sin(np.arange(48_000) / 20), 48_000, "mp4", "aac").replace(
        box, b"free"
    )
    answer = live.speech(**ASK, ref_audio=base64.b64encode(data).decode())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "ref_audio"


def test_cut_off_audio_is_read_as_far_as_it_goes_or_refused_never_a_crash(live: Live) -> None:
    for muxer, codec in (
        ("mp4", "aac"),
        ("webm", "libopus"),
        ("flac", "flac"),
        ("mp3", "libmp3lame"),
    ):
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


def size(recording: Recording) -> int:
    return recording.samples.nbytes


def test_the_cache_of_references_is_bounded() -> None:
    cache = LruCache[Recording](4000, size, 60.0)
    for i in range(10):
        cache.put(str(i), silence(100))
        assert cache.size <= 4000
    assert cache.get("0") is not None
    for i in range(10, 16):
        cache.put(str(i), silence(200))
    assert cache.size <= 4000
    assert cache.get("1") is None
    assert cache.get("15") is not None
    cache.put("large", silence(10_000))
    assert cache.get("large") is None


def test_references_that_nobody_uses_any_more_leave_the_cache() -> None:
    """They stayed until the cache was full, so that a server's memory grew for hours."""
    now = 0.0
    cache = LruCache[Recording](1 << 20, size, 60.0, lambda: now)
    for i in range(100):
        now = 10.0 * i
        cache.put(str(i), silence(100))
    assert len(cache) == 7
    assert cache.size == 7 * 400
    assert cache.get("99") is not None
    now += 61
    assert cache.get("99") is None
    assert len(cache) == 6


@pytest.mark.parametrize(
    ("muxer", "codec"), [("mp4", "aac"), ("adts", "aac"), ("mp3", "libmp3lame")]
)
@pytest.mark.parametrize("rate", [16_000, 48_000])
@pytest.mark.parametrize("short_of", [0.0, 0.01, 0.05])
def test_the_padding_of_a_codec_makes_no_audio_too_long(
    muxer: str, codec: str, rate: int, short_of: float
) -> None:
    samples = 0.3 * np.sin(np.arange(int((3 - short_of) * rate)) / 20)
    found, _ = decode(compressed(samples, rate, muxer, codec), "ref_audio", 3.0)
    assert (3 - short_of) * rate - 65 <= len(found) <= 3 * rate
    with pytest.raises(ApiError, match="longer than 3 s"):
        decode(compressed(np.tile(samples, 2), rate, muxer, codec), "ref_audio", 3.0)


def test_a_wav_is_exactly_as_long_as_it_says() -> None:
    assert len(decode(tone_wav(3.0), "ref_audio", 3.0)[0]) == 24_000
    with pytest.raises(ApiError, match="longer than 3 s"):
        decode(tone_wav(3.001), "ref_audio", 3.0)


@pytest.mark.parametrize(("muxer", "codec"), [("mp4", "aac"), ("ogg", "libopus"), ("flac", "flac")])
def test_stereo_in_antiphase_is_heard(muxer: str, codec: str) -> None:
    tone = (0.3 * 32767 * np.sin(np.arange(48_000) / 20)).astype(np.int16)
    out = io.BytesIO()
    with av.open(out, "w", format=muxer) as f:
        stream = f.add_stream(codec, rate=48_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(
            np.stack([tone, -tone], axis=1).reshape(1, -1), format="s16", layout="stereo"
        )
        frame.sample_rate, frame.pts = 48_000, 0
        f.mux(stream.encode(frame))
        f.mux(stream.encode(None))
    samples, rate = decode(out.getvalue(), "ref_audio", 3.0)
    middle = samples[rate // 4 : rate // 2]
    assert np.sqrt((middle**2).mean()) == pytest.approx(0.3 / 2**0.5, rel=0.1)


def test_base64_is_taken_without_its_padding_and_in_urls_letters(live: Live) -> None:
    wavs = [
        WAV + bytes([n]) * n + b"\xfb\xff\xfe" for n in range(3)
    ]  # of each length, with + and /
    for wav in wavs:
        plain, url = base64.b64encode(wav).decode(), base64.urlsafe_b64encode(wav).decode()
        assert plain != url
        for text in (
            plain,
            plain.rstrip("="),
            url,
            url.rstrip("="),
            "\n".join(url[i : i + 76] for i in range(0, len(url), 76)),
        ):
            assert from_base64(text) == wav
    for wrong in ("a", "abc$", "ab=c", "é"):
        with pytest.raises(ValueError):
            from_base64(wrong)
    assert (
        live.speech(
            **ASK, ref_audio=base64.urlsafe_b64encode(wavs[1]).decode().rstrip("=")
        ).status_code
        == 200
    )


def quiet_wav(peak: float) -> str:
    out = io.BytesIO()
    soundfile.write(out, peak * np.sin(np.arange(16_000) / 9), 8_000, format="WAV", subtype="FLOAT")
    return base64.b64encode(out.getvalue()).decode()


def test_a_quiet_reference_is_named_and_its_speech_is_no_silence(live: Live) -> None:
    for peak, named in ((0.5, False), (0.011, False), (0.009, True), (2e-4, True)):
        for field in ({"ref_audio": quiet_wav(peak)}, {"references": [{"audio": quiet_wav(peak)}]}):
            answer = live.speech(**ASK, **field)
            assert answer.status_code == 200
            assert answer.headers.get("x-ignored") == (
                f'{next(iter(field))}="quiet"' if named else None
            )
    assert live.speech(**ASK, ref_audio=quiet_wav(0.9e-4)).status_code == 400
