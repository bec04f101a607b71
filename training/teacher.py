"""Speech from the teacher (Kokoro-82M on a GPU) in several voices, trimmed, as 16-bit PCM and an index.

    python -m training.teacher --weights kokoro.npz --styles DIR --vocab vocab.json --sentences sentences.jsonl \
        --out speech --seconds 240 --worker 0/2

`--styles` holds the voices' style vectors (npm kokoro-js, voices/*.bin). An index line has the sentence's id, the
voice, where its samples lie, and the milliseconds at which its phonemes end: the teacher decides on durations before it
speaks, so text and audio are aligned exactly.

May run beside the trainers, which read what is there: an index line is written after its samples. A second run goes on
where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training.common import load_config
from training.data import RATE, trim
from training.kokoro import HOP, Teacher
from training.sentences import held_out

Row = dict[str, Any]
WINDOW = 8  # batches that are sorted by length together


def plan(sentences: Path, config: dict[str, Any]) -> list[Row]:
    """Utterances in the order in which they are spoken: some held-out sentences in every voice, then all others.

    A voice speaks a sentence with the chance that `shares` of the config gives it.
    """
    rows = [json.loads(line) for line in sentences.read_text(encoding="utf-8").splitlines()]
    draw, names = random.Random(0), list(config["voices"])
    held = [r for r in rows if held_out(r["id"])]
    draw.shuffle(held)
    pairs = [{**r, "voice": v} for r in held[: config["held_out"]] for v in names]
    shares = config["shares"].items()
    rest = [
        {**r, "voice": v}
        for r in rows
        if not held_out(r["id"])
        for v, share in shares
        if draw.random() < share
    ]
    draw.shuffle(rest)
    return pairs + rest


def spoken(out: Path) -> set[tuple[int, str]]:
    rows = (json.loads(line) for f in out.glob("*.jsonl") for line in f.read_text().splitlines())
    return {(r["id"], r["voice"]) for r in rows}


def tokenized(phonemes: str, vocab: dict[str, int]) -> tuple[list[int], list[int]]:
    """The teacher's tokens, and for each symbol of `phonemes` how many of them stand up to and with it."""
    tokens, upto = [], []
    for symbol in phonemes:
        if symbol in vocab:
            tokens.append(vocab[symbol])
        upto.append(len(tokens))
    return tokens, upto


def phoneme_ends(durations: np.ndarray, upto: list[int], cut: int) -> list[int]:
    """Milliseconds after sample `cut` at which each symbol ends. durations [tokens + 2] are in frames."""
    ends = durations.cumsum()[
        : len(durations) - 1
    ]  # of the silence before the sentence, and of each token
    return [int(ends[n]) * HOP * 1000 // RATE - cut * 1000 // RATE for n in upto]


def batches(
    rows: list[Row], teacher: Teacher, styles: dict[str, Tensor], size: int
) -> Iterator[list[Any]]:
    """Rows with the first half of their synthesis, in batches of equal length."""

    def style(part: list[Row]) -> Tensor:
        return torch.stack([styles[r["voice"]][len(r["tokens"]) - 1] for r in part])

    for at in range(0, len(rows), WINDOW * size):
        window = sorted(rows[at : at + WINDOW * size], key=lambda r: len(r["tokens"]))
        halves = (window[: WINDOW * size // 2], window[WINDOW * size // 2 :])
        planned = [
            pair
            for half in halves
            if half
            for pair in zip(
                half, teacher.plan([r["tokens"] for r in half], style(half)), strict=True
            )
        ]
        frames = torch.stack([p[2].sum() for _, p in planned]).tolist()
        order = sorted(range(len(planned)), key=lambda i: -frames[i])
        for i in range(0, len(order), size):
            part = [planned[k] for k in order[i : i + size]]
            waves = teacher.voice([p for _, p in part], style([r for r, _ in part]))
            yield [(row, wave, p[2]) for (row, p), wave in zip(part, waves, strict=True)]


def on_host(rows: list[Tensor]) -> list[np.ndarray]:
    """Vectors of any length, in one copy from the device."""
    return np.split(torch.cat(rows).cpu().numpy(), np.cumsum([len(r) for r in rows])[:-1])


def write(
    folder: Path, worker: int, made: Iterator[list[Any]], config: dict[str, Any], stop: float
) -> None:
    """Append utterances to the worker's two files until the time is over."""
    started, seconds = time.monotonic(), 0.0
    with (
        (folder / f"w{worker:02d}.pcm").open("ab") as pcm,
        (folder / f"w{worker:02d}.jsonl").open("a") as index,
    ):
        offset = pcm.tell() // 2
        for batch in made:
            gains = config["teacher"]["voices"]
            loud = [(w * gains[row["voice"]]).clamp(-0.999, 0.999) * 32767 for row, w, _ in batch]
            waves, durations = on_host([w.short() for w in loud]), on_host([d for _, _, d in batch])
            lines = []
            for (row, _, _), wave, frames in zip(batch, waves, durations, strict=True):
                kept, cut = trim(wave, config["trim"])
                pcm.write(kept.astype("<i2").tobytes())
                line = {
                    "id": row["id"],
                    "voice": row["voice"],
                    "offset": offset,
                    "samples": len(kept),
                }
                lines.append(
                    json.dumps(line | {"ends": phoneme_ends(frames, row["upto"], cut)}) + "\n"
                )
                offset += len(kept)
                seconds += len(kept) / RATE
            pcm.flush()
            index.writelines(lines)
            index.flush()
            if time.monotonic() > stop:
                break
    print(
        json.dumps(
            {
                "worker": worker,
                "hours": seconds / 3600,
                "per_s": seconds / (time.monotonic() - started),
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "styles", "vocab", "sentences", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--worker", default="0/1", help="k/n: every n-th utterance, from the k-th on"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="fp16", choices=["fp32", "tf32", "fp16", "bf16"])
    args = parser.parse_args()
    stop, config = time.monotonic() + args.seconds, load_config()
    args.out.mkdir(parents=True, exist_ok=True)
    vocab, voices = json.loads(args.vocab.read_text())["vocab"], config["teacher"]["voices"]
    styles = {v: np.fromfile(args.styles / f"{v}.bin", "<f4").reshape(510, 256) for v in voices}
    worker, workers = map(int, args.worker.split("/"))
    done, rows = spoken(args.out), []
    for row in plan(args.sentences, config["teacher"])[worker::workers]:
        tokens, upto = tokenized(row["phonemes"].strip(), vocab)
        if tokens and len(tokens) <= 509 and (row["id"], row["voice"]) not in done:
            rows.append({"id": row["id"], "voice": row["voice"], "tokens": tokens, "upto": upto})
    teacher = Teacher(str(args.weights), args.device, args.dtype)
    made = batches(rows, teacher, {v: torch.from_numpy(s) for v, s in styles.items()}, args.batch)
    write(args.out, worker, made, config, stop)


if __name__ == "__main__":
    main()
