"""Compiles the codec's kernels for a Hopper GPU, on any machine. Run by a test in a process of its own."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stentor.kernels import conv1d
from stentor.kernels.configs import ConvConfig, conv_config

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024
POINTERS = ("x", "past", "scale", "shift", "weight", "bias", "residual", "out", "kept")
FLOATS = ("alpha", "gain")
PLAIN = ("rows", "length", "taps", "first", "step", "tail")  # not specialised
DENSE = {"HAS_BIAS": True, "ADD": False, "ACT": True, "ROUND": conv1d.ROUND}
ELEMENTS = {"ACT": True, "ROUND": conv1d.ROUND, "BLOCK_T": 16}
SHAPES = ((1, 32, 64), (32, 768, 768), (70, 96, 192), (2000, 96, 192), (5000, 64, 64), (400_000, 32, 32), (400_000, 64, 64), (400_000, 96, 96),
          (400_000, 192, 192), (400_000, 768, 768))  # fmt: skip
TILES = sorted({conv_config(*shape) for shape in SHAPES}, key=str)


def dense(t: ConvConfig, **other: object) -> tuple[object, dict[str, object], int, int, int | None]:
    tile = {"BLOCK_M": t.block_m, "BLOCK_N": t.block_n, "MORE": t.extra_n, "BLOCK_K": t.block_k}
    return conv1d._conv_kernel, {**DENSE, "EVEN": True, **tile, **other}, t.num_warps, t.num_stages, t.max_registers


CASES = {
    "extend": (
        conv1d._concat_history_kernel,
        {**ELEMENTS, "HAS_PAST": True, "KEEP": True, "AFFINE": True, "BLOCK_C": 128},
        4,
        3,
        None,
    ),
    **{
        f"depthwise, {t} rows": (
            conv1d._depthwise_kernel,
            {**ELEMENTS, "HAS_BIAS": True, "TAPS": 7, "BLOCK_T": t, "BLOCK_C": 64},
            4,
            3,
            None,
        )
        for t in (16, 64)
    },
    **{f"dense {t.block_m} x {t.block_n + t.extra_n}, {t.block_k} x {t.num_stages}": dense(t) for t in TILES},
    "dense, uneven": dense(ConvConfig(64, 32, 0, 32, 4), EVEN=False),
    "dense, residual": dense(conv_config(400_000, 768, 768), ADD=True, ACT=False),
}


def kind(name: str, constants: dict[str, object], dtype: str) -> str:
    if name in constants:
        return "constexpr"
    if name in FLOATS:
        return "*fp32"
    return f"*{dtype}" if name in POINTERS else "i32"


def main() -> None:
    for case, (kernel, shape, warps, stages, registers) in CASES.items():
        integers = [n for n in kernel.arg_names if n not in PLAIN and kind(n, shape, "bf16") == "i32"]
        ones = shape | dict.fromkeys(integers, 1)  # as Triton makes of an argument that is 1
        for name, dtype, constants in (("", "fp16", shape), ("", "bf16", shape), (", ones", "bf16", ones)):
            signature = {name: kind(name, constants, dtype) for name in kernel.arg_names}
            even = [i for i, n in enumerate(kernel.arg_names) if n not in constants and n not in PLAIN]
            hints = {(i,): [["tt.divisibility", 16]] for i in even}  # as Triton finds when it is launched
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
            options = {"num_warps": warps, "num_stages": stages, "maxnreg": registers}
            compiled = triton.compile(source, target=HOPPER, options=options)
            assert compiled.metadata.shared <= SHARED, f"{case} {dtype}: {compiled.metadata.shared} bytes are shared"
            products = (
                "wgmma" if "wgmma" in compiled.asm["ptx"] else "mma" if "mma.sync" in compiled.asm["ptx"] else "-"
            )
            copies = "asynchronous" if "cp.async" in compiled.asm["ptx"] else "plain"
            print(f"{case} {dtype}{name}: {compiled.metadata.shared} bytes shared, products {products}, loads {copies}")


if __name__ == "__main__":
    main()
