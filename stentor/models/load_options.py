"""Load options that the families share: the dtypes of the parts of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from stentor.errors import InvalidRequest

CODEC_DTYPE = "codec_dtype"
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def model_dtype(
    requested: torch.dtype | None, own: torch.dtype, device: torch.device
) -> torch.dtype:
    """The dtype of the language models: the requested one, else float32 on a CPU and the
    checkpoint's own elsewhere."""
    return requested or (torch.float32 if device.type == "cpu" else own)


def codec_dtype(
    options: Mapping[str, object], device: torch.device, dtype: torch.dtype | None
) -> torch.dtype:
    """The dtype of a codec's decoder. `dtype` was requested for the language model, None for the
    checkpoint's own.

    The default on CUDA is float16. It has eight times the resolution of bfloat16, sums are float32,
    and activations stay far inside its range. Elsewhere the default is float32. A decoder beside a
    language model in float32 or float64 is as precise as that. Raises InvalidRequest.
    """
    name = options.get(CODEC_DTYPE, "auto")
    if name != "auto":
        if not isinstance(name, str) or name not in DTYPES:
            raise InvalidRequest(
                CODEC_DTYPE, f"must be auto or one of {', '.join(DTYPES)}, got {name!r}"
            )
        return DTYPES[name]
    if dtype == torch.float64:
        return torch.float64
    if device.type == "cuda" and dtype != torch.float32:
        return torch.float16
    return torch.float32


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or float32 where that is wider."""
    return torch.promote_types(dtype, torch.float32)


def encoder_dtype(codec: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of the encoder of reference audio beside a codec that decodes in `codec`.

    On CUDA it is float16 beside float16: tensor cores and fused kernels are several times as fast,
    and its eleven bits are those of TF32. Elsewhere it is float32 at least. The search for the
    nearest code is in float32 always.
    """
    if device.type == "cuda" and codec == torch.float16:
        return codec
    return at_least_float32(codec)
