"""Tensor functions of models that speak in frames of codes while they read text.

One step is a backbone, which draws the first code, and then a loop over the others. Codes, hidden states and text rows
never leave the device between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from stentor.kernels.constants import NO_ID
from stentor.kernels.types import MinFrames, SamplingParams
from stentor.layers.depth_loop import CodePredictor, DepthLoop, Tables
from stentor.layers.frame_codes import embed_codes_and_text, embed_prompt, sample_first_codebook
from stentor.layers.linear import linear
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack, StackConfig
from stentor.layers.types import Column
from stentor.models.base import Emit, Hidden, KVView, ModelSpec, PromptRows, Rows

SUPPRESSED = 1024
"""The backbone never samples the last 1024 ids of its vocabulary, which are markers, except the end's."""

TEXT_CAPACITY = 4096
"""Text tokens that a request may still have to hear after its prompt."""

SAMPLING = ("temperature", "top_k", "top_p")


PROMPT_ROWS = {name: Column(dtype=torch.int32, fill=NO_ID) for name in ("text", "code")}
"""Ids at each position of a prompt, -1 where it has none. VECTOR_ID as a code: there stands the column `speaker`."""


def talker_columns(vocab: int, pad: int, speaker: int = 0) -> dict[str, Column]:
    """Columns of a row. vocab: of the first code. pad: the text id that stands beside frames after the text. speaker:
    numbers of the speaker vector, 0 without one."""
    return {
        **({"speaker": Column((speaker,))} if speaker else {}),
        "text": Column((TEXT_CAPACITY,), torch.int32, fill=pad),
        "seen": Column((vocab,), torch.bool),
        "repetition_penalty": Column(fill=1.0),
        "subtalker_temperature": Column(),
        "subtalker_top_k": Column(dtype=torch.int64),
        "subtalker_top_p": Column(fill=1.0),
    }


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder stack with its vocabulary and RoPE."""

    stack: StackConfig
    vocab: int
    theta: float
    positions: int


class Talker(Protocol):
    """Backbone, head of the first code, and predictor of the others, by the checkpoints' names."""

    @property
    def model(self) -> Stack: ...

    @property
    def codec_head(self) -> nn.Linear: ...

    @property
    def code_predictor(self) -> CodePredictor: ...


class TalkerWeights(Protocol):
    """The tensors of a checkpoint that are no codec's."""

    @property
    def talker(self) -> Talker: ...

    def process_weights_after_loading(self) -> Tables:
        """Project the embeddings into tables, and free them."""
        ...


class FrameTalker:
    """The members of a models.base.SpeechModel that make steps, for `talker_columns` and PROMPT_ROWS."""

    spec: ModelSpec

    def __init__(
        self,
        weights: TalkerWeights,
        talker: TransformerConfig,
        predictor: TransformerConfig,
        codebooks: int,
        positions: int,
        pad: int,
        eos: int,
    ) -> None:
        """`weights` are filled. Their embeddings are taken over and freed.

        positions: that a sequence may take. pad: as for `talker_columns`. eos: the first code that ends a request.
        """
        parts = weights.talker
        self._stack, self._head, loop = parts.model, parts.codec_head, parts.code_predictor
        device, dtype = self._head.weight.device, self._head.weight.dtype
        self._rope, depth_rope = rope(talker, positions, device, dtype), rope(predictor, codebooks, device, dtype)
        heads = loop.take_heads()
        # The last to allocate: what lay in the memory of the embeddings that this frees would keep it from the driver.
        self._tables = tables = weights.process_weights_after_loading()
        projection = loop.small_to_mtp_projection
        self._predictor = DepthLoop(predictor.stack, loop.model, heads, projection, tables, depth_rope)
        self._pad, self._eos = pad, eos

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """The sum of what each position has: a text row, a codec row, a frame, the speaker vector."""
        tables, vectors = self._tables, rows.column("speaker") if self.spec.speaker_size else None
        text, code = (p.rows["text"], tables.text), (p.rows["code"], tables.code.rows)
        return (embed_prompt(text, code, vectors, (p.frames, p.frame_at), tables.code),)

    def embed_frame(self, rows: Rows) -> Hidden:
        """The last frame's codes and the text that stands beside it."""
        tables, tokens = self._tables, rows.column("text")
        x = embed_codes_and_text(rows["prev"], tables.code, rows["step"], tokens, tables.text, self._pad)
        return (x,)

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        return (self._stack(x[0], kv.attend, self._rope, kv.pos),)

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        """Codebook 0 from the backbone, then the others from the predictor."""
        loop = self._predictor.start(h[0])
        stop, seen = sample_first_codebook(
            linear(h[0], self._head.weight),
            SamplingParams(u[:, 0], *(rows[name] for name in SAMPLING)),
            loop.first,
            rows.column("seen"),
            rows["repetition_penalty"],
            MinFrames(rows["step"], rows["min_frames"]),
            SUPPRESSED,
            self._eos,
        )
        frame = self._predictor(loop, u[:, 1:], *(rows["subtalker_" + name] for name in SAMPLING))
        return Emit(frame, stop, {"seen": seen})


def rope(c: TransformerConfig, positions: int, device: torch.device, dtype: torch.dtype) -> Rope:
    """cos and sin are rounded to the model's dtype and rotate in it, as in the reference."""
    return Rope(angles(c.stack.head_dim, positions, c.theta), dtype, interleaved=False, in_float32=False).to(device)
