"""The depth cache against plain dense attention."""

import torch

from stentor.layers.attention import DepthKV, causal
from stentor.layers.qk_norm_rope import NormRope

PLAIN = NormRope()


def test_the_depth_cache_equals_causal_attention_over_the_whole():
    q, k, v = (torch.randn(3, 6, h, 4, dtype=torch.float64) for h in (4, 2, 2))
    whole = causal(0, q, k, v, PLAIN)
    cache = DepthKV(1, 3, 6, 2, 4, q)
    out = []
    for part in (slice(0, 2), slice(2, 3), slice(3, 6)):
        out.append(cache.attend(0, q[:, part], k[:, part], v[:, part], PLAIN))
        cache.advance(out[-1].shape[1])
    torch.testing.assert_close(torch.cat(out, 1), whole)
