"""Compiles the shared kernels for a Hopper GPU, on any machine. test_compile.py runs it in a process of its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stentor.kernels import (
    conv1d,
    experts,
    frame_attention,
    frame_codes,
    gemm,
    gemv,
    kv_cache,
    lora,
    norm_rope,
    paged_attention,
    prefill_attention,
    quantized,
    rng,
    sampling,
    short_attention,
    slot_table,
    w8a8_gemm,
    window_attention,
)
from stentor.kernels.configs import PagedConfig, conv_config
from stentor.kernels.types import (
    Affine,
    MinFrames,
    QKNormRope,
    RopeArgs,
    RowRef,
    RowStatus,
    SampleOut,
    SamplingParams,
    SnakeParams,
    TextWindow,
)
from tests.helpers.compiled import (
    HOPPER,
    Case,
    compile_cases,
    compiled_cases,
    floats,
    integers,
    meta,
)

STATUS = RowStatus(0, 1, 2, 3)


def rope(rows: int, dim: int, interleaved: bool, in_float32: bool) -> RopeArgs:
    return RopeArgs(floats(rows, 1, dim // 2), floats(rows, 1, dim // 2), interleaved, in_float32)


def norm_rope_args(
    dtype: torch.dtype, interleaved: bool = False, normed: bool = True
) -> QKNormRope:
    norms = (meta(128, dtype=dtype), meta(128, dtype=dtype), 1e-6, True) if normed else None
    return QKNormRope(floats(4096, 64), floats(4096, 64), interleaved, interleaved, norms)


def qkv(
    dtype: torch.dtype, *rows: int, heads: int = 8, group: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Slices of one projection."""
    both = meta(*rows, (group + 2) * heads * 128, dtype=dtype).split(
        (group * heads * 128, heads * 128, heads * 128), -1
    )
    q, k, v = (t.unflatten(-1, (-1, 128)) for t in both)
    return q, k, v


def text_window(rows: int) -> TextWindow:
    return TextWindow((0,), integers(rows), integers(rows), floats(rows), 1, 6)


def paged(
    dtype: torch.dtype,
    rows: int,
    group: int,
    args: QKNormRope | None,
    config: PagedConfig | None = None,
    window: TextWindow | None = None,
) -> None:
    pool, table = meta(2, 40, 16, 8, 128, dtype=dtype), integers(rows, 40)
    given = qkv(dtype, rows, group=group)
    paged_attention.paged_attention(
        pool, table, integers(rows), integers(rows), *given, args, config, window
    )


def replay_in_window(dtype: torch.dtype) -> None:
    pool, (q, _, _) = meta(2, 40, 16, 8, 128, dtype=dtype), qkv(dtype, 300)
    slot, window = integers(300), text_window(300)
    prefill_attention.prefill_attention(pool, integers(64, 40), slot, slot, q, window=window)


def paged_prefill(dtype: torch.dtype) -> None:
    pool, (q, k, v) = meta(2, 40, 16, 8, 128, dtype=dtype), qkv(dtype, 300)
    kv_cache.store_kv(pool, integers(64, 40), integers(300), integers(300), k, v)
    prefill_attention.prefill_attention(pool, integers(64, 40), integers(300), integers(300), q)


def paged_decode(dtype: torch.dtype) -> None:
    """Attention of a step where no row may depend on the others."""
    pool, (q, _, _) = meta(2, 40, 16, 8, 128, dtype=dtype), qkv(dtype, 64)
    prefill_attention.prefill_attention(
        pool, integers(64, 40), integers(64), integers(64), q, alone=True
    )


def frames(dtype: torch.dtype, rows: int, norms: bool, kept: bool) -> None:
    """Rows of 64 requests, whose heads are of a diffusion transformer."""
    pool, (q, k, v) = (
        meta(2, 400, 5, 16, 64, dtype=dtype),
        meta(64 * rows, 3, 16, 64, dtype=dtype).unbind(1),
    )
    weights = (meta(64, dtype=dtype), meta(64, dtype=dtype), 1e-7, False)
    args = QKNormRope(floats(4096, 32), floats(4096, 32), False, True, weights) if norms else None
    given = (integers(65, 400), integers(64), integers(64 * rows), integers(64 * rows))
    some = meta(64 * rows, dtype=torch.bool) if kept else None
    frame_attention.frame_attention(pool, *given, some, q, k, v, args)


