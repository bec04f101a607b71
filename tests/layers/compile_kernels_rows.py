"""Compiles the kernels between products for a Hopper GPU, without one; test_kernels_rows.py runs it in a process."""

from __future__ import annotations

from typing import Any

import triton
from triton.compiler import ASTSource

from stentor.kernels import kv_cache, rng, sampling, slot_table
from stentor.models.fish_s2 import kernels as fish_s2
from stentor.models.qwen3_tts import kernels as qwen3_tts
from stentor.models.voxcpm2 import kernels as voxcpm2
from tests.layers.compile_kernels import HOPPER, SHARED

STATES = {"RUNNING": 0, "STOPPED": 1, "LENGTH": 2, "BROKEN": 3}
COMMIT = {"COUNTED": False, "STOP_KEEPS": False, "FLOATS": False, **STATES, "BLOCK": 16, "USE_PDL": True}
PUT = {"LEAST": 1e-5, "PUT": True, "PREFIX": False, "WIDTH": 1024, "USE_PDL": True}
PICK = {**PUT, "BITS": 16, "BLOCK": 2048}
FIRST = {**PUT, "PREFIX": True, "WIDTH": 2048, "BITS": 32, "BLOCK": 4096}
CHOICE = {**PUT, "BITS": 16, "BLOCK": 4096, "SHORT": 64}
TOKENS = {**dict.fromkeys(("logits", "table", "x", "prefix"), "*bf16"), "top_ks": "*i64"}
IN_FLOAT32 = {**dict.fromkeys(("logits", "table", "x", "prefix"), "*fp32"), "top_ks": "*i64"}
AGAIN = {"again_temperature": "fp32", "again_p": "fp32", "past": "*i64", "codes": "*i64"}
EMBED = {"BLOCK": 256, "USE_PDL": True}
EMBEDDED = {
    **dict.fromkeys(("table", "out", "texts", "tokens", "first_table", "second_table"), "*bf16"),
    "offset": "*i64",
    "told": "*i32",
}
PATCH = {"PATCH": 4, "FEAT": 64, "WIDE": 64, "BLOCK": 64, "USE_PDL": True}
IN_PATCHES = ("weight", "bias", "first", "mu", "more_mu", "last", "z", "last_weight", "last_bias", "dt", "times", "tokens",
              "dt_out", "x", "out", "h", "rounded", "feat")  # fmt: skip
