"""stentor's Kokoro and the package kokoro-onnx 0.6.1 in turns on the same file: CPU seconds, first audio, memory.

    python benchmarks/kokoro/turns.py FOLDER --peer PYTHON --json FILE [--rounds 7]

FOLDER: model.onnx and voices/*.bin. PYTHON: an interpreter that has kokoro-onnx 0.6.1. Each figure
of a round is of a process of its own, first stentor's, then the package's.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SENTENCE = "The harbour lights came on one by one, and the last ferry turned towards the pier."
PARAGRAPH = (
    "The ferry left the harbour late, because the captain had waited for a crate of lemons. "
    "Nobody minded. It was warm, and the gulls were loud. At the second island two men came "
    "aboard with a ladder. They put it against the mast, and one of them climbed up. "
    "He looked at the sea for a while. Then he came down again and shook his head. "
    "The captain poured him a cup of tea, and the ferry went on past the lighthouse."
)
VOICE = "af_heart"
WARM = 2  # sentences before the clock runs
COUNT = 3
Stream = Callable[[str], Iterator[np.ndarray]]


def stentor_stream(folder: Path) -> Stream:
    """Pieces of audio of a text by stentor: of a sentence one, as the package makes it."""
    import stentor

    tts = stentor.TTS(folder, device="cpu", threads=2)

    def stream(text: str) -> Iterator[np.ndarray]:
        if text == SENTENCE:
            return iter([tts.generate(text, voice=VOICE).samples])
        return (chunk.samples for chunk in tts.stream(text, voice=VOICE))

    return stream


def peer(folder: Path) -> Any:
    """The package over the files of a folder."""
    import kokoro_onnx

    with tempfile.TemporaryDirectory() as made:
        tables = {
            p.stem: np.fromfile(p, "<f4").reshape(510, 1, 256)
            for p in (folder / "voices").glob("*.bin")
        }
        np.savez(Path(made, "voices.npz"), **tables)
        return kokoro_onnx.Kokoro(str(folder / "model.onnx"), str(Path(made, "voices.npz")))


def peer_stream(folder: Path) -> Stream:
    """Pieces of audio of a text by the package."""
    import asyncio

    kokoro = peer(folder)

    def stream(text: str) -> Iterator[np.ndarray]:
        loop = asyncio.new_event_loop()
        parts = kokoro.create_stream(text, VOICE, lang="en-us")
        while True:
            try:
                samples, _ = loop.run_until_complete(anext(parts))
            except StopAsyncIteration:
                return
            yield samples

    return stream


STREAMS = {"stentor": stentor_stream, "peer": peer_stream}


def measure(who: str, what: str, folder: Path) -> dict[str, float]:
    """One process's figures. Times of importing and loading count for `cold`."""
    began = time.perf_counter()
    stream = STREAMS[who](folder)
    if what == "cold":
        samples = sum(map(len, stream(SENTENCE)))
        return {**used(0.0), "seconds": time.perf_counter() - began, "audio": samples / 24_000}
    for _ in range(WARM):
        for _ in stream(SENTENCE):
            pass
    cpu = used(0.0)["cpu"]
    began = time.perf_counter()
    if what == "warm":
        samples = sum(len(part) for _ in range(COUNT) for part in stream(SENTENCE))
        return {**used(cpu), "seconds": time.perf_counter() - began, "audio": samples / 24_000}
    parts = stream(PARAGRAPH)
    next(parts)
    first = {**used(cpu), "seconds": time.perf_counter() - began}
    rest = sum(map(len, parts))
    return {**first, "rest": rest / 24_000}


def used(before: float) -> dict[str, float]:
    """CPU seconds of this process beyond `before`, and its peak memory in MiB."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": usage.ru_utime + usage.ru_stime - before, "peak": usage.ru_maxrss / 1024}


def in_process(python: str, who: str, what: str, folder: Path) -> dict[str, float]:
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "2"}
    ran = subprocess.run(
        [python, __file__, str(folder), "--one", f"{who}:{what}"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if ran.returncode:
        raise SystemExit(ran.stderr)
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def ratios(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of stentor's figure over the package's in that round."""

    def median(what: str, figure: str, per_audio: bool = False) -> float:
        values = []
        for one in rounds:
            ours = one["stentor"][what]
            theirs = one["peer"][what]
            ratio = ours[figure] / theirs[figure]
            if per_audio:
                ratio *= theirs["audio"] / ours["audio"]
            values.append(ratio)
        return round(statistics.median(values), 3)

    return {
        "cold: CPU seconds": median("cold", "cpu"),
        "cold: time by clock": median("cold", "seconds"),
        "warm: CPU seconds of the same sentences": median("warm", "cpu"),
        "warm: CPU seconds per second of audio": median("warm", "cpu", per_audio=True),
        "warm: time by clock": median("warm", "seconds"),
        "first audio of a paragraph, by clock": median("paragraph", "seconds"),
        "first audio of a paragraph, by CPU": median("paragraph", "cpu"),
        "peak memory": median("warm", "peak"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer", help="interpreter that has kokoro-onnx 0.6.1")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--one")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(*args.one.split(":"), args.folder)))
        return
    rounds = []
    for _ in range(args.rounds):
        load = os.getloadavg()[0]
        one: dict[str, Any] = {"load": load, "stentor": {}, "peer": {}}
        for what in ("cold", "warm", "paragraph"):
            one["stentor"][what] = in_process(sys.executable, "stentor", what, args.folder)
            one["peer"][what] = in_process(args.peer, "peer", what, args.folder)
        rounds.append(one)
        result = {"cpus": os.cpu_count(), "ratios": ratios(rounds), "rounds": rounds}
        if args.json:
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(ratios(rounds), indent=1))


if __name__ == "__main__":
    main()
