"""Loading a directory in the released layout: the network, the autoencoder, the tokenizer and LoRA weights."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stentor import text as texts
from stentor.arguments import shown, whole
from stentor.config import path_of
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.conv import cast_codec
from stentor.layers.packed_conv import pack_convolutions
from stentor.layers.packed_linear import packs
from stentor.models.base import Voice
from stentor.models.load_options import CODEC_DTYPE, check_load_options, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge
from stentor.models.quantization import QUANTIZATION, pack_layers, place_quantized, quantization
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import VoxCPM2Config, parse
from stentor.models.voxcpm2.lora import USUAL_TARGETS, read_lora, serves_adapters
from stentor.models.voxcpm2.model import VoxCPM2
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import PromptBuilder, Tokenize
from stentor.models.voxcpm2.schedule import MAX_STEPS
from stentor.models.voxcpm2.tokenizer import TextTokenizer
from stentor.models.weights import (
    errors_name,
    fold_weight_norm,
    load_weights,
    meta_init,
    read_pickle,
    read_safetensors,
    read_sharded,
)
from stentor.text.front_end import FrontEnd

UNUSED_VAE = ("encoder.fc_logvar.", "decoder.sr_bin_boundaries")
LOAD_OPTIONS = ("lora", "flow_steps", CODEC_DTYPE, QUANTIZATION, *ADAPTER_OPTIONS)
QUANTIZED = ("base_lm", "residual_lm")
"""The language models whose weights may have 8 bits."""
LOCAL = ("feat_encoder.encoder", "feat_decoder.estimator.decoder")
"""The transformers of a patch."""
WORKERS = 2
"""Threads that pack weights and read dictionaries beside the one that loads."""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def load(
    path: Path, raw: Mapping[str, Any], device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VoxCPM2:
    """`raw` is config.json. `dtype` None: the checkpoint's own on a GPU, float32 on a CPU. There, what had 8 bits only
    to make the checkpoint small is held in 16.

    Load options: `lora` (a file or directory of LoRA weights to merge), `flow_steps` (another default of the request
    option), `codec_dtype`, `quantization` of the language models' weights, and those of adapters (models/lora.py).
    Raises CheckpointError and InvalidRequest.
    """
    check_load_options(options, LOAD_OPTIONS)
    c = _with_steps(parse(raw), options.get("flow_steps"))
    audio_dtype = codec_dtype(options, device, dtype)
    plan = AdapterPlan.of(options, read_lora, USUAL_TARGETS)
    with ThreadPoolExecutor(WORKERS) as beside:
        net, vae = make_modules(c, device, dtype)
        front_end = beside.submit(_front_end, c)
        packs_layers = c.widens and dtype is None and not plan.slots and packs(device, net.stop_head.weight.dtype)
        _fill(net, path, raw, c, device, options, beside if packs_layers else None)
        _fill_codec(vae, path, device, beside if packs(device, audio_dtype) else None)
        text = Text(TextTokenizer(path / "tokenizer.json"), front_end.result())
    return build_model(c, net, vae, device, audio_dtype, text, plan, _stored_voices(path, c))


def _fill(
    net: VoxCPM2Net,
    path: Path,
    raw: Mapping[str, Any],
    c: VoxCPM2Config,
    device: torch.device,
    options: Mapping[str, Any],
    packing: Executor | None,
) -> None:
    """Load the network's weights. What they are made from is gone when this returns. packing: threads that pack what
    has 8 bits only to make the checkpoint small. None: it is not packed."""
    weights = read_quantized(raw, _main_weights(path), str(path))
    if "lora" in options:
        weights = merge(weights, read_lora(path_of("lora", options["lora"])))
    dtype_8 = quantization(options)
    stacks = () if c.widens and dtype_8 is None else QUANTIZED
    if packing is not None:
        weights = pack_layers(net, LOCAL if stacks else (*QUANTIZED, *LOCAL), weights, packing)
    weights = place_quantized(net, stacks, weights, dtype_8, f"{path}: model", device)
    load_weights(net, weights, f"{path}: model", device)


def _fill_codec(vae: AudioVAE, path: Path, device: torch.device, packing: Executor | None) -> None:
    """Load the autoencoder's weights. packing: threads that pack the decoder's, where 16 bits hold all of them."""
    tensors = _vae_weights(path)
    with errors_name(f"{path}: audiovae"):
        weights = fold_weight_norm(tensors)
    load_weights(vae, weights, f"{path}: audiovae", device, ignore=UNUSED_VAE)
    exact = all(t.dtype == torch.float16 for name, t in weights.items() if name.startswith("decoder."))
    if packing is not None and exact:
        pack_convolutions(vae.decoder, packing)


def _with_steps(c: VoxCPM2Config, steps: object) -> VoxCPM2Config:
    """`c` with another default of flow_steps, for which the engine prepares too."""
    if steps is None:
        return c
    number = whole(steps)
    if number is None or not 1 <= number <= MAX_STEPS:
        raise InvalidRequest("flow_steps", f"must be a whole number from 1 to {MAX_STEPS}, got {shown(steps)}")
    return replace(c, defaults={**c.defaults, "flow_steps": number})


def make_modules(c: VoxCPM2Config, device: torch.device, dtype: torch.dtype | None) -> tuple[VoxCPM2Net, AudioVAE]:
    """Modules on the meta device. The autoencoder is loaded in float32 whatever the network is."""
    with meta_init():
        return VoxCPM2Net(c, model_dtype(dtype, DTYPES[c.dtype], device)), AudioVAE(c.vae)


class Text(NamedTuple):
    """Reader of text: a front end and the tokenizer of what it makes."""

    tokenize: Tokenize
    front_end: FrontEnd


@torch.no_grad()
def build_model(
    c: VoxCPM2Config,
    net: VoxCPM2Net,
    vae: AudioVAE,
    device: torch.device,
    audio_dtype: torch.dtype,
    text: Text,
    plan: AdapterPlan,
    voices: Mapping[str, Voice] | None = None,
) -> VoxCPM2:
    """A model of loaded parts, all on `device`. Audio is decoded in `audio_dtype`. voices: see PromptBuilder."""
    for module in (net, vae):
        module.to(device).eval().requires_grad_(False)
    adapters = install_adapters(net, plan, serves_adapters, read_lora)
    cast_codec(vae.encoder, encoder_dtype(audio_dtype, device))
    cast_codec(vae.decoder, audio_dtype)
    suspect, aligned = (c.patches_per_token, c.patches_around), c.alignment is not None
    prompts = PromptBuilder(text.tokenize, text.front_end, c.patch, c.feat, c.max_length, suspect, aligned, voices)
    return VoxCPM2(c, net, vae, prompts, adapters)


def _front_end(c: VoxCPM2Config) -> FrontEnd:
    """The text front end that the checkpoint was trained with. Released ones take text as it is."""
    try:
        return texts.front_end(c.text_frontend)
    except ValueError as e:
        raise CheckpointError(f"config.json: stentor.text_frontend: {e}") from e


def _stored_voices(path: Path, c: VoxCPM2Config) -> dict[str, Voice]:
    """Voices that config.json names, with their `patches` [R, P, feat] of voices.safetensors."""
    if not c.voices:
        return {}
    stored = read_safetensors(path / "voices.safetensors")
    for name in c.voices:
        if name not in stored or stored[name].shape[1:] != (c.patch, c.feat):
            raise CheckpointError(
                f"{path}/voices.safetensors: {name} must be there with patches [R, {c.patch}, {c.feat}]"
            )
    return {name: Voice(name, {"patches": stored[name].float().numpy()}) for name in c.voices}


def _main_weights(path: Path) -> dict[str, Tensor]:
    """model.safetensors (whole or in shards), else the older pytorch_model.bin."""
    old = path / "pytorch_model.bin"
    shards = list(path.glob("model*.safetensors*"))
    return read_pickle(old) if old.is_file() and not shards else read_sharded(path)


def _vae_weights(path: Path) -> dict[str, Tensor]:
    """audiovae.safetensors, else audiovae.pth."""
    if (path / "audiovae.safetensors").is_file():
        return read_safetensors(path / "audiovae.safetensors")
    if not (path / "audiovae.pth").is_file():
        raise CheckpointError(f"{path} has neither audiovae.safetensors nor audiovae.pth")
    return read_pickle(path / "audiovae.pth")
