"""Loading a directory in the released layout."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stentor.config import path_of
from stentor.errors import CheckpointError
from stentor.layers.conv import cast_codec
from stentor.models.dots_tts.campplus import SpeakerEncoder
from stentor.models.dots_tts.codec import Decoder, Encoder
from stentor.models.dots_tts.config import DotsConfig, parse, with_solver
from stentor.models.dots_tts.model import DotsTTS
from stentor.models.dots_tts.network import DotsNet
from stentor.models.dots_tts.prompt import PromptBuilder
from stentor.models.dots_tts.tokenizer import Tokenizer
from stentor.models.load_options import CODEC_DTYPE, at_least_float32, check_load_options, codec_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge, read_peft
from stentor.models.quantization import QUANTIZATION, place_quantized, quantization
from stentor.models.weights import fold_weight_norm, load_weights, meta_init, read_json, read_safetensors, read_sharded

DUMMY_OPTIONS = ("flow_steps", "ode_method", "cfg", CODEC_DTYPE, QUANTIZATION, *ADAPTER_OPTIONS)
LOAD_OPTIONS = (*DUMMY_OPTIONS, "lora")
QUANTIZED = ("llm.model",)
"""The stack whose weights may have 8 bits."""
USUAL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
ENCODER = ("audio_encoder.", "enc_mi_layer.", "pre_proj.")
TIED = "llm.lm_head.weight"
Modules = tuple[DotsNet, Decoder, Encoder, SpeakerEncoder]


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> DotsTTS:
    """`raw` is config.json. `dtype` None: bfloat16 on a GPU, float32 on a CPU.

    Load options: `flow_steps`, `ode_method` and `cfg`, of which the size of the flow's history depends, `lora` (a PEFT
    folder to merge), `codec_dtype`, `quantization` of the language model's weights, and those of adapters
    (models/lora.py). Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    plan, eight = AdapterPlan.of(options, read_peft, USUAL_TARGETS), quantization(options)
    tokenizer = Tokenizer(path / "tokenizer.json")
    sizes = {**read_json(path / "llm_config.json"), "vocab_size": tokenizer.size}  # as the package does
    c = with_solver(parse(raw, sizes), options)
    modules = make_modules(c, device, dtype)
    net, decoder, encoder, speaker = modules
    tensors = read_sharded(path)
    tensors.pop(TIED, None)
    if "lora" in options:
        tensors = merge(tensors, read_peft(path_of("lora", options["lora"])))
    load_weights(net, place_quantized(net, QUANTIZED, tensors, eight, str(path), device), str(path), device)
    source, vocoder = f"{path}: vocoder", fold_weight_norm(read_safetensors(path / "vocoder.safetensors"))
    own = {name: name.startswith(ENCODER) for name in vocoder}
    load_weights(decoder, {name: t for name, t in vocoder.items() if not own[name]}, source, device)
    load_weights(encoder, {name: t for name, t in vocoder.items() if own[name]}, source, device)
    speakers = read_safetensors(path / "speaker_encoder.safetensors")
    load_weights(speaker, speakers, f"{path}: speaker_encoder", device)
    stats = read_stats(path / "latent_stats.pt", c.latent)
    audio_dtype = codec_dtype(options, device, dtype)
    return build_model(c, modules, device, audio_dtype, tokenizer.encode, tokenizer.special, stats, plan)


def make_modules(c: DotsConfig, device: torch.device, dtype: torch.dtype | None) -> Modules:
    """Modules on the meta device. All but the network are loaded in float32."""
    with meta_init():
        net = DotsNet(c).to(model_dtype(dtype, torch.bfloat16, device))
        return net, Decoder(c.vocoder, c.patch), Encoder(c.vocoder), SpeakerEncoder(c.speaker)


@torch.no_grad()
def build_model(
    c: DotsConfig,
    modules: Modules,
    device: torch.device,
    audio_dtype: torch.dtype,
    encode: Callable[[str], list[int]],
    special: Mapping[str, int],
    stats: tuple[np.ndarray, np.ndarray],
    plan: AdapterPlan,
) -> DotsTTS:
    """A model of loaded parts, all on `device`. stats: see PromptBuilder."""
    net, decoder, encoder, speaker = modules
    for module in modules:
        module.eval().requires_grad_(False)
    decoder.mean, decoder.std = (torch.from_numpy(part).to(device) for part in stats)
    adapters = install_adapters(net, plan, lambda name: name.startswith("llm.model.layers."), read_peft)
    cast_codec(decoder, audio_dtype)
    encoder.to(at_least_float32(audio_dtype))
    for part in (*decoder.modules(), *encoder.modules()):
        if isinstance(part, nn.LSTM):
            part.flatten_parameters()  # else the library of a GPU copies all weights in each call
    return DotsTTS(c, net, decoder, (encoder, speaker), PromptBuilder(c, encode, special, stats), adapters)


def read_stats(file: Path, latent: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation [latent] float32 of latent_stats.pt, a pickle of two arrays of NumPy's.

    It is read with `weights_only`, which beside tensors and plain data takes here what makes such an array.
    """
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist")
    make = np.zeros(0, np.float32).__reduce__()[0]
    allowed: list[Any] = [(make, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    allowed += [np.ndarray, np.dtype, type(np.dtype(np.float32)), codecs.encode]
    try:
        with torch.serialization.safe_globals(allowed):
            data = torch.load(file, map_location="cpu", weights_only=True)
        mean, variance = (np.asarray(data[name], np.float32) for name in ("mean", "var"))
    except Exception as e:  # torch.load raises many types for a corrupt file, and all mean the same to the user
        raise CheckpointError(f"{file} is not a pickle of the arrays mean and var: {e}") from e
    if mean.shape != (latent,) or variance.shape != (latent,) or not (variance > 0).all():
        raise CheckpointError(f"{file}: mean and var must have {latent} numbers each, var above 0")
    return mean, np.sqrt(variance)
