"""Random weights for modules that are not loaded: full-size dummies and the start of training."""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def initialise(module: nn.Module, seed: int) -> None:
    """Fill every parameter in place on its own device, reproducibly from `seed`.

    Norms, snakes and rate scales start as the identity, matrices uniform within 1 / sqrt(fan in) (torch's default),
    biases at zero.
    """
    generators: dict[torch.device, torch.Generator] = {}
    for name, p in module.named_parameters():
        if p.device not in generators:
            generators[p.device] = torch.Generator(p.device).manual_seed(seed)
        if name.endswith(("alpha", "norm.weight", "layernorm.weight", "scale_embed.weight")):
            p.fill_(1)
        elif p.ndim == 1 or name.endswith("bias_embed.weight"):
            p.zero_()
        else:
            bound = 1 / math.sqrt(p[0].numel())
            p.uniform_(-bound, bound, generator=generators[p.device])
