"""Measure the first audio with cloned voices over HTTP: `stentor serve`, `stentor bench serve`, a short table last.

Run: python benchmarks/server/voices.py [--out FILE] [MODEL ...]
     python benchmarks/server/voices.py --device cpu --seconds 1.2 dummy:toy        a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`. About 45 s for a model.

Milliseconds to the first audio. The very first request after the start has a new voice in its body. Then one at a time,
medians: plain text, an uploaded voice, voices that are new to the server. Then 16 that start at once, plain and with
the uploaded voice. Each text comes once. VoxCPM2 gets voices without their text, so that they stand in front of the
text that is spoken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.server.serve import ROOT, Server, environment, serving

MODELS = ("dummy:fish-s2-pro", "dummy:qwen3-tts-1.7b-base", "dummy:voxcpm2")
TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
SAID = "These are the words of the recording, which nobody checks. "
FORCED = {"max_new_tokens": 40, "ignore_eos": True, "guard": False}
ALONE, TOGETHER, ROUNDS = 9, 16, 2
NUMBER = itertools.count(1000)


def recording(folder: Path, seconds: float, seed: int) -> Path:
    path = folder / f"voice{seed}.wav"
    noise = np.random.default_rng(seed).standard_normal(int(seconds * 24000)) * 0.1
    soundfile.write(path, noise, 24000, subtype="PCM_16")
    return path


def upload(server: Server, name: str, audio: Path, said: str | None) -> None:
    """POST /v1/audio/voices."""
    border = uuid.uuid4().hex
    fields = {"name": name, "consent": "a benchmark", **({} if said is None else {"ref_text": said})}
    parts = [f'--{border}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    head = f'--{border}\r\nContent-Disposition: form-data; name="audio_sample"; filename="{audio.name}"\r\n'
    body = "".join(parts).encode() + f"{head}Content-Type: audio/wav\r\n\r\n".encode() + audio.read_bytes()
    kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
    ask = urllib.request.Request(f"{server.url}/v1/audio/voices", body + f"\r\n--{border}--\r\n".encode(), kind)
    urllib.request.urlopen(ask, timeout=60).read()


def first_audio(server: Server, folder: Path, lines: list[dict[str, Any]], concurrency: int) -> list[float]:
    """Milliseconds to the first audio of each request, ascending."""
    name = f"run{next(NUMBER)}"
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(json.dumps({"text": f"Number {next(NUMBER)}. {TEXT}", **line}) for line in lines))
    command = [sys.executable, "-m", "stentor", "bench", "serve", "--base-url", server.url, "--response-format", "pcm"]
    command += ["--max-concurrency", str(concurrency), "--num-prompts", str(len(lines)), "--dataset-name", "custom"]
    command += ["--dataset-path", str(data), "--extra-body", json.dumps(FORCED), "--ready-check-timeout-sec", "0"]
    command += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", name]
    command += ["--disable-tqdm", "--percentile-metrics", "audio_ttfp", "--metric-percentiles", "50"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    found = json.loads((folder / f"{name}.json").read_text()) if done.returncode == 0 else {}
    if found.get("failed", 1):
        raise RuntimeError(f"{done.stdout[-800:]}\n{done.stderr[-800:]}")
    return sorted(request["audio_ttfp_ms"] for request in found["requests"])


def measure(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    said = None if "voxcpm2" in model else SAID * max(1, round(args.seconds / 4))
    log, found = folder / "server.log", {}

    def clone(seed: int) -> dict[str, Any]:
        given = {"ref_audio": str(recording(folder, args.seconds, seed))}
        return given if said is None else {**given, "ref_text": said}

    with serving(model, args.device, 64, log) as server:
        found["ready, seconds"] = server.ready(100)
        if found["ready, seconds"] is None:
            raise RuntimeError(log.read_text()[-3000:])
        found["very first"] = first_audio(server, folder, [clone(1)], 1)[0]
        upload(server, "anna", recording(folder, args.seconds, 2), said)
        plain: dict[str, Any] = {}
        if model.endswith("base"):
            upload(server, "short", recording(folder, 1.0, 3), SAID)
            plain = {"voice": "short"}
        lines = {"plain": lambda i: plain, "uploaded": lambda i: {"voice": "anna"}, "new": lambda i: clone(10 + i)}
        for label, line in lines.items():
            times = first_audio(server, folder, [line(i) for i in range(ALONE)], 1)
            found[label] = round(statistics.median(times), 2)
        for label in ("plain", "uploaded"):
            rounds = [first_audio(server, folder, [lines[label](0)] * TOGETHER, TOGETHER) for _ in range(ROUNDS)]
            found[f"{TOGETHER} at once, {label}, median"] = round(min(statistics.median(r) for r in rounds), 2)
            found[f"{TOGETHER} at once, {label}, last"] = round(min(r[-1] for r in rounds), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=28.0, help="of reference audio")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {}
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            result[model] = measure(model, args, Path(folder))
        print(model, json.dumps(result[model], indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
