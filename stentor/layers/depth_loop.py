"""Codebooks after the first of a frame: one sample each of a small transformer, with a fresh KV
cache per frame.

Its first pass takes two tokens, the backbone's state and the first code: both are known. Names are
those of the checkpoints that have it: Qwen's talkers call it `code_predictor`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stentor import kernels
from stentor.kernels.buffers import empty_aligned
from stentor.kernels.types import SampleOut, SamplingParams
from stentor.layers.attention import DepthKV
from stentor.layers.configs import StackConfig
from stentor.layers.frame_codes import CodeTable
from stentor.layers.linear import QuantizedLinear, linear
from stentor.layers.quantized import dequantize
from stentor.layers.rope import Rope
from stentor.layers.sampling import sample_into
from stentor.layers.transformer import Stack

ROWS_PER_PASS = 8192
WIDE_ROWS = range(9, 33)
"""Numbers of rows that a loop in int8 multiplies in 16 bits. On an H200, a block of 16 rows takes
19.6 us in int8 and 15.8 in 16 bits, one of 8 rows 13.3 and 13.8, and a step of 64 rows 3.96 and
4.17 ms. 17 to 32 rows take 18 to 20 us in 16 bits by the tables, and were not timed in int8."""


class TextProjection(nn.Sequential):
    """Text width to the backbone's width: linear, SiLU, linear."""

    def __init__(self, inputs: int, inner: int, outputs: int) -> None:
        first = nn.Linear(inputs, inner)
        second = nn.Linear(inner, outputs)
        super().__init__(OrderedDict(linear_fc1=first, act=nn.SiLU(), linear_fc2=second))


def project(module: nn.Module, table: Tensor) -> Tensor:
    """module(table) row by row, in passes that bound the memory of the hidden layer."""
    with torch.no_grad():
        parts = [module(rows) for rows in torch.split(table, ROWS_PER_PASS)]
        return torch.cat(parts)


class PredictorStack(Stack):
    """The transformer with the embeddings of the codebooks after the first, `outputs` wide as the
    backbone is."""

    def __init__(
        self,
        c: StackConfig,
        codebooks: int,
        vocab: int,
        outputs: int,
    ) -> None:
        super().__init__(c)
        following = range(codebooks - 1)
        self.codec_embedding = nn.ModuleList(nn.Embedding(vocab, outputs) for _ in following)


class CodePredictor(nn.Module):
    """Weights of the loop. A backbone that is as wide as the loop needs no projection."""

    def __init__(
        self,
        c: StackConfig,
        codebooks: int,
        vocab: int,
        backbone: int,
    ) -> None:
        super().__init__()
        self.model = PredictorStack(c, codebooks, vocab, backbone)
        heads = [nn.Linear(c.hidden, vocab, bias=False) for _ in range(codebooks - 1)]
        self.lm_head = nn.ModuleList(heads)
        self.small_to_mtp_projection: nn.Module
        if backbone == c.hidden:
            self.small_to_mtp_projection = nn.Identity()
        else:
            self.small_to_mtp_projection = nn.Linear(backbone, c.hidden)

    def take_heads(self) -> Tensor:
        """Stack the heads [codebooks - 1, vocab, hidden], and free them."""
        weights: list[Tensor] = [head.get_parameter("weight") for head in self.lm_head]
        heads = torch.stack(weights).detach()
        del self.lm_head
        return heads


class DepthTables:
    """Embeddings, projected once so that the projections disappear from serving.

    Code tables stack all codebooks. Row `i` of codebook `g` is `starts[g] + i`. Codebook 0 has the
    backbone's whole vocabulary, so that special codec ids are rows too.
    """

    def __init__(self, text: Tensor, first: Tensor, predictor: CodePredictor) -> None:
        """text [text vocab, H] is projected already. first [vocab, H]: of codebook 0. Take those of
        the predictor."""
        embeddings = predictor.model.codec_embedding
        books = [first, *(embedding.get_parameter("weight") for embedding in embeddings)]
        del predictor.model.codec_embedding
        self.text = text
        rows = torch.cat(books).detach()
        projection = predictor.small_to_mtp_projection
        if isinstance(projection, nn.Linear):
            self.depth = project(projection, rows)
        else:
            self.depth = rows
        """[rows, predictor hidden]: inputs of the predictor."""
        sizes = [len(book) for book in books[:-1]]
        self.starts = tuple(sum(sizes[:g]) for g in range(len(books)))
        offset = torch.tensor(self.starts, device=rows.device)
        self.code = CodeTable(offset, rows)
        """[rows, H]: inputs of the backbone."""


class FrameBuffers(NamedTuple):
    """A frame while it is made: codes [codebooks, B], and the predictor's first two tokens x [B, 2,
    H]."""

    codes: Tensor
    x: Tensor
    first: SampleOut
    """Where the sampler of codebook 0 writes. It fills `x`."""


