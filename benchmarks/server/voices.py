"""Measure the first audio with cloned voices over HTTP: `stentor serve`, `stentor bench serve`, a short table last.

Run: python benchmarks/server/voices.py [--rounds 2] [--out FILE] [MODEL ...]
     python benchmarks/server/voices.py --device cpu --seconds 1.2 dummy:toy        a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`. About 45 s for a model.

Milliseconds to the first audio. The very first request after the start has a new voice in its body. Then one at a time,
medians: plain text, an uploaded voice, voices that are new to the server, and of these the first, for which the client
opens its connection as for the very first. Then 16 that start at once, plain and with the uploaded voice, the best of
`--rounds` (rounds of the same server differ by a third). The file has the median of each round. Each text comes once.
VoxCPM2 gets voices without their text, so that they stand in front of the text that is spoken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import soundfile

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.cloned_voices import NUMBER, WORDS, numbered_text, parser, recording, run, words_of
from benchmarks.server.serve import ROOT, Server, bench_command, environment, serving

FORCED = {"max_new_tokens": 40, "ignore_eos": True, "guard": False}
ALONE, TOGETHER = 9, 16


def recorded(folder: Path, seconds: float, seed: int) -> Path:
    path = folder / f"voice{seed}.wav"
    soundfile.write(path, recording(seconds, 24000, seed), 24000, subtype="PCM_16")
    return path


def upload(server: Server, name: str, audio: Path, said: str | None) -> None:
    """POST /v1/audio/voices."""
    border = uuid.uuid4().hex
    fields = {
        "name": name,
        "consent": "a benchmark",
        **({} if said is None else {"ref_text": said}),
    }
    parts = [
        f'--{border}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'
        for k, v in fields.items()
    ]
    head = f'--{border}\r\nContent-Disposition: form-data; name="audio_sample"; filename="{audio.name}"\r\n'
    body = (
        "".join(parts).encode()
        + f"{head}Content-Type: audio/wav\r\n\r\n".encode()
        + audio.read_bytes()
    )
    kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
    ask = urllib.request.Request(
        f"{server.url}/v1/audio/voices", body + f"\r\n--{border}--\r\n".encode(), kind
    )
    urllib.request.urlopen(ask, timeout=60).read()


def plain_voice(server: Server, model: str, folder: Path) -> dict[str, Any]:
    """Fields of a plain request beside its text. A Base model of Qwen3-TTS always has a voice: here one of 1 s."""
    if not model.endswith("base"):
        return {}
    upload(server, "short", recorded(folder, 1.0, 3), WORDS)
    return {"voice": "short"}


def first_audio(
    server: Server, folder: Path, lines: list[dict[str, Any]], concurrency: int
) -> list[float]:
    """Milliseconds to the first audio of each request, in their order."""
    name = f"run{next(NUMBER)}"
    data = folder / f"{name}.jsonl"
    data.write_text("\n".join(json.dumps({"text": numbered_text(), **line}) for line in lines))
    flags = f"--max-concurrency {concurrency} --num-prompts {len(lines)} --dataset-name custom"
    flags += " --ready-check-timeout-sec 0 --save-detailed"
    flags += " --percentile-metrics audio_ttfp --metric-percentiles 50"
    command = bench_command(server, folder, name, flags, FORCED)
    command += ["--dataset-path", str(data)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = json.loads((folder / f"{name}.json").read_text()) if done.returncode == 0 else {}
    if found.get("failed", 1):
        raise RuntimeError(f"{done.stdout[-800:]}\n{done.stderr[-800:]}")
    return [request["audio_ttfp_ms"] for request in found["requests"]]


def measure(model: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    said = words_of(model, args.seconds)
    log, found = folder / "server.log", {}

    def clone(seed: int) -> dict[str, Any]:
        given = {"ref_audio": str(recorded(folder, args.seconds, seed))}
        return given if said is None else {**given, "ref_text": said}

    with serving(model, args.device, 64, log) as server:
        found["ready, seconds"] = server.ready(100)
        if found["ready, seconds"] is None:
            raise RuntimeError(log.read_text()[-3000:])
        found["very first"] = first_audio(server, folder, [clone(1)], 1)[0]
        upload(server, "anna", recorded(folder, args.seconds, 2), said)
        plain = plain_voice(server, model, folder)
        lines = {
            "plain": lambda i: plain,
            "uploaded": lambda i: {"voice": "anna"},
            "new": lambda i: clone(10 + i),
        }
        for label, line in lines.items():
            times = first_audio(server, folder, [line(i) for i in range(ALONE)], 1)
            found[label] = round(statistics.median(times), 2)
        found["new, a client's first"] = round(times[0], 2)
        for label in ("plain", "uploaded"):
            rounds = [
                first_audio(server, folder, [lines[label](0)] * TOGETHER, TOGETHER)
                for _ in range(args.rounds)
            ]
            medians = sorted(round(statistics.median(r), 2) for r in rounds)
            found[f"{TOGETHER} at once, {label}, median"] = medians[0]
            found[f"{TOGETHER} at once, {label}, medians"] = medians
            found[f"{TOGETHER} at once, {label}, last"] = round(min(max(r) for r in rounds), 2)
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=2, help="of 16 requests at once")
    args = options.parse_args()

    def measured(model: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return measure(model, args, Path(folder))

    run(args, measured, {})


if __name__ == "__main__":
    main()
