"""The language model, with what is added to every position of audio: how many speak, and the
pace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.linear import Linear
from stentor.models.calm_language_model import LanguageModel
from stentor.models.phonon.config import DurationConfig, PhononConfig


class SpeakerCount(nn.Module):
    """A vector for each number of speakers."""

    def __init__(self, c: PhononConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(c.speaker_rows, c.speaker_width)
        self.output_proj = nn.Linear(c.speaker_width, c.backbone.hidden, bias=False)

    def vector(self, speakers: int) -> Tensor:
        """The vector [hidden] of a number of speakers."""
        row = self.embed.weight[speakers]
        vector: Tensor = self.output_proj(row)
        return vector


class Duration(nn.Module):
    """Paces [...] -> [..., hidden], by cosines and sines of them. 0 is the model's own pace."""

    periods: Tensor

    def __init__(self, c: DurationConfig, hidden: int) -> None:
        super().__init__()
        self.config = c
        self.dtype = torch.float32
        self.output_proj = Linear(c.dim, hidden, bias=False)

    def process_weights_after_loading(self) -> None:
        """Make the table of periods, in float32 as the original does."""
        c = self.config
        half = c.dim // 2
        self.dtype = self.output_proj.weight.dtype
        device = self.output_proj.weight.device
        exponents = torch.arange(half, dtype=torch.float32, device=device) / (half - 1)
        periods = c.period**exponents
        self.register_buffer("periods", periods, persistent=False)

    def forward(self, pace: Tensor) -> Tensor:
        """pace [N] float32 -> [N, hidden]."""
        phases = pace[:, None] * self.config.scale / self.periods
        waves = torch.cat((phases.cos(), phases.sin()), dim=-1)
        out: Tensor = self.output_proj(waves.to(self.dtype))
        return out


class ConditionedLanguageModel(LanguageModel):
    """Named as in checkpoints. `process_weights_after_loading` must follow the loading."""

    speaker_vector: Tensor

    def __init__(self, c: PhononConfig) -> None:
        super().__init__(c)
        self.speakers = c.speakers
        self.num_speakers = SpeakerCount(c)
        self.duration_delta = Duration(c.duration, c.backbone.hidden)

    def process_weights_after_loading(self) -> None:
        """Make tables of what is the same for all requests."""
        super().process_weights_after_loading()
        vector = self.num_speakers.vector(self.speakers).detach()
        self.register_buffer("speaker_vector", vector, persistent=False)
        del self.num_speakers
        self.duration_delta.process_weights_after_loading()

    def condition(self, pace: Tensor) -> Tensor:
        """Return what is added to a position of audio: pace [N] float32 -> [N, hidden]."""
        out: Tensor = self.speaker_vector + self.duration_delta(pace)
        return out
