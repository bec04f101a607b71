"""Frames of codes with text beside them: embeddings of a prompt and of a frame, and the draw of the
first code.

Each is one function with its reference formula, and one kernel where that is enabled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.kernels import Kernel
from stentor.kernels.constants import VECTOR_ID
from stentor.kernels.types import MinFrames, RowRef, SampleOut, SamplingParams
from stentor.layers.sampling import penalize_seen, sample, store_sample


@dataclass(frozen=True)
class CodeTable:
    """Embeddings of all codebooks: code c of codebook g is row offset[g] + c of `rows` [V, H]."""

    offset: Tensor
    rows: Tensor

    def embed(self, codes: Tensor) -> Tensor:
        """codes [B, books] -> the sum of their embeddings [B, H], rounded once."""
        embeddings = F.embedding(codes + self.offset, self.rows)
        return embeddings.sum(1)


def embed_prompt(
    text: tuple[Tensor, Tensor],
    code: tuple[Tensor, Tensor],
    vectors: RowRef | None,
    frames: tuple[Tensor, Tensor],
    table: CodeTable,
) -> Tensor:
    """Prompt tokens [N, H], each the sum of what stands at its position.

    text, code: (index [N], rows [V, H]). A negative index adds nothing.
    vectors: of each token's request [slots, H]. It stands where the code is VECTOR_ID.
    frames: (codes [M, books], positions [M]). Frames at position N are padding.
    """
    if kernels.enabled(Kernel.EMBED, table.rows):
        codes, positions = frames
        kernel_frames = (codes, table.offset, table.rows, positions)
        return kernels.frame_codes.embed_prompt(text, code, vectors, kernel_frames)
    x = _rows_or_zeros(*text) + _rows_or_zeros(*code)
    if vectors is not None:
        vector_rows = vectors.table[vectors.idx].to(x.dtype)
        is_code = code[0] != VECTOR_ID
        x = x + vector_rows.masked_fill(is_code[:, None], 0)
    codes, positions = frames
    zeros = x.new_zeros(len(x) + 1, x.shape[1])
    frame_rows = zeros.index_copy(0, positions, table.embed(codes))
    return x + frame_rows[:-1]


def _rows_or_zeros(index: Tensor, table: Tensor) -> Tensor:
    """Rows of `table` at index [N], zeros where the index is negative."""
    rows = F.embedding(index.clamp_min(0).long(), table)
    is_missing = index < 0
    return rows.masked_fill(is_missing[:, None], 0)


def embed_codes_and_text(
    codes: Tensor,
    table: CodeTable,
    step: Tensor,
    tokens: RowRef,
    texts: Tensor,
    pad: int,
) -> Tensor:
    """Backbone input [B, H] after the frame codes [B, books], which were made at step - 1.

    It is the sum of the frame's embeddings and of the row of texts [T, H] of the text token that
    stands beside it: number step - 1 of tokens [slots, max_text], or `pad` after all of them.
    """
    if kernels.enabled(Kernel.EMBED, table.rows):
        return kernels.frame_codes.embed_codes_and_text(
            codes, table.offset, table.rows, step, tokens, texts, pad
        )
    position = step - 1
    max_text = tokens.table.shape[1]
    column = position.clamp(0, max_text - 1)
    token = tokens.table[tokens.idx, column].long()
    token = torch.where(position < max_text, token, pad)
    return table.embed(codes) + F.embedding(token, texts)


def sample_first_codebook(
    logits: Tensor,
    params: SamplingParams,
    out: SampleOut,
    history: RowRef,
    penalty: Tensor,
    min_frames: MinFrames,
    num_special: int,
    eos: int,
) -> tuple[Tensor, Tensor]:
    """`sample_into` after the repetition penalty [B] on the ids `history` [slots, V] bool.

    The last `num_special` ids are never drawn, except `eos`, which may be drawn once `min_frames`
    are made. Returns two bool tensors: [B], whether `eos` was drawn, and [B, V], the ids that have
    been seen now.
    """
    if kernels.enabled(Kernel.FUSED_SAMPLING, logits):
        return kernels.frame_codes.sample_first_codebook(
            logits, params, out, history, penalty, min_frames, num_special, eos
        )
    before = history.table[history.idx]
    ids = torch.arange(logits.shape[1], device=logits.device)
    logits = penalize_seen(logits.float(), before, penalty)
    is_early = (min_frames.step < min_frames.least)[:, None]
    is_eos = ids == eos
    is_special = ids >= len(ids) - num_special
    barred = (is_special & ~is_eos) | (is_early & is_eos)
    logits = logits.masked_fill(barred, float("-inf"))
    code = sample(logits, *params)
    store_sample(code, out)
    is_drawn = code[:, None] == ids
    return code == eos, before | is_drawn
