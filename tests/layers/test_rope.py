"""RoPE against complex multiplication."""

import torch

from stentor.layers.rope import Rope, angles


def test_rope_rotates_pairs_by_their_angle_in_both_layouts():
    table = angles(4, 10, 100.0)
    x = torch.randn(3, 2, 4, dtype=torch.float64)
    pos = torch.tensor([0, 4, 9])
    for interleaved, pairs in ((True, [(0, 1), (2, 3)]), (False, [(0, 2), (1, 3)])):
        rope = Rope(table, torch.float32, interleaved, in_float32=False)
        y = rope.rotate(x, rope.at(pos))
        for j, (a, b) in enumerate(pairs):
            angle = table[pos, j].double()[:, None]
            rotated = torch.complex(x[..., a], x[..., b]) * torch.polar(
                torch.ones_like(angle), angle
            )
            torch.testing.assert_close(
                torch.complex(y[..., a], y[..., b]), rotated, rtol=1e-6, atol=1e-6
            )
