"""Promises that training relies on: whole-sequence passes equal to serving's, batches that match text and audio, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import stentor
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.voxcpm2.codec import PatchCodec
from training import export
from training.alignment import Pointer, Speller
from training.common import averaged, load_config
from training.data import Speech, trim
from training.examples import (
    AUDIO_START,
    HOP_MS,
    REFERENCE_END,
    REFERENCE_START,
    TAIL,
    Batch,
    Examples,
    Shape,
)
from training.losses import latent_loss
from training.modules import build_net, build_vae, hidden_states, load_packaged
from training.sentences import held_out
from training.store import STEP, write
from training.teacher import phoneme_ends, plan, tokenized
from training.tokenizer import build

DEVICE = torch.device("cpu")
TEXTS = ["hˈɛlO ðˈɛɹ.", "ɐ nˈɛst ʌv snˈIpəɹz.", "jˈɛs."]


REFERENCE = 2  # patches in front of each text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three utterances whose latents are all the utterance's number, in steps of the store. Two are of one voice."""
    path, dim = tmp_path_factory.mktemp("latents"), load_config()["model"]["feat_dim"]
    frames = [25, 34, 16]
    flat = torch.cat([torch.full((n, dim), i + 1, dtype=torch.int8) for i, n in enumerate(frames)])
    starts = np.cumsum([0, *frames[:-1]]).tolist()
    # Of the first text every phoneme takes 80 ms; nothing is known of the others.
    index = [
        {"id": i, "voice": "ab"[i // 2], "start": s, "frames": n, "ends": []}
        for i, (s, n) in enumerate(zip(starts, frames, strict=True))
    ]
    index[0]["ends"] = [80 * (k + 1) for k in range(len(TEXTS[0]))]
    write(path, "train", flat, index)
    rows = [{"id": i, "phonemes": t} for i, t in enumerate(TEXTS)]
    (path / "sentences.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def examples(folder: Path) -> Examples:
    config = load_config()
    settings = {**config["lm"], "reference": REFERENCE}
    return Examples(
        folder / "sentences.jsonl", folder, "train", config["model"]["patch_size"], settings, DEVICE
    )


@pytest.fixture(scope="module")
def batch(examples: Examples) -> Batch:
    return examples.everything(3)


def test_each_text_stands_beside_its_own_latents(batch: Batch) -> None:
    tokenizer = build()
    for i, text in enumerate(TEXTS):
        length = int(batch.text_len[i])
        prefix = [REFERENCE_START, *[0] * REFERENCE, REFERENCE_END]
        assert batch.ids[i, : length - 1].tolist() == prefix + tokenizer.encode(text).ids
        assert int(batch.ids[i, length - 1]) == AUDIO_START
        patches = batch.patches[i, : int(batch.patch_len[i])]
        assert torch.allclose(patches, torch.full_like(patches, (i + 1) * STEP))


def test_a_reference_is_of_the_same_voice(batch: Batch) -> None:
    of = (batch.reference / STEP).round()
    assert of.shape[1] == REFERENCE
    for i, allowed in enumerate(({1, 2}, {1, 2}, {3})):
        assert len(set(of[i].flatten().tolist())) == 1  # of one utterance
        assert set(of[i].flatten().tolist()) <= allowed


def test_the_last_true_patch_and_the_silent_ones_after_it_say_stop(batch: Batch) -> None:
    for i, frames in enumerate((25, 34, 16)):
        mine = batch.last[batch.row == i]
        assert len(mine) == frames // 4 + TAIL
        assert mine.tolist() == [0] * (frames // 4 - 1) + [1] * (1 + TAIL)


def test_each_latent_sounds_the_phoneme_of_its_time(batch: Batch) -> None:
    sounding = batch.sounding[batch.row == 0].flatten().tolist()
    first, last = REFERENCE + 2, len(TEXTS[0]) - 1
    assert sounding[:24] == [first + min(k * HOP_MS // 80, last) for k in range(24)]
    assert set(sounding[24:]) == {-1}  # the silent patches after the end
    assert (batch.sounding[batch.row == 1] == -1).all()


def test_a_fixed_shape_pads_examples_and_draws_patches(examples: Examples) -> None:
    rows = [examples.example([k], False) for k in range(3)]
    batch = examples.collate(rows, Shape(examples=5, positions=64, patches=20, drawn=100))
    assert batch.ids.shape == (5, 64)
    assert batch.patches.shape[:2] == (5, 20)
    assert batch.patch_len.tolist() == [8, 10, 6, 0, 0]
    assert set(zip(batch.row.tolist(), batch.patch.tolist(), strict=True)) == {
        (r, p) for r, n in enumerate((8, 10, 6)) for p in range(n)
    }
    assert batch.last.tolist() == [
        int(p >= (8, 10, 6)[r] - 1 - TAIL) for r, p in zip(batch.row, batch.patch, strict=True)
    ]


def test_attention_on_the_right_phonemes_costs_less_than_elsewhere(batch: Batch) -> None:
    def cost(shift: int) -> float:
        """Every patch's query equals the key of the first phoneme it sounds, moved by `shift`."""
        positions, pointer = batch.ids.shape[1], Pointer([0], 1)
        k = 20 * torch.eye(positions).expand(3, positions, positions).unsqueeze(2)
        q = torch.zeros_like(k)
        at = batch.text_len[batch.row] - 1 + batch.patch
        is_sounding = (batch.sounding >= 0).all(1)
        q[batch.row[is_sounding], at[is_sounding]] = k[
            batch.row[is_sounding], (batch.sounding[is_sounding, 0] + shift) % positions
        ]
        pointer.attend(0, q, k, k, NormRope())
        return float(pointer.loss(batch))

    assert cost(0) < 0.01 < cost(4)


def test_the_heads_that_are_taught_are_those_that_the_checkpoint_names() -> None:
    config = load_config()
    alignment = config["model"]["stentor"]["alignment"]
    assert (alignment["layers"], alignment["heads"]) == (
        config["lm"]["pointer_layers"],
        config["lm"]["pointer_heads"],
    )


def test_company_and_padding_do_not_change_an_example(examples: Examples, batch: Batch) -> None:
    net = build_net(load_config()["model"]).eval()
    with torch.no_grad():
        h, r, before = hidden_states(net, batch, 0.0)
        for i in range(3):
            lone = examples.collate([examples.example([i], False)])
            lone.reference = batch.reference[i : i + 1]  # drawn anew otherwise
            alone = hidden_states(net, lone, 0.0)
            for ours, theirs in zip((h, r, before), alone, strict=True):
                assert torch.allclose(ours[batch.row == i], theirs, atol=1e-5)


def test_a_patch_does_not_see_itself_or_what_follows(batch: Batch) -> None:
    net = build_net(load_config()["model"]).eval()
    changed = dataclasses.replace(batch, patches=batch.patches.clone())
    changed.patches[:, 2:] += 1  # the reference stays
    with torch.no_grad():
        old, new = hidden_states(net, batch, 0.0)[0], hidden_states(net, changed, 0.0)[0]
    assert torch.equal(old[batch.patch <= 2], new[batch.patch <= 2])
    assert not torch.allclose(old[batch.patch == 3], new[batch.patch == 3])


def test_the_spelling_loss_learns_what_the_hidden_states_say(batch: Batch) -> None:
    torch.manual_seed(0)
    speller, h = Speller(16, 128, 4), torch.randn(len(batch.row), 16)
    optimizer = torch.optim.Adam(speller.parameters(), 0.05)
    first = float(speller(h, batch)[0].detach())
    for _ in range(60):
        optimizer.zero_grad()
        loss, right = speller(h, batch)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.3 * first
    assert float(right) > 0.8


def test_latents_of_unit_deviation_cost_nothing() -> None:
    z = torch.randn(64, 8, 400, generator=torch.Generator().manual_seed(0))
    assert float(latent_loss(z)) < 1e-3
    assert float(latent_loss(2 * z + 1)) == pytest.approx(2, abs=0.1)


def test_trimming_keeps_the_configured_silence() -> None:
    wave = np.concatenate([np.zeros(12_000), np.full(24_000, 9000), np.zeros(12_000)]).astype(
        np.int16
    )
    cut, start = trim(wave, {"lead": 0.1, "trail": 0.2, "threshold_db": 40.0})
    assert len(cut) == 2400 + 24_000 + 4800
    assert start == 12_000 - 2400


def test_durations_become_the_ends_of_all_symbols() -> None:
    """A symbol that the teacher lacks ends where the one before it ends."""
    tokens, upto = tokenized("a-b", {"a": 7, "b": 8})
    assert tokens == [7, 8]
    ends = phoneme_ends(np.array([4, 2, 3, 5]), upto, cut=600)  # frames of 25 ms, 25 ms are cut
    assert ends == [125, 125, 200]


def test_held_out_sentences_stand_first_and_a_voice_speaks_its_share(tmp_path: Path) -> None:
    config = {
        **load_config()["teacher"],
        "held_out": 2,
        "shares": {"af_heart": 1.0, "am_eric": 0.25},
    }
    ids = [*range(800), *range(15300, 15310), *range(20001, 20099)]
    path = tmp_path / "sentences.jsonl"
    path.write_text("".join(json.dumps({"id": i, "phonemes": "a"}) + "\n" for i in ids))
    rows, voices = plan(path, config), len(config["voices"])
    held_rows, rest = rows[: 2 * voices], rows[2 * voices :]
    assert all(held_out(r["id"]) for r in held_rows)
    by_voice = {v: [r["id"] for r in rest if r["voice"] == v] for v in config["voices"]}
    spoken = {i for i in ids if not held_out(i)}
    assert sorted(by_voice["af_heart"]) == sorted(spoken)
    assert 0.15 < len(by_voice["am_eric"]) / len(spoken) < 0.35  # drawn with a fixed seed
    assert (
        sum(map(len, by_voice.values()))
        == len(rest)
        == len(by_voice["af_heart"]) + len(by_voice["am_eric"])
    )
    assert load_config()["teacher"]["shares"].keys() == config["voices"].keys()


def test_some_crops_begin_where_utterances_do(tmp_path: Path) -> None:
    lengths = [100, 4000, 300]
    wave = np.concatenate([np.arange(1, n + 1) for n in lengths]).astype("<i2")
    wave.tofile(tmp_path / "w00.pcm")
    offsets = [0, 100, 4100]
    rows = [
        {"id": k, "voice": "v", "offset": at, "samples": lengths[k], "ends": []}
        for k, at in enumerate(offsets)
    ]
    (tmp_path / "w00.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    speech = Speech(tmp_path, lambda _: True, torch.device("cpu"))
    speech.refresh()
    torch.manual_seed(0)
    crops = speech.crops(64, 100, onsets=0.5)
    first = (crops[:, 0, 0] * 32768).round().int()
    assert crops.shape == (64, 1, 100)
    assert (first[:32] == 1).all()  # each ramp begins at 1
    assert (first[32:] != 1).sum() > 16


def test_training_goes_on_from_the_weights_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_config()["model"]
    torch.save({"average": build_vae(model).state_dict()}, tmp_path / "vae.pt")
    trained = build_net(model, seed=3)
    torch.save({"average": trained.state_dict()}, tmp_path / "lm.pt")
    save_file({"any": torch.zeros(1)}, tmp_path / "voices.safetensors")
    files = {f"--{name}": tmp_path / f"{name}.pt" for name in ("vae", "lm")}
    exported(
        monkeypatch,
        files | {"--voices": tmp_path / "voices.safetensors", "--out": tmp_path / "voice"},
    )
    net = build_net(model)
    load_packaged(net, tmp_path / "voice")
    for (name, weight), expected in zip(net.named_parameters(), trained.parameters(), strict=True):
        assert weight.dtype == torch.float32, name
        assert weight.requires_grad, name
        assert torch.allclose(weight, expected, atol=0.01 * float(expected.detach().abs().max())), (
            name
        )


def test_of_several_language_models_the_mean_is_exported(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        torch.save({"average": {"weight": torch.full((2,), value)}}, tmp_path / f"{name}.pt")
    assert export.mean_of([tmp_path / "a.pt"])["weight"].tolist() == [1, 1]
    assert export.mean_of([tmp_path / "a.pt", tmp_path / "b.pt"])["weight"].tolist() == [1.5, 1.5]


def test_another_seed_draws_other_examples(folder: Path) -> None:
    config = load_config()
    settings = {**config["lm"], "reference": REFERENCE}
    file, patch = folder / "sentences.jsonl", config["model"]["patch_size"]

    def drawn(seed: int) -> list[int]:
        examples = Examples(file, folder, "train", patch, settings, DEVICE, seed)
        return examples.random.integers(1000, size=4).tolist()

    assert drawn(0) == drawn(0) != drawn(1)


def test_a_decoder_of_columns_streams_what_it_decodes_whole() -> None:
    vae = build_vae(load_config()["model"]).eval()
    z = torch.randn(1, 8, vae.config.latent_dim, generator=torch.Generator().manual_seed(0))
    codec = PatchCodec(vae)
    state = {name: torch.zeros(1, *column.shape) for name, column in codec.columns.items()}
    with torch.inference_mode():
        at_once = vae.decode(z)
        parts = []
        for k in range(2):
            samples, state = codec.decode(z[:, 4 * k : 4 * k + 4].unsqueeze(1), state)
            parts.append(samples)
    assert torch.allclose(torch.cat(parts, dim=1), at_once, atol=1e-5)
    assert at_once.shape == (1, 8 * vae.config.upsampling)
    assert vae.encode_latents(at_once).shape == z.shape


def exported(monkeypatch: pytest.MonkeyPatch, files: dict[str, Path | str]) -> None:
    monkeypatch.setattr(sys, "argv", ["export", *(str(x) for pair in files.items() for x in pair)])
    export.main()


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_polished_decoder_takes_its_share_of_the_packages(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_config()["model"]
    for name in ("vae", "polish"):
        torch.save({"average": build_vae(model).state_dict()}, tmp_path / f"{name}.pt")
    package, out = tmp_path / "package", tmp_path / "out"
    exported(monkeypatch, {"--vae": tmp_path / "vae.pt", "--out": package})
    flags = {
        "--vae": package / "audiovae.safetensors",
        "--polish": tmp_path / "polish.pt",
        "--share": str(share),
    }
    exported(monkeypatch, {**flags, "--out": out})
    before, after = (load_file(folder / "audiovae.safetensors") for folder in (package, out))
    assert all(
        torch.equal(after[k], v)
        for k, v in before.items()
        if k.startswith("encoder.") and k.endswith("_v")
    )
    plain, polished = averaged(package / "audiovae.safetensors"), averaged(tmp_path / "polish.pt")
    for name, weight in averaged(out / "audiovae.safetensors").items():
        if name.startswith("decoder."):
            expected = (1 - share) * plain[name] + share * polished[name]
            assert torch.allclose(weight, expected, atol=0.02 * float(expected.abs().max()))


def test_an_exported_checkpoint_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"average": build_net(load_config()["model"]).state_dict()}, tmp_path / "lm.pt")
    model, voices_file = load_config()["model"], tmp_path / "voices.safetensors"
    torch.save({"average": build_vae(model).state_dict()}, tmp_path / "vae.pt")
    shape = (REFERENCE, model["patch_size"], model["feat_dim"])
    save_file({name: torch.randn(shape) for name in model["stentor"]["voices"]}, voices_file)
    out = tmp_path / "voice"
    files = {
        "--vae": tmp_path / "vae.pt",
        "--lm": tmp_path / "lm.pt",
        "--voices": voices_file,
        "--out": out,
    }
    exported(monkeypatch, files)
    assert sum(f.stat().st_size for f in out.iterdir()) <= 46e6
    with stentor.TTS(out, device="cpu") as tts:
        speech = tts.generate("Hello.", max_frames=4, seed=1, voice=model["stentor"]["voices"][1])
    assert speech.sample_rate == 24_000
    assert len(speech.samples) == 4 * 3840
    assert np.isfinite(speech.samples).all()
