"""The two local stacks are bidirectional and short, and only some of their outputs are read: the last layer computes
queries, output projection and MLP for those tokens alone. Same mathematics, fewer rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor import kernels
from stentor.layers.attention import full
from stentor.layers.rope import CosSin, Rope
from stentor.layers.transformer import Block, Stack, tables


def read_out(stack: Stack, x: Tensor, rope: Rope, keep: slice) -> Tensor:
    """stack(x [N, T, hidden])[:, keep], every token seeing every other."""
    pos = None if full.turns(x) else torch.arange(x.shape[1], device=x.device)
    cos_sin = tables(x, full, rope, pos)
    norms = stack.following_norms()
    h = norms[0](x)
    *blocks, last = stack.layers
    for i, block in enumerate(blocks):
        assert isinstance(block, Block)
        x, delta = block.branches(x, h, i, full, rope, cos_sin)
        x, h = norms[i + 1].after(x, delta)
    x, delta = _last_branches(last, x, h, rope, cos_sin, keep)
    return stack.norm.after(x, delta)[1]


def _last_branches(
    block: nn.Module, x: Tensor, h: Tensor, rope: Rope, cos_sin: CosSin | None, keep: slice
) -> tuple[Tensor, Tensor]:
    """`Block.branches` for the tokens that are read."""
    assert isinstance(block, Block)
    attention = block.self_attn
    weight, width, dim = attention.qkv_proj.weight, attention.widths[0], attention.head_dim
    q = F.linear(h[:, keep], weight[:width])
    k, v = F.linear(h, weight[width:]).chunk(2, dim=-1)
    q, k, v = (t.reshape(*t.shape[:2], -1, dim) for t in (q, k, v))
    if cos_sin is None:
        first = keep.indices(x.shape[1])[0]
        mixed = kernels.attention.local_attention(q, k, v, attention.turn(rope), first)
    else:
        q = rope.rotate(q, (cos_sin[0][keep], cos_sin[1][keep]))
        mixed = full(0, q, rope.rotate(k, cos_sin), v)
    delta = attention.o_proj(mixed.flatten(-2))
    x, h = block.post_attention_layernorm.after(x[:, keep], delta)
    return x, block.mlp(h)
