"""The solver and the codec by themselves: rows are independent, chunks join, everything can be trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import silu

from stentor import TTS
from stentor.errors import InvalidRequest
from stentor.layers.attention import causal, full
from stentor.layers.configs import StackConfig
from stentor.layers.rope import Rope, angles
from stentor.layers.transformer import Stack
from stentor.models.config_files import read_config
from stentor.models.dummy import random_init
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import VAEConfig, parse
from stentor.models.voxcpm2.flow import LocDiT, euler_solve, last_layer_subset
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.ops import cfg_zero_star
from stentor.models.voxcpm2.schedule import EulerSchedule
from stentor.models.voxcpm2.steps import MAX_STEPS, cfg_zero_steps, evaluations
from tests.helpers.fused_products import fuse_products

TINY = Path(__file__).parents[2] / "fixtures" / "voxcpm2"
SMALL = VAEConfig(
    encoder_dim=2,
    encoder_rates=(2, 5),
    latent_dim=6,
    decoder_dim=32,
    decoder_rates=(5, 3),
    out_sample_rate=24000,
)


def test_the_zero_star_rule_skips_one_step_and_two_from_49_on() -> None:
    assert [cfg_zero_steps(n) for n in (1, 10, 48, 49, 73, 74, 100)] == [1, 1, 1, 2, 2, 3, 4]
    assert [evaluations(n) for n in (1, 2, 10, 100)] == [0, 1, 9, 96]


def flow() -> tuple[LocDiT, EulerSchedule, Rope]:
    dit = LocDiT(StackConfig(16, 24, 2, 2, 1, 8, 1e-5), 4)
    random_init(dit, 0)
    with torch.no_grad():
        return (
            dit,
            dit.schedule(),
            Rope(angles(8, 16, 1e4), torch.float32, interleaved=False, in_float32=True),
        )


def test_a_row_gets_the_same_patch_alone_and_among_rows_with_other_steps_and_guidance() -> None:
    dit, schedule, rope = flow()
    g = torch.Generator().manual_seed(1)
    steps = torch.tensor([1, 2, 7, 10, 60, MAX_STEPS])
    cfg = torch.tensor([2.0, 0.1, 1.0, 10.0, 3.0, 1.5])
    mu, cond, z = (torch.randn(6, n, d, generator=g) for n, d in ((2, 16), (4, 4), (4, 4)))
    with torch.inference_mode():
        together = euler_solve(
            dit, schedule, rope, mu.unbind(1), cond, z, cfg, steps, num_evals=evaluations(MAX_STEPS)
        )
        for i in range(6):
            row = slice(i, i + 1)
            count = evaluations(int(steps[i]))
            tokens = mu[row].unbind(1)
            alone = euler_solve(
                dit, schedule, rope, tokens, cond[row], z[row], cfg[row], steps[row], count
            )
            assert torch.allclose(alone[0], together[i], atol=1e-5)
    assert torch.equal(together[0], z[0])


@pytest.mark.parametrize("keep", [slice(0, 1), slice(-4, None)])
def test_a_stack_read_at_some_tokens_equals_the_whole_stack_there(keep: slice) -> None:
    stack = Stack(StackConfig(16, 24, 3, 4, 2, 8, 1e-5))
    random_init(stack, 1)
    rope = Rope(angles(8, 16, 1e4), torch.float32, interleaved=False, in_float32=True)
    x = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        some, whole = last_layer_subset(stack, x, rope, keep), stack(x, full, rope, torch.arange(9))
        assert torch.allclose(some, whole[:, keep], atol=1e-6)


@pytest.mark.parametrize("keep", [slice(0, 1), slice(-4, None)])
def test_fused_products_of_such_a_stack_give_the_same(
    keep: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Stack(StackConfig(16, 24, 3, 4, 2, 8, 1e-5))
    random_init(stack, 1)
    rope = Rope(angles(8, 16, 1e4), torch.float32, interleaved=False, in_float32=True)
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        plain = last_layer_subset(stack, x, rope, keep)
        products = fuse_products(monkeypatch, rows=18)
        assert torch.allclose(last_layer_subset(stack, x, rope, keep), plain, atol=1e-6)
    assert products == {"product": 12, "norm": 6, "gate": 3, "residual": 6}


def test_guidance_of_one_leaves_the_conditioned_velocity() -> None:
    both = torch.randn(4, 4, 3, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(cfg_zero_star(both, torch.ones(2)), both[:2], atol=1e-6)


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("boundaries", [(20000, 30000), None])
def test_audio_decoded_in_chunks_equals_audio_decoded_whole(
    depthwise: bool, boundaries: tuple[int, ...] | None
) -> None:
    config = VAEConfig(**{**vars(SMALL), "depthwise": depthwise, "sr_bin_boundaries": boundaries})
    vae = AudioVAE(config)
    random_init(vae, 0)
    codec = PatchCodec(vae)
    patches = torch.randn(2, 9, 4, 6, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        whole = vae.decode(patches.flatten(1, 2))
        state = {k: torch.zeros(2, *c.shape) for k, c in codec.columns.items()}
        parts = []
        for chunk in patches.split([1, 1, 2, 5], dim=1):
            samples, state = codec.decode(chunk, state)
            assert set(state) == set(codec.columns)
            parts.append(samples)
    assert whole.shape == (2, 9 * 4 * 15)
    assert (torch.cat(parts, 1) - whole).abs().max() < 1e-5 * whole.abs().max()


def test_the_decoder_does_not_look_ahead_and_the_encoder_neither() -> None:
    vae = AudioVAE(SMALL)
    random_init(vae, 0)
    z = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(4))
    wav = torch.randn(1, 80, generator=torch.Generator().manual_seed(5))
    z2, wav2 = z.clone(), wav.clone()
    z2[:, 5:], wav2[:, 50:] = 0, 0
    with torch.inference_mode():
        assert torch.allclose(vae.decode(z)[:, : 5 * 15], vae.decode(z2)[:, : 5 * 15], atol=1e-6)
        assert torch.allclose(
            vae.encode_latents(wav)[:, :5], vae.encode_latents(wav2)[:, :5], atol=1e-6
        )
        assert not torch.allclose(
            vae.decode(z)[:, 5 * 15 :], vae.decode(z2)[:, 5 * 15 :], atol=1e-6
        )


def test_gradients_reach_every_weight_when_whole_sequences_are_trained() -> None:
    config = parse(read_config(TINY))
    net = VoxCPM2Net(config, torch.float32)
    random_init(net, 0)
    net.train()
    g = torch.Generator().manual_seed(6)
    patches = torch.randn(2, 5, config.patch, config.feat, generator=g)
    audio = torch.tensor([[False, False, True, True, True]] * 2)
    ids = torch.tensor([[200, 101, 0, 0, 0]] * 2)
    feat = net.embed_patches(patches) * audio.unsqueeze(-1)
    x = torch.where(audio.unsqueeze(-1), feat, net.base_lm.embed_tokens(ids))
    h, r = net.run_language_models(x, feat, audio, causal, torch.arange(5))
    mu = torch.stack(net.conditions(h, r), dim=-2).flatten(0, 1)
    dit = net.feat_decoder.estimator
    target = patches.flatten(0, 1)
    time = dit.time_tokens(torch.rand(10, generator=g))
    tokens = torch.cat((mu, time.unsqueeze(1), dit.cond_proj(target), dit.in_proj(target)), dim=1)
    velocity = dit(tokens, config.patch, net.rope)
    (velocity.pow(2).mean() + net.stop_head(silu(net.stop_proj(h))).pow(2).mean()).backward()
    missing = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert missing == []


def test_bfloat16_stays_close_to_float32_in_the_first_patch() -> None:
    patches = []
    for dtype in ("float32", "bfloat16"):
        with TTS(TINY, device="cpu", dtype=dtype, max_num_seqs=1) as tts:
            patches.append(tts.generate("hello the world", seed=1, max_frames=1).frames[0])
    error = abs(patches[0] - patches[1])
    assert 0 < error.mean() < 0.05


def test_options_of_other_families_and_values_out_of_range_are_refused_with_what_is_taken() -> None:
    with TTS(TINY, device="cpu", max_num_seqs=1) as tts:
        with pytest.raises(
            InvalidRequest,
            match=r"top_k.*cfg, flow_steps, ignore_eos, max_frames, min_frames, temper",
        ):
            tts.generate("hello", top_k=5)
        for name, value in (
            ("cfg", 0.0),
            ("cfg", 11.0),
            ("flow_steps", 0),
            ("flow_steps", 101),
            ("temperature", -1),
        ):
            with pytest.raises(InvalidRequest, match=f"{name}: must be from"):
                tts.generate("hello", **{name: value})
        with pytest.raises(InvalidRequest, match="voice"):
            tts.generate("hello", voice="anna")
