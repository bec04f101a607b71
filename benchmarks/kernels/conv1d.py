"""Products of codec decoders alone: every tile that may be chosen, and the libraries, on the released shapes.

Run: python benchmarks/kernels/conv1d.py [--out DIR]        about 30 s on a GPU
     python benchmarks/kernels/conv1d.py --device cpu        a dry run of the libraries' side

Eight processes compile, then one measures. Rates are TFLOP/s; `*` is what `conv_config` chooses; `library` is
cuDNN or cuBLAS in float16 on the same channels-last memory, with the activation or the addition as a launch of
ours or torch's behind it. `machine` says what a large copy and a large product reach at that moment.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.timing import compile_ahead, machine_speed, milliseconds
from stentor.kernels.configs import ConvConfig, conv_config
from stentor.kernels.types import SnakeParams

BATCH, COMPILERS = 16, 8


class Shape(NamedTuple):
    """A convolution of 16 streams with 8 frames each: `steps` outputs a stream, tap by tap weights."""

    steps: int
    inputs: int
    outputs: int
    taps: int
    act: bool  # else a residual is added

    @property
    def flops(self) -> float:
        return 2.0 * BATCH * self.steps * self.inputs * self.outputs * self.taps


SHAPES = {
    "768 k7 act": Shape(8 * 32, 768, 768, 7, True),
    "384 k7 act": Shape(8 * 256, 384, 384, 7, True),
    "192 k7 act": Shape(8 * 1024, 192, 192, 7, True),
    "96 k7 act": Shape(8 * 2048, 96, 96, 7, True),
    "up 768 to 8 x 384": Shape(8 * 32, 768, 3072, 2, True),
    "768 k7 act, few": Shape(2, 768, 768, 7, True),
    "384 k7 act, few": Shape(10, 384, 384, 7, True),
    "384 k1 add": Shape(8 * 256, 384, 384, 1, False),
    "192 k1 add": Shape(8 * 1024, 192, 192, 1, False),
    "96 k1 add": Shape(8 * 2048, 96, 96, 1, False),
    "256 k1 add": Shape(32 * 240, 256, 256, 1, False),
    "64 k1 add": Shape(32 * 960, 64, 64, 1, False),
}


def candidates(s: Shape) -> list[ConvConfig]:
    depth = 64 if s.inputs % 64 == 0 else 32
    chosen = conv_config(BATCH * s.steps, s.outputs, s.inputs)
    if s.steps < 16:
        found = [
            ConvConfig(16, n, 0, k, 4, stages)
            for n in (16, 32)
            for k in (64, 128)
            for stages in (3, 5)
        ]
        return [chosen, *(t for t in found if t != chosen)]
    wide = (
        [(128, 128, 0), (128, 128, 64), (128, 256, 0), (256, 128, 0), (64, 256, 0)]
        if s.outputs > 96
        else []
    )
    if s.outputs == 96:
        wide = [(128, 64, 32), (256, 64, 32), (128, 128, 0)]
    found = [ConvConfig(m, n, more, depth, 8, stages) for m, n, more in wide for stages in (3, 4)]
    found += [
        ConvConfig(128, 128, 0, depth, 8, stages, 128) for stages in (3, 4) if s.outputs % 128 == 0
    ]
    found += [ConvConfig(m, 64, 0, depth, 4, stages) for m in (64, 128) for stages in (3, 4)]
    return [chosen, *(t for t in found if t != chosen and fits(t))]


def fits(t: ConvConfig) -> bool:
    return (t.block_m + t.block_n + t.extra_n) * t.block_k * 2 * t.num_stages <= 227 * 1024


class Operands:
    def __init__(self, s: Shape, device: torch.device) -> None:
        self.shape = s
        dtype = torch.float16
        self.x = torch.randn(BATCH, s.steps + s.taps - 1, s.inputs, device=device, dtype=dtype)
        self.weight = (
            torch.randn(s.outputs, s.taps, s.inputs, device=device, dtype=dtype)
            * (s.taps * s.inputs) ** -0.5
        )
        self.bias = torch.randn(s.outputs, device=device, dtype=dtype)
        self.added = torch.randn(BATCH, s.steps, s.outputs, device=device, dtype=dtype)
        self.snake = SnakeParams(
            torch.rand(s.outputs, device=device) + 0.5, torch.rand(s.outputs, device=device) + 0.5
        )

    def ours(self, t: ConvConfig) -> Tensor:
        from stentor.kernels import conv1d

        conv1d.conv_config = lambda *shape: t
        weight, s = self.weight.transpose(1, 2), self.shape
        return conv1d.conv1d(
            self.x,
            weight,
            self.bias,
            1,
            self.snake if s.act else None,
            None if s.act else self.added,
        )

    def library(self) -> Tensor:
        """With the kernel of activations where there is a GPU, else by the formula."""
        s = self.shape
        if s.taps == 1:
            y = F.linear(self.x, self.weight[:, 0], self.bias)
        else:
            x, w = self.x.transpose(1, 2)[:, :, None], self.weight.transpose(1, 2)[:, :, None]
            y = F.conv2d(x, w, self.bias)[:, :, 0].transpose(1, 2)
        if not s.act:
            return y + self.added
        if y.is_cuda:
            from stentor.kernels import conv1d

            return conv1d.concat_history(y, None, 0, self.snake)[0]
        return (y.float() + self.snake.gain * torch.sin(y.float() * self.snake.alpha) ** 2).to(
            y.dtype
        )


def measure(name: str, device: torch.device) -> dict[str, object]:
    s = SHAPES[name]
    s = s if device.type == "cuda" else s._replace(steps=8)
    operands = Operands(s, device)
    want, tiles, errors = operands.library().float(), {}, {}
    library = milliseconds(operands.library)
    for t in candidates(s) if device.type == "cuda" else []:
        label = f"{t.block_m}x{t.block_n + t.extra_n}x{t.block_k} s{t.num_stages}"
        label += f" r{t.max_registers}" if t.max_registers else ""
        try:
            errors[label] = float((operands.ours(t).float() - want).norm() / want.norm())
            tiles[label] = round(s.flops / milliseconds(lambda t=t: operands.ours(t)) / 1e9, 1)
        except Exception as e:  # a tile that the chip refuses is a result too
            tiles[label], errors[label] = 0.0, repr(e)[:200]
    return {
        "library": round(s.flops / library / 1e9, 1),
        "tiles": tiles,
        "errors": errors,
        "gflop": round(s.flops / 1e9, 1),
    }


def compile_part(part: int) -> None:
    """Every COMPILERS-th kernel, so that the measurement finds it in Triton's cache."""
    device = torch.device("cuda")
    jobs = [(s, t) for s in SHAPES.values() for t in candidates(s)]
    for s, t in jobs[part::COMPILERS]:
        try:
            Operands(s._replace(steps=min(s.steps, 16)), device).ours(t)
        except Exception as e:
            print(f"{s} {t}: {e!r}"[:300], flush=True)


