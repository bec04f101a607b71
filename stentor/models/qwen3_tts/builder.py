"""Building a model: the language models, the speech tokenizer beside them, the text tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.dummy import DummyTokenizer
from stentor.models.frame_talker import LOAD_OPTIONS, codec_part, eight_bits, talker_dtype
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, codec_dtype, encoder_dtype
from stentor.models.lora import USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option, read_peft
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.qwen3_tts.codec import Decoder, Encoder
from stentor.models.qwen3_tts.config import (
    CODEC_FOLDER,
    CodecConfig,
    Config,
    EncoderConfig,
    parse,
    read_codec,
)
from stentor.models.qwen3_tts.model import Qwen3TTS, Weights
from stentor.models.qwen3_tts.speaker_encoder import LogMel
from stentor.models.qwen3_tts.spec import GENERATION, REFERENCE_SECONDS
from stentor.models.qwen3_tts.tokenizer import QwenTokenizer, Tokenizer
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import on_meta, read_sharded

FILE_OPTIONS = (CODEC_DTYPE, "mistral_pretokenizer", "lora")
"""Load options of a checkpoint."""


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Qwen3TTS:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU.

    Load options: `quantization` of the talker's weights, those of adapters (models/lora.py), and of
    a checkpoint `codec_dtype` of the codec (the speaker encoder is float32 or wider), `lora` (a
    PEFT folder to merge), and `mistral_pretokenizer` (False), which splits words as the official
    package does for a local directory. Raises CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    mistral = _mistral(options)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    audio_dtype = codec_dtype(options, device, dtype)
    precise = at_least_float32(audio_dtype)
    c = parse(source.config, f"{source.name}/config.json")
    codec = read_codec(source)
    if codec.decoder.codebooks != c.codebooks or codec.encoder.num_codebooks != c.codebooks:
        raise CheckpointError(
            f"{source.name}: the talker makes {c.codebooks} codes per frame, the codec wants another number"
        )
    # The codec first: its weights are rounded on the device, and those of the talker fill what that
    # leaves.
    decoder, encoder = fill_codec(source, codec, device, precise, with_encoder=c.kind == "base")
    decoder.process_weights_after_loading(audio_dtype)
    if encoder is not None:
        prepare(encoder, codec, encoder_dtype(audio_dtype, device))
    tensors = source.tensors(
        lambda path: read_quantized(source.config, read_sharded(path), str(path))
    )
    tensors = merge_option(tensors, options, read_peft)
    weights = make_weights(c, talker_dtype(tensors, dtype, device), precise)
    source.fill(weights, tensors, source.name, device, eight_bits=eight_bits(options))
    del tensors
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    clone = None
    if encoder is not None and c.speaker is not None:
        clone = (
            encoder,
            LogMel(c.speaker.sample_rate, c.speaker.mels).to(device),
            weights.speaker_encoder,
        )
    tokenizer: Tokenizer
    if isinstance(source, Checkpoint):
        tokenizer = QwenTokenizer(source.path, mistral)
    else:
        tokenizer = DummyTokenizer(source.words, source.special)
    return Qwen3TTS(
        c, codec, weights, decoder, clone, tokenizer, dict(source.json(GENERATION, {})), adapters
    )


def serves_adapters(name: str) -> bool:
    """Whether a request's adapter may change this layer: those of the talker's blocks."""
    return name.startswith("talker.model.layers.")


def _mistral(options: Mapping[str, object]) -> bool:
    """Whether words are split as the official package does for a local directory."""
    mistral = options.get("mistral_pretokenizer", False)
    if not isinstance(mistral, bool):
        raise InvalidRequest("mistral_pretokenizer", f"must be true or false, got {mistral!r}")
    return mistral


def make_weights(c: Config, dtype: torch.dtype, speaker: torch.dtype) -> Weights:
    """The language models on the meta device. `speaker` is the dtype of the speaker encoder."""
    weights = on_meta(lambda: Weights(c), dtype)
    if c.speaker is not None:
        weights.speaker_encoder.to(speaker)
    return weights


def fill_codec(
    source: Source, codec: CodecConfig, device: torch.device, dtype: torch.dtype, with_encoder: bool
) -> tuple[Decoder, Encoder | None]:
    """speech_tokenizer/model.safetensors. The encoder half is read for Base models only."""
    where = f"{source.name}/{CODEC_FOLDER}"
    tensors = source.tensors(lambda path: read_sharded(path / CODEC_FOLDER))
    decoder = on_meta(lambda: Decoder(codec.decoder), dtype)
    source.fill(decoder, codec_part(tensors, "decoder."), f"{where}: decoder", device, 1)
    if not with_encoder:
        return decoder, None
    encoder = on_meta(lambda: Encoder(codec.encoder), dtype)
    source.fill(
        encoder,
        _used(codec_part(tensors, "encoder."), codec.encoder),
        f"{where}: encoder",
        device,
        2,
    )
    return decoder, encoder


def _used(tensors: Mapping[str, Tensor], c: EncoderConfig) -> dict[str, Tensor]:
    """Without what encoding does not need: output projections, flags, and the quantizers past the
    used ones."""
    used_tensors = {
        k: v for k, v in tensors.items() if not k.endswith((".output_proj.weight", ".initialized"))
    }
    unused = tuple(
        f"quantizer.acoustic_residual_vector_quantizer.layers.{i}."
        for i in range(c.num_codebooks - c.semantic, c.quantizers)
    )
    return {k: v for k, v in used_tensors.items() if not k.startswith(unused)}


def prepare(encoder: Encoder, codec: CodecConfig, dtype: torch.dtype) -> None:
    """Make a loaded codec encoder ready for references of any length, in `dtype`."""
    encoder.process_weights_after_loading(
        int(REFERENCE_SECONDS[1] * codec.sample_rate) + codec.encoder.hop, dtype
    )