def modulated(dtype: torch.dtype, adds: bool, constant: bool) -> None:
    x, table = meta(64, 10, 1024, dtype=dtype), meta(64, 6, 1024, dtype=dtype)
    row = meta(1024, dtype=dtype) if constant else table[:, 2]
    norm_rope.add_modulated_norm(
        x[:, -4:], x[:, -4:] if adds else None, row, row, row, 1e-6, constant
    )


def windowed(dtype: torch.dtype) -> None:
    q, (k, v) = meta(2, 9, 16, 64, dtype=dtype), (meta(2, 80, 16, 64, dtype=dtype) for _ in "kv")
    window_attention.window_attention(q, k, v, integers(2), 72)


def products(dtype: torch.dtype, rows: int, n: int, k: int) -> None:
    gemm.linear(meta(rows, k, dtype=dtype), meta(n, k, dtype=dtype), meta(n, dtype=dtype))


def depth(dtype: torch.dtype, batch: int, new: int, args: QKNormRope | None) -> None:
    short_attention.depth_attention(
        meta(2, batch, 16, 8, 128, dtype=dtype), 5, *qkv(dtype, batch, new), args
    )


def local(dtype: torch.dtype, batch: int, group: int, args: QKNormRope | None) -> None:
    q, k, v = qkv(dtype, batch, 11, heads=2, group=group)
    short_attention.local_attention(q[:, 7:], k, v, args, 7)


def linear(
    dtype: torch.dtype, rows: int, n: int, k: int, norm: bool, gate: bool, more: bool
) -> None:
    x, weight = meta(rows, k, dtype=dtype), meta(2 * n if gate else n, k, dtype=dtype)
    residual, bias = (meta(rows, n, dtype=dtype), meta(n, dtype=dtype)) if more else (None, None)
    gemv.fused_linear(
        x, weight, (meta(k, dtype=dtype), 1e-6, True) if norm else None, residual, gate, bias
    )


def eight_bits(
    dtype: torch.dtype, rows: int, stored: torch.dtype, groups: int, gate: bool = False
) -> None:
    x, weight, scale = (
        meta(rows, 2048, dtype=dtype),
        meta(4096, 2048, dtype=stored),
        floats(4096, groups),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantized, "CONVERTS_FLOAT8", True)
        if rows > 2:
            gemm.linear(x, weight, meta(4096, dtype=dtype), scale=scale)
        else:
            gemv.fused_linear(
                x, weight, (meta(2048, dtype=dtype), 1e-6, True), gate=gate, scale=scale
            )


def int8(dtype: torch.dtype, rows: int, size: int, width: int, gate: bool = False) -> None:
    """Products with int8 on both sides: with norm and gate, or with bias and residual addition."""
    x, weight, scale = (
        meta(rows, size, dtype=dtype),
        meta(width, size, dtype=torch.int8),
        floats(width, 1),
    )
    if gate:
        w8a8_gemm.fused_linear(x, weight, scale, (meta(size, dtype=dtype), 1e-6, True), gate=True)
    else:
        residual = meta(rows, width, dtype=dtype)
        w8a8_gemm.fused_linear(x, weight, scale, None, residual, bias=meta(width, dtype=dtype))


def low_rank(
    dtype: torch.dtype, shape: tuple[int, ...], widths: tuple[int, ...], rank: int
) -> None:
    a, b = meta(len(widths), 32, rank, 2048, dtype=dtype), meta(32, rank, sum(widths), dtype=dtype)
    x, y = meta(*shape, 2048, dtype=dtype), meta(*shape, sum(widths), dtype=dtype)
    index = integers(shape[0])
    tiles = lora.tiles_of(index) if shape == (64,) else None
    lora.add_lora(y, x, index, a, b, widths, tiles)


def params(batch: int) -> SamplingParams:
    return SamplingParams(floats(batch, 16)[:, 1], floats(batch), integers(batch), floats(batch))


def sample(dtype: torch.dtype, with_token: bool) -> None:
    out = SampleOut(meta(16, dtype=torch.int32))
    if with_token:
        out = SampleOut(out.code, meta(2048, 1024, dtype=dtype), meta(16, 1, 1024, dtype=dtype))
    sampling.sample_into(meta(16, 2048, dtype=dtype), params(16), out)


def commit(
    dtype: torch.dtype, frame: Tensor, stored: torch.dtype, counted: bool, hides: bool = False
) -> None:
    rows = tuple(integers(16) for _ in range(6))
    shape = frame.shape[1:]
    hidden = (meta(16, dtype=torch.bool), integers(16), integers(65, 100)) if hides else None
    table = (
        integers(4 if hides else 3, 65),
        meta(65, 100, *shape, dtype=stored),
        meta(65, *shape, dtype=stored),
    )
    length = integers(16) if counted else None
    slot_table.commit(
        rows, length, meta(16, dtype=torch.bool), frame, table, STATUS, counted, hidden
    )


