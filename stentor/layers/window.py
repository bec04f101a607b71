"""Sliding-window attention of a streaming codec: the last `window - 1` rotated keys and values are stream state."""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.attention import sdpa
from stentor.layers.conv import Stream
from stentor.models.base import Column


class WindowKV:
    """Attention in which token t sees tokens t - window + 1 .. t, over chunks of any length.

    `pos` [B, n] are absolute positions of the chunk's tokens. With `stream` None the sequence starts at this call;
    otherwise history comes from stream keys "{key}.{layer}.k" and ".v" [B, heads, dim, window - 1].
    """

    def __init__(self, key: str, window: int, pos: Tensor, stream: Stream | None) -> None:
        self.key, self.stream = key, stream
        past = window - 1 if stream is not None else 0
        q_pos = pos[:, :, None]
        k_pos = torch.cat((pos[:, :1] + torch.arange(-past, 0, device=pos.device), pos), dim=1)[:, None, :]
        self.mask = ((k_pos >= 0) & (k_pos <= q_pos) & (k_pos > q_pos - window)).unsqueeze(1)
        self.past = past

    def _with_past(self, name: str, x: Tensor) -> Tensor:
        if self.stream is None:
            return x
        return self.stream.extend(name, x.permute(0, 2, 3, 1), self.past).permute(0, 3, 1, 2)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v [B, n, heads, dim], rotated."""
        k = self._with_past(f"{self.key}.{layer}.k", k)
        v = self._with_past(f"{self.key}.{layer}.v", v)
        return sdpa(q, k, v, self.mask)


def window_columns(key: str, layers: int, heads: int, dim: int, window: int) -> dict[str, Column]:
    """Stream state of a window-attention stack with `layers` layers."""
    shape = (heads, dim, window - 1)
    return {f"{key}.{layer}.{part}": Column(shape) for layer in range(layers) for part in "kv"}
