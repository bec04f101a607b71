"""The network of VoxCPM2. Modules are named as in the checkpoint.

Serving and training call the same methods: attention is an argument, leading dimensions are free
([N] packed tokens or [B, T] whole sequences with `layers.attention.causal`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.configs import StackConfig
from stentor.layers.lora import project
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.voxcpm2.config import VoxCPM2Config
from stentor.models.voxcpm2.flow import LocDiT, last_layer_subset
from stentor.models.voxcpm2.ops import fsq_round, patch_tokens, select_and_concat, stop_head


class TextLM(Stack):
    """The base language model: a causal stack with a token embedding and no output head."""

    def __init__(self, c: StackConfig, vocab: int) -> None:
        super().__init__(c)
        self.embed_tokens = nn.Embedding(vocab, c.hidden)


class LocEnc(nn.Module):
    """One vector per patch: a learnt token in front of the latents, bidirectional layers, the
    token's output."""

    def __init__(self, c: StackConfig, feat: int) -> None:
        super().__init__()
        self.special_token = nn.Parameter(torch.empty(1, 1, 1, c.hidden))
        self.in_proj = nn.Linear(feat, c.hidden)
        self.encoder = Stack(c)

    def forward(self, patches: Tensor, rope: Rope) -> Tensor:
        """patches [N, P, feat], rounded to the model's dtype -> [N, hidden]."""
        x = patch_tokens(patches, self.in_proj, self.special_token)
        return last_layer_subset(self.encoder, x, rope, slice(0, 1))[:, 0]


class FSQ(nn.Module):
    """Finite scalar quantisation (Mentzer et al., 2024) between two projections, straight-through
    while training."""

    def __init__(self, hidden: int, dim: int, scale: int) -> None:
        super().__init__()
        self.in_proj = nn.Linear(hidden, dim)
        self.out_proj = nn.Linear(dim, hidden)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        levels = fsq_round(project(self.in_proj, x), self.scale, straight_through=self.training)
        return project(self.out_proj, levels)


class Flow(nn.Module):
    """Only a name in the checkpoint: `feat_decoder.estimator`."""

    def __init__(self, estimator: LocDiT) -> None:
        super().__init__()
        self.estimator = estimator


def sinusoids(length: int, hidden: int) -> Tensor:
    """Positions 0 .. length - 1 as sines and cosines of wavelengths from 2 pi to 2 pi * length
    (Vaswani et al., 2017): float32 [length, hidden]."""
    speed = length ** -torch.linspace(0, 1, hidden // 2)
    turns = torch.arange(length).unsqueeze(1) * speed
    return torch.cat((turns.sin(), turns.cos()), dim=1)


class VoxCPM2Net(nn.Module):
    """All weights but the autoencoder's. The two language models share one pool of keys and
    values."""

    def __init__(self, c: VoxCPM2Config, dtype: torch.dtype) -> None:
        super().__init__()
        hidden = c.base.hidden
        dit = c.dit.hidden
        self.base_lm = TextLM(c.base, c.vocab)
        self.residual_lm = Stack(c.residual, first_layer=c.base.layers)
        self.feat_encoder = LocEnc(c.encoder, c.feat)
        self.feat_decoder = Flow(LocDiT(c.dit, c.feat))
        self.fsq_layer = FSQ(hidden, c.fsq_dim, c.fsq_scale)
        self.enc_to_lm_proj = nn.Linear(c.encoder.hidden, hidden)
        self.lm_to_dit_proj = nn.Linear(hidden, dit)
        self.res_to_dit_proj = nn.Linear(hidden, dit)
        self.fusion_concat_proj = nn.Linear(2 * hidden, hidden)
        self.stop_proj = nn.Linear(hidden, hidden)
        self.stop_head = nn.Linear(hidden, 2, bias=False)
        self.to(dtype)
        # On the CPU even while the weights are on the meta device, and after `to`: the tables are
        # rounded, not cast.
        with torch.device("cpu"):
            if c.rope_factors is not None:
                factors = list(c.rope_factors)
            else:
                factors = None
            table = angles(c.base.head_dim, c.max_length, c.rope_theta, factors)
            self.rope = Rope(table, dtype, interleaved=False, in_float32=True)
            if c.counts_positions:
                counts = sinusoids(c.max_length, hidden)
            else:
                counts = torch.zeros(0)
        self.residual_rope = c.residual_rope
        self.counts_positions = c.counts_positions
        self.register_buffer("counts", counts, persistent=False)

    def embed_patches(self, patches: Tensor) -> Tensor:
        """patches [..., P, feat] -> backbone inputs [..., hidden]."""
        vectors = self.feat_encoder(patches.flatten(0, -3), self.rope)
        out = project(self.enc_to_lm_proj, vectors)
        return out.view(*patches.shape[:-2], out.shape[-1])

    def run_language_models(
        self, x: Tensor, feat: Tensor, audio: Tensor, attend: Attend, pos: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Both language models: inputs x [..., hidden], patch embeddings feat [..., hidden] (zeros
        at text), audio [...] bool, positions pos [...]. Returns lm_hidden and residual_hidden, each
        [..., hidden]."""
        if self.counts_positions:
            x = x + self.get_buffer("counts")[pos].masked_fill(audio.unsqueeze(-1), 0).to(x.dtype)
        h = self.base_lm(x, attend, self.rope, pos)
        h, both = select_and_concat(h, self.fsq_layer(h), feat, audio)
        fused = project(self.fusion_concat_proj, both)
        r = self.residual_lm(fused, attend, self.rope if self.residual_rope else None, pos)
        return h, r

    def conditions(self, h: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        """lm_hidden, residual_hidden [..., hidden] -> the two conditioning tokens mu [..., dit
        hidden]."""
        return project(self.lm_to_dit_proj, h), project(self.res_to_dit_proj, r)

    def stop(self, h: Tensor) -> Tensor:
        """lm_hidden [N, hidden] -> [N] bool, whether the patch made from it is the last."""
        return stop_head(project(self.stop_proj, h), self.stop_head)
