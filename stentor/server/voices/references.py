"""Reference audio from a request or an upload, found and decoded within limits."""

from __future__ import annotations

import binascii
import io
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import numpy as np
import pybase64
import soundfile

from stentor.audio import mono
from stentor.server.config import MIB, ServerConfig
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.voices.fetch import Fetcher, Resolver

Audio = tuple[np.ndarray, int]
"""Mono float32 samples [n] and their rate in Hz."""

MIN_RATE, MAX_RATE, MAX_CHANNELS = LIMITS.min_audio_hz, LIMITS.max_audio_hz, LIMITS.audio_channels
BLOCK_SECONDS = 4.0


class References:
    """Audio by data: URI, base64, http(s) URL or file: URL."""

    def __init__(self, config: ServerConfig, fetcher: Fetcher | None = None) -> None:
        self.max_bytes = int(config.max_upload_mb * MIB)
        self.remote = config.allow_remote_references
        local = config.allowed_local_media_path
        self.local = None if local is None else Path(local).expanduser().resolve()
        domains, resolver = config.allowed_media_domains, Resolver(LIMITS.dns_threads)
        self.fetcher = fetcher or Fetcher(self.max_bytes, config.media_timeout, domains, resolver)

    async def fetched(self, source: str, param: str) -> bytes | None:
        """What a URL names, None where `source` is none. ApiError 400 names `param`."""
        if not _is_url(source):
            return None
        if not self.remote:
            raise ApiError(400, f"{param}: this server fetches no URLs; send a data: URI", param=param)
        return await self.fetcher.get(source, param)

    def read(self, source: str, param: str, seconds: float, data: bytes | None) -> Audio:
        """Decode `data`, or else the file that `source` names, at most `seconds` long. For a thread. ApiError 400 names
        `param`."""
        return decode(self._file(source, param) if data is None else data, param, seconds)

    def held(self, source: str, param: str) -> bytes:
        """The file that a data: URI or base64 holds. For a thread. ApiError 400 names `param`."""
        if source[:5].lower() == "data:":
            return self._data_uri(source, param)
        return self._base64(source, param)

    def changes(self, source: str) -> bool:
        """Whether it names a file, which may change on disk."""
        return source[:5].lower() == "file:" or source.startswith(("/", "./", "../", "~"))

    def holds(self, source: str) -> bool:
        """Whether it is the audio itself, and names none."""
        return not _is_url(source) and not self.changes(source)

    def _data_uri(self, source: str, param: str) -> bytes:
        head, comma, payload = source.partition(",")
        if not comma:
            raise ApiError(400, f"{param}: the data: URI has no comma", param=param)
        if head.lower().endswith(";base64"):
            return self._base64(unquote(payload), param)
        return self._sized(unquote_to_bytes(payload), param)

    def _base64(self, payload: str, param: str) -> bytes:
        if len(payload) > self.max_bytes * 4 // 3 + 1024:
            raise self._too_large(param)
        try:
            return self._sized(from_base64(payload), param)
        except (binascii.Error, ValueError):
            raise ApiError(
                400, f"{param}: must be a data: URI, an http(s) URL, or base64 of an audio file", param=param
            ) from None

    def _file(self, source: str, param: str) -> bytes:
        refused = ApiError(400, f"{param}: this file may not be read", param=param, code="path_not_allowed")
        if self.local is None:
            raise ApiError(
                400,
                f"{param}: this server reads no local files; send a data: URI",
                param=param,
                code="path_not_allowed",
            )
        try:
            path = source
            if source[:5].lower() == "file:":
                parts = urlsplit(source)
                if parts.netloc not in ("", "localhost"):
                    raise refused
                path = unquote(parts.path)
            real = Path(path).resolve(strict=True)  # follows links, so that a link cannot lead outside
            if not real.is_relative_to(self.local):
                raise refused
            if real.is_dir():
                raise ApiError(
                    400, f"{param}: is a directory; name an audio file", param=param, code="path_not_allowed"
                )
            if not real.is_file():
                raise refused
            if real.stat().st_size > self.max_bytes:
                raise self._too_large(param)
            return real.read_bytes()
        except (OSError, ValueError, RuntimeError):
            raise refused from None

    def _sized(self, data: bytes, param: str) -> bytes:
        if len(data) > self.max_bytes:
            raise self._too_large(param)
        return data

    def _too_large(self, param: str) -> ApiError:
        return ApiError(400, f"{param}: is larger than {self.max_bytes / MIB:g} MiB", param=param)


