"""Trains the audio VAE of the embedded voice: `python -m training.train_vae --speech DIR --work DIR --limit 560`.

Continuous latents without a KL term: noise of random size is added to latents that are held to zero mean and unit
deviation (Sun et al., 2024, sigma-VAE), so the decoder forgives what the language model gets slightly wrong.
Reconstruction only at first, then with discriminators. Stops by itself after `--limit` seconds and resumes.

With `--polish FILE` the encoder of that finished VAE stays as it is (so latents stay valid) and its decoder is trained
further, against new discriminators, by the `[polish]` section.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.common import (
    Average,
    Log,
    Stopwatch,
    cosine,
    load_config,
    parameter_count,
    pick_device,
    restore,
    save,
    set_lr,
)
from training.data import RATE, Speech
from training.discriminators import Discriminators
from training.losses import SpectralLoss, discriminator_loss, feature_loss, generator_loss, latent_loss
from training.modules import build_vae, reconstruct
from training.speed import accelerate


class Trainer:
    """Everything with state; `state()` and `load()` carry it over a restart."""

    def __init__(self, model: dict[str, Any], config: dict[str, Any], device: torch.device, start: Path | None) -> None:
        self.c = config
        self.device = device
        self.vae = build_vae(model).to(device)
        if start:
            finished = torch.load(start, map_location=device, weights_only=True)["average"]
            self.vae.load_state_dict({k: v.float() for k, v in finished.items()})
            self.vae.encoder.requires_grad_(False)
        self.judges: nn.Module = Discriminators().to(device).to(memory_format=torch.channels_last)
        self.average = Average(self.vae, self.c["ema"])
        self.spectral = SpectralLoss(RATE).to(device)
        fused = device.type == "cuda"
        betas = tuple(self.c["betas"])
        trained = [p for p in self.vae.parameters() if p.requires_grad]
        self.opt_g = torch.optim.AdamW(trained, self.c["lr"], betas, weight_decay=0.0, fused=fused)
        self.opt_d = torch.optim.AdamW(
            self.judges.parameters(), self.c["adversary_lr"], betas, weight_decay=0.0, fused=fused
        )
        self.step = 0

    def state(self) -> dict[str, Any]:
        parts = ("vae", "judges", "opt_g", "opt_d")
        return {
            **{name: getattr(self, name).state_dict() for name in parts},
            "average": self.average.module.state_dict(),
            "count": self.average.count,
            "step": self.step,
        }

    def load(self, state: dict[str, Any]) -> None:
        for name in ("vae", "judges", "opt_g", "opt_d"):
            getattr(self, name).load_state_dict(state[name])
        self.average.module.load_state_dict(state["average"])
        self.average.count, self.step = state["count"], state["step"]

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def _judged(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        length = int(self.c["judged"] * RATE)
        start = int(torch.randint(0, x.shape[-1] - length + 1, ()))
        return x[..., start : start + length], y[..., start : start + length]

    def train_step(self, x: Tensor, progress: float, adversary: bool) -> dict[str, Tensor]:
        """One update of all networks on waveforms x [B, 1, samples]."""
        losses: dict[str, Tensor] = {}
        with self.autocast():
            y, mu = reconstruct(self.vae, x, self.c["noise"])
        mel, stft = self.spectral(x, y)
        losses.update(mel=mel, stft=stft, latent=latent_loss(mu))
        c = self.c
        total = c["mel_weight"] * mel + c["stft_weight"] * stft + c["latent_weight"] * losses["latent"]
        if adversary:
            real, fake = self._judged(x, y)
            losses["judges"] = self._train_judges(real, fake.detach(), progress)
            self.judges.requires_grad_(False)
            with self.autocast():
                with torch.no_grad():
                    _, real_features = self.judges(real)
                scores, features = self.judges(fake)
            self.judges.requires_grad_(True)
            losses["fooling"] = generator_loss(scores)
            losses["feature"] = feature_loss(real_features, features)
            total = total + losses["fooling"] + c["feature_weight"] * losses["feature"]
        warm = min(1.0, progress / c["warmup"]) if c["warmup"] else 1.0
        set_lr(self.opt_g, warm * cosine(progress) * (c["adversary_lr"] if adversary else c["lr"]))
        self.opt_g.zero_grad(set_to_none=True)
        total.backward()
        losses["grad"] = nn.utils.clip_grad_norm_(self.vae.parameters(), 100.0)
        self.opt_g.step()
        self.average.update(self.vae)
        self.step += 1
        return losses

    def _train_judges(self, real: Tensor, fake: Tensor, progress: float) -> Tensor:
        with self.autocast():
            scores, _ = self.judges(torch.cat((real, fake)))
        halves = [s.chunk(2) for s in scores]
        loss = discriminator_loss([h[0] for h in halves], [h[1] for h in halves])
        set_lr(self.opt_d, cosine(progress) * self.c["adversary_lr"])
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.judges.parameters(), 100.0)
        self.opt_d.step()
        return loss.detach()


def bench(trainer: Trainer, speech: Speech, samples: int, steps: int, log: Log) -> None:
    """Time both kinds of step."""
    for adversary in (False, True):
        for k in range(steps + 3):
            if k == 3:
                start = time.monotonic()
            losses = trainer.train_step(speech.crops(trainer.c["batch"], samples), 0.0, adversary)
            float(losses["mel"].detach())
        log(bench=True, adversary=adversary, ms=1000 * (time.monotonic() - start) / steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=560, help="seconds of this call")
    parser.add_argument("--polish", type=Path, help="finished VAE whose decoder is trained further")
    parser.add_argument("--bench", type=int, default=0, help="only time this many steps")
    parser.add_argument("--fused", type=int, default=1, help="0 eager, 1 fused snakes, 2 also depthwise convolutions")
    parser.add_argument("--batch", type=int, help="instead of the configured one (dry runs)")
    args = parser.parse_args()
    config = load_config()
    c = config["vae"] | (config["polish"] if args.polish else {})
    c["batch"] = args.batch or c["batch"]
    watch, device = Stopwatch(args.limit), pick_device()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    name = "polish" if args.polish else "vae"
    log = Log(args.work / f"{name}.log")
    trainer = Trainer(config["model"], c, device, args.polish)
    if args.fused and device.type == "cuda":
        accelerate(trainer.vae, args.fused > 1)
    speech = Speech(args.speech, config["trim"], config["teacher"]["held_out_from"], False, device)
    speech.refresh()
    samples = int(c["crop"] * RATE)
    vae_size = parameter_count(trainer.vae)
    log(device=str(device), vae=vae_size, judges=parameter_count(trainer.judges), hours=speech.hours)
    if args.bench:
        bench(trainer, speech, samples, args.bench, log)
        return
    path = args.work / f"{name}.pt"
    state = restore(path, device)
    if state:
        trainer.load(state)
        watch.before = state["elapsed"]
    saved = shown = time.monotonic()
    while watch.left > 8 and watch.elapsed < c["seconds"]:
        progress = watch.elapsed / c["seconds"]
        losses = trainer.train_step(speech.crops(c["batch"], samples), progress, watch.elapsed >= c["adversary_from"])
        now = time.monotonic()
        if trainer.step % 100 == 0 or now - shown > 20:
            shown = now
            log(
                step=trainer.step,
                s=watch.elapsed,
                hours=speech.hours,
                **{k: float(v.detach()) for k, v in losses.items()},
            )
        if now - saved > c["checkpoint_every"]:
            speech.refresh()
            save(path, {**trainer.state(), "elapsed": watch.elapsed})
            saved = time.monotonic()
    save(path, {**trainer.state(), "elapsed": watch.elapsed})
    log(step=trainer.step, s=watch.elapsed, done=watch.elapsed >= c["seconds"])


if __name__ == "__main__":
    main()
