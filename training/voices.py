"""The references of the named voices: patches of one utterance each, as the language model saw them in training.

    python -m training.voices --speech DIR --vae vae.pt --out voices.safetensors --pick af_heart=15320 bf_emma=15322

`--pick` chooses a sentence for a voice of the config's `[teacher.voices]`; the others take their first that is long
enough. The file has the voices that `[model.stentor]` names: af_heart is heart.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from training.common import averaged, load_config
from training.data import Key, Speech
from training.latents import encode
from training.modules import build_vae
from training.sentences import held_out


def chosen(speech: Speech, voice: str, picks: dict[str, int], samples: int) -> Key:
    """The utterance that is the voice's reference."""
    if voice in picks:
        return (picks[voice], voice)
    return next(
        k for k, (start, end) in speech.spans.items() if k[1] == voice and end - start >= samples
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("speech", "vae", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--pick", nargs="*", default=[], help="VOICE=SENTENCE")
    args = parser.parse_args()
    config: dict[str, Any] = load_config()
    model, count = config["model"], config["lm"]["reference"]
    vae = build_vae(model).eval()
    vae.load_state_dict(averaged(args.vae))
    speech = Speech(args.speech, held_out, torch.device("cpu"))
    speech.refresh()
    picks = {voice: int(sentence) for voice, sentence in (p.split("=") for p in args.pick)}
    found: dict[str, Tensor] = {}
    for name in model["stentor"]["voices"]:
        voice = next(v for v in config["teacher"]["voices"] if v.endswith(f"_{name}"))
        latents = count * model["patch_size"]
        key = chosen(speech, voice, picks, latents * vae.config.hop)
        (z,) = encode(vae, [speech.utterance(key)], vae.config.hop)
        found[name] = z[:latents].reshape(count, model["patch_size"], -1).half().contiguous()
    save_file(found, args.out)


if __name__ == "__main__":
    main()
