"""The codec kernels against the formulas they stand for: on a GPU as they are, elsewhere in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stentor import registry
from stentor.layers.conv import (
    CausalConv1d,
    CausalConvTranspose1d,
    Periodic,
    Stream,
    bind,
    cast,
    convolve,
)
from stentor.models.base import SpeechModel
from stentor.models.qwen3_tts.decoder import SnakeBeta
from stentor.models.voxcpm2.vae import Snake

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed (pip install stentor[cuda])", allow_module_level=True)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # what is imported while it is set is interpreted
from stentor.layers import kernels, kernels_codec  # noqa: E402

os.environ.pop("TRITON_INTERPRET", None)

if DEVICE == "cpu":
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_loop_bounds(tensor, scope):
        """Triton 3.6 reads a loop bound by int() of an array of one element, which numpy 2.4 no longer allows."""
        _patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _with_loop_bounds

FIXTURES = Path(__file__).parents[1] / "fixtures"
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
        monkeypatch.setattr(kernels, "INTERPRETED", True)
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


def wave(kind: str, channels: int) -> Periodic:
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
    got = kernels_codec.extend(x.transpose(1, 2), None, 0, act.waves()).transpose(1, 2)
    assert error(got, act.double().formula(x.double())) < 1e-6


@pytest.mark.parametrize("kind", ["alpha", "exponentials"])
def test_history_stands_before_the_activated_input_whatever_its_layout(kind):
    act = wave(kind, 20)
    past = random(3, 5, 20).half()
    for x in (random(3, 20, 4).half(), random(3, 4, 20).half().transpose(1, 2)):
        got = kernels_codec.extend(x.transpose(1, 2), past, 5, act.waves())
        assert torch.equal(got[:, :5], past)
        assert error(got[:, 5:].transpose(1, 2), act(x)) < 1e-3
        silent = kernels_codec.extend(x.transpose(1, 2), None, 2, None)
        assert torch.equal(silent, torch.cat((torch.zeros_like(past[:, :2]), x.transpose(1, 2)), 1))


@pytest.mark.parametrize("chunks", [(9,), (1, 2, 6)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_with_all_that_goes_with_it_equals_its_parts(name, chunks):
    conv = filled(CONVOLUTIONS[name]())
    columns = bind(nn.ModuleDict({"conv": conv}))
    inputs = conv.channels
    outputs = conv(random(1, inputs, 1)).shape[1]
    rate = conv(random(1, inputs, 1)).shape[2]
    before, after = wave("alpha", inputs), wave("exponentials", outputs)
    x, residual = random(2, inputs, 9), random(2, outputs, 9 * rate)
    if conv.weight.shape[1] == 1 and name == "depthwise":
        residual = None
    want = convolve(conv, x, None, before, after, residual)
    cast(conv, torch.float16)
    state = {n: torch.zeros(2, *c.shape, dtype=torch.float16, device=DEVICE) for n, c in columns.items()}
    parts, at = [], 0
    for n in chunks:
        stream = Stream(state)
        part = None if residual is None else residual[..., at * rate : (at + n) * rate].half()
        parts.append(convolve(conv, x[..., at : at + n].half(), stream, before, after, part))
        state, at = stream.new, at + n
        assert {k: v.shape[1:] for k, v in state.items()} == {k: torch.Size(c.shape) for k, c in columns.items()}
    got = torch.cat(parts, -1)
    assert got.dtype == torch.float16
    assert error(got, want) < 3e-3
    whole = convolve(conv, x.half(), None, before, after, None if residual is None else residual.half())
    assert error(whole, want) < 3e-3


def checkpoint(family: str, folder: Path) -> Path:
    if family != "qwen3_tts":
        return FIXTURES / (family if family == "voxcpm2" else f"{family}/checkpoint")
    sys.path.insert(0, str(FIXTURES / "qwen3_tts"))
    import tiny_qwen3_tts as tiny

    tiny.write("custom_voice", folder)
    return folder


def decoded(model: SpeechModel, frames: Tensor) -> Tensor:
    columns = model.codec.columns.items()
    state = {n: torch.full((len(frames), *c.shape), c.fill, dtype=c.dtype, device=DEVICE) for n, c in columns}
    parts = []
    for part in frames.split((1, 1), dim=1):
        samples, state = model.codec.decode(part, state)
        parts.append(samples)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("family", ["voxcpm2", "qwen3_tts", "fish_s2"])
def test_whole_decoders_in_float16_are_as_close_to_float32_with_kernels_as_without(family, tmp_path, monkeypatch):
    path = checkpoint(family, tmp_path)
    models = [
        registry.load(path, torch.device(DEVICE), torch.float32, {"codec_dtype": d}) for d in ("float32", "float16")
    ]
    frame = models[0].spec.frame
    shape = (1, 2, *frame.shape)
    frames = random(*shape) if frame.dtype.is_floating_point else torch.randint(0, 64, shape, device=DEVICE)
    fused = decoded(models[1], frames)
    monkeypatch.setattr(kernels, "_OFF", frozenset({"codec", "norm", "silu", "rotate"}))
    want, plain = (decoded(m, frames) for m in models)
    assert error(fused, want) < 1.5 * error(plain, want)
    assert error(fused, want) < 0.01
    assert not torch.equal(fused, plain)


def test_values_beyond_the_range_of_float16_stay_finite():
    conv = filled(CausalConv1d(16, 16, 1))
    cast(conv, torch.float16)
    x = torch.full((1, 16, 4), 6e4, device=DEVICE).half()
    assert convolve(conv, x, None, residual=x).isfinite().all()


@pytest.mark.parametrize("rows", [1, 70, 5000, 400_000])
@pytest.mark.parametrize("outputs", [1, 32, 96, 192, 1536])
def test_tiles_fit_the_output(rows, outputs):
    block_m, block_n, _ = kernels_codec._tile(rows, outputs)
    programs = -(-rows // block_m) * -(-outputs // block_n)
    assert -(-outputs // block_n) * block_n < 1.5 * max(32, outputs)
    assert programs >= kernels_codec.PROGRAMS or block_m * block_n <= 64 * 32


def test_the_kernels_compile_for_the_gpu():
    script = Path(__file__).with_name("compile_kernels_codec.py")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) >= 12
