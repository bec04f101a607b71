"""The language model: text, a voice and frames to vectors, with the head that makes latents of
them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.linear import Linear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.models.calm_blocks import EPS, Transformer
from stentor.models.calm_config import CalmConfig
from stentor.models.calm_flow import FlowHead


class Conditioner(nn.Module):
    """Embeddings of tokens. A table of low rank is projected."""

    def __init__(self, c: CalmConfig) -> None:
        super().__init__()
        width = c.backbone.hidden
        self.embed = nn.Embedding(
            c.vocab + 1,
            c.text_rank or width,
        )
        self.proj = nn.Linear(c.text_rank, width, bias=False) if c.text_rank else None

    def table(self) -> Tensor:
        """All of them [vocab + 1, hidden]."""
        table: Tensor = self.embed.weight if self.proj is None else self.proj(self.embed.weight)
        return table


class LanguageModel(nn.Module):
    """Named as in checkpoints. `process_weights_after_loading` must follow the loading."""

    embeddings: Tensor

    def __init__(self, c: CalmConfig) -> None:
        super().__init__()
        width = c.backbone.hidden
        self.conditioner = Conditioner(c)
        self.bos_emb = nn.Parameter(torch.empty(c.latent))
        self.bos_before_voice = nn.Parameter(torch.empty(1, 1, width)) if c.voice_bos else None
        self.speaker_proj_weight = nn.Parameter(torch.empty(width, c.voice))
        self.input_linear = Linear(
            c.latent,
            width,
            bias=False,
        )
        self.transformer = Transformer(
            c.backbone,
            scaled=False,
        )
        self.out_norm = nn.LayerNorm(width, eps=EPS)
        self.z_proj = Linear(width, c.head.condition, bias=False) if c.projects_condition else None
        self.out_eos = nn.Linear(c.head.condition, 1)
        self.flow_net = FlowHead(c.head)

    def process_weights_after_loading(self) -> None:
        """Make one table of all that a prompt holds besides latents: tokens, then the beginning of
        a voice and that of the audio. The logit of an end is computed in float32 at least."""
        self.out_eos.to(torch.promote_types(self.out_eos.weight.dtype, torch.float32))
        table = self.conditioner.table()
        audio = self.input_linear(self.bos_emb)[None]
        if self.bos_before_voice is None:
            voice = torch.zeros_like(audio)
        else:
            voice = self.bos_before_voice[0]
        self.register_buffer(
            "embeddings", torch.cat((table, voice, audio)).detach(), persistent=False
        )
        del self.conditioner, self.bos_emb, self.bos_before_voice
        self.flow_net.process_weights_after_loading()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its sums."""
        return self.embeddings.dtype

    def end_logit(self, c: Tensor) -> Tensor:
        """c [N, condition] -> [N], of the frame that is made of it."""
        logit: Tensor = self.out_eos(c.to(self.out_eos.weight.dtype))[:, 0]
        return logit

    def run(
        self,
        x: Tensor,
        attend: Attend,
        rope: Rope,
        pos: Tensor,
    ) -> Tensor:
        """x [N, hidden] at positions pos [N] -> conditions of the head [N, condition]."""
        h: Tensor = self.out_norm(self.transformer(x, attend, RopePositions(rope, pos)))
        out: Tensor = h if self.z_proj is None else self.z_proj(h)
        return out
