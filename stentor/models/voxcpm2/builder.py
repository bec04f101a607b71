"""Building a model: the network, the autoencoder, the tokenizer, stored voices and LoRA weights."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor import text as texts
from stentor.arguments import shown, whole
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.conv import cast_codec
from stentor.layers.packed import pack_convolutions, packs
from stentor.models.base import Voice
from stentor.models.dummy import dummy_tokens
from stentor.models.load_options import CODEC_DTYPE, DTYPES, codec_dtype, encoder_dtype, model_dtype
from stentor.models.lora import ADAPTER_OPTIONS, AdapterPlan, install_adapters
from stentor.models.lora_files import merge_option
from stentor.models.quantization import QUANTIZATION, EightBits, pack_layers, quantization
from stentor.models.quantized_checkpoint import read_quantized
from stentor.models.source import Checkpoint, Source
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import VoxCPM2Config, parse
from stentor.models.voxcpm2.lora import TARGETS, read_lora, serves_adapters
from stentor.models.voxcpm2.model import VoxCPM2
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.prompt import PromptBuilder, Tokenize
from stentor.models.voxcpm2.schedule import MAX_STEPS
from stentor.models.voxcpm2.tokenizer import TextTokenizer
from stentor.models.weights import (
    errors_name,
    fold_weight_norm,
    meta_init,
    read_pickle,
    read_safetensors,
    read_sharded,
)
from stentor.text.front_end import FrontEnd

UNUSED_VAE = ("encoder.fc_logvar.", "decoder.sr_bin_boundaries")
LOAD_OPTIONS = (QUANTIZATION, *ADAPTER_OPTIONS)
FILE_OPTIONS = ("lora", "flow_steps", CODEC_DTYPE)
"""Load options of a checkpoint."""
QUANTIZED = ("base_lm", "residual_lm")
"""The language models whose weights may have 8 bits."""
LOCAL = ("feat_encoder.encoder", "feat_decoder.estimator.decoder")
"""The transformers of a patch."""
WORKERS = 2
"""Threads that pack weights and read dictionaries beside the one that loads."""


@torch.no_grad()
def build(
    source: Source, device: torch.device, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> VoxCPM2:
    """`dtype` None: the checkpoint's own on a GPU, float32 on a CPU. There, what had 8 bits only to make the checkpoint
    small is held in 16. Without files words take the place of tokens.

    Load options: `quantization` of the language models' weights, those of adapters (models/lora.py), and of a
    checkpoint `lora` (a file or directory of LoRA weights to merge), `flow_steps` (another default of the request
    option) and `codec_dtype`. Raises CheckpointError and InvalidRequest.
    """
    source.check_options(options, LOAD_OPTIONS, FILE_OPTIONS)
    c = _with_steps(parse(source.config), options.get("flow_steps"))
    audio_dtype = codec_dtype(options, device, dtype)
    plan = AdapterPlan.of(options, read_lora, TARGETS)
    with meta_init():  # the autoencoder is loaded in float32 whatever the network is
        net = VoxCPM2Net(c, model_dtype(dtype, DTYPES[c.dtype], device))
        vae = AudioVAE(c.vae)
    with ThreadPoolExecutor(WORKERS) as beside:
        front_end = beside.submit(_front_end, c)
        packs_layers = (
            c.widens
            and dtype is None
            and not plan.slots
            and packs(device, net.stop_head.weight.dtype)
        )
        _fill(net, source, c, device, options, beside if packs_layers else None)
        _fill_codec(vae, source, device, beside if packs(device, audio_dtype) else None)
        prompts = _prompts(c, source, front_end.result())
    for module in (net, vae):
        module.to(device).eval().requires_grad_(False)
    adapters = install_adapters(net, plan, serves_adapters, read_lora)
    cast_codec(vae.encoder, encoder_dtype(audio_dtype, device))
    cast_codec(vae.decoder, audio_dtype)
    return VoxCPM2(c, net, vae, prompts, adapters)


def _with_steps(c: VoxCPM2Config, steps: object) -> VoxCPM2Config:
    """`c` with another default of flow_steps, for which the engine prepares too."""
    if steps is None:
        return c
    number = whole(steps)
    if number is None or not 1 <= number <= MAX_STEPS:
        raise InvalidRequest(
            "flow_steps", f"must be a whole number from 1 to {MAX_STEPS}, got {shown(steps)}"
        )
    return replace(c, defaults={**c.defaults, "flow_steps": number})


def _fill(
    net: VoxCPM2Net,
    source: Source,
    c: VoxCPM2Config,
    device: torch.device,
    options: Mapping[str, Any],
    packing: Executor | None,
) -> None:
    """Fill the network. What its weights are made from is gone when this returns. packing: threads that pack what has 8
    bits only to make the checkpoint small. None: it is not packed."""
    weights = source.tensors(
        lambda path: read_quantized(source.config, _main_weights(path), str(path))
    )
    weights = merge_option(weights, options, read_lora)
    dtype_8 = quantization(options)
    stacks = () if c.widens and dtype_8 is None else QUANTIZED
    if packing is not None:
        weights = pack_layers(net, LOCAL if stacks else (*QUANTIZED, *LOCAL), weights, packing)
    source.fill(
        net, weights, f"{source.name}: model", device, eight_bits=EightBits(dtype_8, stacks)
    )


def _fill_codec(
    vae: AudioVAE, source: Source, device: torch.device, packing: Executor | None
) -> None:
    """Fill the autoencoder. packing: threads that pack the decoder's weights, where 16 bits hold all of them."""
    where = f"{source.name}: audiovae"
    tensors = source.tensors(_vae_weights)
    with errors_name(where):
        weights = fold_weight_norm(tensors)
    source.fill(vae, weights, where, device, ignore=UNUSED_VAE)
    stored = {t.dtype for name, t in weights.items() if name.startswith("decoder.")}
    if packing is not None and stored == {torch.float16}:
        pack_convolutions(vae.decoder, packing)


def _front_end(c: VoxCPM2Config) -> FrontEnd:
    """The text front end that the checkpoint was trained with. Released ones take text as it is."""
    try:
        return texts.front_end(c.text_frontend)
    except ValueError as e:
        raise CheckpointError(f"config.json: stentor.text_frontend: {e}") from e


def _prompts(c: VoxCPM2Config, source: Source, front_end: FrontEnd) -> PromptBuilder:
    tokenize: Tokenize = partial(dummy_tokens, vocab=c.vocab)
    voices: dict[str, Voice] = {}
    if isinstance(source, Checkpoint):
        tokenize = TextTokenizer(source.path / "tokenizer.json")
        voices = _stored_voices(source.path, c)
    suspect = (c.patches_per_token, c.patches_around)
    aligned = c.alignment is not None
    return PromptBuilder(
        tokenize, front_end, c.patch, c.feat, c.max_length, suspect, aligned, voices
    )


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
    if old.is_file() and not shards:
        return read_pickle(old)
    return read_sharded(path)


def _vae_weights(path: Path) -> dict[str, Tensor]:
    """audiovae.safetensors, else audiovae.pth."""
    if (path / "audiovae.safetensors").is_file():
        return read_safetensors(path / "audiovae.safetensors")
    if not (path / "audiovae.pth").is_file():
        raise CheckpointError(f"{path} has neither audiovae.safetensors nor audiovae.pth")
    return read_pickle(path / "audiovae.pth")