def _is_url(source: str) -> bool:
    return source[:7].lower() == "http://" or source[:8].lower() == "https://"


def from_base64(payload: str) -> bytes:
    """The bytes of base64, which may have white space in it. binascii.Error or ValueError where it is not."""
    try:
        return pybase64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        return pybase64.b64decode("".join(payload.split()), validate=True)


def decode(data: bytes, param: str, seconds: float) -> Audio:
    """Mono samples of an audio file. It is read block by block, so that a small file cannot expand to gigabytes.

    libsndfile reads wav, flac, ogg and mp3. FFmpeg reads mp4/m4a, webm and aac, which browsers record. The format is
    given to it, because its own detection includes playlist formats that open other files.
    """
    if not data:
        raise ApiError(400, f"{param}: is empty", param=param)
    try:
        container = sniff(data)
        if container is None:
            return _by_libsndfile(data, param, seconds)
        return _by_ffmpeg(data, container, param, seconds)
    except (soundfile.LibsndfileError, RuntimeError, ValueError, OSError, IndexError):
        raise ApiError(
            400, f"{param}: is not readable audio (wav, flac, ogg, mp3, m4a, webm, aac)", param=param
        ) from None


def sniff(data: bytes) -> str | None:
    """FFmpeg's name of a container that libsndfile does not read, None for the others."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):
        return "aac"
    return None


def _by_libsndfile(data: bytes, param: str, seconds: float) -> Audio:
    with soundfile.SoundFile(io.BytesIO(data)) as f:
        _check_layout(f.samplerate, f.channels, param)
        frames, max_frames = 0, seconds * f.samplerate
        size = int(BLOCK_SECONDS * f.samplerate)
        samples = np.empty(max(0, min(f.frames, int(max_frames) + size)), np.float32)  # memory that is not there yet
        while count := mono(f, samples[frames : frames + size]):
            frames += count
            _check_length(frames, max_frames, param, seconds)
    if not frames:
        raise _empty(param)
    return (samples if frames == len(samples) else samples[:frames].copy()), f.samplerate


def _by_ffmpeg(data: bytes, container: str, param: str, seconds: float) -> Audio:
    import av  # large, and rarely needed

    try:
        return _by_av(data, container, param, seconds)
    except av.error.FFmpegError as e:
        raise ValueError(str(e)) from e


def _by_av(data: bytes, container: str, param: str, seconds: float) -> Audio:
    import av
    from av.audio.frame import AudioFrame

    with av.open(io.BytesIO(data), "r", format=container) as f:
        stream = f.streams.audio[0]
        codec = stream.codec_context
        if codec is None:  # the file does not say how its audio is coded, or FFmpeg does not know it
            raise ValueError("no codec")
        rate = codec.sample_rate
        _check_layout(rate, codec.channels, param)
        to_float = av.AudioResampler(format="flt", layout="mono", rate=rate)
        blocks, frames = [], 0
        for frame in f.decode(stream):
            assert isinstance(frame, AudioFrame)
            for part in to_float.resample(frame):
                frames += part.samples
                _check_length(frames, seconds * rate, param, seconds)
                blocks.append(part.to_ndarray()[0])
    return _joined(blocks, param), rate


def _check_layout(rate: int, channels: int, param: str) -> None:
    if not MIN_RATE <= rate <= MAX_RATE or not 1 <= channels <= MAX_CHANNELS:
        raise ApiError(
            400,
            f"{param}: has {channels} channels at {rate} Hz; at most {MAX_CHANNELS} at {MIN_RATE} to {MAX_RATE} Hz",
            param=param,
        )


def _check_length(frames: int, max_frames: float, param: str, seconds: float) -> None:
    if frames > max_frames:
        raise ApiError(400, f"{param}: is longer than {seconds:g} s", param=param)


def _empty(param: str) -> ApiError:
    return ApiError(400, f"{param}: holds no audio", param=param)


def _joined(blocks: list[np.ndarray], param: str) -> np.ndarray:
    if not blocks:
        raise _empty(param)
    return np.ascontiguousarray(np.concatenate(blocks), np.float32)
