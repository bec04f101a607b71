"""Reading of audio files by libsndfile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import soundfile

from stentor.audio.input_file import InputFile
from stentor.audio.opened import BLOCK_FRAMES, PADDING, OpenedAudio, Undecodable

FAILURES = (soundfile.LibsndfileError, RuntimeError, TypeError, ValueError, OSError)


@contextmanager
def open_by_libsndfile(file: InputFile) -> Iterator[OpenedAudio]:
    """Open a file. Undecodable if libsndfile does not know it."""
    file.seek(0)
    try:
        # anew for each pass: some of its codecs cannot seek
        opened: Any = soundfile.SoundFile(file)
    except FAILURES as e:
        raise Undecodable from e
    with opened:
        padding = PADDING if opened.format == "MPEG" else 0
        blocks = read_blocks(opened)
        yield OpenedAudio(opened.samplerate, opened.channels, padding, blocks)


def read_blocks(file: soundfile.SoundFile) -> Iterator[np.ndarray]:
    """Read blocks float32 [n, channels] in [-1, 1], to the end or the first fault."""
    # As stored: libsndfile makes floats of 16 bits in pieces of 8 KB, each by a call into Python.
    is_16_bit = file.subtype == "PCM_16"
    dtype = "int16" if is_16_bit else "float32"
    while True:
        try:
            block = file.read(BLOCK_FRAMES, dtype=dtype, always_2d=True)
        except FAILURES:
            return
        if not len(block):
            return
        if is_16_bit:
            block = block * np.float32(1 / 32768)
        yield block
