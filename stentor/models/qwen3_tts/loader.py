"""Loading a released checkpoint: the language models, the speech tokenizer beside them, the text tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stentor.config import path_of
from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.load_options import (
    CODEC_DTYPE,
    at_least_float32,
    check_load_options,
    codec_dtype,
    encoder_dtype,
    model_dtype,
)
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge, read_peft
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.qwen3_tts.codec_decoder import Decoder
from stentor.models.qwen3_tts.codec_encoder import Encoder
from stentor.models.qwen3_tts.config import CodecConfig, Config, EncoderConfig, parse, read_codec
from stentor.models.qwen3_tts.model import CloneEncoder, Qwen3TTS
from stentor.models.qwen3_tts.speaker_encoder import LogMel
from stentor.models.qwen3_tts.spec import REFERENCE_SECONDS, generation_defaults
from stentor.models.qwen3_tts.talker import Weights
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer
from stentor.models.weights import load_weights, meta_init, read_sharded

LOAD_OPTIONS = (CODEC_DTYPE, QUANTIZATION, "mistral_pretokenizer", "lora", *ADAPTER_OPTIONS)
QUANTIZED, QUANTIZED_DEPTH = ("talker.model",), ("talker.code_predictor.model",)
"""The language models and depth loops whose weights may have 8 bits."""
USUAL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Layers that get slots for adapters where nothing else is asked for."""
Built = TypeVar("Built", bound=nn.Module)


def build(make: Callable[[], Built], dtype: torch.dtype) -> Built:
    """A module on the meta device, in evaluation mode, with parameters of `dtype`."""
    with meta_init():
        return make().to(dtype).eval().requires_grad_(False)


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Qwen3TTS:
    """`raw` is config.json. `dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    Load options: `codec_dtype` of the codec (the speaker encoder is float32 or wider), `quantization` of the
    talker's weights, `lora` (a PEFT folder to merge), those of adapters (models/lora.py), and `mistral_pretokenizer`
    (False), which splits words as the official package does for a local directory.
    Raises CheckpointError and InvalidRequest.
    """
    mistral, plan = _load_options(options), AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    audio_dtype = codec_dtype(options, device, dtype)
    precise = at_least_float32(audio_dtype)
    c, codec = parse(raw, str(path / "config.json")), read_codec(path)
    if codec.decoder.codebooks != c.codebooks or codec.encoder.used != c.codebooks:
        raise CheckpointError(f"{path}: the talker makes {c.codebooks} codes per frame, the codec wants another number")
    # The codec first: its weights are rounded on the device, and those of the talker fill what that leaves.
    decoder, encoder = load_codec(path, codec, device, precise, with_encoder=c.kind == "base")
    decoder.process_weights_after_loading(audio_dtype)
    if encoder is not None:
        prepare(encoder, codec, encoder_dtype(audio_dtype, device))
    tensors = read_quantized(raw, read_sharded(path), str(path))
    if "lora" in options:
        tensors = merge(tensors, read_peft(path_of("lora", options["lora"])))
    norm = tensors.get("talker.model.norm.weight")  # never quantised
    own = torch.float32 if norm is None else norm.dtype
    weights = make_weights(c, model_dtype(dtype, own, device), precise)
    dtype_8 = quantization(options)
    tensors = place_quantized(weights, QUANTIZED, tensors, dtype_8, str(path), device, QUANTIZED_DEPTH)
    load_weights(weights, tensors, str(path), device)
    del tensors
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    clone = make_clone(c, weights, encoder, device) if encoder is not None else None
    tokenizer = QwenTokenizer(path, mistral)
    return Qwen3TTS(c, codec, weights, decoder, clone, tokenizer, generation_defaults(path), adapters)


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the talker's blocks."""
    return name.startswith("talker.model.layers.")


def _load_options(options: Mapping[str, object]) -> bool:
    """Whether words are split as the official package does for a local directory."""
    check_load_options(options, LOAD_OPTIONS)
    mistral = options.get("mistral_pretokenizer", False)
    if not isinstance(mistral, bool):
        raise InvalidRequest("mistral_pretokenizer", f"must be true or false, got {mistral!r}")
    return mistral


def make_weights(c: Config, dtype: torch.dtype, speaker: torch.dtype) -> Weights:
    """The language models on the meta device. `speaker` is the dtype of the speaker encoder."""
    weights = build(lambda: Weights(c), dtype)
    if c.speaker is not None:
        weights.speaker_encoder.to(speaker)
    return weights


def load_codec(
    path: Path, codec: CodecConfig, device: torch.device, dtype: torch.dtype, with_encoder: bool
) -> tuple[Decoder, Encoder | None]:
    """speech_tokenizer/model.safetensors. The encoder half is read for Base models only."""
    folder = path / "speech_tokenizer"
    tensors = read_sharded(folder)
    decoder = build(lambda: Decoder(codec.decoder), dtype)
    load_weights(decoder, _part(tensors, "decoder."), f"{folder}: decoder", device)
    if not with_encoder:
        return decoder, None
    encoder = build(lambda: Encoder(codec.encoder), dtype)
    load_weights(encoder, _used(_part(tensors, "encoder."), codec.encoder), f"{folder}: encoder", device)
    return decoder, encoder


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`, without the wrapper `.conv` of the reference's padded convolutions."""
    part = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return {k.replace(".conv.", ".") if not k.startswith("quantizer.") else k: v for k, v in part.items()}


def _used(tensors: Mapping[str, Tensor], c: EncoderConfig) -> dict[str, Tensor]:
    """Without what encoding does not need: output projections, flags, and the quantizers past the used ones."""
    kept = {k: v for k, v in tensors.items() if not k.endswith((".output_proj.weight", ".initialized"))}
    unused = tuple(
        f"quantizer.acoustic_residual_vector_quantizer.layers.{i}." for i in range(c.used - c.semantic, c.quantizers)
    )
    return {k: v for k, v in kept.items() if not k.startswith(unused)}


def prepare(encoder: Encoder, codec: CodecConfig, dtype: torch.dtype) -> None:
    """Make a loaded codec encoder ready for references of any length, in `dtype`."""
    encoder.process_weights_after_loading(int(REFERENCE_SECONDS[1] * codec.sample_rate) + codec.encoder.hop, dtype)


def make_clone(c: Config, weights: Weights, encoder: Encoder, device: torch.device) -> CloneEncoder | None:
    """The reference encoders of a Base model, ready to run. `encoder` is prepared."""
    if c.speaker is None:
        return None
    mel = LogMel(c.speaker.sample_rate, c.speaker.mels).to(device)
    return CloneEncoder(encoder, mel, weights.speaker_encoder)