def widened(stack: Stack, c: StackConfig) -> Stack | None:
    """The blocks and the norm of a stack in int8, with weights in 16 bits. None: it is not in int8,
    or not on a GPU on which `WIDE_ROWS` was measured."""
    layers = [m for m in stack.layers.modules() if isinstance(m, QuantizedLinear)]
    int8 = any(layer.weight.dtype == torch.int8 for layer in layers)
    if not int8 or not kernels.linear.measured_on(stack.norm.weight.device):
        return None
    with torch.device("meta"):
        wide = Stack(c)
    tensors = {name: _wide(stack, name) for name in wide.state_dict()}
    wide.load_state_dict(tensors, assign=True)
    return wide.requires_grad_(False)


def _wide(stack: Stack, name: str) -> Tensor:
    layer_name, _, parameter = name.rpartition(".")
    layer = stack.get_submodule(layer_name)
    if parameter == "weight" and isinstance(layer, QuantizedLinear):
        return dequantize(layer.weight, layer.weight_scale, layer.dtype)
    return layer.get_parameter(parameter)


class DepthLoop:
    """The transformer of a frame's codes, ready to run inside the step.

    heads [codebooks - 1, vocab, hidden]. table, starts: inputs, as in `DepthTables`. `project` maps
    the backbone's state to the loop's width. codes: dtype of a frame. draw: sampler of the codes
    after the first. wide: the stack in 16 bits, for `WIDE_ROWS`. None: `stack` serves all.
    """

    def __init__(
        self,
        c: StackConfig,
        stack: Stack,
        heads: Tensor,
        project: nn.Module,
        table: Tensor,
        starts: Sequence[int],
        rope: Rope,
        codes: torch.dtype = torch.int32,
        draw: Callable[[Tensor, SamplingParams, SampleOut], None] = sample_into,
        wide: Stack | None = None,
    ) -> None:
        self._stack = stack
        self._wide = wide
        self._heads = heads
        self._project = project
        self._table = table
        self._starts = starts
        self._rope = rope
        self._codes = codes
        self._draw = draw
        self._pos = torch.arange(len(heads) + 1, device=heads.device)
        self._shape = (c.layers, c.kv_heads, c.head_dim)

    def start(self, h: Tensor) -> FrameBuffers:
        """The buffers of a frame after the backbone's output h [B, H]."""
        codebooks = len(self._heads) + 1
        codes = empty_aligned(codebooks, len(h), self._codes, h.device)
        x = h.new_empty(len(h), 2, self._table.shape[1])
        first = SampleOut(codes[0], self._table, x, self._projected(h))
        return FrameBuffers(codes, x, first)

    def __call__(
        self,
        frame: FrameBuffers,
        u: Tensor,
        temperature: Tensor,
        top_k: Tensor,
        top_p: Tensor,
    ) -> Tensor:
        """The whole frame [B, codebooks] once codebook 0 is sampled, with u [B, codebooks - 1] and
        parameters [B]."""
        codes, x, _ = frame
        batch = len(x)
        steps = len(self._heads)
        layers, heads, dim = self._shape
        stack = self._stack_for(batch)
        kv = DepthKV(layers, batch, steps + 1, heads, dim, x)
        for g in range(steps):
            logits = self._logits(stack, x, kv, g)
            out = SampleOut(codes[g + 1])
            if g + 1 < steps:
                x = x.new_empty(batch, 1, x.shape[2])
                out = SampleOut(codes[g + 1], self._book(g + 1), x)
            params = SamplingParams(u[:, g], temperature, top_k, top_p)
            self._draw(logits, params, out)
        return codes.T

    def _book(self, g: int) -> Tensor:
        """The rows of codebook g and of all later ones."""
        return self._table[self._starts[g] :]

    def _stack_for(self, batch: int) -> Stack:
        # No row may depend on how many there are where kernels are batch-invariant.
        if self._wide is None or batch not in WIDE_ROWS or kernels.is_batch_invariant():
            return self._stack
        return self._wide

    def _logits(self, stack: Stack, x: Tensor, kv: DepthKV, g: int) -> Tensor:
        """Logits of codebook g + 1, from the new tokens x [B, n, H]."""
        pos = self._pos[kv.length : kv.length + x.shape[1]]
        logits = stack.head(x, kv.attend, self._rope, pos, self._heads[g])
        kv.advance(x.shape[1])
        return logits

    def _projected(self, h: Tensor) -> Tensor:
        layer = self._project
        if isinstance(layer, nn.Linear):
            return linear(h, layer.weight, layer.bias)
        out: Tensor = layer(h)
        return out
