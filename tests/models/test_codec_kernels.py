"""Codecs in 16 bits by kernels are as close to float32 as without them, in every family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import tests.helpers.kernel_tests  # noqa: F401  (first: it imports the kernels interpreted where there is no GPU)
from stentor.kernels import switches
from stentor.layers import windows
from stentor.layers.configs import StackConfig
from stentor.layers.conv import cast_codec
from stentor.layers.frame_decoder import FrameCodec
from stentor.layers.types import eager
from stentor.models.base import Codec
from stentor.models.dummy import initialize_dummy_weights, random_init
from stentor.models.fish_s2.codec import RELEASED, FishCodec, stack_config
from stentor.models.qwen3_tts.codec import Decoder, Encoder
from stentor.models.qwen3_tts.config import read_codec
from stentor.models.vibevoice import codec as vibevoice_codec
from stentor.models.vibevoice.config import DecoderConfig, EncoderConfig
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import VAEConfig
from stentor.models.weights import on_meta
from tests.helpers.kernel_tests import DEVICE, random
from tests.helpers.released import released

QWEN = released("qwen3_tts", "qwen3-tts-1.7b-base")


@pytest.fixture(autouse=True)
def _conv_kernels(kernel_test, monkeypatch):
    """`layers.conv` calls the kernels, also where they are interpreted."""
    if DEVICE == "cpu":
        monkeypatch.setattr(switches, "INTERPRETED", True)


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).norm() / want.double().norm())


def voxcpm2(dtype: torch.dtype) -> Codec:
    with torch.device(DEVICE):
        vae = AudioVAE(VAEConfig(2, (2,), 6, 32, (3, 2), sr_bin_boundaries=(20000,)))
        random_init(vae, 0)
    cast_codec(vae.decoder, dtype)
    return PatchCodec(vae)


def columns(dtype: torch.dtype) -> Codec:
    """VoxCPM2's codec with several samples as channels of a column, as the built-in voice has it."""
    with torch.device(DEVICE):
        sizes = VAEConfig(4, (2,), 6, 32, (3, 2), samples_per_column=3, decoder_widths=(32, 24, 20))
        vae = AudioVAE(sizes)
        random_init(vae, 0)
    cast_codec(vae.decoder, dtype)
    return PatchCodec(vae)


def calm(module: nn.Module) -> None:
    """Smaller random convolutions: a net that amplifies is chaotic, and any rounding becomes another waveform."""
    for name, p in module.named_parameters():
        if p.ndim == 3 and not name.endswith("alpha"):
            p.data *= 0.4


