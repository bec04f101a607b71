"""Products of weights and activations in 8 bits, for `benchmarks/engine/many_rows.py`: kernels, shapes, times.

A row of x is divided by its largest value and stored in float8 (e4m3) or int8 with one scale, in the launch that norms
or gates it. Then come torch's products of 8 bits, or a Triton product in several tiles, which shows what a kernel of
our own might take. It has no split of K.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

from benchmarks.kernels.cluster_gemm import fill
from benchmarks.timing import milliseconds
from stentor.kernels.linear import fuses
from stentor.kernels.pdl import PDL_LAUNCH, USE_PDL, pdl_wait
from stentor.kernels.switches import INTERPRETED
from stentor.layers.linear import linear, product
from stentor.layers.quantized import LARGEST, dequantize, quantize, quantized_linear
from stentor.layers.transformer import Block, Stack, StackConfig
from stentor.models.quantization import quantize_layers

FLOAT8, INT8 = torch.float8_e4m3fn, torch.int8
COLD = 150e6  # bytes of weights that one graph goes through: two and a half times the cache of an H200
MOST_COPIES = 72
EPS = 1e-6
TOLERANCE = {FLOAT8: 0.1, INT8: 0.05}  # of a product, relative to float64. Expected: 0.038 and 0.011


# -- kernels --


@triton.jit
def _quantize_kernel(
    x_ptr, delta_ptr, weight_ptr, sum_ptr, out_ptr, scale_ptr, stride_x, size, eps,
    NORM: tl.constexpr, ADD: tl.constexpr, GATE: tl.constexpr, LARGEST: tl.constexpr, ROUND: tl.constexpr,
    BLOCK: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """A row: x, norm(x), norm(x + delta), or silu(first half) * second half. Then its scale, and 8 bits."""
    offs = tl.arange(0, BLOCK)
    mask = offs < size
    if NORM:  # a weight, which no launch before writes
        weight = tl.load(weight_ptr + offs, mask, 0.0).to(tl.float32)
    pdl_wait(USE_PDL)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(x_ptr + row * stride_x + offs, mask, 0.0)
    if ADD:
        x = (x.to(tl.float32) + tl.load(delta_ptr + row * size + offs, mask, 0.0).to(tl.float32)).to(x.dtype)
        tl.store(sum_ptr + row * size + offs, x, mask)
    y = x.to(tl.float32)
    if NORM:
        y = y * tl.rsqrt(tl.sum(y * y, 0) / size + eps) * weight
    if GATE:
        y = y * tl.sigmoid(y) * tl.load(x_ptr + row * stride_x + size + offs, mask, 0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(y), 0), 1e-12) / LARGEST
    y = y * (1.0 / scale)
    if ROUND:
        y = tl.floor(y + 0.5)
    y = tl.minimum(tl.maximum(y, -LARGEST), LARGEST)
    tl.store(out_ptr + row * size + offs, y.to(out_ptr.dtype.element_ty), mask)
    tl.store(scale_ptr + row, scale)


class Quantized(NamedTuple):
    """x + delta (or x), and 8 bits [M, K] with scales [M, 1] float32 of what was asked for."""

    total: Tensor
    bits: Tensor
    scale: Tensor


def quantize_rows(
    x: Tensor, dtype: torch.dtype, norm: Tensor | None = None, delta: Tensor | None = None, gate: bool = False
) -> Quantized:
    """x [M, K] (with `gate` [M, 2 K]) in 8 bits, in one launch. norm: weight [K] of an RMSNorm before."""
    size = x.shape[1] // 2 if gate else x.shape[1]
    bits = torch.empty(len(x), size, dtype=dtype, device=x.device)
    scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    total = x if delta is None else torch.empty_like(x)
    block = triton.next_power_of_2(size)
    _quantize_kernel[(len(x),)](
        x, x if delta is None else delta, x if norm is None else norm, total, bits, scale, x.stride(0), size, EPS,
        NORM=norm is not None, ADD=delta is not None, GATE=gate, LARGEST=LARGEST[dtype], ROUND=dtype == INT8,
        BLOCK=block, USE_PDL=USE_PDL, num_warps=min(16, max(4, block // 512)), **PDL_LAUNCH,
    )  # fmt: skip
    return Quantized(total, bits, scale)


@triton.jit
def _product_kernel(
    x_ptr, scale_x_ptr, weight_ptr, scale_w_ptr, out_ptr, M, N, K,
    INTEGER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, USE_PDL: tl.constexpr,
):  # fmt: skip
    """N and K are multiples of the block's."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_k, mask_m = tl.arange(0, BLOCK_K), offs_m < M
    scale_w = tl.load(scale_w_ptr + offs_n)
    pdl_wait(USE_PDL)
    x_ptrs = x_ptr + offs_m.to(tl.int64)[:, None] * K + offs_k[None, :]
    w_ptrs = weight_ptr + offs_n.to(tl.int64)[None, :] * K + offs_k[:, None]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if INTEGER else tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs + start, mask_m[:, None], 0.0)
        w = tl.load(w_ptrs + start)
        acc = tl.dot(x, w, acc, out_dtype=acc.dtype)
    scale_x = tl.load(scale_x_ptr + offs_m, mask_m, 0.0)
    y = acc.to(tl.float32) * scale_x[:, None] * scale_w[None, :]
    out_ptrs = out_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
    tl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask_m[:, None])


