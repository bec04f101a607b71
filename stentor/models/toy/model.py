"""A toy speech model with the traits that make engines go wrong.

A frame has a float part and a discrete part. There is a flow with a loop length and guidance per
request, a depth loop, a resample that depends on history, a long column read by step and reference
frames inside the prompt. Its codec is causal, with convolution and attention state, or decodes from
an utterance's beginning. With that one, frames may be hidden.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.errors import InvalidRequest, too_long
from stentor.layers.attention import KeptQueries
from stentor.layers.rng import normal
from stentor.layers.rope import Rope, angles
from stentor.layers.sampling import sample
from stentor.layers.transformer import Stack
from stentor.layers.types import Launch, eager
from stentor.models.base import (
    Emit,
    Hidden,
    KVView,
    Prompt,
    PromptRows,
    Rows,
    Voice,
    VoiceSource,
    reference_of,
)
from stentor.models.info import SpeechRequest
from stentor.models.lora import NO_ADAPTERS
from stentor.models.toy.codec import ToyCodec, UtteranceCodec
from stentor.models.toy.config import BOOK, CODES, HIDDEN, HOP, LATENT, MAX_TEXT, STACK, TEXT
from stentor.models.toy.spec import make_spec
from stentor.text.front_end import Check
from stentor.text.marks import has_words

_WORD = re.compile(rb"\S+")
BROKEN = "\x01 breaks the toy"
"""A text with this has a column that does not fit into its row. Its admission fails and must break
nothing else."""


class Toy(nn.Module):
    """See the module docstring. Frame: LATENT floats of a flow, then CODES integers (as floats) of
    a depth loop."""

    adapters = NO_ADAPTERS

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        codec: type[ToyCodec | UtteranceCodec] = ToyCodec,
        words: bool = False,
        window: tuple[int, int] | None = None,
    ) -> None:
        """words: it aligns words with frames. window: see AlignmentHeads."""
        super().__init__()
        self.text = nn.Embedding(TEXT, HIDDEN)
        self.trail = nn.Embedding(TEXT, HIDDEN)
        self.codes = nn.ModuleList(nn.Embedding(BOOK, HIDDEN) for _ in range(CODES))
        self.enc = nn.Linear(LATENT, HIDDEN)
        self.lm = Stack(STACK)
        self.flow = nn.Linear(HIDDEN + 2 * LATENT + 1, LATENT)
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, BOOK) for _ in range(CODES))
        self.stop_head = nn.Linear(HIDDEN, 1)
        self.codec = codec()
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator) / max(1.0, p.shape[-1] ** 0.5)
        self.rope = Rope(
            angles(STACK.head_dim, 4096, 1e4), torch.float32, interleaved=False, in_float32=True
        )
        self.to(device=device, dtype=dtype).requires_grad_(False)
        self.spec = make_spec(dtype, self.codec.timing, words, window)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        frames = F.pad(wav, (0, -len(wav) % HOP)).view(-1, HOP)
        latents = frames[:, :LATENT].to(self.spec.frame.dtype)
        codes = (frames[:, :CODES].abs() * BOOK).long().clamp_max(BOOK - 1)
        return {"frames": torch.cat((latents, codes.to(latents.dtype)), dim=-1)}

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        return reference_of(request)

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        if "\x00" in request.text:
            raise InvalidRequest("text", "must not contain NUL")
        voice_token = {"low": [1], "high": [2], None: []}[request.voice]
        tokens = voice_token + list(request.text.encode())
        if len(tokens) > MAX_TEXT:  # letters of several bytes
            raise too_long(len(tokens), MAX_TEXT, request.text)
        trail = [*tokens[::-1], *([0] * MAX_TEXT if BROKEN in request.text else [])]
        if voices:
            frames = voices[0].features["frames"]
        else:
            frames = np.zeros((0, LATENT + CODES), np.float32)
        o = request.options
        prefix = frames[-self.spec.codec_prefix :]
        token = np.array([0] * len(frames) + tokens, np.int64)
        text = {"text_start": len(frames) + len(voice_token), "text_end": len(token)}
        return Prompt(
            rows={"token": token, "given": np.arange(len(token)) < len(frames)},
            frames=frames,
            frame_at=np.arange(len(frames)),
            columns={
                "temperature": o["temperature"],
                "top_k": o["top_k"],
                "top_p": o["top_p"],
                "cfg": o["cfg"],
                "steps": o["flow_steps"],
                "trail": np.array(trail, np.int64),
                "trail_len": len(tokens),
                **({"hide": o["hide"]} if self.spec.hides_frames else {}),
                **(text if self.spec.alignment else {}),
            },
            max_frames=o["max_frames"],
            min_frames=o["min_frames"],
            voice=voices[0].id if voices else "",
            codec_prefix=prefix,
            codec_conditions=self.codec.conditions(prefix),
            num_evals=o["flow_steps"],
            runaway_frames=6 * len(tokens),
            words=tuple(range(*m.span()) for m in _WORD.finditer(request.text.encode()))
            if self.spec.alignment
            else (),
        )

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def _embed_frames(self, frames: Tensor) -> Tensor:
        codes = frames[:, LATENT:].long()
        out: Tensor = self.enc(frames[:, :LATENT])
        for j, table in enumerate(self.codes):
            out = out + table(codes[:, j])
        return out

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        token = p.rows["token"]
        frame_rows = self.text.weight.new_zeros(len(token) + 1, HIDDEN)
        frame_rows[p.frame_at] = self._embed_frames(p.frames)
        return (torch.where(p.rows["given"][:, None], frame_rows[:-1], self.text(token)),)

    def embed_frame(self, rows: Rows) -> Hidden:
        at = rows["step"] - 1
        trail = self.trail(rows.lookup("trail", at.clamp(0, MAX_TEXT - 1)))
        return (self._embed_frames(rows["prev"]) + trail * (at < rows["trail_len"])[:, None],)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        heads = self.spec.alignment
        if heads is None:
            return (self.lm(x[0], kv.attend, self.rope, kv.pos),)
        keeping = KeptQueries(kv.attend, heads.layers, heads.heads)
        return self.lm(x[0], keeping.attend, self.rope, kv.pos), torch.stack(keeping.queries, dim=1)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        hidden = h[0] + 0.1 * rows["mood"]
        latent = self._flow(hidden, rows, u)
        history, exists = rows.recent(3)
        codes = []
        depth = hidden
        for j, head in enumerate(self.heads):
            code = sample(
                head(depth).float(),
                u[:, LATENT + j],
                rows["temperature"],
                rows["top_k"],
                rows["top_p"],
            )
            # a first code seen in the last frames is drawn again, as in repetition-aware sampling
            if j == 0:
                again = sample(
                    head(depth).float(), u[:, -1], rows["temperature"], rows["top_k"], rows["top_p"]
                )
                repeated = ((history[:, :, LATENT].long() == code[:, None]) & exists).any(1)
                code = torch.where(repeated, again, code)
            codes.append(code)
            depth = depth + self.codes[j](code.clamp_min(0))
        code_frame = torch.stack(codes, -1)
        frame = torch.cat(
            (latent, code_frame.to(latent.dtype).masked_fill(code_frame < 0, float("nan"))), dim=-1
        )
        if self.spec.hides_frames:
            emitted = code_frame[:, 1] >= rows["hide"]
        else:
            emitted = None
        return Emit(
            frame,
            self.stop_head(hidden)[:, 0] > 1.5,
            {"mood": torch.tanh(rows["mood"] + hidden)},
            emitted,
            *h[1:],
        )

    def _flow(self, hidden: Tensor, rows: Rows, u: Tensor) -> Tensor:
        """Euler steps with guidance. A row whose `steps` are done does not change any more."""
        x = normal(u[:, :LATENT]).to(hidden.dtype) * rows["temperature"].to(hidden.dtype)[:, None]
        cond = rows["prev"][:, :LATENT]
        steps = rows["steps"]
        for i in range(rows.num_evals):
            t = (i / steps.to(hidden.dtype))[:, None]
            with_h, without = (
                self.flow(torch.cat((v, x, cond, t), -1))
                for v in (hidden, torch.zeros_like(hidden))
            )
            dt = torch.where(i < steps, 1.0 / steps, 0.0).to(hidden.dtype)[:, None]
            x = x + dt * (without + rows["cfg"][:, None] * (with_h - without))
        return x