def table(found: dict[str, dict[str, object]], about: dict[str, float]) -> str:
    lines = [f"machine {about}"]
    for name, r in found.items():
        tiles: dict[str, float] = r["tiles"]  # type: ignore[assignment]
        first = next(iter(tiles), None)
        best = sorted(tiles, key=lambda t: -tiles[t])[:4]
        cells = [f"{t}{'*' if t == first else ''} {tiles[t]:.0f}" for t in best]
        if first is not None and first not in best:
            cells.append(f"{first}* {tiles[first]:.0f}")
        errors: dict[str, object] = r["errors"]  # type: ignore[assignment]
        wrong = [t for t, e in errors.items() if not isinstance(e, float) or not e < 5e-3]
        lines.append(
            f"{name:>18}: library {r['library']:.0f}; {'; '.join(cells)}{'; WRONG ' + str(wrong) if wrong else ''}"
        )
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", type=Path, default=Path("."))
    p.add_argument("--device", default="cuda")
    p.add_argument("--compile", type=int)
    a = p.parse_args()
    if a.compile is not None:
        with torch.inference_mode():
            compile_part(a.compile)
        return
    device = torch.device(a.device)
    if device.type == "cuda":
        command = [sys.executable, __file__, "--compile"]
        compile_ahead(command, COMPILERS, 60.0)
    a.out.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, object]] = {}
    with torch.inference_mode():
        about = machine_speed(device)
        for name in SHAPES:
            found[name] = measure(name, device)
    (a.out / "conv1d.json").write_text(json.dumps({"machine": about, "shapes": found}, indent=1))
    print(table(found, about), flush=True)


if __name__ == "__main__":
    main()
