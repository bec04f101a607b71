"""CSM as a `stentor.models.base.SpeechModel`: one step is the backbone and then the depth decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.layers.attention import DepthKV
from stentor.layers.linear import linear
from stentor.layers.sampling import sample
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompt, PromptRows, Rows, Voice, VoiceSource
from stentor.models.info import SpeechRequest
from stentor.models.lora import NO_ADAPTERS
from stentor.text.front_end import Check
from stentor.text.marks import has_words
from stentor_csm.codec_decoder import Codec, Decoder
from stentor_csm.codec_encoder import Encoder
from stentor_csm.config import Config
from stentor_csm.prompt import build, references
from stentor_csm.spec import DEPTH_SAMPLING, SAMPLING, make_spec
from stentor_csm.tokenizer import Tokens
from stentor_csm.weights import Weights


class Csm:
    """A loaded checkpoint. Frame: the codes of all codebooks, int32."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        c: Config,
        weights: Weights,
        decoder: Decoder,
        encoder: Encoder,
        tokens: Tokens,
        defaults: Mapping[str, Any],
    ) -> None:
        """`decoder` is ready to decode. defaults: generation_config.json."""
        head, depth = weights.lm_head.weight, weights.depth_decoder
        device, dtype = head.device, head.dtype
        self.spec = make_spec(c, defaults, dtype)
        self.codec = Codec(decoder)
        self._c, self._tokens, self._encoder, self._head = c, tokens, encoder, head
        self._text, self._codes = weights.embed_text_tokens.weight, depth.model.embed_tokens.weight
        self._offset = torch.arange(c.codebooks, device=device) * c.vocab
        self._stack, self._depth = weights.backbone_model, depth.model
        self._heads = depth.codebooks_head.weight.detach().transpose(1, 2).contiguous()
        self._depth_codes = weights.projected_codes()
        self._rope = c.rope.rope(c.backbone.head_dim, c.positions, dtype).to(device)
        self._depth_rope = c.depth_rope.rope(c.depth.head_dim, c.codebooks + 1, dtype).to(device)
        self._pos = torch.arange(c.codebooks + 1, device=device)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """wav [n] at 24 kHz -> codes [ceil(n / hop), codebooks]."""
        return {"codes": self._encoder(wav, self._c.codebooks).int()}

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        return references(request)

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        return build(self._c, self._tokens, request, voices)

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def _embed_frames(self, frames: Tensor) -> Tensor:
        """The sum of the codes' embeddings: [N, codebooks] -> [N, hidden]."""
        return F.embedding(frames.long() + self._offset, self._codes).sum(1)

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        token = p.rows["token"].long()
        x = F.embedding(token.clamp_min(0), self._text)
        given = x.new_zeros(len(x) + 1, x.shape[1]).index_copy(
            0, p.frame_at, self._embed_frames(p.frames)
        )
        return (torch.where((token < 0)[:, None], given[:-1], x),)

    def embed_frame(self, rows: Rows) -> Hidden:
        return (self._embed_frames(rows["prev"]),)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self._stack(x[0], kv.attend, self._rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        hidden, c = h[0], self._c
        first = sample(linear(hidden, self._head), u[:, 0], *(rows[name] for name in SAMPLING))
        codes, params = [first], [rows[name] for name in DEPTH_SAMPLING]
        kv = DepthKV(
            c.depth.layers, len(hidden), c.codebooks + 1, c.depth.kv_heads, c.depth.head_dim, hidden
        )
        x = torch.stack(
            (
                linear(hidden, self._depth.inputs_embeds_projector.weight),
                self._depth_input(first, 0),
            ),
            dim=1,
        )
        for book in range(1, c.codebooks):
            pos = self._pos[kv.length : kv.length + x.shape[1]]
            logits = self._depth.head(x, kv.attend, self._depth_rope, pos, self._heads[book - 1])
            kv.advance(x.shape[1])
            codes.append(sample(logits, u[:, book], *params))
            x = self._depth_input(codes[-1], book)[:, None]
        frame = torch.stack(codes, dim=-1).int()
        return Emit(frame, (frame[:, :-1] == c.eos).all(-1), {})

    def _depth_input(self, code: Tensor, book: int) -> Tensor:
        """Codes [B] of a codebook as the depth decoder reads them: [B, depth hidden]."""
        return F.embedding(code.clamp_min(0) + book * self._c.vocab, self._depth_codes)