class Tile(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


def tiles(rows: int) -> list[Tile]:
    """The tiles that are tried for so many rows."""
    if rows <= 64:
        return [Tile(64, 16, 256, 4, 5), Tile(64, 32, 256, 4, 4), Tile(64, 64, 128, 4, 5)]
    if rows <= 256:
        return [Tile(64, 64, 128, 4, 5), Tile(128, 32, 128, 4, 5), Tile(128, 64, 128, 4, 5)]
    return [Tile(128, 64, 128, 4, 5), Tile(128, 128, 128, 8, 4), Tile(128, 256, 128, 8, 3)]


def tile_product(x: Quantized, weight: Tensor, scale: Tensor, tile: Tile, out: Tensor | None = None) -> Tensor:
    """x [M, K] times weight [N, K] with scale [N, 1], both in 8 bits -> bfloat16 [M, N]."""
    (m, k), n = x.bits.shape, len(weight)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=weight.device) if out is None else out
    assert n % tile.n == k % tile.k == 0, "blocks divide the shape"
    _product_kernel[(n // tile.n, triton.cdiv(m, tile.m))](
        x.bits, x.scale, weight, scale, out, m, n, k,
        INTEGER=weight.dtype == INT8, BLOCK_M=tile.m, BLOCK_N=tile.n, BLOCK_K=tile.k, USE_PDL=USE_PDL,
        num_warps=tile.warps, num_stages=tile.stages, **PDL_LAUNCH,
    )  # fmt: skip
    return out


# -- torch's products --


def by_rows(x: Quantized, weight: Tensor, scale: Tensor) -> Tensor:
    """torch's product of float8 with a scale for each row and each output."""
    y: Tensor = torch._scaled_mm(
        x.bits, weight.t(), scale_a=x.scale, scale_b=scale.t(), out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return y


def by_tensor(x: Quantized, weight: Tensor, one: Tensor) -> Tensor:
    """torch's product of float8 with one scale for each of the two, here 1. Only its time counts."""
    y: Tensor = torch._scaled_mm(
        x.bits, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return y


# -- shapes --


class Shape(NamedTuple):
    """K, rows of the weight, and the role: qkv and gate have a norm before, o and down a residual behind."""

    k: int
    n: int
    role: str


class Passes(NamedTuple):
    """Blocks of a stack that a step runs, each with `factor` times as many rows as there are streams."""

    stack: str
    blocks: int
    factor: int


def stack(hidden: int, ffn: int, heads: int, kv_heads: int, qk_norm: bool = False) -> StackConfig:
    return StackConfig(hidden, ffn, 1, heads, kv_heads, 128, EPS, qk_norm)


STACKS = {
    "talker": stack(2048, 6144, 16, 8, True),
    "depth": stack(1024, 3072, 16, 8, True),
    "fish": stack(2560, 9728, 32, 8, True),
    "language": stack(2048, 6144, 16, 2),
    "flow": stack(1024, 4096, 16, 2),
}
MODELS = {
    "qwen3-tts-1.7b": [Passes("talker", 28, 1), Passes("depth", 75, 1)],
    # Nine evaluations of twelve layers on 11 tokens twice. The last layer has 11 tokens for qkv alone: half a block.
    "voxcpm2": [Passes("language", 36, 1), Passes("flow", 11, 5), Passes("flow", 104, 22)],
    "fish-s2-pro": [Passes("fish", 72, 1)],
}
"""Blocks of a step. Heads, projections and attention are not among them. The first pass of a depth loop, which has two
tokens of each row, counts as the others."""
COPIES = {"talker": 4, "depth": 10, "fish": 3, "language": 4, "flow": 10}
"""Blocks of a chain, each with weights of its own, which no cache holds."""


def shapes(c: StackConfig) -> list[Shape]:
    width = (c.heads + 2 * c.kv_heads) * c.head_dim
    return [
        Shape(c.hidden, width, "qkv"),
        Shape(c.heads * c.head_dim, c.hidden, "o"),
        Shape(c.hidden, 2 * c.ffn, "gate"),
        Shape(c.ffn, c.hidden, "down"),
    ]


def floor_ms(model: str, bandwidth: float, weight_bytes: int) -> float:
    """Milliseconds that reading the weights of a step's blocks takes, at so many TB/s."""
    count = sum(p.blocks * s.k * s.n for p in MODELS[model] for s in shapes(STACKS[p.stack]))
    return count * weight_bytes / bandwidth / 1e9


# -- times --


def microseconds(run: Callable[[], object], device: torch.device) -> float:
    """Median microseconds of what `run` launches, in a CUDA graph. On a CPU, of one call.

    `torch.cuda.graph` would empty the caches of the allocator for every graph.
    """
    if device.type != "cuda":
        return milliseconds(run) * 1e3
    stream, graph = _stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")  # a compiler may run beside it
        try:
            run()
        finally:
            graph.capture_end()
        return milliseconds(graph.replay) * 1e3


@cache
def _stream() -> torch.cuda.Stream:
    """One for all: libraries keep a workspace for each."""
    return torch.cuda.Stream()


class Weights:
    """Copies of one weight in 16 and in 8 bits, so many that none is in the cache."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        first = torch.randn(shape.n, shape.k, device=device, dtype=torch.bfloat16) / shape.k**0.5
        self.shape, self.device = shape, device
        self.wide = _copies(first)
        self.float8, self.scale8 = self._in(first, FLOAT8)
        self.int8, self.scale_i = self._in(first, INT8)

    def _in(self, first: Tensor, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        bits, scale = quantize(first, dtype)
        return _copies(bits), scale

    def bits(self, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        return (self.float8, self.scale8) if dtype == FLOAT8 else (self.int8, self.scale_i)


def _copies(first: Tensor) -> list[Tensor]:
    count = min(MOST_COPIES, max(3, int(COLD / first.nbytes) + 1)) if first.is_cuda else 2
    return [first, *(first.clone() for _ in range(count - 1))]


class Measure:
    """The times of one shape at one number of rows, by way. What fails is noted and leaves the others."""

    def __init__(self, weights: Weights, rows: int, block_fuses: bool) -> None:
        """block_fuses: whether the layer fuses norm, gate and residual into this product, in 16 bits."""
        self.w, self.shape, self.rows, self.device = weights, weights.shape, rows, weights.device
        made: dict[str, Any] = {"device": self.device, "dtype": torch.bfloat16}
        k, n, role = self.shape
        self.x = torch.randn(rows, k, **made)
        self.gated = torch.randn(rows, 2 * k, **made) if role == "down" else self.x
        self.norm = torch.rand(k, **made) + 0.5
        self.residual = torch.randn(rows, n, **made) if role in ("o", "down") else None
        self.block_fuses = block_fuses
        self.us: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self.failed: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        w = self.w
        self.time("bf16 library", lambda: [F.linear(self.x, v) for v in w.wide], len(w.wide))
        self.time("bf16 today", lambda: [self.today(v, None) for v in w.wide], len(w.wide))
        self.time("int8 today", lambda: [self.today(v, w.scale_i) for v in w.int8], len(w.int8))
        if self.device.type == "cuda" or INTERPRETED:
            self.quantised(FLOAT8)
            self.quantised(INT8)
        return {**self.shape._asdict(), "rows": self.rows, "us": self.us, "errors": self.errors, "failed": self.failed}

    def today(self, weight: Tensor, scale: Tensor | None) -> Tensor:
        """Launch what the layer launches now, with norm, gate and residual where they are fused."""
        role = self.shape.role
        if (scale is not None or self.block_fuses) and fuses(self.x, [(weight, scale)]):
            norm = (self.norm, EPS, True) if role in ("qkv", "gate") else None
            return linear(self.x, weight, None, scale, self.residual, norm, role == "gate", must_fuse=True)
        return product(self.x, weight) if scale is None else quantized_linear(self.x, weight, scale, None)

    def quantise(self, dtype: torch.dtype) -> Quantized:
        """Make what the product reads, in one launch: norm with addition, gate, or nothing else."""
        if self.shape.role in ("qkv", "gate"):
            return quantize_rows(self.x, dtype, self.norm, self.x)
        return quantize_rows(self.gated, dtype, gate=self.shape.role == "down")

    def quantised(self, dtype: torch.dtype) -> None:
        name = "fp8" if dtype == FLOAT8 else "int8"
        weights, scale = self.w.bits(dtype)
        x, one, count = quantize_rows(self.x, dtype), torch.ones((), device=self.device), len(weights)
        ways: dict[str, Callable[[Quantized, Tensor], Tensor]] = {}
        if dtype == FLOAT8:
            ways["fp8 rows"] = lambda x, w: by_rows(x, w, scale)
            self.time("fp8 tensor", lambda: [by_tensor(x, w, one) for w in weights], count)
        else:
            self.time("int8 mm, int32 out", lambda: [torch._int_mm(x.bits, w.t()) for w in weights], count)
        for t in tiles(self.rows):
            if self.shape.n % t.n == 0 and self.shape.k % t.k == 0:
                ways[f"{name} tile {'x'.join(map(str, t))}"] = partial(tile_product, scale=scale, tile=t)
        for way, call in ways.items():
            self.check(way, lambda call=call: call(x, weights[0]), dtype)  # type: ignore[misc]
            if way not in self.failed:
                self.time(way, lambda call=call: [call(x, w) for w in weights], count)  # type: ignore[misc]
        self.time(f"quantise {name}", lambda: [self.quantise(dtype) for _ in range(20)], 20)
        own = self.best(f"{name} tile")
        for way in [w for w in ("fp8 rows", own) if w in self.us and w.startswith(name)]:
            call = ways[way]
            pair = f"quantise + {way if way == 'fp8 rows' else name + ' tile'}"
            self.time(pair, lambda call=call: [call(self.quantise(dtype), w) for w in weights], count)  # type: ignore[misc]

    def library(self) -> dict[str, Any]:
        """torch's products alone."""
        x, weights, count = quantize_rows(self.x, FLOAT8), self.w.float8, len(self.w.float8)
        one = torch.ones((), device=self.device)
        self.time("bf16 library", lambda: [F.linear(self.x, v) for v in self.w.wide], len(self.w.wide))
        self.time("fp8 rows", lambda: [by_rows(x, w, self.w.scale8) for w in weights], count)
        self.time("fp8 tensor", lambda: [by_tensor(x, w, one) for w in weights], count)
        i = quantize_rows(self.x, INT8)
        self.time("int8 mm, int32 out", lambda: [torch._int_mm(i.bits, w.t()) for w in self.w.int8], count)
        return {**self.shape._asdict(), "rows": self.rows, "us": self.us, "failed": self.failed}

    def best(self, prefix: str) -> str:
        """The fastest way whose name begins so. Empty if none ran."""
        return min((way for way in self.us if way.startswith(prefix)), key=self.us.__getitem__, default="")

    def time(self, way: str, run: Callable[[], object], count: int) -> None:
        try:
            self.us[way] = round(microseconds(run, self.device) / count, 2)
        except Exception as e:
            self.failed[way] = f"{type(e).__name__}: {e}"[:300]

    def check(self, way: str, run: Callable[[], Tensor], dtype: torch.dtype) -> None:
        """Compare with float64. A way that is wrong is not timed."""
        try:
            if self.rows > 512:
                return
            wanted = self.x.double() @ self.w.wide[0].double().T
            error = float((run().double() - wanted).norm() / wanted.norm())
            self.errors[way] = round(error, 5)
            if not error < TOLERANCE[dtype]:
                self.failed[way] = f"wrong: {error}"
        except Exception as e:
            self.failed[way] = f"{type(e).__name__}: {e}"[:300]


# -- chains of blocks, without attention --


class Chain:
    """Blocks one after the other, each with weights of its own, without attention: x, and the input of `o_proj`."""

    def __init__(self, name: str, device: torch.device, config: StackConfig | None = None) -> None:
        self.config, self.device = config or STACKS[name], device
        self.count = COPIES[name] if device.type == "cuda" else 1
        self.wide, self.int8 = self._blocks(None), self._blocks(INT8)
        self.bits = {d: [self._quantised(b, d) for b in self.wide] for d in (FLOAT8, INT8)}

    def _blocks(self, dtype: torch.dtype | None) -> list[Block]:
        torch.manual_seed(1)
        with torch.device("meta"):
            stacks = nn.ModuleList(Stack(self.config) for _ in range(self.count)).to(torch.bfloat16)
        quantize_layers(stacks, map(str, range(self.count)), dtype)
        stacks.to_empty(device=self.device)
        for name, parameter in stacks.named_parameters():
            fill(name, parameter.data)
        return [m for m in stacks.modules() if isinstance(m, Block)]

    def _quantised(self, block: Block, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        return [quantize(layer.weight.detach(), dtype) for layer in block.linear_layers]

    def inputs(self, rows: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(2)
        made: dict[str, Any] = {"device": self.device, "dtype": torch.bfloat16}
        return torch.randn(rows, self.config.hidden, **made), torch.randn(rows, self.config.hidden * 2, **made)

    def fuses(self, rows: int) -> bool:
        return self.wide[0].fuses(self.inputs(rows)[0])

    def today(self, blocks: list[Block], x: Tensor, attended: Tensor) -> Tensor:
        delta: Tensor | None = None
        for block in blocks:
            if delta is None and block.fuses(x):
                block.fused_qkv(x)
                x = block.fused_after(x, attended)
                continue
            x, h = block.input_layernorm.add_norm(x, delta)
            block.self_attn.qkv_proj(h)
            x, h = block.post_attention_layernorm.add_norm(x, block.self_attn.o_proj(attended))
            delta = block.mlp(h)
        return x if delta is None else x + delta

    def eight(self, dtype: torch.dtype, ways: dict[str, str], x: Tensor, attended: Tensor) -> Tensor:
        """ways: by role, `fp8 rows` or the name of a tile."""
        delta: Tensor | None = None
        for block, (qkv, o, gate, down) in zip(self.wide, self.bits[dtype], strict=True):
            q = quantize_rows(x, dtype, block.input_layernorm.weight, delta)
            x = q.total
            run(ways["qkv"], q, *qkv)
            delta = run(ways["o"], quantize_rows(attended, dtype), *o)
            q = quantize_rows(x, dtype, block.post_attention_layernorm.weight, delta)
            x = q.total
            h = run(ways["gate"], q, *gate)
            delta = run(ways["down"], quantize_rows(h, dtype, gate=True), *down)
        return x if delta is None else x + delta

    def measure(self, rows: int, best: dict[torch.dtype, dict[str, str]]) -> dict[str, Any]:
        """Microseconds of a block by way, and the cosine of the last block's output with that of bfloat16."""
        x, attended = self.inputs(rows)
        attended = attended[:, : self.config.heads * self.config.head_dim].contiguous()
        ways: dict[str, Callable[[], Tensor]] = {
            "bf16 today": lambda: self.today(self.wide, x, attended),
            "int8 today": lambda: self.today(self.int8, x, attended),
        }
        if self.device.type == "cuda" or INTERPRETED:
            library = dict.fromkeys(("qkv", "o", "gate", "down"), "fp8 rows")
            ways["fp8 rows"] = lambda: self.eight(FLOAT8, library, x, attended)
            for dtype, name in ((FLOAT8, "fp8 best"), (INT8, "int8 best")):
                if len(best.get(dtype, {})) == len(library):
                    ways[name] = partial(self.eight, dtype, best[dtype], x, attended)
        found: dict[str, Any] = {"rows": rows, "us": {}, "cosine": {}, "failed": {}, "fused": self.wide[0].fuses(x)}
        wanted = None
        for name, call in ways.items():
            try:
                out = call().double().flatten()
                wanted = out if wanted is None else wanted
                if name != "int8 today":  # it has weights of its own
                    found["cosine"][name] = round(float(F.cosine_similarity(out, wanted, 0)), 6)
                found["us"][name] = round(microseconds(call, self.device) / self.count, 2)
            except Exception as e:
                found["failed"][name] = f"{type(e).__name__}: {e}"[:300]
        return found


def run(way: str, x: Quantized, weight: Tensor, scale: Tensor) -> Tensor:
    """The product by a way's name in `Measure.us`."""
    if way == "fp8 rows":
        return by_rows(x, weight, scale)
    return tile_product(x, weight, scale, Tile(*map(int, way.rpartition(" ")[2].split("x"))))


def check_quantisation(device: torch.device) -> dict[str, float]:
    """Relative errors of `quantize_rows` against float64, for each dtype and each of what it does before."""
    found = {}
    for dtype in (FLOAT8, INT8):
        x, delta = (torch.randn(33, 2048, device=device, dtype=torch.bfloat16) for _ in range(2))
        norm = torch.rand(2048, device=device, dtype=torch.bfloat16) + 0.5
        total = (x + delta).double()
        normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + EPS) * norm.double()
        gated = F.silu(x[:, :1024].double()) * x[:, 1024:].double()
        cases = {
            "plain": (x.double(), quantize_rows(x, dtype)),
            "norm": (normed, quantize_rows(x, dtype, norm, delta)),
            "gate": (gated, quantize_rows(x, dtype, gate=True)),
        }
        for name, (wanted, q) in cases.items():
            values = dequantize(q.bits, q.scale, torch.float64)
            found[f"{dtype} {name}"] = round(float((values - wanted).norm() / wanted.norm()), 5)
    return found