def qwen3_tts(dtype: torch.dtype) -> Codec:
    stack = StackConfig(hidden=32, ffn=48, layers=1, heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    small = {"width": 32, "latent": 32, "codebook_dim": 32, "codebook_size": 64, "codebooks": 3}
    c = replace(read_codec(QWEN).decoder, stack=stack, window=5, rates=(3, 2), ratios=(2,), **small)
    decoder = on_meta(lambda: Decoder(c), torch.float32)
    initialize_dummy_weights(decoder, torch.device(DEVICE), 0, constants=QWEN.constants)
    calm(decoder)
    decoder.process_weights_after_loading(dtype)
    return FrameCodec(decoder)


def fish_s2(dtype: torch.dtype) -> Codec:
    stack = stack_config(64, 48, 1)
    small = {
        "decoder_dim": 32,
        "encoder_dim": 32,
        "latent": 64,
        "residual_codes": 64,
        "residual_books": 2,
    }
    rates = {"encoder_strides": (2,), "decoder_strides": (3, 2), "downsample": (2,)}
    c = replace(RELEASED, **rates, encoder_stack=stack, post_stack=stack, pre_stack=stack, **small)
    drawn, codec = FishCodec(c, 64, torch.float32, torch.float32), FishCodec(c, 64, dtype, dtype)
    initialize_dummy_weights(drawn, torch.device(DEVICE), 0)  # which draws other numbers in 16 bits
    calm(drawn)
    own = {name: p.dtype for name, p in codec.named_parameters()}
    codec.load_state_dict({n: p.to(own[n]) for n, p in drawn.state_dict().items()}, assign=True)
    codec.to(DEVICE).process_weights_after_loading()
    return codec


def vibevoice(dtype: torch.dtype) -> Codec:
    with torch.device(DEVICE):
        decoder = vibevoice_codec.Decoder(
            DecoderConfig(latent=6, filters=32, ratios=(2, 3), depths=(2, 1, 1), eps=1e-5)
        )
        decoder.scale.data.fill_(1.0)
        decoder.bias.data.zero_()
        random_init(decoder.stages, 0, constants={"gamma": 0.5, "ffn_gamma": 0.5})
        random_init(decoder.upsample_layers, 1)
        random_init(decoder.head, 2)
    decoder.process_weights_after_loading(dtype)
    return decoder


FRAMES = {
    "voxcpm2": (voxcpm2, lambda: random(1, 3, 2, 6)),
    "columns of samples": (columns, lambda: random(1, 3, 2, 6)),
    "qwen3_tts": (qwen3_tts, lambda: torch.randint(64, (1, 3, 3), device=DEVICE)),
    "fish_s2": (fish_s2, lambda: torch.randint(64, (1, 3, 3), device=DEVICE)),
    "vibevoice": (vibevoice, lambda: random(1, 3, 6)),
}


def decoded(codec: Codec, frames: Tensor) -> Tensor:
    columns = codec.columns.items()
    state = {n: c.rows(len(frames), DEVICE) for n, c in columns}
    parts = []
    for part in frames.split((1, 2), dim=1):
        samples, state = codec.decode(part, state)
        parts.append(samples)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("family", FRAMES)
def test_a_decoder_in_float16_is_as_close_to_float32_with_kernels_as_without(family, monkeypatch):
    make, draw = FRAMES[family]
    frames = draw()
    fused = decoded(make(torch.float16), frames)
    monkeypatch.setattr(switches, "AVAILABLE", False)
    want, plain = decoded(make(torch.float32), frames), decoded(make(torch.float16), frames)
    # of tiny nets, where a few roundings decide
    assert error(fused, want) < max(1.5 * error(plain, want), 0.0015)
    assert error(fused, want) < 0.01
    assert not torch.equal(fused, plain)


def encoder_voxcpm2(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    with torch.device(DEVICE):
        vae = AudioVAE(VAEConfig(4, (2, 3), 6, 32, (3, 2), sr_bin_boundaries=(20000,)))
        random_init(vae, 0)
    cast_codec(vae.encoder, dtype)
    return lambda wav: vae.encode_latents(wav[None, : len(wav) // 6 * 6])


def encoder_columns(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    with torch.device(DEVICE):
        vae = AudioVAE(VAEConfig(4, (2,), 6, 32, (3, 2), samples_per_column=3))
        random_init(vae, 0)
    cast_codec(vae.encoder, dtype)
    return lambda wav: vae.encode_latents(wav[None, : len(wav) // 6 * 6])


def encoder_qwen3_tts(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    stack = StackConfig(hidden=32, ffn=48, layers=1, heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    c = replace(read_codec(QWEN).encoder, stack=stack, filters=4, ratios=(3, 2), hop=12)
    encoder = on_meta(lambda: Encoder(c), torch.float32)
    initialize_dummy_weights(encoder, torch.device(DEVICE), 0, constants=QWEN.constants)
    calm(encoder)
    encoder.process_weights_after_loading(100, dtype)
    return encoder.latents


def encoder_fish_s2(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    codec = fish_s2(dtype)
    assert isinstance(codec, FishCodec)
    return codec.latents


def encoder_vibevoice(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    with torch.device(DEVICE):
        encoder = vibevoice_codec.Encoder(
            EncoderConfig(latent=6, filters=32, ratios=(2, 3), depths=(2, 1, 1), eps=1e-5)
        )
        random_init(encoder, 0, constants={"gamma": 0.5, "ffn_gamma": 0.5})
    encoder.process_weights_after_loading(dtype)
    return lambda wav: encoder(wav, eager)


ENCODERS = {
    "voxcpm2": encoder_voxcpm2,
    "columns of samples": encoder_columns,
    "qwen3_tts": encoder_qwen3_tts,
    "fish_s2": encoder_fish_s2,
    "vibevoice": encoder_vibevoice,
}


@torch.inference_mode()
@pytest.mark.parametrize("family", ENCODERS)
def test_an_encoder_in_float16_is_as_close_to_float32_with_kernels_as_without(family, monkeypatch):
    wav = 0.3 * random(31)
    monkeypatch.setattr(windows, "STEP", 36)
    monkeypatch.setattr(windows, "COLUMNS", (16,))
    fused = ENCODERS[family](torch.float16)(wav)
    monkeypatch.setattr(windows, "COLUMNS", (6 if family == "fish_s2" else 2,))
    assert error(ENCODERS[family](torch.float16)(wav), fused) < 0.002  # in three windows
    monkeypatch.setattr(switches, "AVAILABLE", False)
    want, plain = ENCODERS[family](torch.float32)(wav), ENCODERS[family](torch.float16)(wav)
    assert fused.dtype == want.dtype == torch.float32
    # of tiny nets, where a few roundings decide
    assert error(fused, want) < max(1.5 * error(plain, want), 0.0015)
    assert error(fused, want) < 0.01
    assert not torch.equal(fused, plain)
