"""Attention in depth loops and over short sequences, against scaled dot product attention."""

from __future__ import annotations

import pytest
import torch

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import short_attention
from stentor.kernels.configs import HeadsConfig
from stentor.kernels.types import QKNormRope
from stentor.layers.attention import DepthKV, sdpa
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from tests.helpers.kernel_tests import DEVICE, DOTS, DTYPES, close, random
from tests.helpers.projected_qkv import NORM_ROPES, RandomNormRope, projected

pytestmark = pytest.mark.usefixtures("kernel_test")


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("config", [HeadsConfig(1, 1), HeadsConfig(2, 2), HeadsConfig(4, 4)])
def test_short_sequences_give_the_same_however_many_heads_a_program_serves(dtype, config):
    q, k, v = (random(3, 11, n, 64, dtype=dtype) for n in (8, 2, 2))
    rope = Rope(angles(64, 16, 1e4), torch.bfloat16, False, True).to(DEVICE)
    turn = QKNormRope(rope.cos, rope.sin, False, True, None)
    pos = torch.arange(11, device=DEVICE)
    want = sdpa(rope.rotate(q[:, 7:], rope.at(pos[7:])), rope.rotate(k, rope.at(pos)), v)
    close(short_attention.local_attention(q[:, 7:], k, v, turn, 7, config), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (1, 4, 20)])
def test_depth_attention_equals_the_scratch_cache_step_by_step(dtype, heads, group, dim):
    batch, positions = 3, 6
    plain = DepthKV(1, batch, positions, heads, dim, random(1, dtype=dtype))
    cache = torch.full_like(plain.cache[0], float("nan"))
    for new in (2, 1, 1, 2):
        q, k, v = projected(batch, new, heads=heads, group=group, dim=dim, dtype=dtype)
        out = short_attention.depth_attention(cache, plain.length, q, k, v)
        close(out, plain.attend(0, q, k, v, NormRope()))
        plain.advance(new)
        assert torch.equal(cache[:, :, : plain.length], plain.cache[0][:, :, : plain.length])


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "group", "dim"), [(11, 11, 2, 8, 128), (1, 5, 1, 2, 24)]
)
def test_local_attention_sees_every_token_and_nothing_else(dtype, queries, keys, heads, group, dim):
    q = random(3, queries, heads * group, dim, dtype=dtype)
    kv = random(3, keys, 2 * heads * dim, dtype=dtype)
    k, v = (t.unflatten(-1, (-1, dim)) for t in kv.chunk(2, -1))
    close(short_attention.local_attention(q, k, v), sdpa(q, k, v))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("options", NORM_ROPES)
def test_short_sequences_get_norms_and_rope_as_the_layers_apply_them(dtype, options):
    norm_rope = RandomNormRope(24, dtype, *options)
    q, k, v = projected(2, 5, heads=1, group=2, dim=24, dtype=dtype)
    applied_q, applied_k = norm_rope.apply(q, k, torch.arange(5, device=DEVICE))
    close(
        short_attention.local_attention(q[:, 3:], k, v, norm_rope.args, 3),
        sdpa(applied_q[:, 3:], applied_k, v),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", NORM_ROPES)
def test_the_tokens_of_a_loop_get_norms_and_rope_as_the_layers_apply_them(dtype, options):
    norm_rope = RandomNormRope(24, dtype, *options)
    q, k, v = projected(2, 5, heads=1, group=2, dim=24, dtype=dtype)
    applied_q, applied_k = norm_rope.apply(q, k, torch.arange(5, device=DEVICE))
    plain = DepthKV(1, 2, 6, 1, 24, q)
    cache = torch.full_like(plain.cache[0], float("nan"))
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        out = short_attention.depth_attention(
            cache, part.start, q[:, part], k[:, part], v[:, part], norm_rope.args
        )
        close(out, plain.attend(0, applied_q[:, part], applied_k[:, part], v[:, part], NormRope()))
        plain.advance(part.stop - part.start)
    close(cache[:, :, :5], plain.cache[0][:, :, :5])
