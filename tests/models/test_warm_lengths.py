"""The lengths of audio that a start encodes need every kernel that audio of any length needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from stentor.engine.reference_encoder import halves
from stentor.kernels.configs import conv_config
from stentor.kernels.conv1d import MANY_ELEMENTS
from stentor.layers.conv import CausalConv1d, StreamingState, in_windows
from stentor.models.fish_s2 import spec as fish_spec
from stentor.models.fish_s2.codec import Encoder
from stentor.models.fish_s2.dummy import RELEASED_CODEC
from stentor.models.qwen3_tts import spec as qwen_spec
from stentor.models.qwen3_tts.codec_encoder import convolutions
from stentor.models.qwen3_tts.dummy import codec_config
from stentor.models.voxcpm2 import spec as voxcpm2_spec
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import parse
from stentor.models.voxcpm2.dummy import RELEASED

Run = Callable[[Tensor, StreamingState | None], Tensor]


def fish_s2() -> Run:
    return Encoder(RELEASED_CODEC).convolutions


def qwen3_tts() -> Run:
    return convolutions(codec_config().encoder)


def voxcpm2() -> Run:
    return AudioVAE(parse(RELEASED).vae).encoder


FAMILIES = {
    "fish_s2": (fish_s2, 44100, 512, 2048, fish_spec.REFERENCE_SECONDS),
    "qwen3_tts": (qwen3_tts, 24000, 960, 1, qwen_spec.REFERENCE_SECONDS),
    "voxcpm2": (voxcpm2, 16000, 640, 2560, voxcpm2_spec.REFERENCE_SECONDS),
}
"""The convolutions at released sizes, samples per second and output, of which audio is padded to a multiple, seconds."""


def windows(samples: int, hop: int) -> set[int]:
    """Samples of the windows of a recording."""
    found = set()

    def run(x: Tensor, state: StreamingState | None) -> Tensor:
        found.add(x.shape[2])
        return x[:, :, :1]

    in_windows(run, torch.empty(1, 1, samples, device="meta"), hop, {})
    return found


def convolutions_of(run: Run, hop: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[CausalConv1d, int]]:
    """Each convolution, and the samples of one of its output columns."""
    found = []
    plain = CausalConv1d.forward

    def forward(self: CausalConv1d, x: Tensor, state: StreamingState | None = None) -> Tensor:
        y = plain(self, x, state)
        found.append((self, 8 * hop // y.shape[2]))
        return y

    monkeypatch.setattr(CausalConv1d, "forward", forward)
    run(torch.empty(1, 1, 8 * hop, device="meta"), None)
    return found


def kernel(conv: CausalConv1d, rows: int) -> object:
    """What chooses among the kernels of a convolution."""
    if conv.groups > 1:
        return rows * conv.channels > MANY_ELEMENTS
    taps = conv.weight.shape[2] if conv.reads_rows else 1
    return conv_config(rows, conv.weight.shape[0], taps * conv.channels)


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_no_length_of_a_reference_chooses_a_kernel_that_the_start_did_not_run(family, monkeypatch):
    make, rate, hop, multiple, (shortest, longest) = FAMILIES[family]
    with torch.device("meta"):
        layers = convolutions_of(make(), hop, monkeypatch)

    def kernels(seconds: Iterable[float]) -> set[tuple[int, object]]:
        lengths = (-(-int(s * rate) // multiple) * multiple for s in seconds)
        sizes = set().union(*(windows(n, hop) for n in lengths))
        return {(i, kernel(c, -(-n // per_row))) for i, (c, per_row) in enumerate(layers) for n in sizes}

    assert len(layers) > 12
    assert kernels(np.geomspace(shortest, longest, 300)) <= kernels(halves(longest, shortest))
