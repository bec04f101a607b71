"""Loading VoxCPM2: the release's sizes add up, and a broken checkpoint is refused with the name of what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import stentor
from stentor import registry
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.attention import causal
from stentor.layers.packed import PackedLinear, packs
from stentor.models.base import SpeechModel
from stentor.models.info import AlignmentHeads
from stentor.models.voxcpm2.codec import AudioVAE, PatchCodec
from stentor.models.voxcpm2.config import parse
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.weights import FUSED, fold_weight_norm
from tests.helpers.released import released, shrink

TINY = Path(__file__).parents[2] / "fixtures" / "voxcpm2"
CPU = torch.device("cpu")


def load(path: Path, **options: object) -> SpeechModel:
    return registry.load(path, CPU, None, options)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def change(path: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    edit(tensors)
    save_file(tensors, path / "model.safetensors")


def reconfigure(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((path / "config.json").read_text())
    edit(config)
    (path / "config.json").write_text(json.dumps(config))


def test_the_release_has_the_parameters_and_tensors_of_its_published_checkpoint() -> None:
    c = parse(released("voxcpm2", "voxcpm2").config)
    with torch.device("meta"):
        net, vae = VoxCPM2Net(c, torch.bfloat16), AudioVAE(c.vae)
    assert sum(p.numel() for p in net.parameters()) == 2_290_004_544
    parts = [
        next((len(v) for k, v in FUSED.items() if f".{k}." in name), 1) for name in net.state_dict()
    ]
    assert sum(parts) == 577
    spare = 64 * 2048 * 3 + 64  # fc_logvar, which only training uses
    assert sum(p.numel() for p in vae.encoder.parameters()) + spare == 48_419_456
    assert sum(p.numel() for p in vae.decoder.parameters()) == 45_760_641
    stored = [
        2 if n.endswith("weight") and "embed" not in n else 1 for n in vae.state_dict()
    ]  # weight_g and weight_v
    assert sum(stored) + 3 + 1 == 312  # and fc_logvar's three, and sr_bin_boundaries
    assert sum(col.shape[0] * col.shape[1] for col in PatchCodec(vae).columns.values()) == 161_856
    assert c.vae.rate_bucket == 3
    assert (c.patch * c.vae.upsampling, c.patch * c.vae.hop) == (7680, 2560)


def test_a_dummy_needs_no_files_and_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((TINY / "config.json").read_text())
    shrink(monkeypatch, lambda files: files.update({"config.json": config}))
    first, second = (registry.load("dummy:voxcpm2", CPU, None, {}) for _ in range(2))
    for a, b in zip(first.net.parameters(), second.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(first.net.rope.cos, load(TINY).net.rope.cos)


def test_the_dtype_is_float32_on_a_cpu_unless_asked_and_the_autoencoder_stays_float32() -> None:
    assert load(TINY).net.stop_head.weight.dtype == torch.float32
    half = registry.load(TINY, CPU, torch.bfloat16, {})
    assert half.net.stop_head.weight.dtype == half.spec.kv.dtype == torch.bfloat16
    assert half.net.rope.cos.dtype == torch.float32
    assert {p.dtype for p in half.vae.parameters()} == {torch.float32}


def test_an_autoencoder_in_safetensors_is_preferred(copy: Path) -> None:
    state = torch.load(copy / "audiovae.pth", weights_only=True)["state_dict"]
    state = {k: v.clone() for k, v in state.items()}
    state["decoder.model.9.bias"] += 1
    save_file(state, copy / "audiovae.safetensors")
    assert load(copy).vae.decoder.model[9].bias.item() == pytest.approx(1, abs=0.5)


@pytest.mark.skipif(not packs(CPU, torch.float32), reason="this CPU or torch has no such product")
def test_a_decoder_in_float16_runs_on_products_in_16_bits_and_loses_nothing(copy: Path) -> None:
    state = torch.load(copy / "audiovae.pth", weights_only=True)["state_dict"]
    save_file({k: v.clone() for k, v in state.items()}, copy / "audiovae.safetensors")
    assert not any(isinstance(m, PackedLinear) for m in load(copy).vae.modules())
    half = {k: v.half() for k, v in state.items()}
    save_file(half, copy / "audiovae.safetensors")
    packed = load(copy)
    assert any(isinstance(m, PackedLinear) for m in packed.vae.decoder.modules())
    save_file(
        {k: v.float() for k, v in fold_weight_norm(half).items()}, copy / "audiovae.safetensors"
    )
    plain = load(copy)
    assert not any(isinstance(m, PackedLinear) for m in plain.vae.modules())
    frames = torch.randn(1, 3, packed.patch, packed.feat)
    with torch.inference_mode():
        want, got = (
            m.codec.decode(frames, {n: c.rows(1, CPU) for n, c in m.codec.columns.items()})[0]
            for m in (plain, packed)
        )
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_weights_may_come_in_shards_or_in_the_older_file(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save({"state_dict": tensors}, copy / "pytorch_model.bin")
    old = load(copy)
    (copy / "pytorch_model.bin").unlink()
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in shards.items():
        save_file({n: tensors[n] for n in part}, copy / file)
    where = {n: file for file, part in shards.items() for n in part}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    new = load(copy)
    for a, b in zip(old.net.parameters(), new.net.parameters(), strict=True):
        assert torch.equal(a, b)


def aligned(**alignment: Any) -> dict[str, Any]:
    return {
        "text_frontend": "english-phonemes",
        "takes_instructions": False,
        "alignment": alignment,
    }


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda t: t.pop("base_lm.layers.1.self_attn.k_proj.weight"),
            "base_lm.layers.1.self_attn.k_proj.weight is miss",
        ),
        (
            lambda t: t.update({"extra.weight": torch.zeros(1)}),
            "extra.weight is not part of this model",
        ),
        (
            lambda t: t.update({"stop_head.weight": torch.zeros(3, 48)}),
            r"stop_head.weight has shape \[3, 48\]",
        ),
    ],
)
def test_a_missing_extra_or_misshapen_tensor_is_named(
    copy: Path, edit: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    change(copy, edit)
    with pytest.raises(CheckpointError, match=message):
        load(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "audiovae.pth", "tokenizer.json"])
def test_a_truncated_or_missing_file_is_named(copy: Path, name: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(copy)
    (copy / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        load(copy)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.pop("lm_config"), "lm_config is missing"),
        (lambda c: c["lm_config"].pop("hidden_size"), "lm_config.hidden_size is missing"),
        (
            lambda c: c["lm_config"].update(num_hidden_layers=0),
            "lm_config.num_hidden_layers must be a positive integer",
        ),
        (lambda c: c["lm_config"].update(use_mup=True), "lm_config.use_mup"),
        (lambda c: c["dit_config"].update(kv_channels=8), "dit_config.kv_channels 8 differs"),
        (
            lambda c: c["lm_config"]["rope_scaling"].update(short_factor=[1.0]),
            "short_factor has 1 values, not 8",
        ),
        (lambda c: c.update(dtype="int8"), "dtype 'int8'"),
        (lambda c: c["audio_vae_config"].update(use_noise_block=True), "use_noise_block"),
        (
            lambda c: c["audio_vae_config"].update(latent_dim=7),
            "latent_dim 7 must equal feat_dim 8",
        ),
        (
            lambda c: (
                c["audio_vae_config"].update(latent_dim=3) or c.update(patch_size=3, feat_dim=3)
            ),
            "patch_size 3 times feat_dim 3 must be even",
        ),
        (lambda c: c["audio_vae_config"].update(cond_type="concat"), "cond_type"),
        (lambda c: c.update(stentor=[1]), "stentor must be an object"),
        (lambda c: c.update(stentor={"defaults": {"top_k": 3}}), "stentor.defaults.top_k"),
        (lambda c: c.update(stentor={"text_frontend": "klingon"}), "klingon"),
        (
            lambda c: c.update(stentor={"alignment": {"layers": [0], "heads": 1}}),
            "alignment needs a text_frontend",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[3], heads=1)),
            "layers must be different numbers below 3",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[1, 1], heads=1)),
            "layers must be different numbers below 3",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[0], heads=5)),
            "heads must be at most 4, got 5",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[0], heads=1, behind=1)),
            "alignment.ahead is missing",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[0], heads=1, behind=-1, ahead=4)),
            "behind must be an integer of",
        ),
        (
            lambda c: c.update(stentor=aligned(layers=[0], heads=1, behind=1, ahead=0)),
            "ahead must be a positive integ",
        ),
        (lambda c: c.update(stentor={"voices": "ann"}), "stentor.voices must be a list of strings"),
        (lambda c: c.update(stentor={"voices": ["ann"]}), r"voices\.safetensors"),
        (
            lambda c: c["audio_vae_config"].update(decoder_widths=[8]),
            "decoder_widths must have . values, one more",
        ),
        (lambda c: c.update(architecture="voxcpm9"), "voxcpm9"),
    ],
)
def test_a_wrong_config_is_refused_with_the_field(
    copy: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    reconfigure(copy, edit)
    with pytest.raises(CheckpointError, match=message):
        load(copy)


def test_a_checkpoint_may_carry_its_own_defaults_and_limits(copy: Path) -> None:
    extra = {
        "defaults": {"flow_steps": 6, "cfg": 1.5},
        "takes_instructions": False,
        "takes_reference": False,
    }
    reconfigure(copy, lambda c: c.update(stentor=extra))
    spec = load(copy).spec
    assert (spec.options["flow_steps"].default, spec.options["cfg"].default) == (6, 1.5)
    assert spec.num_evals == 5
    assert (spec.takes_instructions, spec.takes_reference, spec.takes_prompt) == (
        False,
        False,
        False,
    )


def test_a_checkpoint_may_say_which_heads_look_at_the_text(copy: Path) -> None:
    reconfigure(copy, lambda c: c.update(stentor=aligned(layers=[2, 0], heads=3, lag=0.02)))
    assert load(copy).spec.alignment == AlignmentHeads((0, 2), 3, 2, 0.25, 0.02)
    assert load(TINY).spec.alignment is None


def test_a_checkpoint_may_say_how_much_of_the_text_its_heads_see(copy: Path) -> None:
    reconfigure(
        copy, lambda c: c.update(stentor=aligned(layers=[2, 0], heads=3, behind=0, ahead=6))
    )
    assert load(copy).spec.alignment == AlignmentHeads((0, 2), 3, 2, 0.25, 0.0, (0, 6))


def test_named_voices_come_from_a_file_and_a_misshapen_one_is_named(copy: Path) -> None:
    reconfigure(copy, lambda c: c.update(stentor={"voices": ["ann", "ben"]}))
    config = parse(json.loads((copy / "config.json").read_text()))
    patches = torch.ones(2, config.patch, config.feat)
    save_file({"ann": patches, "ben": 2 * patches}, copy / "voices.safetensors")
    model = load(copy)
    assert model.spec.voices == ("ann", "ben")
    assert {
        name: float(v.features["patches"].mean()) for name, v in model.prompts.voices.items()
    } == {
        "ann": 1.0,
        "ben": 2.0,
    }
    save_file({"ann": patches, "ben": patches[:, 1:].clone()}, copy / "voices.safetensors")
    with pytest.raises(
        CheckpointError, match=r"voices\.safetensors: ben must be there with patches"
    ):
        load(copy)


def test_text_that_counts_its_positions_is_heard_otherwise_and_audio_is_not(copy: Path) -> None:
    """One token at two positions: without the count their inputs are equal."""
    plain = load(copy)
    reconfigure(copy, lambda c: c.update(stentor={"counts_positions": True}))
    counting = load(copy)

    def inputs(model: SpeechModel, audio: bool) -> torch.Tensor:
        """Input of the first layer's first norm, at two positions."""
        seen: list[torch.Tensor] = []
        hook = model.net.base_lm.layers[0].register_forward_hook(
            lambda m, args, out: seen.append(args[0])
        )
        hidden = model.net.base_lm.embed_tokens.weight.shape[1]
        x, mask = torch.ones(1, 2, hidden), torch.full((1, 2), audio)
        model.net.run_language_models(x, 0 * x, mask, causal, torch.arange(2)[None])
        hook.remove()
        return seen[0]

    with torch.inference_mode():
        assert torch.equal(inputs(counting, True), inputs(plain, True))
        assert torch.equal(inputs(plain, False)[0, 0], inputs(plain, False)[0, 1])
        told = inputs(counting, False)
    assert not torch.equal(told[0, 0], told[0, 1])
    torch.testing.assert_close(told - 1, counting.net.counts[:2][None])


