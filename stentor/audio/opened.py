"""An audio file that a decoder has opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

MAX_CHANNELS = 8
BLOCK_FRAMES = 1 << 17  # 4 MiB of float32 with eight channels
PADDING = 4096
"""Samples that lossy encoders put around the audio at most, which a file does not always state."""


class BadAudio(ValueError):
    """The file cannot be used. The message follows the name of a file or a field."""


class Undecodable(Exception):
    """The decoder cannot read the file, another one may."""


@dataclass(frozen=True)
class OpenedAudio:
    """Audio at `rate` Hz. padding: samples that its codec may have put around it. blocks: float32
    [n, channels] in [-1, 1]."""

    rate: int
    channels: int
    padding: int
    blocks: Iterator[np.ndarray]
