"""Voices: a recording as the encoder wants it, and files with a voice's keys and values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stentor.audio import Recording
from stentor.errors import CheckpointError
from stentor.models.base import Voice
from stentor.models.calm_config import LayerConfig
from stentor.models.weights import read_safetensors

FRAMES_PER_SECOND = 50  # of levels, and seconds of silence at the end
PAUSE = 0.08
QUIET_DB = 35.0  # below the loudest frame
CACHE = "transformer.layers.{}.self_attn/"


def ending_on_pause(recording: Recording) -> Recording:
    """The recording without what is quiet at its end, its last 20 ms faded out, and 80 ms of
    silence behind it.

    Speech that begins in the middle of a recording's last word sounds cut.
    """
    x = recording.samples
    n = max(1, recording.rate // FRAMES_PER_SECOND)
    blocks = x[: len(x) // n * n].reshape(-1, n)
    if not len(blocks):
        return recording
    db = 20 * np.log10(np.sqrt((blocks**2).mean(1, dtype=np.float32)) + 1e-12)
    end = (int(np.flatnonzero(db > db.max() - QUIET_DB)[-1]) + 1) * n
    trimmed = x[:end].copy()
    trimmed[-n:] *= np.linspace(1, 0, n, dtype=np.float32)
    silence = np.zeros(int(PAUSE * recording.rate), np.float32)
    samples = np.concatenate([trimmed, silence])
    return Recording(samples, recording.rate)


def read_voice(file: Path, c: LayerConfig) -> Voice:
    """A voice as the package exports it, today or before: keys after RoPE and values, as in a
    prompt's prefix."""
    tensors = read_safetensors(file)
    layers = [_layer(tensors, CACHE.format(i), file) for i in range(c.layers)]
    shapes = {tuple(t.shape) for t in layers}
    if len(shapes) > 1 or shapes.pop()[2:] != (c.kv_heads, c.head_dim):
        raise CheckpointError(
            f"{file} is a voice of another checkpoint: its layers are {[list(t.shape) for t in layers]}"
        )
    return Voice(file.name, {"given": torch.stack(layers).numpy()})


def _layer(tensors: dict[str, Tensor], prefix: str, file: Path) -> Tensor:
    """Keys and values [2, L, heads, dim] of one layer. Slots that are not filled may hold NaN and
    are left out."""
    cache = tensors.get(f"{prefix}cache")
    offset = tensors.get(f"{prefix}offset")
    older = tensors.get(f"{prefix}current_end")
    if cache is None or (offset is None and older is None):
        raise CheckpointError(
            f"{file}: tensor {prefix}{'cache' if cache is None else 'offset'} is missing"
        )
    if cache.ndim != 5 or cache.shape[:2] != (2, 1):
        raise CheckpointError(
            f"{file}: tensor {prefix}cache has shape {list(cache.shape)}, not [2, 1, L, heads, dim]"
        )
    if offset is None and older is not None:
        length = len(older)
    elif offset is not None:
        length = int(offset[0])
    else:
        length = 0
    if not 0 < length <= cache.shape[2]:
        raise CheckpointError(
            f"{file}: {prefix}cache has {cache.shape[2]} positions, of which {length} are to be filled"
        )
    return cache[:, 0, :length].float()
