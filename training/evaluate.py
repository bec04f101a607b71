"""Word error rate, opinion score and speed of a checkpoint on the 24 test sentences.

    python -m training.evaluate --model DIR --whisper base --seeds 1 2 3 --json out.json
    python -m training.evaluate --model DIR --device cuda --speak FILE.npz      # speaks only, to be scored elsewhere:
    python -m training.evaluate --model DIR --spoken FILE.npz --whisper base
    python -m training.evaluate --model DIR --through FOLDER      # recordings 00.wav ... through the autoencoder alone

Needs the extra `quality`, and DistillMOS (`pip install --no-deps distillmos xls-r-sqa`); `--whisper`: a size or folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

import stentor
from stentor.bench.metrics.score import AnswerAudio, Transcriber, error_rate, opinion_scores, whisper
from stentor.models.voxcpm2.codec import AudioVAE
from stentor.models.voxcpm2.config import parse_vae
from stentor.models.weights import fold_weight_norm, load_weights, read_config, read_safetensors

SENTENCES = Path(__file__).with_name("test_sentences.txt")
NOISE = (0.0, 0.2)  # deviation added to latents when the autoencoder is judged alone


def scored(spoken: list[AnswerAudio], transcribe: Transcriber) -> dict[str, Any]:
    words, opinions = error_rate(spoken, transcribe), opinion_scores(spoken)
    worst = [{"sentence": i, "wer": round(w, 3), "heard": heard} for i, w, heard in words.worst]
    figures = {"wer": words.error_rate, "mos": float(opinions.mean()), "mos_least": float(opinions.min())}
    return {**{k: round(v, 4) for k, v in figures.items()}, "worst": worst}


def spoken_by_model(tts: stentor.TTS, texts: list[str], seed: int) -> tuple[list[AnswerAudio], dict[str, float]]:
    """All sentences in one batch, and how fast; then the first one alone, streamed, for the time to first audio."""
    started = time.perf_counter()
    speeches = tts.generate(texts, seed=seed)
    took = time.perf_counter() - started
    started = time.perf_counter()
    stream = tts.stream(texts[0], seed=seed)
    next(iter(stream))
    first = time.perf_counter() - started
    seconds = sum(s.duration for s in speeches)
    spoken = [AnswerAudio(i, t, s.samples, s.sample_rate) for i, (t, s) in enumerate(zip(texts, speeches, strict=True))]
    return spoken, {"rtf": round(took / seconds, 4), "first_audio_s": round(first, 4), "audio_s": round(seconds, 2)}


def speak(args: argparse.Namespace, texts: list[str]) -> Iterator[tuple[int, list[AnswerAudio], dict[str, float]]]:
    """Speech of every seed: made now, or read from the file that an earlier call with `--speak` left."""
    if args.spoken is not None:
        with np.load(args.spoken) as kept:
            for seed in sorted({int(name.split("_")[0]) for name in kept.files}):
                waves = [kept[f"{seed}_{i}"] for i in range(len(texts))]
                rate = int(kept[f"{seed}_rate"])
                spoken = [
                    AnswerAudio(i, t, w / np.float32(32767), rate)
                    for i, (t, w) in enumerate(zip(texts, waves, strict=True))
                ]
                yield seed, spoken, {}
        return
    with stentor.TTS(args.model, max_num_seqs=12, device=args.device, quantization=args.quantization) as tts:
        for seed in args.seeds:
            yield seed, *spoken_by_model(tts, texts, seed)


def keep(path: Path, made: Iterable[tuple[int, list[AnswerAudio], dict[str, float]]]) -> None:
    """Write speech as 16-bit samples, and print how fast it was made."""
    arrays: dict[str, np.ndarray] = {}
    for seed, spoken, speed in made:
        print(f"seed {seed}", speed, flush=True)
        arrays[f"{seed}_rate"] = np.array(spoken[0].rate)
        for s in spoken:
            arrays[f"{seed}_{s.index}"] = (np.clip(s.samples, -1, 1) * 32767).astype(np.int16)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def through_autoencoder(path: Path, folder: Path, texts: list[str]) -> Callable[[float], list[AnswerAudio]]:
    """The recordings of `folder` encoded and decoded, with noise of a given deviation on the latents."""
    config = parse_vae(read_config(path).get("audio_vae_config"))
    vae = AudioVAE(config).eval()
    tensors = fold_weight_norm(read_safetensors(path / "audiovae.safetensors"))
    load_weights(vae, tensors, str(path), torch.device("cpu"), ignore=("encoder.fc_logvar.",))

    @torch.inference_mode()
    def speak(noise: float) -> list[AnswerAudio]:
        out = []
        for i, text in enumerate(texts):
            samples, rate = soundfile.read(folder / f"{i:02d}.wav", dtype="float32")
            if rate != config.sample_rate:
                raise SystemExit(f"{folder}/{i:02d}.wav has {rate} Hz, the autoencoder wants {config.sample_rate}")
            wav = torch.from_numpy(np.pad(samples, (0, -len(samples) % config.hop)))[None]
            z = vae.encode_latents(wav)
            z = z + noise * torch.randn(z.shape, generator=torch.Generator().manual_seed(i))
            out.append(AnswerAudio(i, text, vae.decode(z)[0].numpy(), config.out_sample_rate))
        return out

    return speak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--whisper", default="base")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--through", type=Path, help="folder of recordings 00.wav ...")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--speak", type=Path, help="write the speech to this file and do not score it")
    parser.add_argument("--spoken", type=Path, help="score the speech in this file")
    args = parser.parse_args()
    texts = SENTENCES.read_text(encoding="utf-8").split("\n")
    texts = [t.strip() for t in texts if t.strip()]
    if args.speak is not None:
        keep(args.speak, speak(args, texts))
        return
    transcribe = whisper(args.whisper)
    results: dict[str, Any] = {}
    if args.through is not None:
        decode = through_autoencoder(args.model, args.through, texts)
        results = {f"autoencoder, noise {noise:g}": scored(decode(noise), transcribe) for noise in NOISE}
    else:
        for seed, spoken, speed in speak(args, texts):
            results[f"seed {seed}"] = {**speed, **scored(spoken, transcribe)}
    for name, r in results.items():
        print(name, {k: v for k, v in r.items() if k != "worst"})
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
