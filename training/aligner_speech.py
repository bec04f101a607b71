"""Speech of the teacher in many voices, for the aligner of words: all that it has, and mixtures of the English ones.

    python -m training.aligner_speech --weights kokoro.npz --styles DIR --vocab vocab.json --sentences sentences.jsonl \
        --out speech --seconds 3600                       # and --held-out --out held_out, in the voices of `FIVE`

Files are as `training.teacher` writes them, and a second run goes on where the first stopped. The five voices that are
measured speak about a quarter of it. `UNHEARD` speak in what is held out alone.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from training.common import load_config
from training.kokoro import Teacher
from training.sentences import held_out
from training.teacher import Row, batches, spoken, tokenized, write

FIVE = ("af_heart", "bf_emma", "am_eric", "am_fenrir", "bm_george")
UNHEARD = ("af_aoede", "am_michael")
MIXTURES = 60
SHARES = (0.4, 0.25, 0.2, 0.15)  # English voices, mixtures, the five, voices of other languages
GAIN = 1.2  # of all voices
SIGNS = range(20, 111)  # of a sentence's phonemes


def styles_of(folder: Path) -> dict[str, np.ndarray]:
    """The style vectors [510, 256] of every voice of a folder, and of mixtures of two."""
    styles = {f.stem: np.fromfile(f, "<f4").reshape(510, 256) for f in sorted(folder.glob("*.bin"))}
    draw, heard = random.Random(7), [v for v in styles if v[0] in "ab" and v not in UNHEARD]
    for k in range(MIXTURES):
        one, other = draw.sample(heard, 2)
        share = draw.uniform(0.2, 0.8)
        styles[f"mix{k:02d}"] = share * styles[one] + (1 - share) * styles[other]
    return styles


def plan(sentences: Path, voices: list[str], held: bool) -> list[Row]:
    """Say who speaks which sentence, in order."""
    draw = random.Random(7)
    rows = [json.loads(line) for line in sentences.read_text(encoding="utf-8").splitlines()]
    rows = [r for r in rows if held_out(r["id"]) == held and len(r["phonemes"]) in SIGNS]
    draw.shuffle(rows)
    if held:
        turn = (*FIVE, *UNHEARD)
        return [{**row, "voice": turn[k % len(turn)]} for k, row in enumerate(rows)]
    heard = [v for v in voices if v not in UNHEARD]
    mixtures = [v for v in heard if v.startswith("mix")]
    pools = [
        [v for v in heard if v[0] in "ab"],
        mixtures,
        FIVE,
        [v for v in heard if v[0] not in "abm"],
    ]
    return [{**row, "voice": draw.choice(draw.choices(pools, SHARES)[0])} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("weights", "styles", "vocab", "sentences", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument(
        "--worker", default="0/1", help="k/n: every n-th utterance, from the k-th on"
    )
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    stop, config = time.time() + args.seconds, load_config()
    config["teacher"]["voices"] = defaultdict(lambda: GAIN)
    args.out.mkdir(parents=True, exist_ok=True)
    vocab, styles = json.loads(args.vocab.read_text())["vocab"], styles_of(args.styles)
    worker, workers = map(int, args.worker.split("/"))
    done, rows = spoken(args.out), []
    for row in plan(args.sentences, list(styles), args.held_out)[worker::workers]:
        tokens, upto = tokenized(row["phonemes"].strip(), vocab)
        if (row["id"], row["voice"]) not in done:
            rows.append({"id": row["id"], "voice": row["voice"], "tokens": tokens, "upto": upto})
    teacher = Teacher(str(args.weights), args.device, "fp32")
    made = batches(rows, teacher, {v: torch.from_numpy(s) for v, s in styles.items()}, args.batch)
    write(args.out, worker, made, config, stop)


if __name__ == "__main__":
    main()
