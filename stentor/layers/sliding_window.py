"""Sliding-window attention of a streaming codec. The last `window - 1` keys, after RoPE, and values
are its state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stentor import kernels
from stentor.layers.attention import sdpa, sdpa_once
from stentor.layers.conv import StreamingState
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.types import Column

# elements: the library's kernels read masks in pieces of up to 16 bytes, past the end of shorter
# rows
WORD = 8
# exp of it is 0. With -inf, cuDNN would return NaN for a tile without any visible key
NEVER = -65504.0


class WindowKV:
    """Attention in which token t sees tokens t - window + 1 .. t, over chunks of any length.

    `pos` [B, n] are absolute positions of the chunk's tokens. With `state` None the sequence starts
    at this call. Otherwise the history comes from the entries "{key}.{layer}.k" and ".v" [B, window
    - 1, heads, dim] of the state.
    """

    def __init__(
        self,
        key: str,
        window: int,
        pos: Tensor,
        state: StreamingState | None,
    ) -> None:
        self.key = key
        self.state = state
        self._start = pos[:, 0]
        self._window = window
        if state is not None:
            past = window - 1
        else:
            past = 0
        before = pos[:, :1] + torch.arange(-past, 0, device=pos.device)
        q_pos = pos[:, :, None]
        k_pos = torch.cat((before, pos), dim=1)[:, None, :]
        # History from before the first token has negative positions. No token sees it.
        exists = k_pos >= 0
        in_window = (k_pos <= q_pos) & (k_pos > q_pos - window)
        self._seen = (exists & in_window).unsqueeze(1)
        self._bias: Tensor | None = None
        self.past = past

    def bias(self, dtype: torch.dtype) -> Tensor:
        """The mask added to the scores [B, 1, n, past + n] of every layer. Rows lie a multiple of
        WORD apart."""
        if self._bias is None:
            size = self._seen.shape[-1]
            visible = F.pad(self._seen, (0, -size % WORD))
            zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            mask = zeros.masked_fill_(~visible, NEVER)
            self._bias = mask[..., :size]
        return self._bias

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        norm_rope: NormRope,
    ) -> Tensor:
        """q, k, v [B, n, heads, dim] as projected -> [B, n, heads, dim]."""
        q, k = norm_rope.apply(q, k)
        k = self._concat_history(f"{self.key}.{layer}.k", k)
        v = self._concat_history(f"{self.key}.{layer}.v", v)
        if kernels.is_batch_invariant() and kernels.enabled(kernels.Kernel.WINDOW, q):
            return kernels.window_attention.window_attention(q, k, v, self._start, self._window)
        bias = self.bias(q.dtype)
        if self.state is None:
            return sdpa_once(q, k, v, bias)
        return sdpa(q, k, v, bias)

    def _concat_history(self, name: str, x: Tensor) -> Tensor:
        if self.state is None:
            return x
        return self.state.concat_history(name, x, self.past, dim=1)


def window_columns(
    key: str,
    layers: int,
    heads: int,
    dim: int,
    window: int,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Column]:
    """The columns that hold the state of a window-attention stack with `layers` layers, for one
    stream."""
    shape = (window - 1, heads, dim)
    names = [f"{key}.{layer}.{part}" for layer in range(layers) for part in "kv"]
    return {name: Column(shape, dtype) for name in names}
