"""A continuous audio language model as tensor functions: pure functions over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.models.base import Emit, Hidden, KVView, ModelSpec, Prompted, PromptRows, Rows
from stentor.models.calm_blocks import make_rope
from stentor.models.calm_codec import Decoder
from stentor.models.calm_config import CalmConfig
from stentor.models.calm_language_model import LanguageModel
from stentor.models.calm_prompt import CalmPrompts
from stentor.models.calm_spec import MAX_MODEL_LEN, NEVER
from stentor.models.lora import NO_ADAPTERS

FIRST_END = 6
"""The first frame that may end speech."""


class CalmModel(Prompted):
    """The members of a SpeechModel but `encode`. Frames are latents [latent] float32."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        c: CalmConfig,
        net: LanguageModel,
        decoder: Decoder,
        prompts: CalmPrompts,
        spec: ModelSpec,
    ) -> None:
        self.net = net
        self.codec = decoder
        self.prompts = prompts
        self.spec = spec
        self.rope = make_rope(c.backbone, MAX_MODEL_LEN).to(net.embeddings.device)

    def embed_prompt(
        self,
        p: PromptRows,
        rows: Rows,
    ) -> Hidden:
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

    def emit(
        self,
        h: Hidden,
        rows: Rows,
        u: Tensor,
    ) -> Emit:
        (condition,) = h
        noise = self.normals(rows, u) * rows["noise_scale"][:, None]
        latent = self.net.flow_net(
            condition,
            noise,
            rows["flow_steps"],
            rows.num_evals,
        )
        step = rows["step"]
        ends = (step >= FIRST_END) & (self.net.end_logit(condition) > rows["end_threshold"])
        ends_at = torch.where(ends, step + rows["tail"] - 1, NEVER).minimum(rows["ends_at"])
        return Emit(
            latent,
            step >= ends_at,
            {"ends_at": ends_at},
        )

    def normals(self, rows: Rows, u: Tensor) -> Tensor:
        """Standard normals [B, latent] of uniforms u [B, latent], without the share that is cut off
        on either side."""
        below = rows["noise_below"][:, None]
        drawn: Tensor = torch.special.ndtri(torch.addcmul(below, u, 1 - 2 * below))
        return drawn
