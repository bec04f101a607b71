"""The language model of Realtime, and what stands before and behind it. Modules are named as in
the checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.configs import StackConfig
from stentor.layers.linear import Linear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.transformer import Stack
from stentor.models.vibevoice.config import RealtimeConfig
from stentor.models.vibevoice.connector import Connector
from stentor.models.vibevoice.diffusion import DiffusionHead

LATENT = 0
TEXT = 1
"""Rows of the table of input types."""


class TextStack(Stack):
    """The layers that text alone goes through, with its embedding and without a final norm."""

    def __init__(self, c: StackConfig, vocab: int) -> None:
        super().__init__(c)
        del self.norm
        self.embed_tokens = nn.Embedding(vocab, c.hidden)

    def read(self, x: Tensor, attend: Attend, positions: RopePositions) -> Tensor:
        """x [N, hidden] of tokens -> [N, hidden]."""
        x, delta = self.blocks(x, attend, positions)
        if delta is None:
            return x
        return x + delta


class StopClassifier(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.fc1 = Linear(hidden, hidden)
        self.fc2 = Linear(hidden, 1)

    def forward(self, h: Tensor) -> Tensor:
        """h [B, hidden] of a latent that was fed -> probability [B] float32 that it is the last."""
        logit: Tensor = self.fc2(torch.relu(self.fc1(h)))[:, 0]
        return logit.float().sigmoid()


class RealtimeModel(nn.Module):
    """The parts that make latents."""

    def __init__(self, c: RealtimeConfig) -> None:
        super().__init__()
        hidden = c.upper.hidden
        self.language_model = TextStack(c.lower, c.vocab)
        self.tts_language_model = Stack(c.upper)
        self.tts_input_types = nn.Embedding(2, hidden)
        self.acoustic_connector = Connector(c.head.latent, hidden)
        self.prediction_head = DiffusionHead(c.head)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its activations."""
        return self.tts_input_types.weight.dtype

    def latent_inputs(self, z: Tensor) -> Tensor:
        """Latents [B, latent] as inputs [B, hidden] of the upper layers."""
        out: Tensor = (
            self.acoustic_connector(z.to(self.dtype)) + self.tts_input_types.weight[LATENT]
        )
        return out

    def text_inputs(self, x: Tensor, attend: Attend, positions: RopePositions) -> Tensor:
        """Embedded tokens [N, hidden] as inputs [N, hidden] of the upper layers."""
        read = self.language_model.read(x, attend, positions)
        return read + self.tts_input_types.weight[TEXT]


class RealtimeNet(nn.Module):
    """All of a checkpoint but the codec."""

    def __init__(self, c: RealtimeConfig) -> None:
        super().__init__()
        self.model = RealtimeModel(c)
        self.tts_eos_classifier = StopClassifier(c.upper.hidden)