GEMMS = ((1, 2048, 6144), (9, 9728, 2560), (30, 1024, 2048), (64, 300, 1000), (2048, 4608, 1024))
CASES: dict[str, Case] = {
    "norm": lambda t: norm_rope.add_rms_norm(meta(4, 2048, dtype=t), meta(4, 2048, dtype=t), meta(2048, dtype=t), 1e-6, True),
    "norm alone": lambda t: norm_rope.rms_norm(meta(4, 2560, dtype=t), meta(2560, dtype=t), 1e-6, False),
    "norm, modulated": lambda t: modulated(t, adds=True, constant=False),
    "norm, modulated by weights": lambda t: modulated(t, adds=False, constant=True),
    "frames": lambda t: frames(t, 10, norms=True, kept=True),
    "frames as they are": lambda t: frames(t, 2, norms=False, kept=False),
    "SwiGLU": lambda t: norm_rope.silu_and_mul(meta(4, 6144, dtype=t)),
    "RoPE of halves": lambda t: norm_rope.qk_norm_rope(
        *qkv(t, 300)[:2], meta(128, dtype=t), meta(128, dtype=t), 1e-6, True, rope(300, 128, False, False)
    ),
    "RoPE of pairs": lambda t: norm_rope.qk_norm_rope(
        *qkv(t, 300)[:2], None, None, 0.0, False, rope(300, 128, True, True)
    ),
    "RoPE alone": lambda t: norm_rope.apply_rope(qkv(t, 300)[0], rope(300, 128, False, True)),
    "decode": lambda t: paged(t, 64, 2, norm_rope_args(t)),
    "decode of pairs": lambda t: paged(t, 64, 4, norm_rope_args(t, interleaved=True)),
    "decode in splits": lambda t: paged(t, 2, 8, norm_rope_args(t), PagedConfig(32, 4, 3, 4)),
    "decode without norm and RoPE": lambda t: paged(t, 64, 2, None),
    "decode in a window of the text": lambda t: paged(t, 64, 2, norm_rope_args(t), window=text_window(64)),
    "decode in splits in a window of the text": lambda t: paged(
        t, 2, 8, norm_rope_args(t), PagedConfig(32, 4, 3, 4), text_window(2)
    ),
    "replay in a window of the text": replay_in_window,
    "prefill": paged_prefill,
    "decode, each row by itself": paged_decode,
    "windowed": windowed,
    **{f"GEMM of {s}": lambda t, s=s: products(t, *s) for s in GEMMS},
    "depth": lambda t: depth(t, 64, 1, norm_rope_args(t)),
    "depth of two": lambda t: depth(t, 2, 2, norm_rope_args(t)),
    "depth of pairs": lambda t: depth(t, 16, 1, norm_rope_args(t, interleaved=True, normed=False)),
    "local": lambda t: local(t, 2, 8, norm_rope_args(t, normed=False)),
    "local of several heads": lambda t: local(t, 128, 8, norm_rope_args(t, interleaved=True)),
    "local without norm and RoPE": lambda t: local(t, 128, 2, None),
    "linear": lambda t: linear(t, 1, 4096, 2048, norm=True, gate=False, more=False),
    "gated linear of two": lambda t: linear(t, 2, 6144, 2048, norm=True, gate=True, more=False),
    "linear in int8": lambda t: eight_bits(t, 1, torch.int8, 1),
    "linear in float8 as bytes": lambda t: eight_bits(t, 1, torch.uint8, 16),
    "gated linear of two in int8": lambda t: eight_bits(t, 2, torch.int8, 1, gate=True),
    "GEMM in int8": lambda t: eight_bits(t, 8, torch.int8, 1),
    "GEMM in float8 as bytes": lambda t: eight_bits(t, 32, torch.uint8, 16),
    "int8 of few rows": lambda t: int8(t, 64, 2048, 2048),
    "int8 of few rows, wider": lambda t: int8(t, 64, 2048, 6144),
    "gated int8 of few rows": lambda t: int8(t, 64, 2048, 12288, gate=True),
    "int8 of more rows": lambda t: int8(t, 256, 9728, 2560),
    "gated int8 of many rows": lambda t: int8(t, 320, 1024, 2560, gate=True),
    "int8 of many rows": lambda t: int8(t, 5632, 1024, 4096),
    "gated int8 of very many rows": lambda t: int8(t, 5632, 1024, 6144, gate=True),
    "int8, uneven": lambda t: int8(t, 40, 300, 1000),
    "low rank": lambda t: low_rank(t, (64,), (2048, 256, 256), 32),
    "low rank of a flow": lambda t: low_rank(t, (128, 11), (1024,), 128),
    "low rank of prompts": lambda t: low_rank(t, (2048,), (2048, 256, 256), 32),
    "linear, uneven": lambda t: linear(t, 1, 300, 2000, norm=False, gate=False, more=True),
    "sample": lambda t: sample(t, with_token=True),
    "sample of the last code": lambda t: sample(t, with_token=False),
    "uniform": lambda t: rng.uniform(integers(16), integers(16), 16),
    "normal": lambda t: rng.grid_normal(floats(16, 256), 64, floats(16), t),
    "gather of codes": lambda t: slot_table.gather(
        integers(16), integers(8, 65), floats(7, 65), meta(65, 16, dtype=torch.int32)
    ),
    "gather of latents": lambda t: slot_table.gather(integers(16), integers(8, 65), floats(7, 65), floats(65, 4, 64)),
    "commit of codes": lambda t: commit(t, integers(16, 16), torch.int32, counted=False),
    "commit, hidden frames": lambda t: commit(t, integers(16, 16), torch.int32, counted=False, hides=True),
    "commit of latents": lambda t: commit(t, meta(16, 4, 64, dtype=t), torch.float32, counted=True),
    "masked write": lambda t: slot_table.masked_write(
        integers(16), meta(16, dtype=torch.uint8), meta(16, 3072, dtype=torch.bool), meta(65, 3072, dtype=torch.bool)
    ),
}  # fmt: skip


