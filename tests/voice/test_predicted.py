"""Polishing on what the language models predict: their latents, and the stretches of speech that belong to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from training.common import averaged, load_config
from training.crops import LEAD, Crops, PredictedCrops, draw
from training.data import Speech
from training.examples import Examples
from training.latents import encode_all
from training.modules import build_net, build_vae
from training.predicted import Sampling, predict, sample
from training.store import STEP, write
from training.train_vae import Trainer

CPU = torch.device("cpu")
HOP, DIM, FRAMES = 960, 64, 24
PACKAGED = Path("stentor/assets/voice/audiovae.safetensors")
LATENTS = [60, 20, 31]  # of three utterances. The second is shorter than a stretch


def speech_of(folder: Path, waves: list[np.ndarray]) -> Speech:
    """A folder as the teacher writes it, read."""
    np.concatenate(waves).astype("<i2").tofile(folder / "w00.pcm")
    starts = np.cumsum([0, *map(len, waves)])
    rows = [
        {"id": k, "voice": "v", "offset": int(starts[k]), "samples": len(wave), "ends": []}
        for k, wave in enumerate(waves)
    ]
    (folder / "w00.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    speech = Speech(folder, lambda _: True, CPU)
    speech.refresh()
    return speech


@pytest.fixture
def numbered(tmp_path: Path) -> PredictedCrops:
    """Every sample says how many latents came before it, every latent its own number (10 more for each utterance)."""
    speech = speech_of(
        tmp_path, [np.repeat(np.arange(n + 1), HOP)[:-7] + 100 * k for k, n in enumerate(LATENTS)]
    )
    index, pieces, at = [], [], 0
    for k in (2, 0, 1):  # latents lie in another order than the speech
        row = torch.arange(LATENTS[k], dtype=torch.int8) + 10 * k
        pieces.append(row[:, None].expand(-1, DIM))
        index.append({"id": k, "voice": "v", "start": at, "frames": LATENTS[k]})
        at += LATENTS[k]
    write(tmp_path, "predicted", torch.cat(pieces).contiguous(), index)
    torch.manual_seed(0)
    return PredictedCrops(speech, tmp_path, FRAMES, HOP)


def numbers(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Positions in an utterance that samples [B, FRAMES, HOP] and latents [B, frames] show."""
    positions = (x[:, 0] * 32768).round().long().unflatten(1, (FRAMES, HOP))
    latent = (z[:, 0] / STEP).round().long()
    utterance = positions[:, :1, :1] // 100
    return positions - 100 * utterance, latent - 10 * utterance[:, 0]


def test_stretches_within_utterances_are_aligned_to_the_sample(numbered: PredictedCrops) -> None:
    x, z = numbered.within(200)
    assert x.shape == (200, 1, FRAMES * HOP)
    assert z.shape == (200, DIM, LEAD + FRAMES)
    positions, latent = numbers(x, z)
    assert torch.equal(positions, latent[:, LEAD:, None].expand_as(positions))
    assert torch.equal(latent, latent[:, :1] + torch.arange(LEAD + FRAMES))
    first = latent[:, 0]
    assert set(first.tolist()) == set(
        range(LATENTS[0] - FRAMES - LEAD + 1)
    )  # every place of the longest
    in_third = (x[:, 0, 0] * 32768 >= 200).float().mean()
    assert 0.03 < float(in_third) < 0.2  # it has 4 of 37 places


def test_onsets_are_the_beginnings_of_utterances(numbered: PredictedCrops) -> None:
    positions, latent = numbers(*numbered.onsets(20))
    assert torch.equal(latent, torch.arange(FRAMES).expand(20, FRAMES))
    assert torch.equal(positions, latent[..., None].expand_as(positions))


def test_a_batch_has_its_share_of_predicted_examples(numbered: PredictedCrops) -> None:
    c = {"batch": 10, "crop": 0.96, "onsets": 0.4, "predicted": 0.5}
    crops = draw(numbered.speech, numbered, c, True)
    assert (len(crops.x), crops.own) == (10, 5)
    assert [z.shape for z in crops.given] == [(2, DIM, FRAMES), (3, DIM, LEAD + FRAMES)]
    without = draw(numbered.speech, None, c, True)
    assert (len(without.x), without.own, without.given) == (10, 10, ())


