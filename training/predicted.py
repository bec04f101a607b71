"""The latents that finished language models predict for the teacher's speech, for `training.train_vae --predicted`.

    python -m training.predicted --latents DIR --sentences FILE --model voice

Every utterance of `DIR/train` is read once, teacher-forced: a reference of the voice and the text in front, the true
latents as history. The flow makes each patch with the options by which the package `voice` serves, but for its first
evaluations (`[predicted]` of the config). In their place it begins with the true patch, mixed with noise for that time
(Meng et al., 2022, SDEdit). Pitch and timing then stay near those of the recording, and the rest is the flow's.
`DIR/predicted` lies beside `DIR/train`, without the last latents of an utterance that make no whole patch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.models.voxcpm2.flow import euler_solve
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.schedule import EulerSchedule, time_grid
from stentor.models.voxcpm2.steps import cfg_zero_steps, evaluations
from training.common import Log, load_config, pick_device
from training.examples import TAIL, Batch, Examples
from training.modules import build_net, hidden_states, load_packaged
from training.store import STEP, packed, write

BATCH = 128  # utterances of about the same length
ROWS = (
    8192  # patches that are sampled together. Guidance doubles them, and a CUDA grid takes 65,535
)


@dataclass(frozen=True)
class Sampling:
    """Options of the flow: Euler steps, guidance, deviation of the noise, and how many evaluations are left out."""

    flow_steps: int
    cfg: float
    temperature: float
    left_out: int

    def begin(self, true: Tensor) -> Tensor:
        """True patches [M, P, D] as the first evaluation that is made sees them. Noise alone if none is left out."""
        noise = self.temperature * torch.randn_like(true)
        if not self.left_out:
            return noise
        first = cfg_zero_steps(self.flow_steps) + self.left_out
        return torch.lerp(true, noise, time_grid(self.flow_steps, true.dtype, true.device)[first])


def sample(net: VoxCPM2Net, schedule: EulerSchedule, batch: Batch, options: Sampling) -> Tensor:
    """All patches of a batch [M, P, D] in float32, each from the true ones before it."""
    dit, skip = net.feat_decoder.estimator, options.left_out
    made = EulerSchedule(schedule.dt[:, skip:], schedule.at[:, skip:], schedule.times)
    given = (*hidden_states(net, batch, 0.0), batch.patches[batch.row, batch.patch])
    found = []
    for h, r, before, true in zip(*(t.split(ROWS) for t in given), strict=True):
        cfg = torch.full((len(h),), options.cfg, device=h.device)
        steps = torch.full((len(h),), options.flow_steps, device=h.device)
        mu, count = net.conditions(h, r), evaluations(options.flow_steps) - skip
        patches = euler_solve(
            dit, made, net.rope, mu, before, options.begin(true), cfg, steps, count
        )
        found.append(patches.float())
    return torch.cat(found)


def in_batches(examples: Examples) -> Iterator[tuple[list[dict[str, Any]], Batch]]:
    """All utterances, short ones first: rows of the index, and their batch."""
    order = sorted(range(len(examples.rows)), key=lambda k: examples.rows[k]["frames"])
    for start in range(0, len(order), BATCH):
        group = order[start : start + BATCH]
        yield (
            [examples.rows[k] for k in group],
            examples.collate([examples.example([k], False) for k in group]),
        )


@torch.no_grad()
def predict(
    net: VoxCPM2Net, examples: Examples, options: Sampling
) -> tuple[Tensor, list[dict[str, Any]]]:
    """int8 [latents, D] end to end, in steps of the store, and the index: id, voice, start and frames of each row."""
    device = examples.device
    schedule = net.feat_decoder.estimator.schedule()
    pieces, index, at = [], [], 0
    for rows, batch in in_batches(examples):
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            patches = sample(net, schedule, batch, options)
        true = patches[
            batch.patch < batch.patch_len[batch.row] - TAIL
        ]  # the silence after the end is not speech
        pieces.append(packed(true.flatten(0, 1)))
        for row in rows:
            frames = row["frames"] // examples.patch * examples.patch
            index.append({"id": row["id"], "voice": row["voice"], "start": at, "frames": frames})
            at += frames
    return torch.cat(pieces), index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("latents", "sentences", "model"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    config, device = load_config(), pick_device()
    model = config["model"]
    options = Sampling(**model["stentor"]["defaults"], **config["predicted"])
    log = Log(args.latents / "predicted.log")
    net = build_net(model)
    load_packaged(net, args.model)
    net.to(device).eval()
    examples = Examples(
        args.sentences, args.latents, "train", model["patch_size"], config["lm"], device
    )
    flat, index = predict(net, examples, options)
    write(args.latents, "predicted", flat, index)
    some = flat[:: max(1, len(flat) // 100_000)].float() * STEP
    log(utterances=len(index), latents=len(flat), mean=float(some.mean()), std=float(some.std()))


if __name__ == "__main__":
    main()
