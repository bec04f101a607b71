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
BROKEN = "ꙮ breaks the toy"
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
            scale = max(1.0, p.shape[-1] ** 0.5)
            p.data = torch.randn(p.shape, generator=generator) / scale
        table = angles(STACK.head_dim, 4096, 1e4)
        self.rope = Rope(table, torch.float32, interleaved=False, in_float32=True)
        self.to(device=device, dtype=dtype).requires_grad_(False)
        self.spec = make_spec(dtype, self.codec.timing, words, window)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        missing = -len(wav) % HOP
        frames = F.pad(wav, (0, missing)).view(-1, HOP)
        latents = frames[:, :LATENT].to(self.spec.frame.dtype)
        scaled = frames[:, :CODES].abs() * BOOK
        codes = scaled.long().clamp_max(BOOK - 1)
        encoded = torch.cat((latents, codes.to(latents.dtype)), dim=-1)
        return {"frames": encoded}

    def references(self, request: SpeechRequest) -> list[VoiceSource]:
        return reference_of(request)

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        if "\x00" in request.text:
            raise InvalidRequest("text", "must not contain NUL")
        data = request.text.encode()
        voice_token = {"low": [1], "high": [2], None: []}[request.voice]
        tokens = voice_token + list(data)
        if len(tokens) > MAX_TEXT:  # letters of several bytes
            raise too_long(len(tokens), MAX_TEXT, request.text)
        trail = tokens[::-1]
        if BROKEN in request.text:
            trail += [0] * MAX_TEXT
        if voices:
            voice = voices[0].id
            frames = voices[0].features["frames"]
        else:
            voice = ""
            frames = np.zeros((0, LATENT + CODES), np.float32)
        o = request.options
        prefix = frames[-self.spec.codec_prefix :]
        num_frames = len(frames)
        token = np.array([0] * num_frames + tokens, np.int64)
        length = len(token)

        further: dict[str, int] = {}
        if self.spec.hides_frames:
            further["hide"] = o["hide"]
        words: tuple[range, ...] = ()
        if self.spec.alignment:
            further["text_start"] = num_frames + len(voice_token)
            further["text_end"] = length
            spans = [m.span() for m in _WORD.finditer(data)]
            words = tuple(range(start, end) for start, end in spans)
        return Prompt(
            rows={"token": token, "given": np.arange(length) < num_frames},
            frames=frames,
            frame_at=np.arange(num_frames),
            columns={
                "temperature": o["temperature"],
                "top_k": o["top_k"],
                "top_p": o["top_p"],
                "cfg": o["cfg"],
                "steps": o["flow_steps"],
                "trail": np.array(trail, np.int64),
                "trail_len": len(tokens),
                **further,
            },
            max_frames=o["max_frames"],
            min_frames=o["min_frames"],
            voice=voice,
            codec_prefix=prefix,
            codec_conditions=self.codec.conditions(prefix),
            num_evals=o["flow_steps"],
            runaway_frames=6 * len(tokens),
            words=words,
        )

    def speakable(self, text: str, check: Check) -> bool:
        return has_words(text, self.spec.marks)

    def _embed_frames(self, frames: Tensor) -> Tensor:
        latents = frames[:, :LATENT]
        codes = frames[:, LATENT:].long()
        out: Tensor = self.enc(latents)
        for j, table in enumerate(self.codes):
            embedded = table(codes[:, j])
            out = out + embedded
        return out

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        token = p.rows["token"]
        frame_rows = self.text.weight.new_zeros(len(token) + 1, HIDDEN)
        frame_rows[p.frame_at] = self._embed_frames(p.frames)
        is_frame = p.rows["given"][:, None]
        embedded = torch.where(is_frame, frame_rows[:-1], self.text(token))
        return (embedded,)

    def embed_frame(self, rows: Rows) -> Hidden:
        at = rows["step"] - 1
        token = rows.lookup("trail", at.clamp(0, MAX_TEXT - 1))
        in_trail = at < rows["trail_len"]
        trail = self.trail(token) * in_trail[:, None]
        embedded = self._embed_frames(rows["prev"]) + trail
        return (embedded,)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        heads = self.spec.alignment
        if heads is None:
            hidden = self.lm(x[0], kv.attend, self.rope, kv.pos)
            return (hidden,)
        keeping = KeptQueries(kv.attend, heads.layers, heads.heads)
        hidden = self.lm(x[0], keeping.attend, self.rope, kv.pos)
        return hidden, torch.stack(keeping.queries, dim=1)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        mood = rows["mood"]
        hidden = h[0] + 0.1 * mood
        latent = self._flow(hidden, rows, u)
        history, exists = rows.recent(3)
        codes = []
        depth = hidden
        sampling = (rows["temperature"], rows["top_k"], rows["top_p"])
        for j, head in enumerate(self.heads):
            logits = head(depth).float()
            code = sample(logits, u[:, LATENT + j], *sampling)
            # a first code seen in the last frames is drawn again, as in repetition-aware sampling
            if j == 0:
                again = sample(logits, u[:, -1], *sampling)
                first_codes = history[:, :, LATENT].long()
                same = (first_codes == code[:, None]) & exists
                is_repeated = same.any(1)
                code = torch.where(is_repeated, again, code)
            codes.append(code)
            embedded = self.codes[j](code.clamp_min(0))
            depth = depth + embedded

        code_frame = torch.stack(codes, -1)
        values = code_frame.to(latent.dtype)
        values = values.masked_fill(code_frame < 0, float("nan"))
        frame = torch.cat((latent, values), dim=-1)
        emitted = None
        if self.spec.hides_frames:
            emitted = code_frame[:, 1] >= rows["hide"]
        stop_logit = self.stop_head(hidden)[:, 0]
        stop = stop_logit > 1.5
        new_mood = torch.tanh(mood + hidden)
        columns = {"mood": new_mood}
        return Emit(frame, stop, columns, emitted, *h[1:])

    def _flow(self, hidden: Tensor, rows: Rows, u: Tensor) -> Tensor:
        """Euler steps with guidance. A row whose `steps` are done does not change any more."""
        dtype = hidden.dtype
        noise = normal(u[:, :LATENT]).to(dtype)
        temperature = rows["temperature"].to(dtype)
        x = noise * temperature[:, None]
        cond = rows["prev"][:, :LATENT]
        steps = rows["steps"]
        guidance = rows["cfg"][:, None]
        nothing = torch.zeros_like(hidden)
        for i in range(rows.num_evals):
            time = i / steps.to(dtype)
            t = time[:, None]
            with_h = self.flow(torch.cat((hidden, x, cond, t), -1))
            without = self.flow(torch.cat((nothing, x, cond, t), -1))
            step = torch.where(i < steps, 1.0 / steps, 0.0)
            dt = step.to(dtype)[:, None]
            guided = without + guidance * (with_h - without)
            x = x + dt * guided
        return x
