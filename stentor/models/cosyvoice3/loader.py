"""Loading a released directory: cosyvoice3.yaml, the text model's folder, llm.pt, flow.pt, hift.pt, and its voices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stentor.arguments import shown, whole
from stentor.errors import InvalidRequest
from stentor.models.cosyvoice3 import checkpoint, codec_noise, config, hyper_yaml
from stentor.models.cosyvoice3.codec import HOP, CosyVoice3Codec
from stentor.models.cosyvoice3.language_model import Language
from stentor.models.cosyvoice3.model import CosyVoice3
from stentor.models.cosyvoice3.reference_encoder import VoiceEncoder
from stentor.models.cosyvoice3.tokenizer import Tokens, read_tokens
from stentor.models.cosyvoice3.voice import StoredVoice, load_voices
from stentor.models.load_options import CODEC_DTYPE, check_load_options, codec_dtype, model_dtype
from stentor.models.weights import load_weights, read_json

STREAM_WINDOW = "stream_window"
WINDOWS = (8, 300)  # seconds, which are cells
LOAD_OPTIONS = (CODEC_DTYPE, STREAM_WINDOW)


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> CosyVoice3:
    """`raw` is config.json, which says nothing. `dtype` None: bfloat16 on a GPU, float32 on a CPU.

    Load options: `codec_dtype` of the vocoder's stages, and `stream_window`, seconds of a stream that its flow attends
    to (0: a stream gets its audio when it has ended). Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    stages = codec_dtype(options, device, dtype)
    c = config.parse(hyper_yaml.read(path / config.YAML), read_json(path / config.TEXT_MODEL / "config.json"))
    tokens = read_tokens(path, c.language.text_vocab)
    voices = load_voices(path, c.language.codes)
    main = model_dtype(dtype, torch.bfloat16, device)
    language, codec = Language(c.language, main), CosyVoice3Codec(c, stream_window(options))
    parts = (
        (language, checkpoint.read_language, "llm.pt", checkpoint.LANGUAGE),
        (codec.flow, checkpoint.read_flow, "flow.pt", checkpoint.FLOW),
        (codec.vocoder, checkpoint.read_vocoder, "hift.pt", checkpoint.VOCODER),
    )
    for module, read, name, rules in parts:
        load_weights(module, read(path), str(path / name), device, file_name=checkpoint.released_name(rules))
    return build_model(c, language, codec, tokens, voices, VoiceEncoder(path), stages)


def stream_window(options: Mapping[str, Any]) -> int:
    """Cells that a stream keeps. Raises InvalidRequest."""
    value, (low, high) = options.get(STREAM_WINDOW, 0), WINDOWS
    seconds = whole(value)
    if seconds is None or not (seconds == 0 or low <= seconds <= high):
        raise InvalidRequest(STREAM_WINDOW, f"must be 0, or seconds from {low} to {high}, got {shown(value)}")
    return seconds


def build_model(
    c: config.Config,
    language: Language,
    codec: CosyVoice3Codec,
    tokens: Tokens,
    voices: Mapping[str, StoredVoice],
    encoder: VoiceEncoder,
    stages: torch.dtype,
) -> CosyVoice3:
    """A model of loaded parts, all on one device. `stages`: the dtype of the vocoder's stages."""
    for module in (language, codec):
        module.requires_grad_(False).eval()
    language.process_weights_after_loading()
    noise = (codec_noise.flow_noise(), codec_noise.source_noise(c, config.MAX_MODEL_LEN * HOP))
    codec.process_weights_after_loading(noise, language.table.dtype, stages)
    for module in (language, codec):
        module.to(language.table.device)
    return CosyVoice3(c, language, codec, tokens, voices, encoder)
