"""Head norms and RoPE as every attention applies them."""

import torch

from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope, RopePositions
from stentor.layers.rope import Rope, angles

ROPE = Rope(angles(4, 20, 1e2), torch.float32, interleaved=True, in_float32=True)


def projected() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 6, 4, 4, generator=generator), torch.randn(
        2, 6, 2, 4, generator=generator
    )


def test_norms_come_before_rope_and_each_may_be_absent():
    q, k = projected()
    a, b = RMSNorm(4, 1e-6), RMSNorm(4, 1e-6)
    a.weight.data, b.weight.data = torch.rand(4), torch.rand(4)
    pos = torch.tensor([3, 1, 4, 1, 5, 9])
    got = NormRope(a, b, RopePositions(ROPE, pos)).apply(q, k)
    assert torch.equal(got[0], ROPE.rotate(a(q), ROPE.at(pos)))
    assert torch.equal(got[1], ROPE.rotate(b(k), ROPE.at(pos)))
    assert torch.equal(
        NormRope(None, None, RopePositions(ROPE, pos)).apply(q, k)[1], ROPE.rotate(k, ROPE.at(pos))
    )
    assert torch.equal(NormRope(a, b).apply(q, k)[0], a(q))
    assert all(x is y for x, y in zip(NormRope().apply(q, k), (q, k), strict=True))


def test_fewer_queries_than_keys_stand_from_the_first_query_on():
    q, k = projected()
    for positions in (RopePositions(ROPE), RopePositions(ROPE, torch.arange(6))):
        whole = NormRope(positions=positions).apply(q, k)
        some = NormRope(positions=positions, first_query=4).apply(q[:, 4:], k)
        assert torch.equal(some[0], whole[0][:, 4:])
        assert torch.equal(some[1], whole[1])


def test_the_layers_of_a_stack_look_the_tables_up_once():
    positions = RopePositions(ROPE, torch.arange(6))
    assert positions.cos_sin(6)[0] is positions.cos_sin(6)[0]


def test_without_kernels_nothing_is_left_to_the_attention_kernel():
    q, k = projected()
    norm_rope = NormRope(positions=RopePositions(ROPE))
    with torch.inference_mode():
        ready_q, ready_k, left = norm_rope.for_kernel(q, k)
    assert left is None
    assert torch.equal(ready_q, norm_rope.apply(q, k)[0])
    assert torch.equal(ready_k, norm_rope.apply(q, k)[1])
