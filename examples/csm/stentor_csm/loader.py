"""Loading a checkpoint in the layout of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stentor.models.load_options import CODEC_DTYPE, at_least_float32, check_load_options, codec_dtype, model_dtype
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.weights import load_weights, meta_init, read_json, read_sharded
from stentor_csm.codec_decoder import Decoder
from stentor_csm.codec_encoder import Encoder
from stentor_csm.config import Config, parse
from stentor_csm.model import Csm
from stentor_csm.tokenizer import read_tokens
from stentor_csm.weights import Weights

QUANTIZED, QUANTIZED_DEPTH = ("backbone_model",), ("depth_decoder.model",)
CODEC = "codec_model."
TIED = "backbone_model.embed_tokens.embed_audio_tokens.weight", "depth_decoder.model.embed_tokens.weight"
Built = TypeVar("Built", bound=nn.Module)


def build(make: Callable[[], Built], dtype: torch.dtype) -> Built:
    """A module on the meta device, with parameters of `dtype`."""
    with meta_init():
        return make().to(dtype).eval().requires_grad_(False)


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Csm:
    """`raw` is config.json. Load options: `codec_dtype` and `quantization`. CheckpointError, InvalidRequest."""
    check_load_options(options, (CODEC_DTYPE, QUANTIZATION))
    c, tensors = parse(raw, str(path / "config.json")), read_sharded(path)
    audio = codec_dtype(options, device, dtype)
    decoder, encoder = load_codec(c, tensors, str(path), device, audio)
    language = {name: tensor for name, tensor in tensors.items() if not name.startswith(CODEC)}
    if TIED[0] in language:  # files have one of the two, or the same twice
        language.setdefault(TIED[1], language[TIED[0]])
        del language[TIED[0]]
    weights = build(lambda: Weights(c), model_dtype(dtype, language["lm_head.weight"].dtype, device))
    eight_bits = quantization(options)
    language = place_quantized(weights, QUANTIZED, language, eight_bits, str(path), device, QUANTIZED_DEPTH)
    load_weights(weights, language, str(path), device)
    file = path / "generation_config.json"
    defaults = read_json(file) if file.is_file() else {}
    return Csm(c, weights, decoder, encoder, read_tokens(path, c.text_vocab), defaults)


def load_codec(
    c: Config, tensors: Mapping[str, Tensor], source: str, device: torch.device, dtype: torch.dtype
) -> tuple[Decoder, Encoder]:
    """Both halves of the codec, which share the codebooks. `dtype` is that of the decoder."""
    precise = at_least_float32(dtype)
    codec = {name.removeprefix(CODEC): tensor for name, tensor in tensors.items() if name.startswith(CODEC)}
    decoder, encoder = build(lambda: Decoder(c.codec), precise), build(lambda: Encoder(c.codec), precise)
    load_weights(decoder, _named(decoder, codec), f"{source}: codec", device, ("encoder", "downsample"))
    load_weights(encoder, _named(encoder, codec), f"{source}: codec", device, ("decoder", "upsample"))
    decoder.process_weights_after_loading(c.codebooks, dtype)
    return decoder, encoder


def _named(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of `module`, which has no wrapper `.conv` around the convolutions of its layers."""
    wrapped = ("downsample.", "upsample.")
    return {n if n.startswith(wrapped) else n.replace(".conv.", "."): t for n, t in tensors.items()}
