"""Products of weights and activations in 8 bits, for `benchmarks/engine/many_rows.py`: shapes, tiles, times.

`kernels.w8a8_gemm` divides a row of x by its largest value and stores it in float8 (e4m3) or int8 with one scale, after
the norm, and multiplies in several tiles. Beside it stand torch's products of 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.kernels.cluster_gemm import fill
from benchmarks.timing import milliseconds
from stentor.kernels.configs import GemmConfig
from stentor.kernels.linear import fuses
from stentor.kernels.switches import INTERPRETED
from stentor.kernels.w8a8_gemm import QuantizedRows, product, quantize_rows
from stentor.layers.configs import StackConfig
from stentor.layers.linear import linear, swiglu
from stentor.layers.quantized import dequantize, quantize
from stentor.layers.transformer import Block, Stack
from stentor.models.quantization import quantize_layers

FLOAT8, INT8 = torch.float8_e4m3fn, torch.int8
COLD = (
    150e6  # bytes of weights that one graph goes through: two and a half times the cache of an H200
)
MOST_COPIES = 72
EPS = 1e-6
TOLERANCE = {
    FLOAT8: 0.1,
    INT8: 0.05,
}  # of a product, relative to float64. Expected: 0.038 and 0.011


# -- tiles --


def tiles(rows: int) -> list[GemmConfig]:
    """The tiles that are tried for so many rows."""
    if rows <= 64:
        return [
            GemmConfig(64, 16, 256, 4, 4),
            GemmConfig(64, 32, 256, 4, 4),
            GemmConfig(64, 64, 128, 4, 5),
        ]
    if rows <= 256:
        return [
            GemmConfig(64, 64, 128, 4, 5),
            GemmConfig(128, 32, 128, 4, 5),
            GemmConfig(128, 64, 128, 4, 4),
        ]
    return [
        GemmConfig(128, 64, 128, 4, 4),
        GemmConfig(128, 128, 128, 8, 3),
        GemmConfig(128, 256, 128, 8, 3),
    ]


# -- torch's products --


def by_rows(x: QuantizedRows, weight: Tensor, scale: Tensor) -> Tensor:
    """torch's product of float8 with a scale for each row and each output."""
    y: Tensor = torch._scaled_mm(
        x.bits,
        weight.t(),
        scale_a=x.scale,
        scale_b=scale.t(),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return y


def by_tensor(x: QuantizedRows, weight: Tensor, one: Tensor) -> Tensor:
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
        self.norm = torch.rand(k, **made) + 0.5
        self.normed = (self.norm, EPS, True) if role in ("qkv", "gate") else None
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
        return {
            **self.shape._asdict(),
            "rows": self.rows,
            "us": self.us,
            "errors": self.errors,
            "failed": self.failed,
        }

    def today(self, weight: Tensor, scale: Tensor | None) -> Tensor:
        """Launch what the layer launches now, with norm, gate and residual where they are fused."""
        if (scale is not None or self.block_fuses) and fuses(self.x, [(weight, scale)]):
            return linear(
                self.x, weight, None, scale, self.residual, self.normed, self.gate, must_fuse=True
            )
        return linear(self.x, weight, None, scale)

    @property
    def gate(self) -> bool:
        return self.shape.role == "gate"

    def quantise(self, dtype: torch.dtype) -> QuantizedRows:
        """Make what the product reads, in one launch: norm, or nothing else."""
        return quantize_rows(self.x, dtype, self.normed)

    def quantised(self, dtype: torch.dtype) -> None:
        name = "fp8" if dtype == FLOAT8 else "int8"
        weights, scale = self.w.bits(dtype)
        x, one, count = (
            quantize_rows(self.x, dtype),
            torch.ones((), device=self.device),
            len(weights),
        )
        ways: list[str] = []
        if dtype == FLOAT8:
            ways.append("fp8 rows")
            self.time("fp8 tensor", lambda: [by_tensor(x, w, one) for w in weights], count)
        else:
            self.time(
                "int8 mm, int32 out", lambda: [torch._int_mm(x.bits, w.t()) for w in weights], count
            )
        ways += [f"{name} tile {'x'.join(map(str, t))}" for t in tiles(self.rows)]
        for way in ways:
            self.check(way, lambda way=way: run(way, x, weights[0], scale), dtype)  # type: ignore[misc]
            if way not in self.failed:
                self.time(way, lambda way=way: [run(way, x, w, scale) for w in weights], count)  # type: ignore[misc]
        self.time(f"quantise {name}", lambda: [self.quantise(dtype) for _ in range(20)], 20)
        own = self.best(f"{name} tile")
        for way in [w for w in ("fp8 rows", own) if w in self.us and w.startswith(name)]:
            pair = f"quantise + {way if way == 'fp8 rows' else name + ' tile'}"
            self.time(
                pair, lambda way=way: [self.whole(way, dtype, w, scale) for w in weights], count
            )  # type: ignore[misc]

    def whole(self, way: str, dtype: torch.dtype, weight: Tensor, scale: Tensor) -> Tensor:
        """The product with what the layer has around it."""
        return run(way, self.quantise(dtype), weight, scale, self.residual, self.gate)

    def library(self) -> dict[str, Any]:
        """torch's products alone."""
        x, weights, count = quantize_rows(self.x, FLOAT8), self.w.float8, len(self.w.float8)
        one = torch.ones((), device=self.device)
        self.time(
            "bf16 library", lambda: [F.linear(self.x, v) for v in self.w.wide], len(self.w.wide)
        )
        self.time("fp8 rows", lambda: [by_rows(x, w, self.w.scale8) for w in weights], count)
        self.time("fp8 tensor", lambda: [by_tensor(x, w, one) for w in weights], count)
        i = quantize_rows(self.x, INT8)
        self.time(
            "int8 mm, int32 out", lambda: [torch._int_mm(i.bits, w.t()) for w in self.w.int8], count
        )
        return {**self.shape._asdict(), "rows": self.rows, "us": self.us, "failed": self.failed}

    def best(self, prefix: str) -> str:
        """The fastest way whose name begins so. Empty if none ran."""
        return min(
            (way for way in self.us if way.startswith(prefix)), key=self.us.__getitem__, default=""
        )

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
        return torch.randn(rows, self.config.hidden, **made), torch.randn(
            rows, self.config.hidden * 2, **made
        )

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

    def eight(
        self, dtype: torch.dtype, ways: dict[str, str], x: Tensor, attended: Tensor
    ) -> Tensor:
        """ways: by role, `fp8 rows` or the name of a tile."""
        for block, (qkv, o, gate, down) in zip(self.wide, self.bits[dtype], strict=True):
            run(ways["qkv"], quantize_rows(x, dtype, block.input_layernorm.kernel_args), *qkv)
            x = run(ways["o"], quantize_rows(attended, dtype), *o, residual=x)
            q = quantize_rows(x, dtype, block.post_attention_layernorm.kernel_args)
            h = run(ways["gate"], q, *gate, gate=True)
            x = run(ways["down"], quantize_rows(h, dtype), *down, residual=x)
        return x

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
        found: dict[str, Any] = {
            "rows": rows,
            "us": {},
            "cosine": {},
            "failed": {},
            "fused": self.wide[0].fuses(x),
        }
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


def run(
    way: str,
    x: QuantizedRows,
    weight: Tensor,
    scale: Tensor,
    residual: Tensor | None = None,
    gate: bool = False,
) -> Tensor:
    """The product by a way's name in `Measure.us`, with what stands behind it."""
    if way == "fp8 rows":
        y = swiglu(by_rows(x, weight, scale)) if gate else by_rows(x, weight, scale)
        return y if residual is None else residual + y
    tile = GemmConfig(*map(int, way.rpartition(" ")[2].split("x")))
    return product(x, weight, scale, torch.bfloat16, residual, gate, config=tile)


def check_quantisation(device: torch.device) -> dict[str, float]:
    """Relative errors of `quantize_rows` against float64, for each dtype, with a norm and without."""
    found = {}
    for dtype in (FLOAT8, INT8):
        x = torch.randn(33, 2048, device=device, dtype=torch.bfloat16)
        norm = torch.rand(2048, device=device, dtype=torch.bfloat16) + 0.5
        normed = (
            x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + EPS) * norm.double()
        )
        cases = {
            "plain": (x.double(), quantize_rows(x, dtype)),
            "norm": (normed, quantize_rows(x, dtype, (norm, EPS, True))),
        }
        for name, (wanted, q) in cases.items():
            values = dequantize(*q, torch.float64)
            found[f"{dtype} {name}"] = round(float((values - wanted).norm() / wanted.norm()), 5)
    return found
