"""Pocket-TTS as a models.base.SpeechModel: pure functions over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.lora import NO_ADAPTERS
from stentor.models.pocket_tts.blocks import make_rope
from stentor.models.pocket_tts.codec import Decoder, Encoder
from stentor.models.pocket_tts.config import PocketConfig
from stentor.models.pocket_tts.language_model import LanguageModel
from stentor.models.pocket_tts.prompt import PromptBuilder
from stentor.models.pocket_tts.spec import MAX_MODEL_LEN, NEVER, make_spec

FIRST_END = 6
"""The first frame that may end speech."""


class PocketTTS(Prompted):
    """A loaded checkpoint (implements SpeechModel). Frames are latents [latent] float32."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        c: PocketConfig,
        net: LanguageModel,
        decoder: Decoder,
        encoder: Encoder,
        prompts: PromptBuilder,
        language: str,
        clones: bool,
    ) -> None:
        """clones: whether the encoder's weights are those of the release that may clone."""
        self.net = net
        self.codec = decoder
        self.encoder = encoder
        self.prompts = prompts
        self.spec = make_spec(c, net.dtype, tuple(prompts.voices), language, clones)
        self.rope = make_rope(c.backbone, MAX_MODEL_LEN).to(net.embeddings.device)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Audio [n] -> `voice` [V, voice], its latents as they are encoded."""
        return {"voice": self.encoder(wav, launch)}

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        x = self.net.embeddings[p.rows["token"]]
        if not len(p.frames):
            return (x,)
        voice = p.frames.to(x.dtype) @ self.net.speaker_proj_weight.t()
        # Padding frames stand behind the last token.
        return (torch.cat((x, x[:1])).index_copy(0, p.frame_at, voice)[:-1],)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self.net.input_linear(rows["prev"].to(self.net.dtype)),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self.net.run(x[0], kv.attend, self.rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        (condition,) = h
        noise = self.normals(rows, u) * rows["noise_scale"][:, None]
        latent = self.net.flow_net(condition, noise, rows["flow_steps"], rows.num_evals)
        step = rows["step"]
        ends = (step >= FIRST_END) & (self.net.end_logit(condition) > rows["end_threshold"])
        ends_at = torch.where(ends, step + rows["tail"] - 1, NEVER).minimum(rows["ends_at"])
        return Emit(latent, step >= ends_at, {"ends_at": ends_at})

    def normals(self, rows: Rows, u: Tensor) -> Tensor:
        """Standard normals [B, latent] of uniforms u [B, latent], without the share that is cut off
        on either side."""
        below = rows["noise_below"][:, None]
        drawn: Tensor = torch.special.ndtri(torch.addcmul(below, u, 1 - 2 * below))
        return drawn