PATCHES = {**dict.fromkeys(IN_PATCHES, "*bf16"), "at": "*i64", "at_out": "*i64"}
FLOATS = {**dict.fromkeys(IN_PATCHES, "*fp32"), "at": "*i64", "at_out": "*i64"}
POINTERS = {
    **dict.fromkeys(("idx", "seeds", "steps", "stops", "positions", "limits", "least", "lengths", "progress"), "*i64"),
    **dict.fromkeys(("ints", "ints_out"), "*i64"),
    **dict.fromkeys(("uniforms", "scales", "floats", "floats_out"), "*fp32"),
    **dict.fromkeys(("temperatures", "top_ps", "penalties", "found"), "*fp32"),
    **dict.fromkeys(("ended", "kept", "seen", "seen_now"), "*u8"),
    "codes": "*i32",
    "places": "*i32",
}
CASES: dict[str, tuple[Any, dict[str, object], dict[str, str], int]] = {
    "uniform": (rng._uniform_kernel, {"BLOCK": 16, "USE_PDL": True}, {"out": "*fp32"}, 1),
    "normal": (
        rng._grid_normal_kernel,
        {"OUTER": 64, "INNER": 4, "TWO_PI": 6.2831853, "BLOCK": 128, "USE_PDL": True},
        {"out": "*bf16"},
        4,
    ),
    "gather of codes": (
        slot_table._gather_kernel,
        {"LANES": 8, "BLOCK": 16, "USE_PDL": True},
        dict.fromkeys(("frames", "frames_out"), "*i32"),
        1,
    ),
    "gather of values": (
        slot_table._gather_kernel,
        {"LANES": 8, "BLOCK": 256, "USE_PDL": True},
        dict.fromkeys(("frames", "frames_out"), "*fp32"),
        1,
    ),
    "commit of codes": (slot_table._commit_kernel, COMMIT, {"frame": "*i64", "frames": "*i32", "last": "*i32"}, 1),
    "commit of values": (
        slot_table._commit_kernel,
        {**COMMIT, "COUNTED": True, "STOP_KEEPS": True, "FLOATS": True, "BLOCK": 256},
        {"frame": "*bf16", "frames": "*fp32", "last": "*fp32"},
        4,
    ),
    "keep": (slot_table._masked_write_kernel, {"BLOCK": 1024, "USE_PDL": True}, {"new": "*u8", "column": "*u8"}, 4),
    "tokens into pages": (
        kv_cache._store_kv_kernel,
        {"PAGE": 16, "BLOCK": 1024, "USE_PDL": True},
        {**dict.fromkeys(("pool", "k", "v"), "*bf16"), "table": "*i64", "slots": "*i64"},
        4,
    ),
    "embedding of frames and text": (qwen3_tts._embed_codes_and_text_kernel, {"BOOKS": 16, **EMBED}, EMBEDDED, 2),
    "scaled embedding of frames": (
        fish_s2._embed_codes_kernel,
        {"BOOKS": 10, **EMBED},
        {**EMBEDDED, "codes": "*i64", "scale": "fp32"},
        2,
    ),
    "embedding of a prompt": (
        qwen3_tts._embed_prompt_kernel,
        {"VECTORS": True, **EMBED},
        {**EMBEDDED, "first": "*i32", "second": "*i32", "vectors": "*fp32"},
        2,
    ),
    "frames of a prompt": (qwen3_tts._add_frames_kernel, {"BOOKS": 16, **EMBED}, {**EMBEDDED, "places": "*i64"}, 2),
    "patch": (voxcpm2._patch_tokens_kernel, PATCH, {**PATCHES, "patches": "*fp32", "out": "*bf16"}, 4),
    "patch in float32": (voxcpm2._patch_tokens_kernel, PATCH, {**FLOATS, "patches": "*fp32", "out": "*fp32"}, 4),
    "beginning of a flow": (voxcpm2._dit_input_tokens_kernel, {**PATCH, "WORK": 16}, {**PATCHES, "last": "*fp32"}, 4),
    "beginning of a flow in float32": (voxcpm2._dit_input_tokens_kernel, {**PATCH, "WORK": 1}, FLOATS, 4),
    "levels": (voxcpm2._fsq_round_kernel, {"BLOCK": 512, "USE_PDL": True}, {**PATCHES, "scale": "fp32"}, 4),
    "joined halves": (
        voxcpm2._select_and_concat_kernel,
        {"BLOCK": 512, "USE_PDL": True},
        {**PATCHES, "audio": "*u8"},
        4,
    ),
    "end": (voxcpm2._stop_head_kernel, {"BLOCK": 2048, "USE_PDL": True}, {**PATCHES, "out": "*u8"}, 8),
    "pick": (sampling._sample_kernel, PICK, TOKENS, 8),
    "pick in float32": (sampling._sample_kernel, {**PICK, "BITS": 32}, IN_FLOAT32, 8),
    "last pick": (sampling._sample_kernel, {**PICK, "PUT": False, "WIDTH": 1}, TOKENS, 8),
    "first pick": (qwen3_tts._sample_first_codebook_kernel, FIRST, TOKENS, 8),
    "choice": (fish_s2._sample_ranked_kernel, CHOICE, {**TOKENS, "codes": "*i64"}, 8),
    "choice in float32": (fish_s2._sample_ranked_kernel, {**CHOICE, "BITS": 32}, IN_FLOAT32, 8),
    "first choice": (
        fish_s2._sample_first_code_kernel,
        {**CHOICE, "PREFIX": True, "BLOCK": 8192, "WINDOW": 16},
        {**TOKENS, **AGAIN},
        8,
    ),
}


def compiled(case: str, ones: bool) -> int:
    """Bytes of shared memory; `ones`: integers that are 1, of which Triton makes constants."""
    kernel, constants, types, warps = CASES[case]
    signature = {}
    for p in kernel.params:
        kind = "constexpr" if p.name in constants else types.get(p.name, POINTERS.get(p.name, "i32"))
        signature[p.name] = kind
    integers = [p.name for p in kernel.params if signature[p.name] == "i32" and not p.do_not_specialize]
    if ones:
        constants = constants | dict.fromkeys(integers, 1)
        signature |= dict.fromkeys(integers, "constexpr")
    hints = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=hints)
    return int(triton.compile(source, HOPPER, {"num_warps": warps, "num_stages": 3}).metadata.shared)


def main() -> None:
    for case in CASES:
        shared = max(compiled(case, ones) for ones in (False, True))
        assert shared <= SHARED, f"{case}: {shared} bytes are shared"
        print(f"{case}: {shared} bytes shared")


if __name__ == "__main__":
    main()
