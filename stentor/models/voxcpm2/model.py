"""VoxCPM2 as a models.base.SpeechModel: pure functions over rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.attention import KeptQueries
from stentor.layers.rng import grid_normal, uniform
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompt, Prompted, PromptRows, Rows, Voice
from stentor.models.info import SpeechRequest
from stentor.models.lora import AdapterSlots
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import VoxCPM2Config
from stentor.models.voxcpm2.flow import euler_solve
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import PromptBuilder
from stentor.models.voxcpm2.spec import make_spec
from stentor.text import reads
from stentor.text.front_end import Check


class VoxCPM2(Prompted):
    """A loaded checkpoint (implements SpeechModel). Frames are float32 patches [patch, feat]."""

    def __init__(
        self,
        c: VoxCPM2Config,
        net: VoxCPM2Net,
        vae: AudioVAE,
        prompts: PromptBuilder,
        adapters: AdapterSlots,
    ) -> None:
        self.net = net
        self.vae = vae
        self.prompts = prompts
        self.reads = reads(c.text_frontend)
        self.adapters = adapters
        self.dtype = net.stop_head.weight.dtype
        self.spec = make_spec(c, self.dtype, adapters.columns)
        self.codec = PatchCodec(vae)
        self.patch = c.patch
        self.feat = c.feat
        self.dit = net.feat_decoder.estimator
        self.times = self.dit.times()
        self.true = torch.ones(1, dtype=torch.bool, device=net.stop_head.weight.device)
        self.first_draws: Tensor | None = None
        if c.first_patch_seed is not None:
            seed = torch.full((1,), c.first_patch_seed, dtype=torch.int64, device=self.true.device)
            self.first_draws = uniform(seed, torch.zeros_like(seed), self.spec.draws)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Audio [n] -> `patches` [M, patch, feat] float32. A reference is padded at its end, a
        prompt at its start, so that what is continued ends where the prompt ends."""
        patch_samples = self.patch * self.vae.config.hop
        missing = -wav.shape[-1] % patch_samples
        padded = F.pad(wav, (missing, 0) if role == "prompt" else (0, missing))
        latents = self.vae.encode_latents(padded.unsqueeze(0), launch)
        return {"patches": latents.reshape(-1, self.patch, self.feat)}

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        prompt = super().prompt(request, voices)
        self.times.prepare(int(prompt.columns["flow_steps"]))
        return prompt

    def speakable(self, text: str, check: Check) -> bool:
        return self.reads(text)

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """Embeddings of tokens and of reference patches: (input, patch embedding or zeros, is it
        audio)."""
        text = self.net.base_lm.embed_tokens(p.rows["token"])
        count = text.shape[0]
        audio = torch.zeros(count + 1, dtype=torch.bool, device=text.device)
        feat = text.new_zeros(count + 1, text.shape[1])
        if len(p.frames):
            audio = audio.index_fill(0, p.frame_at, True)  # a scalar, which a graph can hold
            with self.adapters.rows.at(p.frame_at):
                feat[p.frame_at] = self.net.embed_patches(p.frames)
        audio = audio[:count]
        feat = feat[:count]
        return torch.where(audio.unsqueeze(-1), feat, text), feat, audio

    def embed_frame(self, rows: Rows) -> Hidden:
        feat = self.net.embed_patches(rows["prev"])
        return feat, feat, self.true.expand(len(feat))

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        inputs, feat, audio = x
        if self.spec.alignment is None:
            return self.net.run_language_models(inputs, feat, audio, kv.attend, kv.pos)
        heads = self.spec.alignment
        keeping = KeptQueries(kv.attend, heads.layers, heads.heads)
        hidden = self.net.run_language_models(inputs, feat, audio, keeping.attend, kv.pos)
        return *hidden, torch.stack(keeping.queries, dim=1)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        lm_hidden, residual_hidden, *queries = h
        if self.first_draws is not None:
            u = torch.where(rows["step"].unsqueeze(1) == 0, self.first_draws, u)
        z = grid_normal(u, self.feat, rows["temperature"], self.dtype)
        mu = self.net.conditions(lm_hidden, residual_hidden)
        cfg = rows["cfg"]
        steps = rows["flow_steps"]
        patch = euler_solve(
            self.dit,
            self.times.schedule,
            self.net.rope,
            mu,
            rows["prev"],
            z,
            cfg,
            steps,
            rows.num_evals,
        )
        return Emit(patch, self.net.stop(lm_hidden), {}, queries=queries[0] if queries else None)
