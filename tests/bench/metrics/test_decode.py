"""Decoding answers: containers, channels, split samples, and answers that are wrong in every way."""

import base64
import io
import itertools
import json
import wave

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from stentor.bench.load.record import Arrival, ArrivalKind, Reply
from stentor.bench.metrics.decode import decode
from tests.bench.fake_server import tone, wav_header


def reply(parts, headers=None, kind=ArrivalKind.BODY, kinds=None, status=200):
    """A reply whose parts arrive one second apart, and its body."""
    kinds = kinds or [kind] * len(parts)
    arrivals = [
        Arrival(float(i), k, len(part))
        for i, (k, part) in enumerate(zip(kinds, parts, strict=True))
    ]
    return Reply(sent=0.0, status=status, headers=headers or {}, arrivals=arrivals), b"".join(parts)


def heard(parts, framing="raw", rate=24000, **kwargs):
    return decode(*reply(parts, **kwargs), framing, rate)


def split(data, cuts):
    edges = sorted({0, len(data), *[cut % (len(data) + 1) for cut in cuts]})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_samples_are_whole_however_the_network_splits_them(cuts):
    samples = np.arange(-1500, 1500, dtype="<i2")
    result = heard(split(samples.tobytes(), cuts))
    assert np.array_equal(result.samples, samples.astype(np.float32) / 32768)
    assert result.counts.sum() == samples.size
    assert (result.counts > 0).all()


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_a_wav_header_split_anywhere_is_still_read(cuts):
    audio = (tone(0.1, 44100) * 32767).astype("<i2")
    result = heard(split(wav_header(44100).data + audio.tobytes(), cuts))
    assert result.failure is None
    assert (result.rate, result.rate_source, result.counts.sum()) == (
        44100,
        "wav header",
        audio.size,
    )


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_32", "FLOAT", "PCM_U8"])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_files_of_a_real_writer_give_their_samples(subtype, channels):
    signal = np.stack([tone(0.2, 22050)] * channels, axis=1)
    file = io.BytesIO()
    soundfile.write(file, signal, 22050, subtype=subtype, format="WAV")
    result = heard([file.getvalue()])
    assert result.failure is None
    assert result.rate == 22050
    assert np.allclose(result.samples, signal[:, 0], atol=0.01 if subtype == "PCM_U8" else 1e-4)


def test_what_follows_the_data_chunk_of_a_wav_is_not_audio():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16000)
        out.writeframes(b"\1\0" * 100)
    result = heard([file.getvalue() + b"LIST\4\0\0\0abcd"])
    assert result.counts.sum() == 100


@pytest.mark.parametrize(
    "data",
    [
        b"RIFF",
        wav_header(24000).data[:30],
        wav_header(0).data,
        wav_header(24000, bits=24).data,
        b"RIFFxxxxWAVEdata\0\0\0\0",
    ],
)
def test_a_broken_wav_is_a_format_failure(data):
    assert heard([data]).failure.kind == "format"


def test_stereo_pcm_told_by_header_is_averaged():
    samples = np.array([[100, 300], [-200, 0]], dtype="<i2")
    result = heard([samples.tobytes()], headers={"x-channels": "2", "x-sample-rate": "8000"})
    assert result.samples == pytest.approx(np.array([200, -100]) / 32768)


def test_not_a_number_survives_in_floats_from_the_engine():
    samples = np.array([0.5, np.nan, np.inf], dtype="<f4")
    result = heard([samples.tobytes()], framing="float32", headers={"x-sample-rate": "24000"})
    assert np.isnan(result.samples[1])
    assert np.isinf(result.samples[2])


def event(kind, **fields):
    return f"event: {kind}\r\ndata: {json.dumps({'type': kind, **fields})}\r\n\r\n".encode()


@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_events_count_when_they_are_complete_wherever_they_are_split(cuts):
    audio = np.arange(50, dtype="<i2").tobytes()
    stream = b": comment\r\n\r\n" + event(
        "speech.audio.delta", audio=base64.b64encode(audio).decode()
    )
    stream += event("speech.audio.done", usage={"input_tokens": 3, "output_tokens": 4})
    result = heard(split(stream, cuts), framing="sse")
    assert result.failure is None
    assert result.audio == audio
    assert (result.input_tokens, result.output_tokens) == (3, 4)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"data: {not json}\n\n", "protocol"),
        (b"data: [1]\n\n", "protocol"),
        (event("speech.audio.delta", audio="***"), "protocol"),
        (event("speech.audio.delta", audio=""), "incomplete"),
        (b"", "incomplete"),
        (b"data: [DONE]\n\n", "no_audio"),
        (event("speech.audio.error", error={"message": "no"}), "server_error"),
        (event("error", message="no"), "server_error"),
    ],
)
def test_event_streams_that_go_wrong_are_named(data, kind):
    assert heard([data], framing="sse").failure.kind == kind


def test_an_error_page_keeps_its_message_without_the_envelope():
    assert heard([b'{"error": {"message": "busy"}}'], status=429).failure == ("http_429", "busy")
    assert heard([b'{"detail": "not ready"}'], status=503).failure == ("http_503", "not ready")
    assert heard([b"<html>oops"], status=502).failure == ("http_502", "<html>oops")


def test_usage_headers_give_token_counts_of_raw_streams():
    headers = {"x-vllm-omni-input-tokens": "12", "x-vllm-omni-output-tokens": "77"}
    result = heard([b"\1\0"], headers=headers)
    assert (result.input_tokens, result.output_tokens) == (12, 77)


@given(
    st.lists(st.binary(max_size=60), max_size=6),
    st.sampled_from(["raw", "sse", "websocket", "float32"]),
)
def test_no_bytes_make_the_decoder_raise(parts, framing):
    decode(
        *reply(
            [p for p in parts if p],
            kind=ArrivalKind.TEXT if framing == "websocket" else ArrivalKind.BODY,
        ),
        framing,
        24000,
    )


@given(st.binary(max_size=80))
def test_no_wav_header_makes_the_decoder_raise(tail):
    heard([b"RIFF" + tail])
    heard([wav_header(24000).data[:20] + tail])
