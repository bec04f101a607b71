"""How the autoencoder is trained: where the gradient of its losses lies, and which weights move when."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training.common import averaged, load_config
from training.crops import Crops
from training.losses import SpectralLoss, balanced, feature_loss
from training.train_vae import Trainer

CPU = torch.device("cpu")
PACKAGED = Path("stentor/assets/voice/audiovae.safetensors")
SAMPLES = 12_000


def speech(count: int) -> Tensor:
    """Something loud, then a pause as a teacher leaves it: nothing but the rounding to 16 bits. [count, 1, SAMPLES]."""
    torch.manual_seed(0)
    loud = 0.1 * torch.randn(count, SAMPLES // 2)
    pause = torch.randint(-1, 2, loud.shape) / 32768
    return torch.cat((loud, pause), dim=1).unsqueeze(1)


def test_a_gradient_has_its_share_however_long_it_is() -> None:
    gradients = {"mel": torch.tensor([1000.0, 0.0]), "judges": torch.tensor([0.0, 0.01])}
    found = balanced(gradients, {"mel": 0.3, "stft": 0.1, "judges": 0.6})
    assert found.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert balanced({"mel": torch.zeros(2)}, {"mel": 1.0}).tolist() == [0.0, 0.0]


def test_the_rounding_of_pauses_costs_almost_nothing() -> None:
    x = speech(2)
    silent = torch.cat((x[..., : SAMPLES // 2], torch.zeros(2, 1, SAMPLES // 2)), dim=-1)
    wrong = torch.cat((0.8 * x[..., : SAMPLES // 2], x[..., SAMPLES // 2 :]), dim=-1)
    loss = SpectralLoss(24_000)
    assert float(loss(x, silent)[0]) < 0.3 * float(
        loss(x, wrong)[0]
    )  # 6.6 of it with a floor of 1e-5


def test_features_of_recordings_are_only_aims() -> None:
    true, made = (torch.full((2, 3), value, requires_grad=True) for value in (1.0, 3.0))
    loss = feature_loss([[true]], [[made]])
    loss.backward()
    assert float(loss.detach()) == 2
    assert true.grad is None
    assert made.grad is not None


def moved(trainer: Trainer, before: dict[str, Tensor], part: str) -> bool:
    now = trainer.vae.state_dict()
    return any(
        not torch.equal(now[name], weight)
        for name, weight in before.items()
        if name.startswith(part)
    )


@pytest.mark.parametrize(
    ("start", "polish", "adversary", "encoder", "decoder"),
    [
        (True, False, False, True, False),  # the decoder waits for the discriminators
        (True, False, True, True, True),
        (True, True, True, False, True),  # latents stay valid
        (False, False, False, True, True),
    ],
)
def test_which_weights_move(
    start: bool, polish: bool, adversary: bool, encoder: bool, decoder: bool
) -> None:
    config = load_config()
    c: dict[str, Any] = {**config["vae"], "warmup": 1, "judged": 0.2}
    trainer = Trainer(config["model"], c, CPU, PACKAGED if start else None, polish)
    before = {name: weight.clone() for name, weight in trainer.vae.state_dict().items()}
    losses = trainer.train_step(Crops(speech(2)[..., :9600], adversary), 0.0)
    assert moved(trainer, before, "encoder.") == encoder
    assert moved(trainer, before, "decoder.") == decoder
    assert (trainer.step, trainer.judged_steps) == (1, int(adversary))
    assert ("pull_judges" in losses) == adversary
    assert all(math.isfinite(float(value)) for value in losses.values())


def test_it_goes_on_from_the_package_and_from_its_own_checkpoint() -> None:
    config = load_config()
    trainer = Trainer(config["model"], config["vae"], CPU, PACKAGED, False)
    for name, weight in averaged(PACKAGED).items():
        assert torch.equal(trainer.vae.state_dict()[name], weight), name
    trainer.step, trainer.judged_steps = 7, 3
    other = Trainer(config["model"], config["vae"], CPU, None, False)
    other.load(trainer.state())
    assert (other.step, other.judged_steps) == (7, 3)
    assert torch.equal(other.vae.encoder.fc_mu.weight, trainer.vae.encoder.fc_mu.weight)
