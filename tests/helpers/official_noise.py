"""Noise of another implementation in place of a model's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor import TTS
from stentor.models.base import Rows


def give_noise(tts: TTS, noise: Mapping[int, np.ndarray]) -> None:
    """Requests with these seeds get these standard normals [steps, ...], where there are any."""
    model: Any = tts._model
    own = model.normals

    def normals(rows: Rows, u: Tensor) -> Tensor:
        drawn: Tensor = own(rows, u)
        numbers = zip(rows["seed"].tolist(), rows["step"].tolist(), strict=True)
        for row, (seed, step) in enumerate(numbers):
            if step < len(noise.get(seed, ())):
                drawn[row] = torch.from_numpy(noise[seed][step])
        return drawn

    model.normals = normals
