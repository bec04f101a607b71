"""The codec: chunks equal the whole, positions count, codes past a book's end, encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stentor import registry
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.fish_s2.checkpoint import codec, read_codec
from stentor.models.fish_s2.codec import ENCODER_WINDOW, HEAD_DIM, infer, stack_config, windowed
from tests.models.fish_s2.oracle import CHECKPOINT

FRAMES = 325  # 1 + 2 + ... + 25; two and a half windows of the transformer


def load(codec_dtype="float32"):
    with torch.inference_mode():
        return registry.load(
            CHECKPOINT, torch.device("cpu"), None, {"codec_dtype": codec_dtype}
        ).codec


@pytest.fixture(scope="module")
def fish():
    with torch.inference_mode():
        yield load()


def random_frames(batch, count=FRAMES):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 256, (batch, count, 10), generator=generator)


def whole_of(fish, frames):
    """Samples of whole utterances, without a state."""
    return fish.samples(frames, torch.arange(frames.shape[1]).expand(len(frames), -1), None)


def fresh(fish, batch):
    return {n: c.rows(batch) for n, c in fish.columns.items()}


def test_chunks_of_1_to_25_frames_in_any_order_join_to_the_whole_decode(fish):
    frames = random_frames(2)
    whole = whole_of(fish, frames)
    assert whole.shape == (2, FRAMES * 2048)
    assert whole.dtype == torch.float32
    sizes = np.random.default_rng(0).permutation(np.arange(1, 26))
    state, parts, start = fresh(fish, 2), [], 0
    for n in sizes:
        samples, state = fish.decode(frames[:, start : start + n], state)
        assert samples.shape == (2, n * 2048)
        assert {k: (v.shape[1:], v.dtype) for k, v in state.items()} == {
            k: (torch.Size(c.shape), c.dtype) for k, c in fish.columns.items()
        }
        parts.append(samples)
        start += n
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 1e-5


def test_rows_of_one_batch_may_stand_at_different_places_of_their_streams(fish):
    frames = random_frames(3, 180)
    whole = whole_of(fish, frames)
    states, starts = [], (0, 7, 150)
    for i, start in enumerate(starts):
        state = fresh(fish, 1)
        if start:
            _, state = fish.decode(frames[i : i + 1, :start], state)
        states.append(state)
    together = {k: torch.cat([s[k] for s in states]) for k in states[0]}
    chunk = torch.stack([frames[i, s : s + 9] for i, s in enumerate(starts)])
    samples, _ = fish.decode(chunk, together)
    for i, s in enumerate(starts):
        assert (samples[i] - whole[i, s * 2048 : (s + 9) * 2048]).abs().max() < 1e-5


def test_a_frame_is_heard_through_the_whole_window(fish):
    frames = random_frames(1, 160)
    changed = frames.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 100
    difference = (whole_of(fish, frames) - whole_of(fish, changed)).abs()[0].view(160, 2048).amax(1)
    # 128 positions of two layers, and what the convolutions remember
    assert difference[127] > 1e-6
    assert difference[0] > 1e-3


def test_codes_past_the_end_of_a_residual_codebook_sound_like_its_last_row(fish):
    frames = random_frames(1, 5)
    frames[..., 1:] = 255
    clamped = frames.clone()
    clamped[..., 1:] = 99
    before = frames.clone()
    assert torch.equal(whole_of(fish, frames), whole_of(fish, clamped))
    assert torch.equal(frames, before)


@pytest.mark.parametrize(("dtype", "ratio"), [("bfloat16", 0.05), ("float16", 0.01)])
def test_half_precision_decoding_is_close_and_streams_like_itself(fish, dtype, ratio):
    half = load(dtype)
    frames = random_frames(1, 40)
    exact, whole = whole_of(fish, frames), whole_of(half, frames)
    assert (whole - exact).norm() < ratio * exact.norm()
    state, parts = fresh(half, 1), []
    for start in range(0, 40, 8):
        samples, state = half.decode(frames[:, start : start + 8], state)
        parts.append(samples)
    assert (torch.cat(parts, dim=1) - whole).norm() < ratio * exact.norm()


def test_audio_of_any_length_becomes_whole_frames_and_the_end_does_not_reach_back(fish):
    wav = torch.randn(2048 * 9 + 1, generator=torch.Generator().manual_seed(0)) * 0.1
    codes = fish.encode(wav)
    assert codes.shape == (10, 10)
    assert codes.dtype == torch.int64
    assert torch.equal(codes[:4], fish.encode(wav[: 4 * 2048]))
    assert torch.equal(codes, fish.encode(torch.cat((wav, torch.zeros(2047)))))


def test_a_long_reference_is_encoded(fish):
    assert fish.encode(torch.zeros(60 * 44_100)).shape == (1292, 10)


def test_each_token_of_a_windowed_transformer_sees_the_last_ones_only():
    generator = torch.Generator().manual_seed(0)
    stack = Stack(stack_config(HEAD_DIM, 32, 1)).double()
    for p in stack.parameters():
        p.data.normal_(0, 0.2, generator=generator)  # small enough for attention to stay spread
    rope = Rope(angles(HEAD_DIM, 700, 1e4), torch.bfloat16, interleaved=True, in_float32=False)
    x = torch.randn(1, HEAD_DIM, 600, dtype=torch.float64, generator=generator)
    y = windowed(stack, x, rope, ENCODER_WINDOW)
    last = 599
    for first, same in ((last - ENCODER_WINDOW + 1, True), (last - ENCODER_WINDOW + 2, False)):
        cut = x.clone()
        cut[..., :first] = 7.0
        assert (
            torch.equal(windowed(stack, cut, rope, ENCODER_WINDOW)[..., last], y[..., last]) is same
        )


def test_the_weight_norms_gains_and_wrappers_of_the_file_fold_away():
    raw = torch.load(CHECKPOINT / "codec.pth", weights_only=True)
    folded = codec({f"generator.{k}": v for k, v in raw.items()})
    plain = read_codec(CHECKPOINT)
    assert folded.keys() == plain.keys()
    assert all(torch.equal(folded[k], plain[k]) for k in plain)
    g, v = (
        raw[f"decoder.model.1.block.1.conv.parametrizations.weight.original{i}"] for i in (0, 1)
    )
    want = g * v / v.pow(2).sum((1, 2), keepdim=True).sqrt()
    assert torch.allclose(plain["decoder.model.1.block.1.weight"], want, atol=1e-7)
    gamma, wo = (
        raw[f"quantizer.post_module.layers.0.attention{n}"]
        for n in ("_layer_scale.gamma", ".wo.weight")
    )
    assert torch.equal(
        plain["quantizer.post_module.layers.0.self_attn.o_proj.weight"], gamma[:, None] * wo
    )
    assert not any("gamma" in k or "mask" in k or "original" in k for k in plain)


def test_sizes_are_read_off_the_tensors():
    c = infer(read_codec(CHECKPOINT))
    assert (c.hop, c.encoder_hop, c.latent) == (2048, 512, 64)
    assert (c.semantic_codes, c.residual_codes, c.residual_books) == (256, 100, 9)
    assert (c.encoder_stack.layers, c.pre_stack.layers, c.post_stack.layers) == (1, 1, 2)
