"""A toy with page sets that count frames: one that encodes the frames that are fed, and one that
`emit` attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.types import Column, torch_dtype
from stentor.models.base import Emit, FrameKVSpec, Hidden, KVView, Prompt, PromptRows, Rows, Voice
from stentor.models.info import SpeechRequest
from stentor.models.toy.config import HEARD, HIDDEN
from stentor.models.toy.model import Toy

HEADS, DIM = HEARD
PLAIN = NormRope()


class FramesToy(Toy):
    """Toy whose frames are encoded with all frames before, in two rows each, and whose hidden
    states of them are a history by frame. The frame that is being made sees that history and
    itself, and is then replaced in it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        width = HEADS * DIM
        dtype = torch_dtype(self.spec.kv.dtype)
        device = self.stop_head.weight.device
        self.heard = nn.Linear(HIDDEN, 2 * 3 * width)
        self.heard_out = nn.Linear(2 * width, HIDDEN)
        self.made = nn.Linear(HIDDEN, 3 * width)
        self.made_out = nn.Linear(width, HIDDEN)
        generator = torch.Generator().manual_seed(1)
        for layer in (self.heard, self.heard_out, self.made, self.made_out):
            for p in layer.parameters():
                p.data = torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5
            layer.to(device=device, dtype=dtype).requires_grad_(False)
        sets = {
            "heard": FrameKVSpec(layers=1, heads=HEADS, dim=DIM, dtype=dtype, rows=2),
            "made": FrameKVSpec(layers=1, heads=HEADS, dim=DIM, dtype=dtype, rows=1),
        }
        self.spec = replace(
            self.spec,
            frame_kv=sets,
            codec_timing=self.codec.timing,
            columns={**self.spec.columns, "given": Column(dtype=torch.int64)},
            prompt_rows={**self.spec.prompt_rows, "frame": Column(dtype=torch.int64)},
        )

    def prompt(self, request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        prompt = super().prompt(request, voices)
        prompt.rows["frame"] = np.arange(prompt.length)  # given frames stand first
        prompt.columns["given"] = len(prompt.frames)
        return prompt

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        number = torch.cat((p.rows["frame"], p.frame_at.new_zeros(1)))[p.frame_at]
        return *super().embed_prompt(p, rows), p.frame_at, number

    def embed_frame(self, rows: Rows) -> Hidden:
        at = torch.arange(len(rows["step"]), device=rows["step"].device)
        return *super().embed_frame(rows), at, rows["given"] + rows["step"] - 1

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        embedded, at, number = x
        if not len(at):
            return super().backbone((embedded,), kv)
        # padding of the frames stands behind the last token
        embedded = torch.cat((embedded, embedded[:1]))
        pos = 2 * number[:, None] + torch.arange(2, device=at.device)
        q, k, v = self.heard(embedded[at]).view(len(at) * 2, 3, HEADS, DIM).unbind(1)
        attended = kv.frame_kv.view("heard", pos)(0, q, k, v, PLAIN)
        embedded = embedded.index_add(
            0, at, self.heard_out(attended.reshape(len(at), 2 * HEADS * DIM))
        )
        (hidden,) = super().backbone((embedded[:-1],), kv)
        self._history(
            torch.cat((hidden, hidden[:1]))[at], kv.frame_kv.view("made", number[:, None])
        )
        return (hidden,)

    def _history(self, hidden: Tensor, attend: Any) -> Tensor:
        q, k, v = self.made(hidden).view(len(hidden), 3, HEADS, DIM).unbind(1)
        out: Tensor = self.made_out(attend(0, q, k, v, PLAIN).flatten(1))
        return out

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        number = (rows["given"] + rows["step"])[:, None]
        frames = self._history(h[0].sin(), rows.frame_kv.view("made", number))
        return super().emit((h[0] + 0.5 * frames,), rows, u)