def test_the_first_patch_has_the_noise_of_the_checkpoints_own_seed_and_later_ones_that_of_the_request(
    copy: Path,
) -> None:
    def spoken(*seeds: int) -> list[np.ndarray]:
        """Two patches [2, samples] by each seed."""
        with stentor.TTS(copy, device="cpu") as tts:
            made = [
                tts.generate("Hi there.", seed=seed, max_frames=2, ignore_eos=True).samples
                for seed in seeds
            ]
        return [samples.reshape(2, -1) for samples in made]

    (plain,) = spoken(7)
    reconfigure(copy, lambda c: c.update(stentor={"first_patch_seed": 7}))
    one, other = spoken(1, 2)
    assert np.array_equal(one[0], plain[0])
    assert np.array_equal(other[0], plain[0])
    assert not np.array_equal(one[1], other[1])


def test_an_unknown_load_option_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"quantise.*takes lora"):
        load(TINY, quantise=True)


def test_a_single_lora_file_takes_its_rank_from_the_tensors_and_its_alpha_from_the_reference(
    tmp_path: Path,
) -> None:
    source = load_file(TINY / "lora" / "lora_weights.safetensors")
    torch.save({"state_dict": source}, tmp_path / "lora_weights.ckpt")
    tuned = load(TINY, lora=tmp_path)
    a, b = (source[f"lm_to_dit_proj.lora_{x}"] for x in "AB")
    want = load(TINY).net.lm_to_dit_proj.weight + 16 / 4 * (b @ a)
    assert torch.allclose(tuned.net.lm_to_dit_proj.weight, want, atol=1e-6)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("lm_to_dit_proj.lora_B"), "lm_to_dit_proj.lora_B is missing"),
        (
            lambda t: t.update(
                {
                    "base_lm.wrong.lora_A": torch.zeros(4, 4),
                    "base_lm.wrong.lora_B": torch.zeros(4, 4),
                }
            ),
            "base_lm.wrong",
        ),
        (
            lambda t: t.update({"lm_to_dit_proj.lora_A": torch.zeros(4, 5)}),
            "lm_to_dit_proj has lora_A",
        ),
        (
            lambda t: t.update({"lm_to_dit_proj.scale": torch.zeros(1)}),
            "lm_to_dit_proj.scale is not a LoRA tensor",
        ),
        (lambda t: t.clear(), "is empty"),
    ],
)
def test_a_wrong_lora_tensor_is_named(
    tmp_path: Path, edit: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    tensors = load_file(TINY / "lora" / "lora_weights.safetensors")
    edit(tensors)
    save_file(tensors, tmp_path / "lora_weights.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(TINY, lora=tmp_path)


def test_a_lora_whose_rank_differs_from_its_config_and_a_missing_one_are_refused(
    tmp_path: Path,
) -> None:
    shutil.copy(TINY / "lora" / "lora_weights.safetensors", tmp_path)
    (tmp_path / "lora_config.json").write_text('{"lora_config": {"r": 8, "alpha": 8}}')
    with pytest.raises(CheckpointError, match=r"rank 4, lora_config.json says 8"):
        load(TINY, lora=tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        load(TINY, lora=tmp_path / "none")
