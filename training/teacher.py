"""Speech from the teacher (Kokoro-82M through ONNX Runtime), as raw 16-bit PCM and an index, one pair per worker.

    python -m training.teacher --model kokoro.onnx --voice af_heart.bin --vocab vocab.json \
        --sentences sentences.jsonl --out speech --seconds 1200

Each utterance is stored with the units of 25 ms after which its phonemes end: the teacher decides on durations
before it speaks, so text and audio are aligned exactly.

May run beside the trainers, which read what is there: an index line is written after its samples.
A second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from training.common import load_config

RATE = 24_000
DURATIONS = "/encoder/Clip_output_0"  # in the teacher's graph: units of 25 ms per token, silence at both ends included


def plan(sentences: Path, config: dict[str, Any], done: set[int]) -> list[dict[str, Any]]:
    """Sentences in the order of speaking: held-out ones, rare kinds, then all others, shuffled."""
    rows = [json.loads(line) for line in sentences.read_text(encoding="utf-8").splitlines()]
    held = [r for r in rows if r["id"] >= config["held_out_from"]]
    rest = [r for r in rows if r["id"] < config["held_out_from"]]
    random.Random(0).shuffle(rest)
    first = set(config["kinds_first"])
    rest.sort(key=lambda r: r["src"] not in first)
    return [r for r in held[: config["held_out"]] + rest if r["id"] not in done]


def spoken(out: Path) -> set[int]:
    return {json.loads(line)["id"] for f in out.glob("*.jsonl") for line in f.read_text().splitlines()}


def with_durations(model: Path) -> bytes:
    """The teacher's graph with its durations as a second output."""
    import onnx

    graph = onnx.load(model)
    graph.graph.output.append(onnx.helper.make_tensor_value_info(DURATIONS, onnx.TensorProto.FLOAT, None))
    return graph.SerializeToString()


def speak(worker: int, rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """One process: speak `rows` until the time is over."""
    import onnxruntime as ort

    vocab = json.loads(args.vocab.read_text())["vocab"]
    styles = np.fromfile(args.voice, "<f4").reshape(-1, 1, 256)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = ort.InferenceSession(with_durations(args.model), options, providers=["CPUExecutionProvider"])
    stop = args.started + args.seconds
    with (args.out / f"w{worker:02d}.pcm").open("ab") as pcm, (args.out / f"w{worker:02d}.jsonl").open("a") as index:
        for row in rows:
            if time.time() > stop:
                return
            tokens = [vocab[c] for c in row["phonemes"] if c in vocab][:509]
            feeds = {
                "tokens": np.array([[0, *tokens, 0]], np.int64),
                "style": styles[len(tokens) - 1],
                "speed": np.ones(1, np.float32),
            }
            audio, durations = session.run(None, feeds)
            wave, ends = audio.ravel(), durations.ravel().astype(int).cumsum()[1:-1].tolist()
            offset = pcm.tell() // 2
            pcm.write((np.clip(wave, -0.999, 0.999) * 32767).astype("<i2").tobytes())
            pcm.flush()
            index.write(json.dumps({"id": row["id"], "offset": offset, "samples": len(wave), "ends": ends}) + "\n")
            index.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "voice", "vocab", "sentences", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()
    config = load_config()["teacher"]
    args.started = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = plan(args.sentences, config, spoken(args.out))
    count = args.workers or config["workers"]
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [multiprocessing.Process(target=speak, args=(k, rows[k::count], args)) for k in range(count)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


if __name__ == "__main__":
    main()
