"""A model on the second GPU of a host, while the first one is the current device of every caller."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from stentor import TTS, Reference, Speech

pytestmark = pytest.mark.gpu
SETTINGS = {"max_num_seqs": 4, "memory_gb": 1.0, "max_frames": 64, "require_graphs": True}
TONE = Reference(
    (0.3 * np.sin(np.arange(32_000) / 12).astype(np.float32), 16_000), "What is said in it."
)
MODELS = {
    "dummy:voxcpm2": {"reference": Reference(TONE.audio), "ignore_eos": True},
    "dummy:qwen3-tts-0.6b-base": {"reference": TONE},
    "dummy:fish-s2-pro": {"reference": TONE},
}


@pytest.fixture(autouse=True)
def _two_devices() -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip(f"needs two CUDA devices; torch sees {count}")
    torch.cuda.set_device(0)


def spoken(model: str, device: str) -> list[Speech]:
    """A text alone, and one as a stream, both in the voice of a reference."""
    options = {"seed": 7, "max_frames": 24, "min_frames": 24, **MODELS[model]}
    with TTS(model, device=device, **SETTINGS) as tts:
        known = {
            k: v for k, v in options.items() if k in tts.spec.options or k in ("seed", "reference")
        }
        whole = tts.generate("Hello there, one two three.", retries=1, **known)
        chunks = list(tts.stream("And this is heard while it is made.", **known))
        assert torch.cuda.current_device() == 0
        samples, frames = (
            np.concatenate([getattr(c, n) for c in chunks]) for n in ("samples", "frames")
        )
        streamed = Speech(samples, tts.sample_rate, frames, chunks[-1].finish_reason, 7)
    return [whole, streamed]


@pytest.mark.parametrize("model", MODELS)
def test_a_model_on_the_second_device_speaks_as_on_the_first_and_leaves_it_alone(model: str):
    before = torch.cuda.memory_allocated(0)
    second = spoken(model, "cuda:1")
    assert torch.cuda.memory_allocated(0) == before, "tensors of cuda:1 lie on cuda:0"
    gc.collect()
    torch.cuda.empty_cache()
    first = spoken(model, "cuda:0")
    for a, b in zip(first, second, strict=True):
        assert len(a.frames) > 0
        np.testing.assert_array_equal(a.frames, b.frames)
        np.testing.assert_array_equal(a.samples, b.samples)
