"""Mimi's encoder: a whole recording to codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.layers.sliding_window import WindowKV
from stentor_csm.config import MimiConfig
from stentor_csm.mimi import SplitQuantizer, StridedConv1d, Transformer, encoder_layers, run_layers


class Encoder(nn.Module):
    """Samples to codes, named as in the checkpoint, in float32 at least."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.config = c
        self.encoder = nn.ModuleDict({"layers": encoder_layers(c)})
        self.encoder_transformer = Transformer(c)
        hidden = c.stack.hidden
        self.downsample = nn.ModuleDict(
            {"conv": StridedConv1d(hidden, hidden, c.stride, bias=False, mode="replicate")}
        )
        self.quantizer = SplitQuantizer(c)

    def forward(self, samples: Tensor, codebooks: int) -> Tensor:
        """samples [n] -> codes [ceil(n / hop), codebooks] int64."""
        weight = self.downsample["conv"].weight
        x = run_layers(
            self.encoder["layers"], samples[None, None].to(weight.dtype), None
        ).transpose(1, 2)
        c, pos = self.config, torch.arange(x.shape[1], device=x.device)[None]
        rope = c.rope.rope(c.stack.head_dim, x.shape[1], weight.dtype).to(x.device)
        x = self.encoder_transformer(x, WindowKV("", c.window, pos, None).attend, rope, pos)
        return self.quantizer.encode(self.downsample["conv"](x.transpose(1, 2))[0].T, codebooks)
