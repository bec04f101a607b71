"""Short bidirectional stacks of which only some outputs are read.

The last layer computes queries, output projection and MLP for those tokens alone: the same mathematics with fewer rows.
"""

from __future__ import annotations

from torch import Tensor

from stentor.layers.attention import full
from stentor.layers.lora import some_outputs
from stentor.layers.packed_linear import PackedLinear
from stentor.layers.qk_norm_rope import RopePositions
from stentor.layers.rope import Rope
from stentor.layers.transformer import Block, Stack


def last_layer_subset(stack: Stack, x: Tensor, rope: Rope, keep: slice) -> Tensor:
    """stack(x [N, T, hidden])[:, keep], every token seeing every other."""
    positions = RopePositions(rope)
    x, delta = stack.blocks(x, full, positions, count=-1)
    last = stack.layers[-1]
    assert isinstance(last, Block)
    if delta is None and last.fuses(x):
        return stack.norm.add_norm(_fused_subset(last, x, positions, keep), None)[1]
    x, h = last.input_layernorm.add_norm(x, delta)
    x, h = last.post_attention_layernorm.add_norm(x[:, keep], _attend_to_all(last, h, positions, keep))
    return stack.norm.add_norm(x, last.mlp(h))[1]


def _fused_subset(block: Block, x: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """The block's output [N, kept, hidden]. All queries are computed: that costs less than a launch of their own."""
    attention = block.self_attn
    q, k, v = attention.heads(block.fused_qkv(x))
    norm_rope = attention.norm_rope(positions, keep.indices(x.shape[1])[0])
    return block.fused_after(x[:, keep], full(0, q[:, keep], k, v, norm_rope).flatten(-2))


def _attend_to_all(block: Block, h: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """The attention branch of the tokens `keep`, which see all tokens of h [N, T, hidden]."""
    attention = block.self_attn
    layer, widths, dim = attention.qkv_proj, attention.widths, attention.head_dim
    if isinstance(layer, PackedLinear):  # its outputs come together
        q, k, v = attention.heads(layer(h))
        q = q[:, keep]
    else:
        q = some_outputs(layer, h[:, keep], widths, 0, 1)
        k, v = some_outputs(layer, h, widths, 1, 3).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], -1, dim) for t in (q, k, v))
    first = keep.indices(h.shape[1])[0]
    out: Tensor = attention.o_proj(full(0, q, k, v, attention.norm_rope(positions, first)).flatten(-2))
    return out
