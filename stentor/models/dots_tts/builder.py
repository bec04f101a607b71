"""Building a model: the network, the vocoder's halves, the speaker encoder, the tokenizer and the
statistics."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stentor.errors import CheckpointError
from stentor.models.dots_tts.codec import Decoder, Encoder, cast_vocoder
from stentor.models.dots_tts.config import parse, with_solver
from stentor.models.dots_tts.model import DotsTTS
from stentor.models.dots_tts.network import DotsNet
from stentor.models.dots_tts.prompt import PromptBuilder
from stentor.models.dots_tts.reference import SpeakerEncoder
from stentor.models.dots_tts.tokenizer import Tokenizer
from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, codec_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, USUAL_TARGETS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option, read_peft
from stentor.models.quantization import QUANTIZATION, EightBits, quantization
from stentor.models.source import Checkpoint, RandomWeights, Source
from stentor.models.weights import fold_weight_norm, meta_init, read_safetensors, read_sharded

LOAD_OPTIONS = ("flow_steps", "ode_method", "cfg", CODEC_DTYPE, QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = ("lora",)
"""Load options of a checkpoint."""
QUANTIZED = ("llm.model",)
"""The stack whose weights may have 8 bits."""
ENCODER = ("audio_encoder.", "enc_mi_layer.", "pre_proj.")
TIED = "llm.lm_head.weight"
LOUD = 700.0  # random up-sampling loses so much, and silence is no audio to measure with


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> DotsTTS:
    """`dtype` None: bfloat16 on a GPU, float32 on a CPU. Without files words take the place of
    tokens.

    Load options: `flow_steps`, `ode_method` and `cfg`, of which the size of the flow's history
    depends, `codec_dtype`, `quantization` of the language model's weights, those of adapters
    (models/lora.py), and of a checkpoint `lora` (a PEFT folder to merge). Raises CheckpointError
    and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    plan = AdapterPlan.of(options, read_peft, USUAL_TARGETS)
    eight_bits = EightBits(quantization(options), QUANTIZED)
    sizes = dict(source.json("llm_config.json"))
    if isinstance(source, Checkpoint):
        tokenizer = Tokenizer(source.path / "tokenizer.json")
        encode = tokenizer.encode
        special = tokenizer.special
        sizes["vocab_size"] = tokenizer.size  # as the package does
    else:
        encode = partial(dummy_tokens, vocab=source.words)
        special = dict(source.special)
    c = with_solver(parse(source.config, sizes), options)
    with meta_init():  # all but the network are loaded in float32
        net = DotsNet(c).to(model_dtype(dtype, torch.bfloat16, device))
        decoder = Decoder(c.vocoder, c.patch)
        encoder = Encoder(c.vocoder)
        speaker = SpeakerEncoder(c.speaker)
    tensors = source.tensors(read_sharded)
    tensors.pop(TIED, None)
    tensors = merge_option(tensors, options, read_peft)
    source.fill(net, tensors, source.name, device, eight_bits=eight_bits)
    _fill_codec(source, decoder, encoder, device)
    speakers = source.tensors(lambda path: read_safetensors(path / "speaker_encoder.safetensors"))
    source.fill(speaker, speakers, f"{source.name}: speaker_encoder", device)
    stats = np.zeros(c.latent, np.float32), np.ones(c.latent, np.float32)
    if isinstance(source, RandomWeights):
        decoder.decoder.conv_post.weight *= LOUD
    else:
        stats = read_stats(source.path / "latent_stats.pt", c.latent)
    for module in (net, decoder, encoder, speaker):
        module.eval().requires_grad_(False)
    decoder.mean, decoder.std = (torch.from_numpy(part).to(device) for part in stats)
    adapters = install_adapters(
        net, plan, lambda name: name.startswith("llm.model.layers."), read_peft
    )
    audio_dtype = codec_dtype(options, device, dtype)
    cast_vocoder(decoder, audio_dtype)
    cast_vocoder(encoder, at_least_float32(audio_dtype))
    return DotsTTS(
        c, net, decoder, (encoder, speaker), PromptBuilder(c, encode, special, stats), adapters
    )


def _fill_codec(source: Source, decoder: Decoder, encoder: Encoder, device: torch.device) -> None:
    """Fill both halves of the codec from vocoder.safetensors."""
    where = f"{source.name}: vocoder"
    tensors = fold_weight_norm(
        source.tensors(lambda path: read_safetensors(path / "vocoder.safetensors"))
    )
    encoder_part = {name: name.startswith(ENCODER) for name in tensors}
    source.fill(
        decoder, {name: t for name, t in tensors.items() if not encoder_part[name]}, where, device
    )
    source.fill(
        encoder, {name: t for name, t in tensors.items() if encoder_part[name]}, where, device
    )


def read_stats(file: Path, latent: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [latent] float32 of latent_stats.pt, a pickle of two arrays of
    NumPy's.

    It is read with `weights_only`, which beside tensors and plain data takes here what makes such
    an array.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    make = np.zeros(0, np.float32).__reduce__()[0]
    allowed: list[Any] = [
        (make, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")
    ]
    allowed += [np.ndarray, np.dtype, type(np.dtype(np.float32)), codecs.encode]
    try:
        with torch.serialization.safe_globals(allowed):
            data = torch.load(file, map_location="cpu", weights_only=True)
        mean, variance = (np.asarray(data[name], np.float32) for name in ("mean", "var"))
    except (
        Exception
    ) as e:  # torch.load raises many types for a corrupt file, and all mean the same to the user
        raise CheckpointError(f"{file} is not a pickle of the arrays mean and var: {e}") from e
    if mean.shape != (latent,) or variance.shape != (latent,) or not (variance > 0).all():
        raise CheckpointError(f"{file}: mean and var must have {latent} numbers each, var above 0")
    return mean, np.sqrt(variance)
