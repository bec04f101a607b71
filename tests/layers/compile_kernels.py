"""Compiles every kernel for a Hopper GPU, on any machine. Run by test_kernels_compile.py in a process of its own."""

from __future__ import annotations

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stentor.kernels import attention, gemv, norm_rope
from stentor.kernels.configs import paged_config
from stentor.models.voxcpm2.kernels import _cfg_euler_step_kernel

HOPPER = GPUTarget("cuda", 90, 32)
SHARED = 227 * 1024
INTEGERS = ("table", "slots", "positions", "top_ks", "at")
FLOATS = ("eps", "scale")
FLOAT_POINTERS = ("cos", "sin", "logits", "uniforms", "temperatures", "top_ps", "guidance", "found", "parts")
POINTERS = ("x", "delta", "weight", "out_sum", "out", "gate_up", "q", "k", "v", "q_weight", "k_weight", "q_out", "k_out",
            "pool", "cache", "norm", "residual", "bias", "both", "dt", "times", "x_out", "tokens", "q_norm",
            "k_norm")  # fmt: skip
EVEN = ("table_row", "value_part", "key_slot", "q_token", "k_token", "v_token", "x_stride", "residual_stride", "width",
        "size", "q_row", "k_row", "v_row", "row_part", "delta_stride", "stride", "x_token", "x_outer", "token_row",
        "hidden")  # fmt: skip
PLAIN = {"NORM_ROPE": False, "NORM": False, "CAST_FIRST": False, "INTERLEAVED": False, "IN_FLOAT32": False}
TURN = {"NORM_ROPE": True, "NORM": True, "CAST_FIRST": True, "INTERLEAVED": False, "IN_FLOAT32": False}
PAIRS = {**TURN, "INTERLEAVED": True, "IN_FLOAT32": True}
HEADS = {"HEADS": 8, "GROUP": 2, "DIM": 128, "WIDE": 128, "USE_PDL": True}
PAGED = {**HEADS, "MEMBERS": 2, "ROWS": 16, "PAGE": 16, "SPLITS": 1, "WRITE": True}
ROTATION = {"DIM": 128, "HALF": 64, "NORM": True, "CAST_FIRST": True, "INTERLEAVED": False, "IN_FLOAT32": False,
            "HEADS": norm_rope.HEADS, "USE_PDL": True}  # fmt: skip
PRODUCT = {"ROWS": 1, "NORM": True, "GATE": False, "ADD": False, "BIAS": False, "OUTPUTS": 4, "BLOCK": 1024, "CHUNKS": 2,
           "EVEN": True, "LINES": 32, "USE_PDL": True}  # fmt: skip
FLOW = {"PATCH": 4, "FEAT": 64, "WIDE": 64, "LENGTH": 11, "TIME": 2, "FEED": True, "BLOCK": 64, "USE_PDL": True}
CASES = {
    "norm": (norm_rope._add_rms_norm_kernel, {"ADD": True, "CAST_FIRST": True, "BLOCK": 2048, "USE_PDL": True}, 4),
    "gate": (norm_rope._silu_and_mul_kernel, {"BLOCK": 1024, "USE_PDL": True}, 4),
    "rotation": (norm_rope._qk_norm_rope_kernel, ROTATION, 2),
    "rotation of pairs": (norm_rope._qk_norm_rope_kernel, {**ROTATION, "INTERLEAVED": True, "IN_FLOAT32": True, "NORM": False}, 2),
    "decode": (attention._paged_kernel, {**PAGED, **TURN}, 2),
    "decode of pairs": (attention._paged_kernel, {**PAGED, **PAIRS, "GROUP": 4, "MEMBERS": 4}, 2),
    "decode in shares": (attention._paged_kernel, {**PAGED, **TURN, "GROUP": 8, "MEMBERS": 8, "SPLITS": 4}, 4),
    "joined shares": (attention._combine_splits_kernel, {"DIM": 128, "WIDE": 128, "SPLITS": 4, "USE_PDL": True}, 1),
    "prefill": (attention._paged_kernel, {**PAGED, **PLAIN, "WRITE": False}, 4),
    "depth": (attention._depth_kernel, {**HEADS, **TURN, "SPAN": 16, "NEW": 1, "ROOM": 1, "MEMBERS": 1}, 2),
    "depth of two": (attention._depth_kernel, {**HEADS, **TURN, "SPAN": 16, "NEW": 2, "ROOM": 2, "MEMBERS": 2}, 2),
    "depth of pairs": (attention._depth_kernel, {**HEADS, **PAIRS, "NORM": False, "SPAN": 16, "NEW": 1, "ROOM": 1, "MEMBERS": 1}, 2),
    "local": (attention._local_kernel, {**HEADS, **TURN, "NORM": False, "SPAN": 16, "PER": 1}, 2),
    "local of several heads": (attention._local_kernel, {**HEADS, **PAIRS, "GROUP": 8, "SPAN": 16, "PER": 4}, 4),
    "local, turned before": (attention._local_kernel, {**HEADS, **PLAIN, "SPAN": 16, "PER": 2}, 2),
    "product": (gemv._gemv_kernel, PRODUCT, 4),
    "gated product of two": (gemv._gemv_kernel, {**PRODUCT, "ROWS": 2, "GATE": True, "OUTPUTS": 2}, 4),
    "added product": (gemv._gemv_kernel, {**PRODUCT, "NORM": False, "ADD": True, "BIAS": True, "EVEN": False}, 4),
    "flow": (_cfg_euler_step_kernel, FLOW, 4),
    "end of flow": (_cfg_euler_step_kernel, {**FLOW, "FEED": False}, 4),
}  # fmt: skip


def kind(name: str, constants: dict[str, object], dtype: str, kernel: str) -> str:
    if name in constants:
        return "constexpr"
    if name in INTEGERS:
        return "*i64"
    if name == "logits" and "bfloat16" in kernel:
        return "*bf16"
    if name in FLOAT_POINTERS:
        return "*fp32"
    if name in POINTERS:
        return f"*{dtype}"
    return {"places": "*i32", **dict.fromkeys(FLOATS, "fp32")}.get(name, "i32")


def compiled(case: str, dtype: str, constants: dict[str, object]) -> int:
    """Bytes of shared memory."""
    kernel, _, warps = CASES[case]
    signature = {name: kind(name, constants, dtype, case) for name in kernel.arg_names}
    even = [i for i, n in enumerate(kernel.arg_names) if n not in constants and (n in EVEN or signature[n][0] == "*")]
    hints = {(i,): [["tt.divisibility", 16]] for i in even}  # as Triton finds when it is launched
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return int(triton.compile(source, HOPPER, {"num_warps": warps, "num_stages": 3}).metadata.shared)


def main() -> None:
    for case, (kernel, shape, _) in CASES.items():
        for dtype in ("bf16", "fp32"):
            constants = dict(shape)
            if kernel is attention._paged_kernel:
                constants |= {"KEYS": paged_config(512, 2, 2 if dtype == "bf16" else 4).block_n}
            shared = compiled(case, dtype, constants)
            assert shared <= SHARED, f"{case} {dtype}: {shared} bytes are shared"
            print(f"{case} {dtype}: {shared} bytes shared")
        integers = [
            p.name for p in kernel.params if not p.do_not_specialize and kind(p.name, constants, "bf16", case) == "i32"
        ]
        compiled(case, "bf16", constants | dict.fromkeys(integers, 1))  # as Triton makes of an argument that is 1
        print(f"{case}, ones: {', '.join(integers)}")


if __name__ == "__main__":
    main()
