"""The spectrum of Kokoro's source by the modules, with phases of half a turn as products have them.

A row's first frame is symmetric: parts of it are zero, and their sign is a rounding error of the library.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.models.kokoro.codec import Generator, reflected_places, step_mask
from stentor.models.kokoro.transforms import Transforms


def spectrum(self: Generator, source: Tensor, lengths: Tensor) -> Tensor:
    """In place of `Generator._spectrum`."""
    transforms = Transforms(self.c.fft, self.c.hop, source.device)
    rows = source.float().gather(1, reflected_places(source, lengths, self.c))
    count = source.shape[1] // self.c.upsampling
    rate = self.c.upsampling // self.c.hop
    mask = step_mask(lengths, count, rate, extra=1)
    return torch.cat(transforms.spectrum(rows), dim=-1).transpose(1, 2) * mask
