"""Guidance by a second sequence, which holds the latents and no text.

It gets the same inputs in the same launch, so that weights are read once. Its keys and values are a
page set by frame, and it counts positions of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.base import KVView
from stentor.models.vibevoice.config import NEGATIVE


class Positions:
    """RoPE of both sequences. Rows of padding count on without an end, so positions are clamped."""

    def __init__(
        self,
        dim: int,
        count: int,
        theta: float,
        device: torch.device,
    ) -> None:
        table = angles(dim, count + 1, theta)
        rope = Rope(table, torch.float32, interleaved=False, in_float32=True)
        self.rope = rope.to(device)
        self._last = count

    def at(self, pos: Tensor) -> RopePositions:
        """The positions pos [N]."""
        return RopePositions(self.rope, pos.clamp(0, self._last))


def run_both(
    stack: Stack,
    inputs: Tensor,
    kv: KVView,
    place: Tensor,
    stored: Tensor | None,
    positions: Positions,
) -> tuple[Tensor, Tensor]:
    """Hidden states [N, hidden] of inputs [N, hidden] in either sequence.

    place [N]: in the one without text. stored [N]: which of the inputs it gets, all where None.
    """
    if stored is not None:
        stored = stored[:, None]
    attend_free = kv.frame_kv.view(NEGATIVE, place[:, None], stored=stored)
    in_text = NormRope(positions=positions.at(kv.pos))
    in_free = NormRope(positions=positions.at(place))

    def attend(
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_rope: NormRope,
    ) -> Tensor:
        text_q, free_q = q.chunk(2)
        text_k, free_k = k.chunk(2)
        text_v, free_v = v.chunk(2)
        guided = kv.attend(layer, text_q, text_k, text_v, in_text)
        free = attend_free(layer, free_q, free_k, free_v, in_free)
        return torch.cat((guided, free))

    both = torch.cat((inputs, inputs))
    hidden: Tensor = stack(both, attend)
    guided, free = hidden.chunk(2)
    return guided, free
