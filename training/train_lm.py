"""Trains the language models, local encoder, flow and stop head on latents of the finished VAE.

    python -m training.train_lm --latents DIR --sentences FILE --work DIR --limit 570

Stops by itself after `--limit` seconds and resumes. Held-out losses use the averaged weights and fixed noise.

With `--start DIR` it goes on from the language models of that package by the `[further]` section. The classifier of
phonemes, which no package has, begins anew. On two GPUs run it twice with another `--seed`: `training.export` takes the
mean of both (Wortsman et al., 2022, "Model soups").
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stentor.layers.transformer import Attention, SwiGLU
from stentor.models.voxcpm2.modules import VoxCPM2Net
from training.alignment import Pointer, Speller
from training.capture import CapturedStep
from training.common import (
    Average,
    Log,
    Stopwatch,
    as_floats,
    cosine,
    load_config,
    parameter_count,
    pick_device,
    restore,
    save,
    set_lr,
)
from training.examples import Batch, Examples
from training.modules import Velocity, build_net, flow_loss, hidden_states, load_packaged
from training.speed import plain_products


def add_dropout(net: VoxCPM2Net, p: float) -> None:
    """Dropout on both branches of every block of the language models and the local encoder, as forward hooks."""
    for part in (net.base_lm, net.residual_lm, net.feat_encoder):
        for module in part.modules():
            if isinstance(module, Attention | SwiGLU):
                module.register_forward_hook(lambda m, _, out: F.dropout(out, p, m.training))


def losses_of(
    net: VoxCPM2Net,
    velocity: Velocity,
    speller: Speller,
    batch: Batch,
    c: dict[str, Any],
    noise: float,
    drop: float,
) -> dict[str, Tensor]:
    """Flow, stop and alignment losses of one batch."""
    pointer = Pointer(c["pointer_layers"], c["pointer_heads"])
    h, r, before = hidden_states(net, batch, noise, pointer.attend)
    target = batch.patches[batch.row, batch.patch]
    flow = flow_loss(
        net, velocity, torch.stack(net.conditions(h, r), dim=-2), before, target, c["draws"], drop
    )
    logits = net.stop_head(F.silu(net.stop_proj(h))).float()
    stop = F.cross_entropy(logits, batch.last)
    wrong = (logits.argmax(-1) != batch.last).float().mean()
    spelling, spelt = speller(h, batch)
    found = {"flow": flow, "stop": stop, "spelling": spelling, "pointer": pointer.loss(batch)}
    return {**found, "stop_wrong": wrong, "spelt": spelt}


class Trainer:
    def __init__(
        self, config: dict[str, Any], device: torch.device, start: Path | None = None
    ) -> None:
        """start: the package whose weights it begins with."""
        self.c, self.device = config["lm"], device
        lm = config["model"]["lm_config"]
        self.net = build_net(config["model"], embedding_scale=self.c["embedding_scale"])
        if start:
            load_packaged(self.net, start)
        self.net.to(device)
        self.speller = Speller(
            lm["hidden_size"], lm["vocab_size"], config["model"]["patch_size"]
        ).to(device)
        self.average = Average(self.net, self.c["ema"])
        add_dropout(self.net, self.c["dropout"])
        self.trained = [*self.net.parameters(), *self.speller.parameters()]
        matrices = [p for p in self.trained if p.ndim > 1]
        vectors = [p for p in self.trained if p.ndim <= 1]
        self.opt = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.c["weight_decay"]},
                {"params": vectors, "weight_decay": 0.0},
            ],
            self.c["lr"],
            (0.9, 0.98),
            fused=device.type == "cuda",
        )
        self.step = 0
        dit = self.net.feat_decoder.estimator
        self.velocity: Velocity = dit
        if device.type == "cuda":
            plain_products()
            self.velocity = torch.compile(dit)
        for p in self.trained:
            p.grad = torch.zeros_like(p)  # where a graph finds it
        self.captured = CapturedStep(self.gradients, device)

    def state(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "speller": self.speller.state_dict(),
            "opt": self.opt.state_dict(),
            "average": self.average.module.state_dict(),
            "count": self.average.count,
            "step": self.step,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.speller.load_state_dict(state["speller"])
        self.opt.load_state_dict(state["opt"])
        self.average.module.load_state_dict(state["average"])
        self.average.count, self.step = state["count"], state["step"]

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type,
            torch.bfloat16,
            enabled=self.device.type == "cuda",
            cache_enabled=False,
        )

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """Losses of a batch, whose gradients replace what `.grad` held."""
        c = self.c
        torch._foreach_zero_([p.grad for p in self.trained if p.grad is not None])
        with self.autocast():
            losses = losses_of(
                self.net,
                self.velocity,
                self.speller,
                batch,
                c,
                c["feedback_noise"],
                c["condition_dropout"],
            )
        weighted = ("stop", "spelling", "pointer")
        total = losses["flow"] + sum(c[f"{name}_weight"] * losses[name] for name in weighted)
        total.backward()
        return {k: v.detach() for k, v in losses.items()}

    def train_step(self, batch: Batch, lr: float) -> dict[str, Tensor]:
        self.net.train()
        losses = self.captured(batch)
        set_lr(self.opt, lr)
        losses["grad"] = nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.opt.step()
        self.average.update(self.net)
        self.step += 1
        return losses

    @torch.no_grad()
    def held_out(self, batch: Batch) -> dict[str, float]:
        """Losses of the averaged weights on held-out sentences, with the same noise every time."""
        with (
            torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []),
            self.autocast(),
        ):
            torch.manual_seed(0)
            net = self.average.module
            losses = losses_of(
                net, net.feat_decoder.estimator, self.speller, batch, self.c, 0.1, 0.0
            )
        return {f"held_out_{k}": v for k, v in as_floats(losses).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("latents", "sentences", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=570, help="seconds of this call")
    parser.add_argument(
        "--seconds", type=float, help="of training in all, instead of the configured ones"
    )
    parser.add_argument("--start", type=Path, help="package whose language models are trained on")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the order of examples and of all noise"
    )
    parser.add_argument(
        "--positions", type=int, help="instead of the configured batch_frames (dry runs)"
    )
    args = parser.parse_args()
    config = load_config()
    c, patch, device = config["lm"], config["model"]["patch_size"], pick_device()
    c.update(config["further"] if args.start else {})
    c["seconds"] = args.seconds or c["seconds"]
    watch = Stopwatch(args.limit)
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    log = Log(args.work / "lm.log")
    trainer = Trainer(config, device, args.start)
    train = Examples(args.sentences, args.latents, "train", patch, c, device, args.seed)
    check = Examples(args.sentences, args.latents, "held_out", patch, c, device).everything(128)
    log(device=str(device), parameters=parameter_count(trainer.net), utterances=len(train.rows))
    path = args.work / "lm.pt"
    state = restore(path, device)
    if state:
        trainer.load(state)
        watch.before = state["elapsed"]
    saved = shown = time.monotonic()
    positions = args.positions or c["batch_frames"]
    drawn = min(c["flow_patches"], positions // 4)
    for batch in train.batches(positions, drawn, c["join"]):
        if watch.left < 6 or watch.elapsed > c["seconds"]:
            break
        lr = c["lr"] * min(1.0, watch.elapsed / c["warmup"]) * cosine(watch.elapsed / c["seconds"])
        losses = trainer.train_step(batch, lr)
        now = time.monotonic()
        if now - shown > 15:
            shown = now
            log(step=trainer.step, s=watch.elapsed, **as_floats(losses), **trainer.held_out(check))
        if now - saved > c["checkpoint_every"]:
            saved = now
            save(path, {**trainer.state(), "elapsed": watch.elapsed})
    save(path, {**trainer.state(), "elapsed": watch.elapsed})
    log(
        step=trainer.step,
        s=watch.elapsed,
        **trainer.held_out(check),
        done=watch.elapsed >= c["seconds"],
    )


if __name__ == "__main__":
    main()
