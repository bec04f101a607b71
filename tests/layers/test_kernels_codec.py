"""The codec kernels against the formulas they stand for: on a GPU as they are, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from stentor.kernels import switches
from stentor.kernels.configs import MIN_CONV_CTAS, ConvConfig, conv_config
from stentor.kernels.types import Affine
from stentor.layers.codec_blocks import Snake
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    SnakeBase,
    StreamingState,
    cast_decoder,
    convolve,
    state_columns,
)
from stentor.layers.transformer import StackConfig
from stentor.models.base import Codec
from stentor.models.dummy import initialize_dummy_weights, random_init
from stentor.models.fish_s2.codec import FishCodec
from stentor.models.fish_s2.codec_config import stack_config
from stentor.models.fish_s2.dummy import RELEASED_CODEC
from stentor.models.qwen3_tts import dummy
from stentor.models.qwen3_tts.codec_decoder import Codec as QwenCodec
from stentor.models.qwen3_tts.codec_decoder import Decoder, SnakeBeta
from stentor.models.qwen3_tts.loader import build
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import VAEConfig
from tests.helpers.child import python

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.kernels import conv1d  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

if DEVICE == "cpu":
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_loop_bounds(tensor, scope):
        """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
        _patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _with_loop_bounds

CONVOLUTIONS = {
    "pointwise": lambda: CausalConv1d(40, 24, 1),
    "dilated": lambda: CausalConv1d(24, 24, 7, dilation=9),
    "first": lambda: CausalConv1d(6, 150, 7, bias=False),
    "last": lambda: CausalConv1d(24, 1, 7),
    "depthwise": lambda: CausalConv1d(24, 24, 7, dilation=3, groups=24),
    "upsampling": lambda: CausalConvTranspose1d(24, 12, 5),
    "upsampling without overlap": lambda: CausalConvTranspose1d(24, 24, 2, kernel=2),
}


