"""Decode latents that the language models predict, beside those of the recordings.

    python benchmarks/voice/predicted.py --speech DIR --sentences FILE --model stentor/assets/voice --json FILE

`--speech` is a folder that `training.teacher` wrote, of sentences that training never saw. For each voice of it that
the package names: mean distance of the log-mel spectra to the recordings, and DistillMOS. "left out 1" are the latents
of `training.predicted` that begin with the truth at the time of the flow's second evaluation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stentor.bench.metrics.score import AnswerAudio, opinion_scores
from stentor.models.voxcpm2.codec import AudioVAE
from training.common import averaged, load_config
from training.data import RATE, Speech
from training.examples import TAIL, Batch, Examples
from training.latents import encode_all
from training.losses import SpectralLoss
from training.modules import build_net, build_vae, load_packaged
from training.predicted import Sampling, sample
from training.store import write

CPU = torch.device("cpu")


def decoded(vae: AudioVAE, batch: Batch, patches: Tensor) -> list[Tensor]:
    """Waveforms [samples] of the examples of a batch, from patches [M, P, D] in its order."""
    speech = batch.patch < batch.patch_len[batch.row] - TAIL
    rows = [patches[speech & (batch.row == row)] for row in range(len(batch.ids))]
    return [vae.decode(row.flatten(0, 1)[None])[0] for row in rows]


def judged(recorded: list[Tensor], waves: list[Tensor]) -> dict[str, Any]:
    """Waveforms [samples] beside those of the recordings, which may be longer."""
    loss = SpectralLoss(RATE)
    mel = [float(loss(x[None, None, : len(y)], y[None, None])[0]) for x, y in zip(recorded, waves, strict=True)]
    scores = opinion_scores([AnswerAudio(i, "", w.numpy(), RATE) for i, w in enumerate(waves)])
    deviation = float(scores.std() / len(scores) ** 0.5)
    return {"mel": sum(mel) / len(mel), "mos": float(scores.mean()), "mos_deviation": deviation}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("speech", "sentences", "model", "json"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--left-out", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    config = load_config()
    model = config["model"]
    vae, net = build_vae(model).eval(), build_net(model).eval()
    vae.load_state_dict(averaged(args.model / "audiovae.safetensors"))
    load_packaged(net, args.model)
    speech = Speech(args.speech, lambda _: True, CPU)
    speech.refresh()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "train", *encode_all(vae, speech, vae.config.hop))
        examples = Examples(args.sentences, Path(folder), "train", model["patch_size"], config["lm"], CPU)
    references, schedule = load_file(args.model / "voices.safetensors"), net.feat_decoder.estimator.schedule()
    found: dict[str, dict[str, Any]] = {}
    for voice in sorted({v for _, v in speech.spans if v.split("_")[1] in references}):
        mine = [k for k, row in enumerate(examples.rows) if row["voice"] == voice]
        batch = examples.collate([examples.example([k], False) for k in mine])
        batch.reference = references[voice.split("_")[1]].float().expand(len(mine), -1, -1, -1)
        recorded = [speech.utterance((examples.rows[k]["id"], voice)) for k in mine]
        ways = {"recorded": recorded, "autoencoder": decoded(vae, batch, batch.patches[batch.row, batch.patch])}
        for left_out in args.left_out:
            torch.manual_seed(0)
            patches = sample(net, schedule, batch, Sampling(**model["stentor"]["defaults"], left_out=left_out))
            ways[f"predicted, left out {left_out}"] = decoded(vae, batch, patches)
        for way, waves in ways.items():
            found.setdefault(voice, {})[way] = judged(recorded, waves)
            print(voice, way, {k: round(v, 3) for k, v in found[voice][way].items()}, flush=True)
    args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
