"""Models at their released sizes with random weights and without files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from stentor.layers.transformer import StackConfig
from stentor.models.dummy import dummy_tokens, initialize_dummy_weights
from stentor.models.frame_talker import TransformerConfig
from stentor.models.load_options import check_load_options, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import read_peft
from stentor.models.quantization import QUANTIZATION, quantization, quantize_layers
from stentor.models.qwen3_tts.codec_decoder import Decoder
from stentor.models.qwen3_tts.codec_encoder import Encoder
from stentor.models.qwen3_tts.config import (
    CodecConfig,
    Config,
    DecoderConfig,
    EncoderConfig,
    Ids,
    SpeakerConfig,
)
from stentor.models.qwen3_tts.loader import (
    QUANTIZED,
    QUANTIZED_DEPTH,
    USUAL_TARGETS,
    build,
    make_clone,
    make_weights,
    prepare,
    serves_adapters,
)
from stentor.models.qwen3_tts.model import Qwen3TTS

SEED = 20260122
GENERATION: dict[str, object] = {"max_new_tokens": 8192}
"""generation_config.json of the released files, as far as it differs from the defaults without one."""
KINDS = {"customvoice": "custom_voice", "voicedesign": "voice_design", "base": "base"}
LANGUAGES = {
    "english": 2050,
    "german": 2053,
    "spanish": 2054,
    "chinese": 2055,
    "japanese": 2058,
    "french": 2061,
    "korean": 2064,
    "russian": 2069,
    "italian": 2070,
    "portuguese": 2071,
}
DIALECTS = {"sichuan_dialect": 2062, "beijing_dialect": 2074}
SPEAKERS = {
    "serena": 3066,
    "vivian": 3065,
    "uncle_fu": 3010,
    "ryan": 3061,
    "aiden": 2861,
    "ono_anna": 2873,
    "sohee": 2864,
    "eric": 2875,
    "dylan": 2878,
}
SPECIAL = {"<|im_start|>": 151644, "<|im_end|>": 151645}
WORDS = 151643  # ids that words may have
CONSTANTS = {"scale": 0.1, "gamma": 0.1, "cluster_usage": 1.0, "alpha": 0.0}  # the last is the logarithm of a gain


def config(name: str) -> Config:
    """The released values of `qwen3-tts-SIZE-KIND`."""
    size, kind = name.removeprefix("qwen3-tts-").split("-")
    small = size == "0.6b"
    hidden, ffn = (1024, 3072) if small else (2048, 6144)
    kind = KINDS[kind]
    custom = kind == "custom_voice"
    return Config(
        kind=kind,
        size="0b6" if small else "1b7",
        talker=TransformerConfig(_stack(hidden, ffn, 28), 3072, 1e6, 32768),
        predictor=TransformerConfig(_stack(1024, 3072, 5), 2048, 1e6, 65536),
        text_vocab=151936,
        text_hidden=2048,
        codebooks=16,
        ids=Ids(151671, 151672, 151673, 2148, 2149, 2150, 2154, 2155, 2156, 2157),
        languages={**LANGUAGES, **DIALECTS} if custom else LANGUAGES,
        speakers=SPEAKERS if custom else {},
        dialects={"eric": "sichuan_dialect", "dylan": "beijing_dialect"} if custom else {},
        speaker=_speaker(hidden) if kind == "base" else None,
    )


def _stack(hidden: int, ffn: int, layers: int) -> StackConfig:
    return StackConfig(hidden, ffn, layers, heads=16, kv_heads=8, head_dim=128, eps=1e-6, qk_norm=True)


def _speaker(dim: int) -> SpeakerConfig:
    channels, kernels, dilations = (512, 512, 512, 512, 1536), (5, 3, 3, 3, 1), (1, 2, 3, 4, 1)
    return SpeakerConfig(dim, 128, channels, kernels, dilations, 128, 8, 128, 24000)


def codec_config() -> CodecConfig:
    """The released values of the 12 Hz codec."""
    decoder = DecoderConfig(
        stack=StackConfig(hidden=512, ffn=1024, layers=8, heads=16, kv_heads=16, head_dim=64, eps=1e-5),
        theta=1e4,
        window=72,
        latent=1024,
        codebook_dim=512,
        codebook_size=2048,
        codebooks=16,
        width=1536,
        rates=(8, 5, 4, 3),
        ratios=(2, 2),
    )
    encoder = EncoderConfig(
        stack=StackConfig(hidden=512, ffn=2048, layers=8, heads=8, kv_heads=8, head_dim=64, eps=1e-5),
        theta=1e4,
        filters=64,
        kernel=7,
        residual_kernel=3,
        last_kernel=3,
        residual_layers=1,
        growth=2,
        compress=2,
        ratios=(8, 6, 5, 4),
        codebook_size=2048,
        codebook_dim=256,
        quantizer_dim=256,
        quantizers=32,
        semantic=1,
        used=16,
        hop=1920,
    )
    return CodecConfig(24000, decoder, encoder)


class DummyTokenizer:
    """One id per word, and the ids of special tokens."""

    def __init__(self, vocab: int, special: dict[str, int]) -> None:
        self._vocab, self._special = vocab, special
        self._marks = re.compile("(" + "|".join(re.escape(s) for s in special) + ")")

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._marks.split(text):
            if part in self._special:
                ids.append(self._special[part])
            elif part:
                ids.extend(dummy_tokens(part, self._vocab))
        return ids


def make(name: str, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]) -> Qwen3TTS:
    """The dummy `name`. `dtype` None: bfloat16 on a GPU, float32 on a CPU.

    Load options: `quantization`, and those of adapters (models/lora.py).
    """
    check_load_options(options, (QUANTIZATION, *ADAPTER_OPTIONS))
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    c, codec = config(name), codec_config()
    # The codec first, as in the loader: it is rounded on the device.
    audio_dtype = codec_dtype({}, device, dtype)
    decoder, encoder = build(lambda: Decoder(codec.decoder), torch.float32), None
    initialize_dummy_weights(decoder, device, SEED + 1, constants=CONSTANTS)
    decoder.process_weights_after_loading(audio_dtype)
    if c.speaker is not None:
        encoder = build(lambda: Encoder(codec.encoder), torch.float32)
        initialize_dummy_weights(encoder, device, SEED + 2, constants=CONSTANTS)
        prepare(encoder, codec, encoder_dtype(audio_dtype, device))
    weights = make_weights(c, model_dtype(dtype, torch.bfloat16, device), torch.float32)
    quantize_layers(weights, QUANTIZED, quantization(options), QUANTIZED_DEPTH)
    initialize_dummy_weights(weights, device, SEED, constants=CONSTANTS)
    adapters = install_adapters(weights, plan, serves_adapters, read_peft)
    clone = make_clone(c, weights, encoder, device) if encoder is not None else None
    return Qwen3TTS(c, codec, weights, decoder, clone, DummyTokenizer(WORDS, SPECIAL), GENERATION, adapters)
