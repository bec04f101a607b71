"""Building a model: from a checkpoint in the layout of transformers, or with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, codec_dtype, model_dtype
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, Source
from stentor.models.weights import on_meta, read_sharded
from stentor_csm.codec_decoder import Decoder
from stentor_csm.codec_encoder import Encoder
from stentor_csm.config import Config, parse
from stentor_csm.model import Csm
from stentor_csm.tokenizer import BEGIN, END, Tokens, read_tokens
from stentor_csm.weights import Weights

QUANTIZED, QUANTIZED_DEPTH = ("backbone_model",), ("depth_decoder.model",)
CODEC = "codec_model."
TIED = (
    "backbone_model.embed_tokens.embed_audio_tokens.weight",
    "depth_decoder.model.embed_tokens.weight",
)


def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Csm:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU. Load options: `codec_dtype` and `quantization`.
    CheckpointError, InvalidRequest."""
    source.check_options(options, (CODEC_DTYPE, QUANTIZATION))
    c, tensors = parse(source.config, f"{source.name}/config.json"), source.tensors(read_sharded)
    decoder, encoder = fill_codec(source, c, tensors, device, codec_dtype(options, device, dtype))
    language = {name: tensor for name, tensor in tensors.items() if not name.startswith(CODEC)}
    if TIED[0] in language:  # files have one of the two, or the same twice
        language.setdefault(TIED[1], language[TIED[0]])
        del language[TIED[0]]
    head = language.get("lm_head.weight")
    own = torch.bfloat16 if head is None else head.dtype
    weights = on_meta(lambda: Weights(c), model_dtype(dtype, own, device))
    eight_bits = EightBits(quantization(options), QUANTIZED, QUANTIZED_DEPTH)
    source.fill(weights, language, source.name, device, 2, eight_bits=eight_bits)
    if isinstance(source, Checkpoint):
        tokens = read_tokens(source.path, c.text_vocab)
    else:
        tokens = Tokens(
            partial(dummy_tokens, vocab=source.words), source.special[BEGIN], source.special[END]
        )
    return Csm(
        c, weights, decoder, encoder, tokens, dict(source.json("generation_config.json", {}))
    )


def fill_codec(
    source: Source,
    c: Config,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Decoder, Encoder]:
    """Both halves of the codec, which share the codebooks. `dtype` is that of the decoder."""
    precise, where = at_least_float32(dtype), f"{source.name}: codec"
    codec = {
        name.removeprefix(CODEC): tensor
        for name, tensor in tensors.items()
        if name.startswith(CODEC)
    }
    decoder, encoder = (
        on_meta(lambda: Decoder(c.codec), precise),
        on_meta(lambda: Encoder(c.codec), precise),
    )
    source.fill(decoder, _named(decoder, codec), where, device, 0, ("encoder", "downsample"))
    source.fill(encoder, _named(encoder, codec), where, device, 1, ("decoder", "upsample"))
    decoder.process_weights_after_loading(c.codebooks, dtype)
    return decoder, encoder


def _named(module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names of `module`, which has no wrapper `.conv` around the convolutions of its layers."""
    wrapped = ("downsample.", "upsample.")
    return {n if n.startswith(wrapped) else n.replace(".conv.", "."): t for n, t in tensors.items()}
