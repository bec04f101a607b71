"""Reading of audio files by FFmpeg, by way of PyAV.

Only audio is decoded, also while FFmpeg probes the file, and memory and time are bounded whatever
the file states.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from stentor.audio.input_file import InputFile
from stentor.audio.opened import (
    BLOCK_FRAMES,
    MAX_CHANNELS,
    PADDING,
    BadAudio,
    OpenedAudio,
    Undecodable,
)

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer

DECODERS = (
    *("aac", "aac_latm", "ac3", "alac", "amrnb", "amrwb", "eac3", "flac", "g722", "g726", "g726le"),
    *("gsm", "gsm_ms", "libopencore_amrnb", "libopencore_amrwb", "libopus", "mp1", "mp1float"),
    *(
        "mp2",
        "mp2float",
        "mp3",
        "mp3float",
        "nellymoser",
        "opus",
        "speex",
        "tta",
        "vorbis",
        "wavpack",
    ),
    *("wmalossless", "wmapro", "wmav1", "wmav2", "wmavoice"),
    *("adpcm_ima_qt", "adpcm_ima_wav", "adpcm_ms", "pcm_alaw", "pcm_mulaw", "pcm_s8", "pcm_u8"),
    *("pcm_f32be", "pcm_f32le", "pcm_f64be", "pcm_f64le", "pcm_s16be", "pcm_s16le"),
    *("pcm_s24be", "pcm_s24le", "pcm_s32be", "pcm_s32le"),
)
"""FFmpeg's names of what it may decode: no pictures, no video, no subtitles."""

OPTIONS = {
    "codec_whitelist": ",".join(DECODERS),
    "probesize": str(1 << 18),  # bytes
    "analyzeduration": "1000000",  # microseconds
    "max_probe_packets": "256",
    "max_streams": "64",
}
DTYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "s64": "i8", "flt": "f4", "dbl": "f8"}
MAX_PACKET = 1 << 22  # bytes; a FLAC frame of eight channels has at most 2 MiB
MAX_BROKEN = 4096  # packets that cannot be decoded


@contextmanager
def open_by_ffmpeg(file: InputFile, container: str) -> Iterator[OpenedAudio]:
    """Open a file. container: FFmpeg's name of it. Undecodable if FFmpeg cannot read it."""
    import av  # large, and wav does not need it

    file.seek(0)
    try:
        opened = av.open(file, "r", format=container, options=dict(OPTIONS))
    except (av.error.FFmpegError, ValueError) as e:
        raise Undecodable from e
    with opened:
        stream = first_audio(opened)
        codec = stream.codec_context.codec
        frames = _frames(file, opened, stream)
        # its header may state another rate and layout: AAC doubles the rate in an extension
        first = next(frames, None)
        if first is None:
            raise Undecodable
        channels = first.layout.nb_channels
        blocks = (_block(frame, first.sample_rate, channels) for frame in chain([first], frames))
        padding = 0 if codec.lossless else PADDING
        yield OpenedAudio(first.sample_rate, channels, padding, blocks)


def first_audio(opened: InputContainer) -> AudioStream:
    """The first stream of audio. The packets of all others are dropped unread."""
    from av.audio.stream import AudioStream
    from av.stream import Discard

    first = None
    for stream in opened.streams:
        if first is None and isinstance(stream, AudioStream) and _is_allowed(stream):
            first = stream
        else:
            stream.discard = Discard.all
    if first is None:
        raise Undecodable
    return first


def _is_allowed(stream: AudioStream) -> bool:
    return stream.codec_context is not None and stream.codec_context.codec.name in DECODERS


def _frames(file: InputFile, opened: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decode frames to the end. A packet that cannot be decoded is left out."""
    import av

    codec = stream.codec_context
    codec.thread_count = 1  # so that the limit of CPU time counts its work
    codec.options = {"max_samples": str(BLOCK_FRAMES)}  # of a frame
    packets = opened.demux(stream)
    broken = 0
    while broken < MAX_BROKEN and not file.out_of_time:
        try:
            packet = next(packets, None)
        except av.error.FFmpegError:  # the container ends in a fault
            return
        if packet is None:
            return
        if packet.size > MAX_PACKET:
            broken += 1
            continue
        try:
            yield from packet.decode()
        except (av.error.FFmpegError, ValueError):
            broken += 1


def _block(frame: AudioFrame, rate: int, channels: int) -> np.ndarray:
    """float32 [n, channels] of a frame in any sample format."""
    num_channels = frame.layout.nb_channels
    if frame.sample_rate != rate or num_channels > MAX_CHANNELS:
        raise BadAudio(f"changes to {num_channels} channels at {frame.sample_rate} Hz inside")
    block = _as_float(_samples(frame))
    if num_channels != channels:
        block = np.repeat(block.mean(axis=1, keepdims=True), channels, axis=1)
    return block


def _samples(frame: AudioFrame) -> np.ndarray:
    """Samples [n, channels] as they are stored."""
    dtype = DTYPES[frame.format.name.removesuffix("p")]
    num_channels = frame.layout.nb_channels
    if not frame.format.is_planar:
        count = frame.samples * num_channels
        packed = np.frombuffer(memoryview(frame.planes[0]), dtype, count)
        return packed.reshape(-1, num_channels)
    # not frame.to_ndarray(): with eight channels PyAV reads a ninth plane, which is none
    planes = [memoryview(plane) for plane in frame.planes[:num_channels]]
    return np.stack([np.frombuffer(plane, dtype, frame.samples) for plane in planes], axis=1)


def _as_float(samples: np.ndarray) -> np.ndarray:
    """Samples float32 in [-1, 1] of floats or of integers at full scale."""
    if samples.dtype == np.uint8:
        samples = samples.astype(np.float32) - 128
        scale = 128.0
    elif np.issubdtype(samples.dtype, np.signedinteger):
        scale = -float(np.iinfo(samples.dtype).min)
    else:
        scale = 1.0
    floats: np.ndarray = samples.astype(np.float32) / np.float32(scale)
    return floats
