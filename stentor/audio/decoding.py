"""Decoding of audio files, the same for Python, the command line and the server.

libsndfile decodes wav and its relatives, FFmpeg (PyAV) all else. What one of them cannot read is
tried with the other. Files may come from strangers: length, memory and CPU time are bounded
whatever a file states.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import numpy as np

from stentor.audio.channels import Mono
from stentor.audio.containers import container_of
from stentor.audio.ffmpeg import open_by_ffmpeg
from stentor.audio.input_file import InputFile
from stentor.audio.libsndfile import open_by_libsndfile
from stentor.audio.opened import MAX_CHANNELS, BadAudio, OpenedAudio, Undecodable

MIN_RATE = 1000  # Hz
MAX_RATE = 192_000
CPU_SECONDS = 1.0  # of decoding, and for each second of the longest audio:
CPU_PER_SECOND = 0.05

LIBSNDFILE_FIRST = ("wav", "w64", "aiff", "au", "caf")
"""Containers that libsndfile reads better. It ends flac, ogg and mp3 at the first fault or join."""

LIBSNDFILE_LAST = ("flac", "ogg")
"""Containers that it reads too. For broken mp3 it prints lines to standard error."""

READABLE = "wav, flac, ogg, mp3, m4a, webm, aac, wma, amr and others"
WITHOUT_PYAV = "wav, flac, ogg, mp3; others need PyAV: pip install 'stentor[audio]'"

Open = Callable[[], AbstractContextManager[OpenedAudio]]


def decode(content: bytes | Path, longest: float) -> tuple[np.ndarray, int]:
    """Decode mono float32 samples [n] in [-1, 1], and their rate in Hz. For a thread.

    content: of a file, or its path. longest: seconds, beyond which it is refused. BadAudio names
    the fault, OSError is of a file that cannot be read.
    """
    if content == b"":
        raise BadAudio("is empty")
    is_empty = False
    with InputFile(content, CPU_SECONDS + CPU_PER_SECOND * longest) as file:
        for open_audio in _decoders(file):
            with suppress(Undecodable):
                samples, rate = _mono(open_audio, longest)
                if len(samples) and not file.out_of_time:
                    return samples, rate
                is_empty = True
            if file.out_of_time:
                raise BadAudio("takes too long to decode")
    if is_empty:
        raise BadAudio("holds no audio")
    kinds = READABLE if _has_pyav() else WITHOUT_PYAV
    raise BadAudio(f"is not readable audio ({kinds})")


def _has_pyav() -> bool:
    return importlib.util.find_spec("av") is not None


def _decoders(file: InputFile) -> Iterator[Open]:
    """List the decoders that may read the file, the best first."""
    container = container_of(file)
    by_libsndfile = partial(open_by_libsndfile, file)
    if container is None or not _has_pyav():
        yield by_libsndfile
        return
    by_ffmpeg = partial(open_by_ffmpeg, file, container)
    if container in LIBSNDFILE_FIRST:
        yield by_libsndfile
    yield by_ffmpeg
    if container in LIBSNDFILE_LAST:
        yield by_libsndfile


def _mono(open_audio: Open, longest: float) -> tuple[np.ndarray, int]:
    mono = Mono()
    samples, rate = _mixed(open_audio, longest, mono)
    if mono.instead is not None:
        samples, rate = _mixed(open_audio, longest, Mono(mono.instead))
    return samples, rate


def _mixed(open_audio: Open, longest: float, mono: Mono) -> tuple[np.ndarray, int]:
    """The samples of one pass through the file, and their rate."""
    parts = [np.zeros(0, np.float32)]
    num_frames = 0
    with open_audio() as audio:
        _check_layout(audio)
        limit = int(longest * audio.rate)
        for block in audio.blocks:
            num_frames += len(block)
            if num_frames > limit + audio.padding:
                raise BadAudio(f"is longer than {longest:g} s")
            parts.append(mono.mix(block))
    samples = np.concatenate(parts, dtype=np.float32)
    return samples[:limit], audio.rate


def _check_layout(audio: OpenedAudio) -> None:
    if MIN_RATE <= audio.rate <= MAX_RATE and 1 <= audio.channels <= MAX_CHANNELS:
        return
    raise BadAudio(
        f"has {audio.channels} channels at {audio.rate} Hz; "
        f"at most {MAX_CHANNELS} at {MIN_RATE} to {MAX_RATE} Hz"
    )