def test_encoded_latents_in_their_place_give_the_same_batch(tmp_path: Path) -> None:
    """The store's rounding is all that differs."""
    config = load_config()
    trainer = Trainer(
        config["model"],
        {**config["vae"], **config["polish"], "noise": 0.0},
        CPU,
        PACKAGED,
        polish=True,
    )
    random = np.random.default_rng(0)
    tone = 6000 * np.sin(np.arange(40 * HOP) * 0.05) * random.random(40 * HOP)
    speech = speech_of(tmp_path, [tone[: 30 * HOP], tone[5 * HOP : 35 * HOP]])
    write(tmp_path, "predicted", *encode_all(trainer.vae, speech, HOP))
    crops = PredictedCrops(speech, tmp_path, FRAMES, HOP)
    x, z = crops.onsets(2)
    encoded = trainer.vae.encoder(x).detach()
    assert float((z - encoded).abs().max()) < 0.51 * STEP
    own, stored = trainer.update(Crops(x, False)), trainer.update(Crops(x, False, (z[1:],)))
    for name in ("mel", "stft"):
        assert float(stored[name]) == pytest.approx(float(own[name]), rel=0.01)
    wrong = trainer.update(Crops(x, False, (-z[1:],)))
    assert float(wrong["mel"]) > 1.2 * float(own["mel"])


def test_a_lead_gives_a_stretch_what_the_whole_utterance_sounds_like() -> None:
    vae = build_vae(load_config()["model"]).eval()
    vae.load_state_dict(averaged(PACKAGED))
    z = torch.randn(1, DIM, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        utterance = vae.decoder(z, None)[..., 10 * HOP : 34 * HOP]
        cut = [vae.decoder(z[..., 10 - lead : 34], None)[..., lead * HOP :] for lead in (0, LEAD)]
    without, with_lead = (float((part - utterance).pow(2).sum()) for part in cut)
    assert with_lead < 0.2 * without


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Three utterances, each the only one of its voice: it is its own reference."""
    folder, config = tmp_path_factory.mktemp("latents"), load_config()
    frames = [26, 13, 17]
    generator = torch.Generator().manual_seed(0)
    flat = torch.randint(-30, 30, (sum(frames), DIM), dtype=torch.int8, generator=generator)
    starts = [0, 26, 39]
    index = [
        {"id": i, "voice": str(i), "start": starts[i], "frames": n, "ends": []}
        for i, n in enumerate(frames)
    ]
    write(folder, "train", flat, index)
    texts = [{"id": i, "phonemes": t} for i, t in enumerate(("hˈɛlO ðˈɛɹ.", "jˈɛs.", "nˈO."))]
    (folder / "sentences.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in texts), encoding="utf-8"
    )
    return Examples(
        folder / "sentences.jsonl", folder, "train", 4, {**config["lm"], "reference": 2}, CPU
    )


def test_every_whole_patch_is_predicted_from_its_own_text_and_history(examples: Examples) -> None:
    net = build_net(load_config()["model"]).eval()
    options = Sampling(flow_steps=6, cfg=1.7, temperature=0.0, left_out=0)
    examples.random = np.random.default_rng(0)  # it places the references
    flat, index = predict(net, examples, options)
    examples.random = np.random.default_rng(0)
    assert [(r["id"], r["start"], r["frames"]) for r in index] == [
        (1, 0, 12),
        (2, 12, 16),
        (0, 28, 24),
    ]
    assert flat.shape == (52, DIM)
    for row in index:
        lone = examples.collate([examples.example([row["id"]], False)])
        with torch.no_grad():
            alone = sample(net, net.feat_decoder.estimator.schedule(), lone, options).flatten(0, 1)
        latents = flat[row["start"] : row["start"] + row["frames"]].float() * STEP
        assert torch.allclose(
            latents, alone[: row["frames"]].clamp(-127 * STEP, 127 * STEP), atol=0.6 * STEP
        )


@pytest.mark.parametrize(("left_out", "time"), [(0, 1.0), (1, 0.8333), (3, 0.5327)])
def test_a_flow_begins_with_the_truth_at_its_time(
    examples: Examples, left_out: int, time: float
) -> None:
    """A constant velocity b leads from there to begin - b * time."""
    net = build_net(load_config()["model"]).eval()
    dit = net.feat_decoder.estimator
    torch.nn.init.zeros_(dit.out_proj.weight)
    torch.nn.init.constant_(dit.out_proj.bias, 0.25)
    batch = examples.collate([examples.example([0], False)])
    with torch.no_grad():
        sampled = sample(net, dit.schedule(), batch, Sampling(6, 1.7, 0.0, left_out))
    # Without anything left out the flow begins with noise, of which the first step changes nothing.
    truth_share, noise_share = (0.0, 0.9252) if left_out == 0 else (1 - time, time)
    expected = truth_share * batch.patches[batch.row, batch.patch] - 0.25 * noise_share
    assert torch.allclose(sampled, expected, atol=1e-3)
