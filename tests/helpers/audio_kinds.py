"""Audio files of the kinds that people have, made with libsndfile and FFmpeg.

Each holds `SECONDS` of the same speech-like tone, at the rate and with the channels of its name. `scripts/audio_table.py` writes the table of docs/audio_files.md from them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import av
import numpy as np
import soundfile
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from stentor.output.encode import encoder, serial_number

SECONDS = 2.0
BLOCK = 1024
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov"}


@dataclass(frozen=True)
class Kind:
    """One kind of file. parts: of the tone that are in it. readable: whether it is audio."""

    name: str
    make: Callable[[], bytes]
    parts: float = 1.0
    readable: bool = True


def tone(rate: int, channels: int = 1) -> np.ndarray:
    """float32 [n, channels]: tones of 220 and 550 Hz whose loudness changes like that of speech."""
    t = np.arange(int(SECONDS * rate)) / rate
    voice = np.sin(2 * np.pi * 220 * t) + 0.3 * np.sin(2 * np.pi * 550 * t)
    loudness = 0.25 * (1 + np.sin(2 * np.pi * 3 * t)) / 2 + 0.05
    mono = (voice * loudness).astype(np.float32)
    return np.repeat(mono[:, None], channels, axis=1)


def by_libsndfile(format: str, subtype: str, rate: int = 16_000, channels: int = 1) -> bytes:
    out = io.BytesIO()
    samples = tone(rate, channels)
    soundfile.write(out, samples, rate, format=format, subtype=subtype)
    return out.getvalue()


def by_ffmpeg(
    muxer: str,
    codec: str,
    rate: int = 48_000,
    channels: int = 1,
    options: Mapping[str, str] | None = None,
    picture: str | None = None,
    comment: str | None = None,
    bit_rate: int | None = None,
) -> bytes:
    """picture: the codec of a video of a few frames beside the sound."""
    out = io.BytesIO()
    with av.open(out, "w", format=muxer, options=dict(options or {})) as container:
        if comment is not None:
            container.metadata["comment"] = comment
        layout = {1: "mono", 2: "stereo"}[channels]
        stream = container.add_stream(codec, rate=rate, layout=layout)
        assert isinstance(stream, AudioStream)
        if bit_rate is not None:
            stream.bit_rate = bit_rate
        if picture is not None:
            _add_picture(container, picture)
        samples = (tone(rate, channels) * 32767).astype(np.int16)
        size = stream.codec_context.frame_size or BLOCK
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate)
        for start in range(0, len(samples), size):
            block = samples[start : start + size].reshape(1, -1)
            frame = AudioFrame.from_ndarray(block, format="s16", layout=layout)
            frame.sample_rate = rate
            frame.pts = start
            for part in resampler.resample(frame):
                container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return out.getvalue()


def _add_picture(container: av.container.OutputContainer, codec: str) -> None:
    video = container.add_stream(codec, rate=10)
    assert isinstance(video, VideoStream)
    video.width = video.height = 64
    video.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    for number in range(10):
        pixels = np.full((64, 64, 3), 20 * number, np.uint8)
        frame = VideoFrame.from_ndarray(pixels, format="rgb24")
        container.mux(video.encode(frame))
    container.mux(video.encode(None))


def id3(content: int = 300) -> bytes:
    """An ID3v2.3 tag with a frame that holds `content` bytes."""
    frame = b"PRIV" + content.to_bytes(4, "big") + bytes(2) + bytes(content)
    size = len(frame)
    synchsafe = bytes((size >> shift) & 127 for shift in (21, 14, 7, 0))
    return b"ID3\3\0\0" + synchsafe + frame


def streamed(format: str, seed: int = 0) -> bytes:
    """An answer of stentor as it is streamed."""
    made = encoder(format, 24_000, False, serial=serial_number(seed, "tone"))
    return made.feed(tone(24_000)[:, 0]) + made.finish()


def silent_mp4() -> bytes:
    """A video without sound."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        _add_picture(container, "mpeg4")
    return out.getvalue()


def wav(rate: int = 16_000) -> bytes:
    return by_libsndfile("WAV", "PCM_16", rate)


def with_data_length(length: int) -> bytes:
    """A wav whose header states another length of its audio."""
    data = bytearray(wav())
    data[40:44] = length.to_bytes(4, "little")
    return bytes(data)


def cut(data: bytes, begin: float = 0.0, end: float = 1.0) -> bytes:
    return data[int(begin * len(data)) : int(end * len(data))]


def twice(data: bytes) -> bytes:
    return data + data


MP3 = partial(by_ffmpeg, "mp3", "libmp3lame", 24_000)
AAC = partial(by_ffmpeg, "adts", "aac", 24_000)
FLAC = partial(by_libsndfile, "FLAC", "PCM_16")
OPUS = partial(by_ffmpeg, "ogg", "libopus", options={"fflags": "bitexact"})

