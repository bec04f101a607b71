"""What codecs compute in: the load option `codec_dtype`, which every family takes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stentor.errors import InvalidRequest

OPTION = "codec_dtype"
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def codec_dtype(options: Mapping[str, object], device: torch.device, dtype: torch.dtype | None) -> torch.dtype:
    """The precision of a codec's decoder. `dtype` is what was asked for the language model, None: its own.

    By default float16 on CUDA: it has eight times the resolution of bfloat16, sums are float32, and activations stay
    far inside its range. Elsewhere, and beside a language model in float32 or float64, as precise as that.
    Raises InvalidRequest.
    """
    name = options.get(OPTION, "auto")
    if name != "auto":
        if name not in DTYPES:
            raise InvalidRequest(OPTION, f"must be auto or one of {', '.join(DTYPES)}, got {name!r}")
        return DTYPES[str(name)]
    if dtype == torch.float64:
        return torch.float64
    return torch.float16 if device.type == "cuda" and dtype != torch.float32 else torch.float32


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What a codec's encoder computes in: it runs once per voice, and rounding would change the codes."""
    return torch.promote_types(dtype, torch.float32)
