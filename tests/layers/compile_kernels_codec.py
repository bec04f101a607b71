"""Compiles the codec's kernels for a Hopper GPU, on any machine. Run by a test in a process of its own."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stentor.layers import kernels_codec as codec

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024
POINTERS = ("x", "past", "weight", "bias", "residual", "out")
FLOATS = ("alpha", "beta")
PLAIN = ("rows", "length", "taps", "first", "step", "tail")  # not specialised
DENSE = {"HAS_BIAS": True, "ADD": False, "ACT": True, "LOG": True}
CASES = {
    "extend": (codec._extend, {"HAS_PAST": True, "ACT": True, "LOG": False, "BLOCK_T": 16, "BLOCK_C": 128}, 4),
    "depthwise": (
        codec._depthwise,
        {"HAS_BIAS": True, "ACT": True, "LOG": False, "TAPS": 7, "BLOCK_T": 16, "BLOCK_C": 64},
        4,
    ),
    **{
        f"dense {m} x {n}": (codec._dense, {**DENSE, "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64}, warps)
        for m, n, warps in codec.TILES
    },
    "dense, narrow": (codec._dense, {**DENSE, "BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32}, 4),
    "dense, residual": (
        codec._dense,
        {**DENSE, "ADD": True, "ACT": False, "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64},
        8,
    ),
}


def kind(name: str, constants: dict[str, object], dtype: str) -> str:
    if name in constants:
        return "constexpr"
    if name in FLOATS:
        return "*fp32"
    return f"*{dtype}" if name in POINTERS else "i32"


def main() -> None:
    for case, (kernel, constants, warps) in CASES.items():
        for dtype in ("fp16", "bf16"):
            signature = {name: kind(name, constants, dtype) for name in kernel.arg_names}
            even = [i for i, n in enumerate(kernel.arg_names) if n not in constants and n not in PLAIN]
            hints = {(i,): [["tt.divisibility", 16]] for i in even}  # as Triton finds when it is launched
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
            compiled = triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": 3})
            assert compiled.metadata.shared <= SHARED, f"{case} {dtype}: {compiled.metadata.shared} bytes are shared"
            products = (
                "wgmma" if "wgmma" in compiled.asm["ptx"] else "mma" if "mma.sync" in compiled.asm["ptx"] else "-"
            )
            copies = "asynchronous" if "cp.async" in compiled.asm["ptx"] else "plain"
            print(f"{case} {dtype}: {compiled.metadata.shared} bytes shared, products {products}, loads {copies}")


if __name__ == "__main__":
    main()
