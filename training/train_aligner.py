"""Train the aligner of words (stentor/align) on the teacher's speech, whose phonemes have known times.

    python -m training.train_aligner --speech DIR ... --sentences sentences.jsonl --work work --seconds 1800

Every folder of `--speech` has pairs of NAME.pcm (16 bits, 24 kHz) and NAME.jsonl as `training.teacher` writes them.
Each utterance is kept plain and in `--variants` others: faster or slower with another pitch, through a telephone, an
mp3 or a room, with noise. Features are cached in the work folder, checkpoints are written every two minutes, and a
second run goes on. At the end, `work/english.safetensors` is what stentor/assets/aligner holds.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from pathlib import Path
from typing import Any

import av
import numpy as np
import soxr
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from stentor.align.network import (
    DELAY,
    DILATIONS,
    FRAME_SECONDS,
    KERNEL,
    MELS,
    RATE,
    STACK,
    LogMelStream,
)
from stentor.align.path import CLASSES, GAP, class_of
from training.common import Stopwatch
from training.sentences import held_out

SPOKEN = 24_000  # Hz of the teacher
WIDTH, RISE = 128, 2
QUIET = 42.0  # dB below the loudest 10 ms: nothing is spoken
UNKNOWN = -100  # label of a frame that does not count
CHECKPOINT = 120.0  # seconds


class Block(nn.Module):
    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.taps = nn.Parameter(torch.randn(KERNEL + 1, WIDTH) * KERNEL**-0.5)  # and a bias
        self.rise, self.fall = nn.Linear(WIDTH, RISE * WIDTH), nn.Linear(RISE * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        seen, n = F.pad(x, (0, 0, (KERNEL - 1) * self.dilation, 0)), x.shape[1]
        y = self.taps[KERNEL] + sum(
            seen[:, k * self.dilation :][:, :n] * self.taps[k] for k in range(KERNEL)
        )
        return x + self.fall(F.relu(self.rise(F.layer_norm(y, (WIDTH,)))))


class Net(nn.Module):
    """The network of stentor/align/network.py: frames [batch, n, STACK * MELS] to logits, `DELAY` frames late."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.enter = nn.Linear(STACK * MELS, WIDTH)
        self.blocks = nn.ModuleList(Block(d) for d in DILATIONS)
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter((x - self.mean) / self.deviation)
        for block in self.blocks:
            x = block(x)
        return self.leave(F.layer_norm(x, (WIDTH,)))


def export(net: Net, silence: Tensor) -> dict[str, Tensor]:
    """Float16 weights for `stentor.align.network`, whose first layer takes plain features."""
    enter = net.enter.weight / net.deviation
    out = {
        "enter.weight": enter.T,
        "enter.bias": net.enter.bias - enter @ net.mean,
        "leave.weight": net.leave.weight.T,
        "leave.bias": net.leave.bias,
        "silence": silence,
    }
    for i, block in enumerate(net.blocks):
        out[f"blocks.{i}.taps"] = block.taps
        for name, layer in (("rise", block.rise), ("fall", block.fall)):
            out |= {
                f"blocks.{i}.{name}.weight": layer.weight.T,
                f"blocks.{i}.{name}.bias": layer.bias,
            }
    return {name: value.detach().half().contiguous() for name, value in out.items()}


