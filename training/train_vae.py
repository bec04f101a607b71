"""Trains the audio VAE of the built-in voice: `python -m training.train_vae --speech DIR --work DIR --limit 560`.

Continuous latents without a KL term: noise of random size is added to latents that are held to zero mean and unit
deviation (Sun et al., 2024, sigma-VAE), so the decoder forgives what the language model gets slightly wrong.
Reconstruction only at first, then with discriminators. Stops by itself after `--limit` seconds and resumes.

With `--start FILE` it goes on from a finished VAE, such as the package's audiovae.safetensors: first the encoder alone,
by reconstruction, until the decoder too is trained with new discriminators.

With `--polish FILE` the encoder of that finished VAE stays as it is (so latents stay valid) and its decoder is trained
further by the `[polish]` section, against the same discriminators. FILE may be the package's too: then the
discriminators are new. With `--predicted DIR` a share of the examples is decoded from the latents that
`training.predicted` wrote there, as served speech is, with the recording as the target.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from training.capture import CapturedStep, Losses
from training.common import (
    Average,
    Log,
    Stopwatch,
    as_floats,
    averaged,
    cosine,
    load_config,
    parameter_count,
    pick_device,
    restore,
    save,
    set_lr,
)
from training.crops import Crops, PredictedCrops, draw
from training.data import RATE, Speech
from training.discriminators import Discriminators
from training.losses import (
    SpectralLoss,
    balanced,
    discriminator_loss,
    feature_loss,
    generator_loss,
    latent_loss,
)
from training.modules import build_vae, reconstruct
from training.sentences import held_out
from training.speed import accelerate


class Trainer:
    """Everything with state; `state()` and `load()` carry it over a restart."""

    def __init__(
        self,
        model: dict[str, Any],
        config: dict[str, Any],
        device: torch.device,
        start: Path | None,
        polish: bool,
    ) -> None:
        """start: the finished VAE that it goes on from. polish: only its decoder is trained."""
        self.c = config
        self.device = device
        self.vae = build_vae(model).to(device)
        self.judges: nn.Module = Discriminators().to(device).to(memory_format=torch.channels_last)
        if start:
            self.vae.load_state_dict(averaged(start, device))
            self.vae.encoder.requires_grad_(not polish)
            if start.suffix != ".safetensors":
                self.judges.load_state_dict(
                    torch.load(start, map_location=device, weights_only=True)["judges"]
                )
        self.average = Average(self.vae, self.c["ema"])
        self.spectral = SpectralLoss(RATE).to(device)
        self.trained = [p for p in self.vae.parameters() if p.requires_grad]
        # a decoder that only loses by reconstruction alone
        finished = start is not None and not polish
        self.reconstructing = list(self.vae.encoder.parameters()) if finished else self.trained
        self.judging = list(self.judges.parameters())
        self.opt_g, self.opt_d = (self._optimizer(p) for p in (self.trained, self.judging))
        self.step = self.judged_steps = 0  # steps made, and those with discriminators
        self.captured = CapturedStep(self.update, device)

    def _optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        cuda, lr = self.device.type == "cuda", torch.zeros((), device=self.device)
        betas = tuple(self.c["betas"])
        return torch.optim.AdamW(
            parameters, lr, betas, weight_decay=0.0, fused=cuda, capturable=cuda
        )

    def state(self) -> dict[str, Any]:
        parts = ("vae", "judges", "opt_g", "opt_d")
        return {
            **{name: getattr(self, name).state_dict() for name in parts},
            "average": self.average.module.state_dict(),
            "count": self.average.count,
            "step": self.step,
            "judged_steps": self.judged_steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        for name in ("vae", "judges", "opt_g", "opt_d"):
            getattr(self, name).load_state_dict(state[name])
        self.average.module.load_state_dict(state["average"])
        self.average.count, self.step, self.judged_steps = (
            state["count"],
            state["step"],
            state["judged_steps"],
        )

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        )

    def train_step(self, crops: Crops, progress: float) -> Losses:
        """One update of all networks."""
        c = self.c
        warm = min(1.0, ((self.judged_steps if crops.adversary else self.step) + 1) / c["warmup"])
        rate = cosine(progress, c["floor"])
        set_lr(self.opt_g, warm * rate * (c["adversary_lr"] if crops.adversary else c["lr"]))
        set_lr(
            self.opt_d, rate * c["adversary_lr"]
        )  # new discriminators learn while the decoder hardly moves
        losses = self.captured(crops)
        self.average.update(self.vae)
        self.step, self.judged_steps = self.step + 1, self.judged_steps + crops.adversary
        return losses

    def update(self, crops: Crops) -> Losses:
        """Losses of a batch, and one step of the optimizers. Nothing here waits for the device."""
        c, x = self.c, crops.x
        self.opt_g.zero_grad(set_to_none=True)
        with self.autocast():
            y, mu = reconstruct(self.vae, x[: crops.own], c["noise"])
            y = torch.cat(
                (y, *(self.vae.decoder(z, None)[..., -x.shape[-1] :] for z in crops.given))
            )
        shown = y.detach().float().requires_grad_(True)
        mel, stft = self.spectral(x, shown)
        losses = {"mel": mel, "stft": stft, "latent": latent_loss(mu)}
        wanted = {
            k: torch.autograd.grad(losses[k], shown, retain_graph=True)[0] for k in ("mel", "stft")
        }
        if crops.adversary:
            wanted["judges"], found = self._judge(x, shown)
            losses.update(found)
        losses |= {f"pull_{name}": g.norm() for name, g in wanted.items()}
        pull = c["pull"] * balanced(wanted, c["shares"])
        total = (y * pull).sum() + c["latent_weight"] * losses["latent"]
        trained = self.trained if crops.adversary else self.reconstructing
        total.backward(inputs=trained)
        losses["grad"] = nn.utils.clip_grad_norm_(trained, 1000.0)
        self.opt_g.step()
        return {k: v.detach() for k, v in losses.items()}

    def _judge(self, x: Tensor, shown: Tensor) -> tuple[Tensor, Losses]:
        """Discriminators see a random stretch of recordings x and of what was decoded, both [B, 1, samples], and learn.

        Returns the gradient at `shown` of what the decoder is to lower. Both sides learn from the same discriminators.
        """
        length = int(self.c["judged"] * RATE)
        start = (torch.rand((), device=x.device) * (x.shape[-1] - length)).long()
        at = start + torch.arange(length, device=x.device)
        with self.autocast():
            real, true_features = self.judges(x.index_select(2, at))
            fake, features = self.judges(shown.index_select(2, at))
        loss, fooling = discriminator_loss(real, fake), generator_loss(fake)
        feature = feature_loss(true_features, features)
        self.opt_d.zero_grad(set_to_none=True)
        loss.backward(inputs=self.judging, retain_graph=True)
        (wanted,) = torch.autograd.grad(fooling + self.c["feature_weight"] * feature, shown)
        nn.utils.clip_grad_norm_(self.judging, 100.0)
        self.opt_d.step()
        return wanted, {"judges": loss, "fooling": fooling, "feature": feature}


def bench(
    trainer: Trainer, speech: Speech, predicted: PredictedCrops | None, steps: int, log: Log
) -> None:
    """Time both kinds of step."""
    for adversary in (False, True):
        for k in range(steps + 3):
            if k == 3:  # the first of them captures
                start = time.monotonic()
            losses = trainer.train_step(draw(speech, predicted, trainer.c, adversary), 0.0)
            float(losses["mel"])  # waits for the device
        ms = 1000 * (time.monotonic() - start) / steps
        log(bench=True, adversary=adversary, ms=ms, **as_floats(losses))


def train(
    trainer: Trainer,
    speech: Speech,
    predicted: PredictedCrops | None,
    watch: Stopwatch,
    path: Path,
    log: Log,
) -> None:
    """Until the time is over, from the checkpoint at `path` if there is one."""
    c = trainer.c
    state = restore(path, trainer.device)
    if state:
        trainer.load(state)
        watch.before = state["elapsed"]
    saved = shown = time.monotonic()
    while watch.left > 8 and watch.elapsed < c["seconds"]:
        crops = draw(speech, predicted, c, watch.elapsed >= c["adversary_from"])
        losses = trainer.train_step(crops, watch.elapsed / c["seconds"])
        now = time.monotonic()
        if now - shown > 15:
            shown = now
            speech.refresh()
            log(step=trainer.step, s=watch.elapsed, hours=speech.hours, **as_floats(losses))
        if now - saved > c["checkpoint_every"]:
            save(path, {**trainer.state(), "elapsed": watch.elapsed})
            saved = time.monotonic()
    save(path, {**trainer.state(), "elapsed": watch.elapsed})
    log(step=trainer.step, s=watch.elapsed, done=watch.elapsed >= c["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speech", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=560, help="seconds of this call")
    parser.add_argument(
        "--seconds", type=float, help="of training in all, instead of the configured ones"
    )
    parser.add_argument("--start", type=Path, help="finished VAE that is trained further")
    parser.add_argument("--polish", type=Path, help="finished VAE whose decoder is trained further")
    parser.add_argument(
        "--predicted", type=Path, help="with --polish: folder of latents, training.predicted's too"
    )
    parser.add_argument(
        "--noise", type=float, help="largest on latents, instead of the configured one"
    )
    parser.add_argument(
        "--hours", type=float, default=0.02, help="of speech that must be there before it begins"
    )
    parser.add_argument("--bench", type=int, default=0, help="only time this many steps")
    parser.add_argument(
        "--fused",
        type=int,
        default=1,
        help="0 eager, 1 fused snakes, 2 also depthwise convolutions",
    )
    parser.add_argument("--captured", type=int, default=1, help="0 runs every step eagerly")
    parser.add_argument("--batch", type=int, help="instead of the configured one (dry runs)")
    args = parser.parse_args()
    if args.predicted and not args.polish:
        parser.error("--predicted needs --polish: only an autoencoder that is finished has latents")
    if args.start and args.polish:
        parser.error("--start and --polish exclude each other")
    config = load_config()
    c = config["vae"] | (config["polish"] if args.polish else {})
    c["batch"], c["seconds"] = args.batch or c["batch"], args.seconds or c["seconds"]
    c["noise"] = c["noise"] if args.noise is None else args.noise
    watch, device = Stopwatch(args.limit), pick_device()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    name = "polish" if args.polish else "vae"
    log = Log(args.work / f"{name}.log")
    trainer = Trainer(
        config["model"], c, device, args.polish or args.start, args.polish is not None
    )
    trainer.captured.cuda &= bool(args.captured)
    if args.fused and device.type == "cuda":
        accelerate(trainer.vae, args.fused > 1)
    speech = Speech(args.speech, lambda i: not held_out(i), device)
    speech.refresh()
    while speech.hours < args.hours:  # the teacher has only begun
        time.sleep(1)
        speech.refresh()
    sizes = {"vae": parameter_count(trainer.vae), "judges": parameter_count(trainer.judges)}
    log(device=str(device), **sizes, hours=speech.hours)
    hop = trainer.vae.config.hop
    predicted = (
        PredictedCrops(speech, args.predicted, int(c["crop"] * RATE) // hop, hop)
        if args.predicted
        else None
    )
    if args.bench:
        bench(trainer, speech, predicted, args.bench, log)
        return
    train(trainer, speech, predicted, watch, args.work / f"{name}.pt", log)


if __name__ == "__main__":
    main()