def convolution(
    dtype: torch.dtype, rows: int, outputs: int, channels: int, residual: bool = False
) -> None:
    x, weight = (
        meta(1, rows + 6, channels, dtype=dtype),
        meta(7, outputs, channels, dtype=dtype).permute(1, 2, 0),
    )
    snake = None if residual else SnakeParams(floats(outputs), floats(outputs))
    added = meta(1, rows, outputs, dtype=dtype) if residual else None
    conv1d.conv1d(x, weight, meta(outputs, dtype=dtype), 1, snake, added)


def strided(dtype: torch.dtype, channels: int, taps: int, stride: int) -> None:
    weight = meta(64, taps, channels, dtype=dtype).permute(0, 2, 1)
    x = meta(1, taps + 4000 * stride, channels, dtype=dtype)
    conv1d.strided_conv1d(x, weight, meta(64, dtype=dtype), stride, None, None)


def depthwise(dtype: torch.dtype, steps: int) -> None:
    weight = meta(7, 1, 256, dtype=dtype).permute(2, 1, 0)
    snake = SnakeParams(floats(256), floats(256))
    conv1d.conv1d(
        meta(1, steps + 6, 256, dtype=dtype), weight, meta(256, dtype=dtype), 1, snake, None
    )


def history(dtype: torch.dtype) -> None:
    snake, affine = (
        SnakeParams(floats(256), floats(256)),
        Affine(meta(256, dtype=dtype), meta(256, dtype=dtype)),
    )
    conv1d.concat_history(
        meta(2, 9, 256, dtype=dtype), meta(2, 6, 256, dtype=dtype), 6, snake, affine, True
    )


def transposed(dtype: torch.dtype) -> None:
    weight = meta(10, 96, 192, dtype=dtype).permute(2, 1, 0)
    conv1d.conv_transpose1d(
        meta(2, 200, 192, dtype=dtype), weight, meta(96, dtype=dtype), 5, None, None
    )


SHAPES = ((1, 32, 64), (32, 768, 768), (70, 96, 192), (2000, 96, 192), (5000, 64, 64), (400_000, 32, 32), (400_000, 64, 64),
          (400_000, 96, 96), (400_000, 192, 192), (400_000, 768, 768), (5000, 32, 40))  # fmt: skip
