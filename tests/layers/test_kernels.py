"""The Triton kernels against the formulas they stand for: on a GPU as they are, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from stentor.kernels.configs import LocalConfig, PagedConfig
from stentor.kernels.types import QKNormRope, RopeArgs
from stentor.layers.attention import DepthKV, sdpa
from stentor.layers.norm import RMSNorm
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import Rope, angles
from stentor.layers.sampling import sample
from stentor.models.fish_s2 import sampling as fish_sampling
from stentor.models.fish_s2.sampling import rank
from stentor.models.voxcpm2.ops import cfg_zero_star

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.kernels import attention, gemv, norm_rope, sampling  # noqa: E402
from stentor.models.fish_s2.kernels import sample_ranked  # noqa: E402
from stentor.models.voxcpm2.kernels import cfg_euler_step  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

if DEVICE == "cpu":
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_loop_bounds(tensor, scope):
        """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
        _patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _with_loop_bounds

DTYPES = [torch.float32, torch.bfloat16]
DOTS = DTYPES if DEVICE == "cuda" else [torch.float32]  # interpreted, tl.dot has no bf16
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.2e-2 if DEVICE == "cuda" else 3e-2}  # the interpreter truncates


@pytest.fixture(autouse=True)
def _seeded(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def close(got, want):
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert error <= TOLERANCE[want.dtype], error


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("size", [48, 2048])
def test_addition_and_norm_are_those_of_rms_norm(dtype, late, size):
    x, delta = random(3, 2, size, dtype=dtype), random(3, 2, size, dtype=dtype)
    norm = RMSNorm(size, 1e-6, late).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    total, out = norm_rope.add_rms_norm(x, delta, norm.weight, 1e-6, late)
    close(total, x + delta)
    close(out, norm(x + delta))
    close(norm_rope.rms_norm(x[:, 1], norm.weight, 1e-6, late), norm(x[:, 1]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [24, 3072])
def test_gate_is_silu_of_the_first_half_times_the_second(dtype, size):
    x = random(2, 3, 2 * size, dtype=dtype)
    gate, up = x.chunk(2, dim=-1)
    close(norm_rope.silu_and_mul(x), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("in_float32", [True, False])
@pytest.mark.parametrize(("dim", "norm"), [(128, True), (64, False), (24, True)])
def test_head_norms_and_rotation_equal_norm_then_rope(dtype, interleaved, in_float32, dim, norm):
    heads, kv_heads, batch, tokens = 4, 2, 3, 2
    qkv = random(batch, tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, _ = (t.unflatten(-1, (-1, dim)) for t in qkv.split((heads * dim, kv_heads * dim, kv_heads * dim), -1))
    rope = Rope(angles(dim, 40, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
    norms = [RMSNorm(dim, 1e-6).to(DEVICE, dtype) for _ in range(2)]
    for n in norms:
        n.weight.data = random(dim, dtype=dtype)
    for pos in (torch.tensor([5, 6], device=DEVICE), torch.arange(batch * tokens, device=DEVICE).view(batch, tokens)):
        cos_sin = rope.at(pos)
        rotation = RopeArgs(*cos_sin, interleaved, in_float32)
        weights = [n.weight if norm else None for n in norms]
        got = norm_rope.qk_norm_rope(q, k, *weights, 1e-6, True, rotation)
        plain = [n(t) if norm else t for n, t in zip(norms, (q, k), strict=True)]
        for a, b in zip(got, plain, strict=True):
            close(a, rope.rotate(b, cos_sin))
        close(norm_rope.apply_rope(plain[1], rotation), rope.rotate(plain[1], cos_sin))


@pytest.mark.parametrize("dtype", DTYPES if DEVICE == "cuda" else [torch.float32])  # interpreted, tl.dot has no bf16
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (2, 8, 64), (1, 4, 12)])
def test_paged_attention_reads_lengths_and_tables_and_stores_the_token(dtype, heads, group, dim):
    page, pages, slots = 4, 64, 5
    pool = random(2, pages + 1, page, heads, dim, dtype=dtype)
    table = torch.full((slots + 1, 12), pages, device=DEVICE)
    table[:slots] = torch.randperm(pages, device=DEVICE)[: slots * 12].view(slots, 12)
    slot = torch.tensor([3, 0, slots, 4], device=DEVICE)
    pos = torch.tensor([0, 17, 0, 46], device=DEVICE)
    qkv = random(4, (group + 2) * heads * dim, dtype=dtype)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))
    want_pool = pool.clone()
    want_pool[0, table[slot, pos // page], pos % page] = k
    want_pool[1, table[slot, pos // page], pos % page] = v
    rows = []
    for i in range(4):
        keys, values = (part[table[slot[i]]].flatten(0, 1)[None, : pos[i] + 1] for part in want_pool)
        rows.append(sdpa(q[i][None, None], keys, values)[0, 0])
    out = attention.paged_attention(pool, table, slot, pos, q, k, v)
    assert torch.equal(pool, want_pool)
    close(out, torch.stack(rows))
    again = attention.paged_prefill_attention(pool, table, slot, pos, q)
    assert torch.equal(pool, want_pool)
    close(again, torch.stack(rows))


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("config", [PagedConfig(16, 1, 3, num_splits=4), PagedConfig(32, 2, 2), PagedConfig(16, 4, 4)])
def test_however_a_history_is_split_a_row_gives_the_same_and_minds_no_other_row(dtype, config):
    heads, group, dim, page = 2, 4, 64, 16
    pool, table = random(2, 25, page, heads, dim, dtype=dtype), torch.randperm(24, device=DEVICE).view(3, 8)
    slot = torch.tensor([2, 0, 1, 1], device=DEVICE)
    pos = torch.tensor([127, 0, 15, 16], device=DEVICE)
    q, k, v = (random(4, n, dim, dtype=dtype) for n in (heads * group, heads, heads))
    qkv = (q, k, v)
    for attend, given in ((attention.paged_prefill_attention, qkv[:1]), (attention.paged_attention, qkv)):
        got = attend(pool.clone(), table, slot, pos, *given, config=config)
        close(got, attend(pool.clone(), table, slot, pos, *given))
        some = attend(pool.clone(), table, slot[1:3], pos[1:3], *(t[1:3] for t in given), config=config)
        assert torch.equal(got[1:3], some)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize("config", [LocalConfig(1, 1), LocalConfig(2, 2), LocalConfig(4, 4)])
def test_short_sequences_give_the_same_however_many_heads_a_program_serves(dtype, config):
    q, k, v = (random(3, 11, n, 64, dtype=dtype) for n in (8, 2, 2))
    rope = Rope(angles(64, 16, 1e4), torch.bfloat16, False, True).to(DEVICE)
    turn = QKNormRope(rope.cos, rope.sin, False, True, None)
    pos = torch.arange(11, device=DEVICE)
    want = sdpa(rope.rotate(q[:, 7:], rope.at(pos[7:])), rope.rotate(k, rope.at(pos)), v)
    close(attention.local_attention(q[:, 7:], k, v, turn, 7, config), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "group", "dim"), [(2, 2, 128), (1, 4, 20)])
def test_depth_attention_equals_the_scratch_cache_step_by_step(dtype, heads, group, dim):
    batch, positions = 3, 6
    plain = DepthKV(1, batch, positions, heads, dim, random(1, dtype=dtype))
    cache = torch.full_like(plain.cache[0], float("nan"))
    for new in (2, 1, 1, 2):
        qkv = random(batch, new, (group + 2) * heads * dim, dtype=dtype)
        q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))
        out = attention.depth_attention(cache, plain.length, q, k, v)
        close(out, plain.attend(0, q, k, v, NormRope()))
        plain.advance(new)
        assert torch.equal(cache[:, :, : plain.length], plain.cache[0][:, :, : plain.length])


def _cases(batch, size):
    """Logits with ties, and parameters that switch each filter on and off."""
    logits = (random(batch, size) * 3).to(torch.bfloat16).float()
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=DEVICE).repeat(batch // 4)
    top_k = torch.tensor([0, 5, size + 3, 1, 30], device=DEVICE).repeat(batch)[:batch]
    top_p = torch.tensor([1.0, 0.8, 0.3], device=DEVICE).repeat(batch)[:batch]
    return logits, torch.rand(batch, device=DEVICE), temperature, top_k, top_p


def _agree(got, want, logits):
    """The same ids, but for draws on a boundary between two tokens."""
    assert got.dtype == torch.int64
    assert ((got >= 0) & (got < logits.shape[1])).all()
    assert (got == want).float().mean() >= 0.96, (got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 2048])
def test_one_launch_picks_what_the_filters_and_the_draw_pick(size, dtype):
    case = _cases(60, size)
    if dtype == torch.float32:
        case = (case[0] + random(60, size) * 1e-3, *case[1:])  # top-p may cut ties anywhere
    else:
        case = (case[0].to(dtype), *case[1:4], torch.ones_like(case[4]))
    _agree(sampling.sample(*case), sample(*case), case[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [40, 4097])
def test_one_launch_chooses_what_the_ranked_sampler_chooses(size, dtype):
    logits, *rest = _cases(60, size)
    logits = logits.to(dtype)
    _agree(sample_ranked(logits, *rest), fish_sampling.sample_ranked(rank(logits), *rest), logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("size", "width"), [(48, 30), (1536, 64), (64, 1)])
def test_narrow_products_equal_norm_linear_gate_bias_and_addition(dtype, rows, size, width):
    product = gemv.fused_linear
    x, residual = random(rows, size, dtype=dtype), random(rows, width, dtype=dtype)
    weight, gates = random(width, size, dtype=dtype) / size**0.5, random(2 * width, size, dtype=dtype) / size**0.5
    bias, norm = random(width, dtype=dtype), RMSNorm(size, 1e-6).to(DEVICE, dtype)
    norm.weight.data = random(size, dtype=dtype)
    linear = torch.nn.functional.linear
    close(product(x, weight, None, None, False), linear(x, weight))
    close(product(x, weight, None, residual, False), residual + linear(x, weight))
    close(product(x, weight, norm.kernel_args, None, False, bias), linear(norm(x), weight, bias))
    gate, up = linear(norm(x), gates).chunk(2, -1)
    close(product(x, gates, norm.kernel_args, None, True), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_take_rows_that_lie_apart(dtype):
    x, weight = random(2, 11, 64, dtype=dtype), random(30, 64, dtype=dtype) / 8
    want = torch.nn.functional.linear(x[:, -1:], weight)
    close(gemv.fused_linear(x[:, -1:], weight, None, None, False), want)


@pytest.mark.parametrize("dtype", DOTS)
@pytest.mark.parametrize(("queries", "keys", "heads", "group", "dim"), [(11, 11, 2, 8, 128), (1, 5, 1, 2, 24)])
def test_local_attention_sees_every_token_and_nothing_else(dtype, queries, keys, heads, group, dim):
    q = random(3, queries, heads * group, dim, dtype=dtype)
    kv = random(3, keys, 2 * heads * dim, dtype=dtype)
    k, v = (t.unflatten(-1, (-1, dim)) for t in kv.chunk(2, -1))
    close(attention.local_attention(q, k, v), sdpa(q, k, v))


TURNS = [(True, True, True, False), (False, False, True, True), (True, True, False, False), (False, True, True, True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("interleaved", "in_float32", "normed", "late"), TURNS)
def test_attention_turns_queries_and_keys_as_norm_and_rope_do(dtype, interleaved, in_float32, normed, late):
    heads, group, dim = 1, 2, 24
    rope = Rope(angles(dim, 60, 1e4), torch.bfloat16, interleaved, in_float32).to(DEVICE)
    norms = [RMSNorm(dim, 1e-6, late).to(DEVICE, dtype) for _ in range(2)]
    for n in norms:
        n.weight.data = random(dim, dtype=dtype)
    given = (norms[0].weight, norms[1].weight, 1e-6, late) if normed else None
    turn = QKNormRope(rope.cos, rope.sin, interleaved, in_float32, given)
    qkv = random(2, 5, (group + 2) * heads * dim, dtype=dtype)
    q, k, v = (t.unflatten(-1, (-1, dim)) for t in qkv.split((group * heads * dim, heads * dim, heads * dim), -1))

    def placed(x, norm, pos):
        return rope.rotate(norm(x) if normed else x, rope.at(pos))

    pos = torch.arange(5, device=DEVICE)
    a, b = placed(q, norms[0], pos), placed(k, norms[1], pos)
    if dtype in DOTS:
        close(attention.local_attention(q[:, 3:], k, v, turn, 3), sdpa(a[:, 3:], b, v))
    plain = DepthKV(1, 2, 6, heads, dim, q)
    cache = torch.full_like(plain.cache[0], float("nan"))
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        out = attention.depth_attention(cache, part.start, q[:, part], k[:, part], v[:, part], turn)
        close(out, plain.attend(0, a[:, part], b[:, part], v[:, part], NormRope()))
        plain.advance(part.stop - part.start)
    close(cache[:, :, :5], plain.cache[0][:, :, :5])
    if dtype in DOTS:
        pool, table = random(2, 10, 4, heads, dim, dtype=dtype), torch.randperm(9, device=DEVICE).view(3, 3)
        pos, slot = torch.tensor([0, 11], device=DEVICE), torch.tensor([2, 1], device=DEVICE)
        ready = placed(q[:, 0], norms[0], pos), placed(k[:, 0], norms[1], pos), v[:, 0]
        pools = pool.clone(), pool.clone()
        raw = q[:, 0], k[:, 0], v[:, 0]
        got = attention.paged_attention(pools[0], table, slot, pos, *raw, turn)
        close(got, attention.paged_attention(pools[1], table, slot, pos, *ready))
        close(*pools)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_launch_guides_steps_and_writes_the_next_tokens(dtype):
    batch, patch, feat, hidden = 3, 4, 6, 80
    both, x = random(2 * batch, patch, feat, dtype=dtype), random(batch, patch, feat, dtype=dtype)
    cfg = torch.tensor([2.0, 1.0, 3.5], device=DEVICE)
    dt = torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.0, 0.4]], device=DEVICE).to(dtype)
    at, times = torch.tensor([[1, 0], [0, 2], [2, 1]], device=DEVICE), random(3, hidden, dtype=dtype)
    weight, bias = random(hidden, feat, dtype=dtype), random(hidden, dtype=dtype)
    tokens = random(2 * batch, 3 + 2 * patch, hidden, dtype=dtype)
    step = dt[:, 0].view(-1, 1, 1)
    want = torch.where(step != 0, x - step * cfg_zero_star(both, cfg), x)
    want_tokens = tokens.clone()
    want_tokens[:, 2] = times[at[:, 1]].repeat(2, 1)
    want_tokens[:, -patch:] = torch.nn.functional.linear(want, weight, bias).repeat(2, 1, 1)
    got = cfg_euler_step(both, x, cfg, dt[:, 0], 1e-8, tokens, (at[:, 1], times, weight, bias), 2)
    close(got, want)
    close(tokens, want_tokens)
    assert torch.equal(got[2], x[2])
    last = cfg_euler_step(both, x, cfg, dt[:, 0], 1e-8, tokens, None, 2)
    assert torch.equal(last, got)
