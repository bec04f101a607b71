"""Making the model: from a released directory, or random at the released sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.codec_dtype import OPTION, codec_dtype
from stentor.models.fish_s2 import codec_config, config
from stentor.models.fish_s2.checkpoint import read_codec, read_language_model, released_name
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.language_model import Language
from stentor.models.fish_s2.model import REFERENCE_SECONDS, SAMPLE_RATE, FishS2
from stentor.models.fish_s2.tokenizer import Tokens, piece_tokens, read_tokens
from stentor.models.weights import fill

IDS = {"<|im_start|>": 151644, "<|im_end|>": 151645, "<|voice|>": 151673}
IDS.update({f"<|semantic:{i}|>": 151678 + i for i in (0, 4095)})
"""Special ids of the released tokenizer, for the model that has no files."""


def load_model(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> FishS2:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU. Option `codec_dtype`: what audio is made in."""
    _check(options)
    audio_dtype = codec_dtype(options, device, dtype)
    c = config.parse(raw)
    tokens = read_tokens(path, c.codes, c.vocab)
    tensors = read_language_model(path)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else tensors["embeddings.weight"].dtype
    language = Language(c, tokens.semantic, tokens.im_end, dtype)
    fill(language, tensors, str(path), device, file_name=released_name)
    del tensors
    codec_tensors = read_codec(path)
    codec = make_codec(codec_config.infer(codec_tensors), c, audio_dtype)
    fill(codec, codec_tensors, str(path / "codec.pth"), device)
    return finish(language, codec, tokens, device, dtype)


def dummy_model(device: torch.device, dtype: torch.dtype | None) -> FishS2:
    """Released sizes, seeded random weights made on the device; bfloat16 on a GPU unless told."""
    audio_dtype = codec_dtype({}, device, dtype)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    c = config.parse(config.RELEASED)
    tokens = piece_tokens(IDS, c.codes, c.vocab)
    language = Language(c, tokens.semantic, tokens.im_end, dtype)
    codec = make_codec(codec_config.RELEASED, c, audio_dtype)
    for module in (language, codec):
        randomize(module, device)
    return finish(language, codec, tokens, device, dtype)


def make_codec(sizes: codec_config.CodecConfig, c: config.LanguageConfig, dtype: torch.dtype) -> FishCodec:
    """A codec without weights, for streams and references of any length that the model takes."""
    if sizes.residual_books + 1 != c.books:
        raise CheckpointError(f"codec.pth has {sizes.residual_books + 1} codebooks, config.json says {c.books}")
    longest_reference = math.ceil(REFERENCE_SECONDS[1] * SAMPLE_RATE / sizes.encoder_hop) + sizes.hop
    return FishCodec(sizes, max(c.max_model_len, longest_reference), dtype)


def randomize(module: nn.Module, device: torch.device) -> None:
    """Seeded weights that keep activations near unit size; vectors, which are gains and biases, are ones and zeros."""
    generator = torch.Generator(device).manual_seed(0)
    state = {}
    for name, p in module.named_parameters():
        if p.ndim == 1 or name.endswith("alpha"):
            fresh = torch.full(p.shape, 0.0 if name.endswith("bias") else 1.0, dtype=p.dtype, device=device)
        else:
            fresh = torch.empty(p.shape, dtype=p.dtype, device=device)
            fresh.normal_(0, 1 / math.sqrt(p[0].numel()), generator=generator)
        state[name] = fresh
    module.load_state_dict(state, assign=True)


def finish(language: Language, codec: FishCodec, tokens: Tokens, device: torch.device, dtype: torch.dtype) -> FishS2:
    """A model of filled parts: all on `device`, and what follows from the weights worked out."""
    for module in (language, codec):
        module.to(device).requires_grad_(False).eval()
    language.select_head()
    codec.project()
    return FishS2(language, codec, tokens, dtype)


def _check(options: Mapping[str, Any]) -> None:
    unknown = sorted(set(options) - {OPTION})
    if unknown:
        raise InvalidRequest(unknown[0], f"is not an option of this family; it takes {OPTION}")