KINDS = (
    Kind("wav, 16 bits, 16 kHz", wav),
    Kind("wav, 8 bits", partial(by_libsndfile, "WAV", "PCM_U8", 8000)),
    Kind("wav, 24 bits, 96 kHz, stereo", partial(by_libsndfile, "WAV", "PCM_24", 96_000, 2)),
    Kind("wav, 32-bit floats, 48 kHz", partial(by_libsndfile, "WAV", "FLOAT", 48_000)),
    Kind("wav, extensible, 6 channels", partial(by_libsndfile, "WAVEX", "PCM_16", 48_000, 6)),
    Kind("wav, u-law", partial(by_libsndfile, "WAV", "ULAW", 8000)),
    Kind("wav, A-law", partial(by_libsndfile, "WAV", "ALAW", 8000)),
    Kind("wav, IMA ADPCM", partial(by_libsndfile, "WAV", "IMA_ADPCM", 8000)),
    Kind("wav, Microsoft ADPCM", partial(by_libsndfile, "WAV", "MS_ADPCM", 8000)),
    Kind("wav, GSM 6.10", partial(by_libsndfile, "WAV", "GSM610", 8000)),
    Kind("wav, G.721", partial(by_libsndfile, "WAV", "G721_32", 8000)),
    Kind("wav, NMS ADPCM 16 kbit/s", partial(by_libsndfile, "WAV", "NMS_ADPCM_16", 8000)),
    Kind("wav, NMS ADPCM 32 kbit/s", partial(by_libsndfile, "WAV", "NMS_ADPCM_32", 8000)),
    Kind("wav, streamed by stentor", partial(streamed, "wav")),
    Kind("wav, length 0 in its header", partial(with_data_length, 0)),
    Kind("wav, cut at its end", lambda: cut(wav(), end=0.5), 0.5),
    Kind("wav, joined: the first", lambda: twice(wav())),
    Kind("RF64", partial(by_libsndfile, "RF64", "PCM_16")),
    Kind("W64", partial(by_libsndfile, "W64", "PCM_16")),
    Kind("AIFF", partial(by_libsndfile, "AIFF", "PCM_16", 44_100, 2)),
    Kind("AU, u-law", partial(by_libsndfile, "AU", "ULAW", 8000)),
    Kind("CAF, ALAC", partial(by_libsndfile, "CAF", "ALAC_16", 44_100)),
    Kind("CAF, 16 bits", partial(by_ffmpeg, "caf", "pcm_s16le", 44_100)),
    Kind("flac, 24 bits, 96 kHz, stereo", partial(by_libsndfile, "FLAC", "PCM_24", 96_000, 2)),
    Kind("flac, streamed by stentor", partial(streamed, "flac")),
    Kind("flac, cut at its end", lambda: cut(FLAC(), end=0.6), 0.5),
    Kind("flac, cut in front", lambda: cut(FLAC(), 0.4), 0.4),
    Kind("flac, joined", lambda: twice(FLAC()), 2),
    Kind("flac in ogg", partial(by_ffmpeg, "ogg", "flac")),
    Kind("ogg, Vorbis, stereo", partial(by_libsndfile, "OGG", "VORBIS", 44_100, 2)),
    Kind("ogg, Opus", OPUS),
    Kind("ogg, Opus, joined", lambda: streamed("opus", 1) + streamed("opus", 2), 2),
    Kind("ogg, Opus, cut at its end", lambda: cut(OPUS(), end=0.6), 0.5),
    Kind("mp3", MP3),
    Kind("mp3, stereo, 320 kbit/s", partial(MP3, channels=2, bit_rate=320_000)),
    Kind("mp3, streamed by stentor", partial(streamed, "mp3")),
    Kind("mp3, two ID3 tags", lambda: id3(3000) + id3() + MP3()),
    Kind("mp3, cut at its end", lambda: cut(MP3(), end=0.6), 0.6),
    Kind("mp3, cut in front", lambda: cut(MP3(), 0.4), 0.6),
    Kind("mp3, padded in front", lambda: bytes(999) + MP3()),
    Kind("mp3, joined", lambda: twice(MP3()), 2),
    Kind("mp3 in wav", partial(by_ffmpeg, "wav", "libmp3lame", 24_000)),
    Kind("mp2", partial(by_ffmpeg, "mp2", "mp2", 48_000)),
    Kind("aac (ADTS)", AAC),
    Kind("aac with an ID3 tag", partial(AAC, options={"write_id3v2": "1"}, comment="AI-generated")),
    Kind("aac, cut in front", lambda: cut(AAC(), 0.4), 0.6),
    Kind("aac, joined", lambda: twice(AAC()), 2),
    Kind("m4a, AAC", partial(by_ffmpeg, "ipod", "aac", 44_100, 2)),
    Kind("m4a, ALAC", partial(by_ffmpeg, "ipod", "alac", 44_100)),
    Kind("mp4, AAC, fragmented", partial(by_ffmpeg, "mp4", "aac", options=FRAGMENTED)),
    Kind("mp4, AAC beside video", partial(by_ffmpeg, "mp4", "aac", picture="mpeg4")),
    Kind("mov, 16 bits", partial(by_ffmpeg, "mov", "pcm_s16le")),
    Kind("3gp, AMR", partial(by_ffmpeg, "3gp", "libopencore_amrnb", 8000)),
    Kind("amr", partial(by_ffmpeg, "amr", "libopencore_amrnb", 8000)),
    Kind("webm, Opus", partial(by_ffmpeg, "webm", "libopus")),
    Kind("webm, Opus beside video", partial(by_ffmpeg, "webm", "libopus", picture="libvpx")),
    Kind("mkv, FLAC", partial(by_ffmpeg, "matroska", "flac", 48_000, 2)),
    Kind("MPEG-TS, AAC", partial(by_ffmpeg, "mpegts", "aac")),
    Kind("wma", partial(by_ffmpeg, "asf", "wmav2", 44_100, bit_rate=64_000)),
    Kind("flv, mp3", partial(by_ffmpeg, "flv", "libmp3lame", 44_100)),
    Kind("ac3", partial(by_ffmpeg, "ac3", "ac3")),
    Kind("WavPack", partial(by_ffmpeg, "wv", "wavpack", 44_100)),
    Kind("True Audio", partial(by_ffmpeg, "tta", "tta", 44_100)),
    Kind("wav without samples", lambda: wav()[:44], 0, False),
    Kind("mp4 without sound", silent_mp4, 0, False),
    Kind("text", lambda: b"The herald has fifty voices. " * 99, 0, False),
    Kind("no bytes", bytes, 0, False),
)
"""The kinds of the table, in its order."""
