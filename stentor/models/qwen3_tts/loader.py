"""Loading a released checkpoint: the language models, the speech tokenizer beside them, the text tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.codec_dtype import OPTION, at_least_float32, codec_dtype
from stentor.models.qwen3_tts.codec_decoder import Decoder
from stentor.models.qwen3_tts.codec_encoder import Encoder
from stentor.models.qwen3_tts.config import CodecConfig, Config, EncoderConfig, parse, read_codec
from stentor.models.qwen3_tts.model import CloneEncoder, Qwen3TTS
from stentor.models.qwen3_tts.speaker_encoder import LogMel
from stentor.models.qwen3_tts.spec import REFERENCE_SECONDS, generation_defaults
from stentor.models.qwen3_tts.talker import Weights
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer
from stentor.models.weights import fill, read_sharded, without_memory

LOAD_OPTIONS = (OPTION, "mistral_pretokenizer")


def build(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A module on the meta device, in evaluation mode, with parameters of `dtype`."""
    with without_memory():
        return make().to(dtype).eval().requires_grad_(False)


def load(
    path: Path, config: dict[str, object], device: torch.device, dtype: torch.dtype | None, options: dict[str, object]
) -> Qwen3TTS:
    """Load a checkpoint directory. `dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    `options`: `codec_dtype` of the codec's decoder (see precision.py; the encoders are float32 or wider);
    `mistral_pretokenizer` (False) splits words as the official package does for a local directory.
    Raises CheckpointError and InvalidRequest.
    """
    mistral = _load_options(options)
    audio_dtype = codec_dtype(options, device, dtype)
    encoder_dtype = at_least_float32(audio_dtype)
    c, codec = parse(config, str(path / "config.json")), read_codec(path)
    if codec.decoder.codebooks != c.codebooks or codec.encoder.used != c.codebooks:
        raise CheckpointError(f"{path}: the talker makes {c.codebooks} codes per frame, the codec wants another number")
    tensors = read_sharded(path)
    weights = load_weights(c, tensors, str(path), device, _dtype(dtype, tensors, device), encoder_dtype)
    del tensors
    decoder, encoder = load_codec(path, codec, device, encoder_dtype, with_encoder=c.kind == "base")
    decoder.fold(audio_dtype)
    clone = make_clone(c, weights, encoder, codec, device) if encoder is not None else None
    tokenizer = QwenTokenizer(path, mistral)
    return Qwen3TTS(c, codec, weights, decoder, clone, tokenizer, generation_defaults(path))


def _load_options(options: Mapping[str, object]) -> bool:
    """Whether words are split as the official package does for a local directory."""
    for name in options:
        if name not in LOAD_OPTIONS:
            raise InvalidRequest(name, f"is not a load option of this model; known: {', '.join(LOAD_OPTIONS)}")
    mistral = options.get("mistral_pretokenizer", False)
    if not isinstance(mistral, bool):
        raise InvalidRequest("mistral_pretokenizer", f"must be true or false, got {mistral!r}")
    return mistral


def _dtype(asked: torch.dtype | None, tensors: Mapping[str, Tensor], device: torch.device) -> torch.dtype:
    if asked is not None:
        return asked
    head = tensors.get("talker.codec_head.weight")
    return torch.float32 if device.type == "cpu" or head is None else head.dtype


def load_weights(
    c: Config,
    tensors: Mapping[str, Tensor],
    source: str,
    device: torch.device,
    dtype: torch.dtype,
    encoder_dtype: torch.dtype,
) -> Weights:
    """The main file, in `dtype`; its speaker encoder in `encoder_dtype`."""
    weights = make_weights(c, dtype, encoder_dtype)
    fill(weights, tensors, source, device)
    return weights


def make_weights(c: Config, dtype: torch.dtype, encoder_dtype: torch.dtype) -> Weights:
    """The language models on the meta device."""
    weights = build(lambda: Weights(c), dtype)
    assert isinstance(weights, Weights)
    if c.speaker is not None:
        weights.speaker_encoder.to(encoder_dtype)
    return weights


def load_codec(
    path: Path, codec: CodecConfig, device: torch.device, dtype: torch.dtype, with_encoder: bool
) -> tuple[Decoder, Encoder | None]:
    """speech_tokenizer/model.safetensors. The encoder half is read for Base models only."""
    folder = path / "speech_tokenizer"
    tensors = read_sharded(folder)
    decoder = build(lambda: Decoder(codec.decoder), dtype)
    fill(decoder, _part(tensors, "decoder."), f"{folder}: decoder", device)
    assert isinstance(decoder, Decoder)
    if not with_encoder:
        return decoder, None
    encoder = build(lambda: Encoder(codec.encoder), dtype)
    fill(encoder, _used(_part(tensors, "encoder."), codec.encoder), f"{folder}: encoder", device)
    assert isinstance(encoder, Encoder)
    return decoder, encoder


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`; the wrapper `.conv` of the reference's padded convolutions is left out."""
    part = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return {k.replace(".conv.", ".") if not k.startswith("quantizer.") else k: v for k, v in part.items()}


def _used(tensors: Mapping[str, Tensor], c: EncoderConfig) -> dict[str, Tensor]:
    """Without what encoding does not need: output projections, flags, and the quantizers past the used ones."""
    kept = {k: v for k, v in tensors.items() if not k.endswith((".output_proj.weight", ".initialized"))}
    unused = tuple(
        f"quantizer.acoustic_residual_vector_quantizer.layers.{i}." for i in range(c.used - c.semantic, c.quantizers)
    )
    return {k: v for k, v in kept.items() if not k.startswith(unused)}


def make_clone(
    c: Config, weights: Weights, encoder: Encoder, codec: CodecConfig, device: torch.device
) -> CloneEncoder | None:
    """The reference encoders of a Base model, ready to run."""
    if c.speaker is None:
        return None
    encoder.fold(int(REFERENCE_SECONDS[1] * codec.sample_rate) + codec.encoder.hop)
    mel = LogMel(c.speaker.sample_rate, c.speaker.mels).to(device)
    return CloneEncoder(encoder, mel, weights.speaker_encoder)
