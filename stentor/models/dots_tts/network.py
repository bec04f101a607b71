"""The language model, the semantic encoder and the heads between them. Modules are named as in the
checkpoint."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.attention import Attend
from stentor.layers.configs import StackConfig
from stentor.layers.linear import Linear
from stentor.layers.lora import project
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, fused_layer, fuses_layers
from stentor.models.base import FrameKV
from stentor.models.dots_tts.config import EPS32, DotsConfig, LayersConfig
from stentor.models.dots_tts.flow import Attention, FeedForward, FlowHead

ENCODER = "encoder"
TOKENS = 2
"""The page set of the semantic encoder, and its tokens for each patch."""
PLAIN = NormRope()


class EncoderLayer(nn.Module):
    """One pre-norm layer: attention without positions, and SiLU between two linear layers."""

    def __init__(self, c: LayersConfig) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(c.hidden, EPS32, False)
        self.ffn_norm = RMSNorm(c.hidden, EPS32, False)
        self.attn = Attention(c)
        self.ffn = FeedForward(c)

    def forward(
        self, x: Tensor, delta: Tensor | None, layer: int, attend: Attend
    ) -> tuple[Tensor, Tensor | None]:
        """x [N, hidden] and delta stand for x + delta, or for x if delta is None. Returns the same
        for the output."""
        attn = self.attn
        ffn = self.ffn
        if (
            delta is None
            and x.dtype == self.attn_norm.weight.dtype
            and fuses_layers(x, *self.linear_layers)
        ):
            q, k, v = attn.heads_of(fused_layer(x, attn.qkv_proj, self.attn_norm.kernel_args))
            x = fused_layer(attend(layer, q, k, v, PLAIN).flatten(1), attn.o_proj, residual=x)
            h = F.silu(fused_layer(x, ffn.fc1, self.ffn_norm.kernel_args))
            return fused_layer(h, ffn.fc2, residual=x), None
        x, h = self.attn_norm.add_norm(x, delta)
        q, k, v = attn.heads_of(project(attn.qkv_proj, h))
        x, h = self.ffn_norm.add_norm(
            x, project(attn.o_proj, attend(layer, q, k, v, PLAIN).flatten(1))
        )
        return x, project(ffn.fc2, F.silu(project(ffn.fc1, h)))

    @property
    def linear_layers(self) -> tuple[nn.Linear, ...]:
        return self.attn.qkv_proj, self.attn.o_proj, self.ffn.fc1, self.ffn.fc2


class PatchEncoder(nn.Module):
    """Patches of raw latents to inputs of the language model, causal over all tokens of all
    patches."""

    def __init__(self, c: DotsConfig) -> None:
        super().__init__()
        assert c.patch == 2 * TOKENS
        self.ds_proj = nn.Conv1d(c.latent, c.latent, 2, stride=2)
        self.in_proj = Linear(c.latent, c.encoder.hidden)
        layers = nn.ModuleList(EncoderLayer(c.encoder) for _ in range(c.encoder.layers))
        self.encoder = nn.ModuleDict({"layers": layers})
        self.out_proj = Linear(TOKENS * c.encoder.hidden, c.language.hidden)

    def forward(self, latents: Tensor, number: Tensor, frames: FrameKV) -> Tensor:
        """latents [M, patch, D]: of each patch all but the last, behind the last one of the patch
        before. number [M]: of the patches, below 0 where there is none. Returns [M, hidden]."""
        weight = self.ds_proj.weight
        # each token is of two neighbours
        pairs = latents.to(weight.dtype).reshape(-1, 2 * weight.shape[1])
        x = self.in_proj(F.linear(pairs, weight.transpose(1, 2).flatten(1), self.ds_proj.bias))
        pos = TOKENS * number[:, None] + torch.arange(TOKENS, device=number.device)
        attend = frames.view(ENCODER, pos, stored=pos >= 0)
        delta: Tensor | None = None
        for i, layer in enumerate(self.encoder["layers"].children()):
            x, delta = layer(x, delta, i, attend)
        if delta is not None:
            x = x + delta
        out: Tensor = self.out_proj(x.view(len(number), -1))
        return out


class Qwen2(Stack):
    """The language model with its embedding, and without a head: every use of it reads hidden
    states."""

    def __init__(self, c: StackConfig, vocab: int) -> None:
        super().__init__(c)
        self.embed_tokens = nn.Embedding(vocab, c.hidden)


class LanguageModel(nn.Module):
    def __init__(self, c: DotsConfig) -> None:
        super().__init__()
        self.model = Qwen2(c.language, c.vocab)


class DotsNet(nn.Module):
    """All of model.safetensors."""

    def __init__(self, c: DotsConfig) -> None:
        super().__init__()
        hidden = c.language.hidden
        width = c.flow.hidden
        self.llm = LanguageModel(c)
        self.patch_encoder = PatchEncoder(c)
        self.hidden_proj = Linear(hidden, width)
        self.latent_proj = Linear(c.latent, width)
        self.coordinate_proj = Linear(c.latent, width)
        self.xvec_proj = nn.Sequential(Linear(c.speaker, width), nn.LayerNorm(width))
        self.eos_proj = nn.Sequential(Linear(hidden, hidden), nn.SiLU(), Linear(hidden, 2))
        self.velocity_field_predictor = FlowHead(c)

    def stop_probability(self, h: Tensor) -> Tensor:
        """h [B, hidden] -> [B] float32: whether the patch that it makes is the last."""
        logits: Tensor = self.eos_proj(h)
        return logits.float().softmax(-1)[:, 1]

    def voice(self, speaker: Tensor) -> Tensor:
        """Scaled speaker vectors [B, n] float32 -> conditions [B, width] of the flow. Those of
        zeros are zeros: a request without a voice has none."""
        g: Tensor = self.xvec_proj(speaker.to(self.hidden_proj.weight.dtype))
        return torch.where((speaker != 0).any(-1, keepdim=True), g, 0.0)


def language_rope(c: DotsConfig) -> Rope:
    table = angles(c.language.head_dim, c.positions, c.theta)
    return Rope(table, torch.float32, interleaved=False, in_float32=True)