def labels(samples: np.ndarray, phonemes: str, ends: list[int], frames: int) -> np.ndarray:
    """The class of each frame of an utterance: float32 samples [n] at 24 kHz, the milliseconds at which signs end."""
    window = SPOKEN // 100
    level = 20 * np.log10(
        np.abs(samples[: len(samples) // window * window]).reshape(-1, window).max(1) + 1e-5
    )
    loud = np.flatnonzero(level > level.max() - QUIET) / 100
    found = np.full(frames, GAP, dtype=np.int64)
    at, spoken = float(loud[0]), GAP
    middles = (np.arange(frames) + 0.5) * FRAME_SECONDS
    for sign, end in zip([*phonemes, " "], [*(e / 1000 for e in ends), np.inf], strict=True):
        kind = class_of(sign)
        if kind is None:
            continue  # a stress mark: its time is that of the vowel
        if kind == GAP and spoken != GAP:  # the teacher counts a pause into the phoneme before it
            sounds = loud[loud < at]
            found[(middles > (sounds[-1] + 0.01 if len(sounds) else at)) & (middles < at)] = GAP
        found[(middles >= at) & (middles < end)] = kind
        at, spoken = end, kind
    return found


def through_mp3(samples: np.ndarray, rate: int, bit_rate: int) -> np.ndarray:
    """Samples as an mp3 brings them back, in their place."""
    file = io.BytesIO()
    with av.open(file, "w", "mp3") as out:
        stream = out.add_stream("mp3", rate=rate, bit_rate=bit_rate, layout="mono")
        pcm = (samples * 32767).clip(-32767, 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(pcm[None], "s16", "mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler("s16p", "mono", rate, frame_size=stream.frame_size or 1152)
        for f in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(f))
        out.mux(stream.encode(None))
    file.seek(0)
    with av.open(file) as back:
        parts = [f.to_ndarray().reshape(-1) for f in back.decode(audio=0)]
    decoded = np.concatenate(parts)
    if decoded.dtype == np.int16:
        decoded = decoded / 32768
    return np.pad(decoded.astype(np.float32), (0, max(0, len(samples) - len(decoded))))[
        : len(samples)
    ]


def through_telephone(samples: np.ndarray, rate: int) -> np.ndarray:
    """Samples with what 8 kHz leave of them, at 16 kHz."""
    return soxr.resample(soxr.resample(samples, rate, 8000), 8000, RATE).astype(np.float32)


def noise(count: int, draw: np.random.Generator) -> np.ndarray:
    """Noise whose spectrum falls by 0 to 9 dB an octave, of deviation 1."""
    spectrum = np.fft.rfft(draw.standard_normal(count))
    spectrum *= np.maximum(np.arange(len(spectrum)), 20.0) ** -draw.uniform(0, 1.5)
    wave = np.fft.irfft(spectrum, count)
    return (wave / wave.std()).astype(np.float32)


def room(samples: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Samples with a decaying echo of 0.1 to 0.4 s."""
    decay = draw.uniform(0.1, 0.4)
    tail = draw.standard_normal(int(decay * RATE)) * np.exp(
        -6.9 * np.arange(int(decay * RATE)) / (decay * RATE)
    )
    tail *= draw.uniform(0.02, 0.12)
    tail[0] = 1.0
    size = 1 << (len(samples) + len(tail)).bit_length()
    return np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)[
        : len(samples)
    ].astype(np.float32)


def variant(samples: np.ndarray, draw: np.random.Generator) -> tuple[np.ndarray, float]:
    """An utterance as it might sound elsewhere, at 16 kHz, and how much faster it is. samples: [n] at 24 kHz."""
    speed = float(np.exp(draw.uniform(-0.25, 0.22)))
    wave = soxr.resample(samples, SPOKEN * speed, RATE).astype(np.float32)
    kind = draw.choice(["none", "room", "telephone", "mp3"], p=[0.3, 0.2, 0.25, 0.25])
    if kind == "room":
        wave = room(wave, draw)
    elif kind == "telephone":
        wave = through_telephone(wave, RATE)
    elif kind == "mp3":
        wave = through_mp3(wave, RATE, int(draw.choice([32_000, 48_000, 64_000])))
    level = np.sqrt((wave**2).mean()) * 10 ** (-draw.uniform(8, 50) / 20)
    return wave + level * noise(len(wave), draw), speed


def frames_of(wave: np.ndarray) -> np.ndarray:
    """Features [n, STACK * MELS] of 16 kHz samples."""
    return LogMelStream().finish(wave)


def prepare(
    folder: Path, phonemes: dict[int, str], variants: int, cache: Path
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features float16 and labels of the utterances of a folder that are not held out, each with its variants."""
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for index in sorted(folder.glob("*.jsonl")):
        pcm = np.memmap(index.with_suffix(".pcm"), dtype="<i2", mode="r")
        rows = [json.loads(line) for line in index.read_text().splitlines()]
        for at in range(
            0, len(rows) // 50 * 50, 50
        ):  # of a folder that is still being filled, whole parts
            file = cache / f"{folder.name}-{index.stem}-{at}-{variants}.npz"
            if not file.exists():
                part = [r for r in rows[at : at + 50] if not held_out(r["id"])]
                _write(file, part, pcm, phonemes, variants)
            kept = np.load(file)
            cuts = np.cumsum(kept["sizes"])[:-1]
            found += zip(
                np.split(kept["frames"], cuts), np.split(kept["labels"], cuts), strict=True
            )
    return found


def _write(
    file: Path, rows: list[Any], pcm: np.ndarray, phonemes: dict[int, str], variants: int
) -> None:
    draw, frames, kinds = np.random.default_rng([len(file.stem), *file.stem.encode()]), [], []
    for row in rows:
        samples = pcm[row["offset"] : row["offset"] + row["samples"]].astype(np.float32) / 32768
        signs = phonemes[row["id"]]
        made = [
            (soxr.resample(samples, SPOKEN, RATE), 1.0),
            *(variant(samples, draw) for _ in range(variants)),
        ]
        for wave, speed in made:
            gain = 10 ** (draw.uniform(-14, 8) / 20)
            frames.append(
                frames_of(np.clip(wave * gain, -1, 1) + 1e-4 * noise(len(wave), draw)).astype(
                    np.float16
                )
            )
            plain = labels(samples, signs, row["ends"], len(frames[-1]) * 2)
            at = ((np.arange(len(frames[-1])) + 0.5) * speed).astype(int)
            kinds.append(
                np.where(at < len(plain), plain[np.minimum(at, len(plain) - 1)], GAP).astype(
                    np.int64
                )
            )
    sizes = np.array([len(f) for f in frames])
    part = file.with_suffix(".part.npz")
    np.savez(
        part,
        frames=np.concatenate(frames),
        labels=np.concatenate(kinds).astype(np.uint8),
        sizes=sizes,
    )
    part.rename(file)


class Batches:
    """Utterances of about the same length together, in another order each time."""

    def __init__(
        self, data: list[tuple[np.ndarray, np.ndarray]], silence: np.ndarray, size: int
    ) -> None:
        self.data, self.silence, self.size = data, silence, size

    def epoch(self, draw: random.Random) -> list[list[int]]:
        order = sorted(
            range(len(self.data)), key=lambda i: len(self.data[i][1]) * draw.uniform(0.9, 1.1)
        )
        batches = [order[i : i + self.size] for i in range(0, len(order), self.size)]
        draw.shuffle(batches)
        return batches

    def tensors(self, batch: list[int]) -> tuple[Tensor, Tensor]:
        """Features [batch, n, ...] and labels, `DELAY` frames late."""
        length = max(len(self.data[i][1]) for i in batch) + DELAY
        x = np.tile(self.silence, (len(batch), length, 1)).astype(np.float32)
        y = np.full((len(batch), length), UNKNOWN)
        for row, i in enumerate(batch):
            frames, kinds = self.data[i]
            x[row, : len(kinds)] = frames
            y[row, DELAY : DELAY + len(kinds)] = kinds
        return torch.from_numpy(x), torch.from_numpy(y).long()


def train(batches: Batches, checked: Batches, work: Path, seconds: float, rate: float) -> None:
    """Train until the time is over, from the last checkpoint on."""
    flat = np.concatenate([f[::7].astype(np.float32) for f, _ in batches.data])
    net = Net(torch.from_numpy(flat.mean(0)), torch.from_numpy(flat.std(0)))
    mean = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)
    watch, file, step = Stopwatch(seconds), work / "aligner.pt", 0
    if file.exists():
        state = torch.load(file, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        mean, step, watch.before = state["mean"], state["step"], state["elapsed"]
    draw, saved, loss_mean = random.Random(step), watch.elapsed, 0.0
    whole = watch.before + seconds
    while watch.left > 0:
        for batch in batches.epoch(draw):
            share = min(1.0, watch.elapsed / whole)
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / 200) * (1 - 0.97 * share)
            x, y = batches.tensors(batch)
            loss = F.cross_entropy(
                net(x).flatten(0, 1), y.flatten(), ignore_index=UNKNOWN, label_smoothing=0.02
            )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            step += 1
            decay = min(0.998, step / (step + 10))
            for kept, now in zip(mean, net.parameters(), strict=True):
                kept.lerp_(now.detach(), 1 - decay)
            loss_mean += (loss.item() - loss_mean) * 0.02
            over = watch.left <= 0
            if over or watch.elapsed - saved > CHECKPOINT:
                saved = watch.elapsed
                state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "mean": mean}
                torch.save(
                    {**state, "step": step, "elapsed": watch.elapsed}, file.with_suffix(".part")
                )
                file.with_suffix(".part").rename(file)
                shadow = Net(net.mean, net.deviation)
                for to, value in zip(shadow.parameters(), mean, strict=True):
                    to.data.copy_(value)
                save_file(
                    export(shadow, torch.from_numpy(batches.silence)), work / "english.safetensors"
                )
                print(
                    json.dumps(
                        {
                            "step": step,
                            "s": round(watch.elapsed),
                            "loss": round(loss_mean, 4),
                            **check(shadow, checked),
                        }
                    ),
                    flush=True,
                )
            if over:
                break


@torch.inference_mode()
def check(net: Net, batches: Batches) -> dict[str, float]:
    """Loss and share of right frames of utterances that are not trained on."""
    found = []
    for batch in batches.epoch(random.Random(0)):
        x, y = batches.tensors(batch)
        logits, known = net(x), y != UNKNOWN
        right = (logits.argmax(-1) == y)[known].float().mean()
        found.append((F.cross_entropy(logits[known], y[known]), right))
    loss, right = (float(torch.stack(v).mean()) for v in zip(*found, strict=True))
    return {"kept_loss": round(loss, 4), "kept_right": round(right, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--speech", type=Path, nargs="+", required=True)
    for name in ("sentences", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--variants", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()
    cache = args.work / "features"
    cache.mkdir(parents=True, exist_ok=True)
    rows = map(json.loads, args.sentences.read_text(encoding="utf-8").splitlines())
    phonemes = {r["id"]: r["phonemes"].strip() for r in rows}
    data = [
        pair for folder in args.speech for pair in prepare(folder, phonemes, args.variants, cache)
    ]
    silence = frames_of(np.zeros(RATE, np.float32))[10]
    random.Random(0).shuffle(data)
    kept = max(8, len(data) // 50)
    print(
        json.dumps(
            {"utterances": len(data), "hours": sum(len(k) for _, k in data) * FRAME_SECONDS / 3600}
        )
    )
    torch.manual_seed(0)
    train(
        Batches(data[kept:], silence, args.batch),
        Batches(data[:kept], silence, 16),
        args.work,
        args.seconds,
        args.rate,
    )


if __name__ == "__main__":
    main()
