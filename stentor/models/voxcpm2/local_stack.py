"""Short bidirectional stacks of which only some outputs are read.

The last layer computes queries, output projection and MLP for those tokens alone: the same mathematics with fewer rows.
"""

from __future__ import annotations

from torch import Tensor

from stentor.layers.attention import full
from stentor.layers.linear import some_outputs
from stentor.layers.lora import LoraLinear
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
    attended = _attend_to_all(last, h, positions, keep)
    x, h = last.post_attention_layernorm.add_norm(x[:, keep], last.self_attn.o_proj(attended))
    return stack.norm.add_norm(x, last.mlp(h))[1]


def _fused_subset(block: Block, x: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """The block's output [N, kept, hidden]. All queries are computed: that costs less than a launch of their own."""
    attention = block.self_attn
    q, k, v = attention.heads(block.fused_qkv(x))
    norm_rope = attention.norm_rope(positions, keep.indices(x.shape[1])[0])
    return block.fused_after(x[:, keep], full(0, q[:, keep], k, v, norm_rope).flatten(-2))


def _attend_to_all(block: Block, h: Tensor, positions: RopePositions, keep: slice) -> Tensor:
    """From the input of `qkv_proj`, all tokens h [N, T, hidden], to that of `o_proj` for the tokens `keep`."""
    attention = block.self_attn
    layer, widths, dim = attention.qkv_proj, attention.widths, attention.head_dim
    if isinstance(layer, PackedLinear | LoraLinear):  # its outputs come together, with adapters in fewer launches
        q, k, v = attention.heads(layer(h))
        q = q[:, keep]
    else:
        q = some_outputs(layer, h[:, keep], 0, widths[0])
        k, v = some_outputs(layer, h, widths[0], sum(widths)).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], -1, dim) for t in (q, k, v))
    first = keep.indices(h.shape[1])[0]
    return full(0, q, k, v, attention.norm_rope(positions, first)).flatten(-2)
