"""VoxCPM2 behind the engine's seam: pure functions over rows (models/base.SpeechModel)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.layers.rng import grid_normal
from stentor.layers.types import Column
from stentor.models.base import (
    Emit,
    Encode,
    Hidden,
    KVSpec,
    KVView,
    ModelSpec,
    Option,
    Prompt,
    PromptRows,
    Rows,
    SpeechRequest,
)
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import VoxCPM2Config
from stentor.models.voxcpm2.flow import MAX_STEPS, FlowTables, evaluations, solve, solve_in_place
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import MIN_LEN, PromptBuilder

REFERENCE_SECONDS = (0.3, 120.0)


def options(defaults: Mapping[str, float]) -> dict[str, Option]:
    """What a request may set, with the checkpoint's own defaults."""
    return {
        "temperature": Option(defaults.get("temperature", 1.0), 0, 2, float, "scale of the initial noise; 0 is none"),
        "cfg": Option(defaults.get("cfg", 2.0), 0.1, 10, float, "classifier-free guidance"),
        "flow_steps": Option(int(defaults.get("flow_steps", 10)), 1, MAX_STEPS, int, "Euler steps per frame"),
        "min_frames": Option(
            int(defaults.get("min_frames", MIN_LEN + 1)), 0, 4096, int, "frames made before a stop counts"
        ),
        "max_frames": Option(int(defaults.get("max_frames", 4096)), 1, 8192, int, "frames kept at most"),
        "ignore_eos": Option(False, 0, 1, bool, "never stop before the frame limit"),
    }


def make_spec(c: VoxCPM2Config, dtype: torch.dtype) -> ModelSpec:
    """Facts about one checkpoint."""
    choices = options(c.defaults)
    steps = choices["flow_steps"].default
    return ModelSpec(
        family="voxcpm2",
        sample_rate=c.vae.out_sample_rate,
        hop=c.patch * c.vae.upsampling,
        frame=Column((c.patch, c.feat)),
        kv=KVSpec(c.base.layers + c.residual.layers, c.base.kv_heads, c.base.head_dim, dtype),
        max_model_len=c.max_length,
        draws=c.patch * c.feat,
        columns={"cfg": Column(fill=1.0), "flow_steps": Column(dtype=torch.int64, fill=1)},
        prompt_rows={"token": Column(dtype=torch.int64)},
        options=choices,
        stop_keeps_frame=True,
        reference_rate=c.vae.sample_rate,
        reference_seconds=REFERENCE_SECONDS,
        takes_instructions=c.takes_instructions,
        takes_reference=c.takes_reference,
        takes_prompt=c.takes_reference,
        codec_chunk=16,
        num_evals=evaluations(int(steps or 1)),
        threads=c.threads,
    )


class VoxCPM2:
    """A loaded checkpoint (implements SpeechModel). Frames are float32 patches [patch, feat]."""

    def __init__(self, c: VoxCPM2Config, net: VoxCPM2Net, vae: AudioVAE, prompts: PromptBuilder) -> None:
        self.net, self.vae, self.prompts = net, vae, prompts
        self.dtype = net.stop_head.weight.dtype
        self.spec = make_spec(c, self.dtype)
        self.codec = PatchCodec(vae)
        self.patch, self.feat = c.patch, c.feat
        self.dit = net.feat_decoder.estimator
        self.tables = FlowTables(self.dit)
        self.true = torch.ones(1, dtype=torch.bool, device=net.stop_head.weight.device)

    def encode(self, wav: Tensor, role: str) -> dict[str, Tensor]:
        """Audio [n] -> `patches` [M, patch, feat] float32. A reference is padded at its end, a prompt at its start,
        so that what is continued ends where the prompt ends."""
        span = self.patch * self.vae.config.hop
        missing = -wav.shape[-1] % span
        padded = F.pad(wav, (missing, 0) if role == "prompt" else (0, missing))
        latents = self.vae.encode_latents(padded.unsqueeze(0))
        return {"patches": latents.reshape(-1, self.patch, self.feat)}

    def prompt(self, request: SpeechRequest, encode: Encode) -> Prompt:
        return self.prompts.build(request, encode)

    def embed_prompt(self, p: PromptRows) -> Hidden:
        """Embeddings of tokens and of given patches: (input, patch embedding or zeros, is it audio)."""
        text = self.net.base_lm.embed_tokens(p.rows["token"])
        count = text.shape[0]
        audio = torch.zeros(count + 1, dtype=torch.bool, device=text.device)
        feat = text.new_zeros(count + 1, text.shape[1])
        if len(p.frames):
            audio = audio.index_fill(0, p.frame_at, True)  # a scalar, which a graph can hold
            feat[p.frame_at] = self.net.embed_patches(p.frames)
        audio, feat = audio[:count], feat[:count]
        return torch.where(audio.unsqueeze(-1), feat, text), feat, audio

    def embed_frame(self, rows: Rows) -> Hidden:
        feat = self.net.embed_patches(rows["prev"])
        return feat, feat, self.true.expand(len(feat))

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        inputs, feat, audio = x
        return self.net.think(inputs, feat, audio, kv.attend, kv.pos)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        lm_hidden, residual_hidden = h
        z = grid_normal(u, self.feat, rows["temperature"], self.dtype)
        mu = self.net.conditions(lm_hidden, residual_hidden)
        parts, asked = (self.dit, self.tables, self.net.rope), (rows["cfg"], rows["flow_steps"], rows.num_evals)
        if kernels.enabled(kernels.Kernel.FLOW, z):
            patch = solve_in_place(*parts, mu, rows["prev"], z, *asked)
        else:
            patch = solve(*parts, torch.stack(mu, dim=-2), rows["prev"].to(self.dtype), z, *asked)
        return Emit(patch, self.net.ends(lm_hidden), {})
