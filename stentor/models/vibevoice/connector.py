"""Connectors: latents, or codes of an encoder, to inputs of the language model."""

from __future__ import annotations

from torch import Tensor, nn

from stentor.layers.linear import Linear
from stentor.layers.norm import RMSNorm

EPS = 1e-6


class Connector(nn.Module):
    """Latents to inputs of the language model."""

    def __init__(self, latent: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = Linear(latent, hidden)
        self.norm = RMSNorm(hidden, EPS)
        self.fc2 = Linear(hidden, hidden)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.norm(self.fc1(z)))
        return out