@pytest.fixture(autouse=True)
def _served(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(switches, "INTERPRETED", True)
    torch.manual_seed(7)
    with torch.inference_mode():
        yield


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def filled(module: nn.Module) -> nn.Module:
    module.to(DEVICE)
    for p in module.parameters():
        p.data = random(*p.shape) * (p[0].numel() ** -0.5 if p.ndim > 1 else 0.3)
    return module


def wave(kind: str, channels: int) -> SnakeBase:
    act = {"alpha": Snake, "exponentials": SnakeBeta}[kind](channels).to(DEVICE)
    for p in act.parameters():
        p.data = random(*p.shape).abs() * 2 + 0.05 if kind == "alpha" else random(*p.shape)
    return act


def error(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("kind", ["alpha", "exponentials"])
def test_the_sine_is_exact_for_large_arguments(kind):
    act = wave(kind, 33)
    x = random(2, 33, 9) * 100
    got = conv1d.concat_history(x.transpose(1, 2), None, 0, act.params())[0].transpose(1, 2)
    assert error(got, act.double().reference(x.double())) < 1e-6


@pytest.mark.parametrize("kind", ["alpha", "exponentials"])
def test_history_stands_before_the_activated_input_whatever_its_layout(kind):
    act = wave(kind, 20)
    layouts = (random(3, 20, 4).half(), random(3, 4, 20).half().transpose(1, 2))
    pasts = (random(3, 5, 20).half(), random(3, 20, 5).half().transpose(1, 2))
    for x, past in zip(layouts, pasts, strict=True):
        got, kept = conv1d.concat_history(x.transpose(1, 2), past, 5, act.params(), keep=True)
        assert torch.equal(got[:, :5], past)
        assert torch.equal(kept, got[:, -5:])
        assert kept.untyped_storage().data_ptr() != got.untyped_storage().data_ptr()
        assert error(got[:, 5:].transpose(1, 2), act(x)) < 1e-3
        silent, _ = conv1d.concat_history(x.transpose(1, 2), None, 2, None)
        assert torch.equal(silent, torch.cat((torch.zeros_like(past[:, :2]), x.transpose(1, 2)), 1))


@pytest.mark.parametrize("chunks", [(9,), (1, 2, 6)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_with_all_that_goes_with_it_equals_its_parts(name, chunks):
    conv = filled(CONVOLUTIONS[name]())
    columns = state_columns(nn.ModuleDict({"conv": conv}))
    inputs = conv.channels
    outputs = conv(random(1, inputs, 1)).shape[1]
    rate = conv(random(1, inputs, 1)).shape[2]
    before, after = wave("alpha", inputs), wave("exponentials", outputs)
    x, residual = random(2, inputs, 9), random(2, outputs, 9 * rate)
    if conv.weight.shape[1] == 1 and name == "depthwise":
        residual = None
    want = convolve(conv, x, None, before, after, residual)
    cast_decoder(conv, torch.float16)
    state = {n: torch.zeros(2, *c.shape, dtype=torch.float16, device=DEVICE) for n, c in columns.items()}
    parts, at = [], 0
    for n in chunks:
        streaming = StreamingState(state)
        part = None if residual is None else residual[..., at * rate : (at + n) * rate].half()
        parts.append(convolve(conv, x[..., at : at + n].half(), streaming, before, after, part))
        state, at = streaming.new, at + n
        assert {k: v.shape[1:] for k, v in state.items()} == {k: torch.Size(c.shape) for k, c in columns.items()}
    got = torch.cat(parts, -1)
    assert got.dtype == torch.float16
    assert error(got, want) < 3e-3
    whole = convolve(conv, x.half(), None, before, after, None if residual is None else residual.half())
    assert error(whole, want) < 3e-3


def voxcpm2(dtype: torch.dtype) -> Codec:
    with torch.device(DEVICE):
        vae = AudioVAE(VAEConfig(2, (2,), 6, 32, (3, 2), sr_bin_boundaries=(20000,)))
        random_init(vae, 0)
    cast_decoder(vae.decoder, dtype)
    return PatchCodec(vae)


def calm(module: nn.Module) -> None:
    """Smaller random convolutions: a net that amplifies is chaotic, and any rounding becomes another waveform."""
    for name, p in module.named_parameters():
        if p.ndim == 3 and not name.endswith("alpha"):
            p.data *= 0.4


def qwen3_tts(dtype: torch.dtype) -> Codec:
    stack = StackConfig(hidden=32, ffn=48, layers=1, heads=2, kv_heads=2, head_dim=16, eps=1e-5)
    small = {"width": 32, "latent": 32, "codebook_dim": 32, "codebook_size": 64, "codebooks": 3}
    c = replace(dummy.codec_config().decoder, stack=stack, window=5, rates=(3, 2), ratios=(2,), **small)
    decoder = build(lambda: Decoder(c), torch.float32)
    initialize_dummy_weights(decoder, torch.device(DEVICE), 0, constants=dummy.CONSTANTS)
    calm(decoder)
    decoder.process_weights_after_loading(dtype)
    return QwenCodec(decoder)


def fish_s2(dtype: torch.dtype) -> Codec:
    stack = stack_config(64, 48, 1)
    small = {"decoder_dim": 32, "encoder_dim": 2, "latent": 64, "residual_codes": 64, "residual_books": 2}
    c = replace(RELEASED_CODEC, decoder_strides=(3, 2), downsample=(2,), post_stack=stack, pre_stack=stack, **small)
    drawn, codec = FishCodec(c, 64, torch.float32), FishCodec(c, 64, dtype)
    initialize_dummy_weights(drawn, torch.device(DEVICE), 0)  # which draws other numbers in 16 bits
    calm(drawn)
    own = {name: p.dtype for name, p in codec.named_parameters()}
    codec.load_state_dict({n: p.to(own[n]) for n, p in drawn.state_dict().items()}, assign=True)
    codec.to(DEVICE).process_weights_after_loading()
    return codec


FRAMES = {
    "voxcpm2": (voxcpm2, lambda: random(1, 3, 2, 6)),
    "qwen3_tts": (qwen3_tts, lambda: torch.randint(64, (1, 3, 3), device=DEVICE)),
    "fish_s2": (fish_s2, lambda: torch.randint(64, (1, 3, 3), device=DEVICE)),
}


def decoded(codec: Codec, frames: Tensor) -> Tensor:
    columns = codec.columns.items()
    state = {n: torch.full((len(frames), *c.shape), c.fill, dtype=c.dtype, device=DEVICE) for n, c in columns}
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
    assert error(fused, want) < 1.5 * error(plain, want)
    assert error(fused, want) < 0.01
    assert not torch.equal(fused, plain)


def test_values_beyond_the_range_of_float16_stay_finite():
    conv = filled(CausalConv1d(16, 16, 1))
    cast_decoder(conv, torch.float16)
    x = torch.full((1, 16, 4), 6e4, device=DEVICE).half()
    assert convolve(conv, x, None, residual=x).isfinite().all()


@pytest.mark.parametrize("rows", [1, 70, 5000, 400_000])
@pytest.mark.parametrize("outputs", [1, 32, 96, 160, 192, 384, 1536])
def test_blocks_fit_the_output(rows, outputs):
    t = conv_config(rows, outputs, 96)
    width = t.block_n + t.extra_n
    assert -(-outputs // width) * width < 1.5 * max(32, outputs)
    assert t.num_ctas(rows, outputs) >= MIN_CONV_CTAS or t.block_m * width <= 64 * 32


@pytest.mark.parametrize(
    "config", [ConvConfig(32, 16, 16, 16, 4), ConvConfig(16, 32, 16, 32, 4), ConvConfig(16, 16, 0, 64, 4)]
)
def test_a_product_does_not_depend_on_its_config(config, monkeypatch):
    conv = filled(CausalConv1d(48, 90, 7, dilation=3))
    x, residual = random(2, 48, 20), random(2, 90, 20)
    want = convolve(conv, x, None, None, wave("alpha", 90), residual)
    torch.manual_seed(7)
    cast_decoder(filled(conv), torch.float16)
    monkeypatch.setattr(conv1d, "conv_config", lambda *shape: config)
    x, residual = random(2, 48, 20), random(2, 90, 20)
    assert error(convolve(conv, x.half(), None, None, wave("alpha", 90), residual.half()), want) < 3e-3


def test_a_depthwise_convolution_does_not_depend_on_how_many_rows_a_program_has(monkeypatch):
    conv = filled(CausalConv1d(40, 40, 7, dilation=3, groups=40))
    x = random(2, 40, 150)
    want = convolve(conv, x, None)
    cast_decoder(conv, torch.float16)
    few = convolve(conv, x.half(), None)
    monkeypatch.setattr(conv1d, "MANY_ELEMENTS", 0)
    assert torch.equal(convolve(conv, x.half(), None), few)
    assert error(few, want) < 3e-3


def test_scale_and_shift_come_before_the_activation_and_not_into_the_history():
    conv, act = filled(CausalConv1d(24, 24, 7)), wave("alpha", 24)
    x, affine = random(2, 24, 9), Affine(random(24), random(24))
    want = convolve(conv, x, None, act, affine=affine)
    cast_decoder(conv, torch.float16)
    half = Affine(affine.scale.half(), affine.shift.half())
    assert error(convolve(conv, x.half(), None, act, affine=half), want) < 3e-3


def test_the_kernels_compile_for_the_gpu():
    done = python("-m", "tests.layers.compile_kernels_codec", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 12