STRIDED = ((1, 7, 1), (64, 4, 2))
CONFIGS = {conv_config(*shape): shape for shape in SHAPES}
CODEC_CASES: dict[str, Case] = {
    "history": history,
    "transposed": transposed,
    **{
        f"depthwise, {steps} steps": lambda t, steps=steps: depthwise(t, steps)
        for steps in (20, 5000)
    },
    **{
        f"convolution {math.prod(s[:2])}": lambda t, s=s: convolution(t, *s)
        for s in CONFIGS.values()
    },
    **{
        f"{c} channels, {k} taps, stride {s}": lambda t, c=c, k=k, s=s: strided(t, c, k, s)
        for c, k, s in STRIDED
    },
    "convolution with residual": lambda t: convolution(t, 400_000, 768, 768, residual=True),
}


def int32(*shape: int) -> Tensor:
    return meta(*shape, dtype=torch.int32)


def embedded_frame(dtype: torch.dtype) -> None:
    table, texts = meta(3072 * 16, 2048, dtype=dtype), meta(9000, 2048, dtype=dtype)
    text_ids = RowRef(int32(65, 2048), integers(16))
    frame_codes.embed_codes_and_text(
        int32(16, 16), integers(16), table, integers(16), text_ids, texts, 777
    )


def embedded_prompt(dtype: torch.dtype, speaker: bool) -> None:
    table, texts = meta(3072 * 16, 2048, dtype=dtype), meta(9000, 2048, dtype=dtype)
    frames = (int32(50, 16), integers(16), table, integers(50))
    vectors = RowRef(floats(65, 2048), integers(300)) if speaker else None
    frame_codes.embed_prompt((int32(300), texts), (int32(300), table), vectors, frames)


def first_codebook(dtype: torch.dtype) -> None:
    table, x = meta(3072, 1024, dtype=dtype), meta(16, 2, 1024, dtype=dtype)
    out = SampleOut(int32(16), table, x, meta(16, 1024, dtype=dtype))
    params = SamplingParams(floats(16, 16)[:, 0], floats(16), integers(16), floats(16))
    seen, rows = (
        RowRef(meta(65, 3072, dtype=torch.bool), integers(16)),
        MinFrames(integers(16), integers(16)),
    )
    logits = meta(16, 3072, dtype=dtype)
    frame_codes.sample_first_codebook(logits, params, out, seen, floats(16), rows, 1024, 2150)


def mixture(
    dtype: torch.dtype, rows: int, weights: torch.dtype | None = None, groups: int = 1
) -> None:
    """128 experts of 384 features, of which a row takes 6."""
    x, norm = meta(rows, 1024, dtype=dtype), (meta(1024, dtype=dtype), 1e-6)
    found = experts.route(
        x, norm, meta(128, 1024, dtype=dtype), meta(1, 1024, dtype=dtype), 6, True
    )
    both = []
    for shape in ((2 * 128 * 384, 1024), (128 * 1024, 384)):
        scale = None if weights is None else floats(shape[0], groups)
        both.append(experts.ExpertWeight(meta(*shape, dtype=weights or dtype), scale))
    routed = experts.grouped_swiglu(found, *both, 128)
    experts.combine(routed, found, meta(rows, 1024, dtype=dtype), x)


EXPERT_CASES: dict[str, Case] = {
    **{f"experts of {rows} rows": lambda t, rows=rows: mixture(t, rows) for rows in (1, 64, 2048)},
    "experts in 8 bits": lambda t: mixture(t, 16, torch.int8),
    "experts in 8 bits in groups": lambda t: mixture(t, 64, torch.int8, 4),
}
FRAME_CASES: dict[str, Case] = {
    "embedding of frames and text": embedded_frame,
    "embedding of a prompt": lambda t: embedded_prompt(t, speaker=False),
    "embedding of a prompt with a speaker": lambda t: embedded_prompt(t, speaker=True),
    "first codebook": first_codebook,
}

FLOAT8_CASES: dict[str, Case] = {
    "linear in float8": lambda t: eight_bits(t, 1, torch.float8_e4m3fn, 1),
    "experts in float8": lambda t: mixture(t, 16, torch.float8_e4m3fn),
    "GEMM in float8": lambda t: eight_bits(t, 64, torch.float8_e4m3fn, 1),
}
"""For GPUs that convert float8."""

ALL = (
    (CASES | FRAME_CASES | EXPERT_CASES, (torch.bfloat16, torch.float32)),
    (CODEC_CASES, (torch.bfloat16, torch.float16)),
)

if __name__ == "__main__":
    for cases, dtypes in ALL:
        compile_cases(cases, dtypes)
    for what, _, arch, shared in compiled_cases(
        FLOAT8_CASES, (torch.bfloat16,), lambda _: (HOPPER,)
    ):
        print(f"{what}, sm_{arch}: {shared} bytes shared")
