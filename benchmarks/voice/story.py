"""Is a long story understood to its end, whoever speaks it? `stentor.TTS`, `stentor say` and the server, several seeds.

    python benchmarks/voice/story.py speak --out DIR --seeds 1 2 3 --jobs 9
    python benchmarks/voice/story.py score --out DIR --whisper MODEL --json FILE

`speak` writes a 16 kHz FLAC per way and seed (once, where all ways give the same), and the times of sentences. `score`
transcribes it in windows of whole sentences, counts word errors, and looks for phrases that follow themselves in the
transcript and not in the text. MODEL is a size or a directory for faster-whisper.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr

STORY = Path(__file__).with_name("story.txt")
WAYS = ("tts", "say", "server")
RATE = 16_000
WINDOW_SECONDS = 25.0
QUIET, PAUSE_SECONDS = 0.001, 0.12  # below this level for so long: between two sentences
PHRASE = 4  # words
ROUNDING = 0.02  # of full scale: what batches of other sizes change at most, at single samples
PORT = 18_400


def by_tts(text: str, seed: int) -> tuple[np.ndarray, int]:
    import stentor

    with stentor.TTS(device="cpu") as tts:
        speech = tts.generate(text, seed=seed)
        return quantised(speech.samples, speech.sample_rate)


def by_say(text: str, seed: int) -> tuple[np.ndarray, int]:
    del text
    command = ["say", "--file", str(STORY), "-o", "-", "--seed", str(seed), "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "stentor", *command], stdout=subprocess.PIPE, check=True
    )
    samples, rate = soundfile.read(io.BytesIO(done.stdout), dtype="float32")
    return samples, rate


def by_server(text: str, seed: int) -> tuple[np.ndarray, int]:
    url = f"http://127.0.0.1:{PORT + seed}"
    command = [sys.executable, *f"-m stentor serve --device cpu --port {PORT + seed}".split()]
    server = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=subprocess.DEVNULL)
    try:
        wait_for(f"{url}/ready", server)
        body = {"input": text, "seed": seed, "response_format": "wav"}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{url}/v1/audio/speech", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            told = answer.read()
    finally:
        server.terminate()
        server.wait()
    samples, rate = soundfile.read(io.BytesIO(told), dtype="float32")
    return samples, rate


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(240):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with code {server.returncode}")
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit("the server did not become ready")


def quantised(samples: np.ndarray, rate: int) -> tuple[np.ndarray, int]:
    """The samples of a 16-bit wav, as the other ways give them."""
    from stentor.output.effects import pcm16

    return pcm16(samples).astype(np.float32) / 32768, rate


def speak_one(way: str, seed: int, out: Path) -> None:
    speak = {"tts": by_tts, "say": by_say, "server": by_server}[way]
    samples, rate = speak(STORY.read_text(encoding="utf-8"), seed)
    file = out / f"{way}-{seed}.flac"
    soundfile.write(file, soxr.resample(samples, rate, RATE), RATE, subtype="PCM_16")
    facts = {"way": way, "seed": seed, "audio": file.name, "seconds": len(samples) / rate}
    (out / f"{way}-{seed}.json").write_text(json.dumps(facts))


def speak(args: argparse.Namespace) -> None:
    """Every way and seed in a process of its own."""
    args.out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def one(job: tuple[str, int]) -> None:
        command = [sys.executable, __file__, "one", job[0], str(job[1]), "--out", str(args.out)]
        subprocess.run(command, check=True, env=environment)

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, [(way, seed) for way in WAYS for seed in args.seeds]))
    everything = [
        json.loads((args.out / f"{way}-{seed}.json").read_text())
        for way in WAYS
        for seed in args.seeds
    ]
    for item in everything:
        share_equal(
            item, [other for other in everything if other["seed"] == item["seed"]], args.out
        )
    (args.out / "spoken.json").write_text(json.dumps(everything))


def share_equal(item: dict[str, Any], same_seed: list[dict[str, Any]], out: Path) -> None:
    """Let audio that differs from the first way's by rounding only be that way's file."""
    first = same_seed[0]
    a, b = (soundfile.read(out / x["audio"], dtype="float32")[0] for x in (first, item))
    item["difference"] = float(np.abs(a - b).max()) if len(a) == len(b) else None
    if item is not first and item["difference"] is not None and item["difference"] < ROUNDING:
        (out / item["audio"]).unlink()
        item["audio"] = first["audio"]


def windows(audio: np.ndarray) -> Iterator[np.ndarray]:
    """The audio in parts of whole sentences, up to 25 s each, cut in the middle of the silences between them."""
    quiet = np.abs(audio) < QUIET
    edges = np.flatnonzero(np.diff(np.concatenate(([0], quiet.astype(np.int8), [0]))))
    pauses = [
        (a + b) // 2
        for a, b in zip(edges[::2], edges[1::2], strict=True)
        if b - a > PAUSE_SECONDS * RATE
    ]
    start = 0
    for cut, following in zip(pauses, [*pauses[1:], len(audio)], strict=True):
        if following - start > WINDOW_SECONDS * RATE:
            yield audio[start:cut]
            start = cut
    yield audio[start:]


def words(text: str) -> list[str]:
    return re.sub(r"[^a-z' ]", " ", text.lower().replace("\u2019", "'")).split()


def repeated(said: list[str], wanted: list[str]) -> list[str]:
    """Phrases that directly follow themselves in what was said, and not in the text."""

    def doubled(text: list[str]) -> Counter[str]:
        pairs = (
            (text[i : i + PHRASE], text[i + PHRASE : i + 2 * PHRASE])
            for i in range(len(text) - 2 * PHRASE + 1)
        )
        return Counter(" ".join(a) for a, b in pairs if a == b)

    return list((doubled(said) - doubled(wanted)).elements())


def score(args: argparse.Namespace) -> None:
    """Word error rate and repeated phrases of what `speak` wrote."""
    from stentor.score.measures import AnswerAudio, error_rate, whisper

    transcribe, story, known = (
        whisper(args.whisper, threads=1),
        STORY.read_text(encoding="utf-8"),
        {},
    )
    spoken = json.loads((args.out / "spoken.json").read_text())
    for item in spoken:
        name = item["audio"]
        if name not in known:
            audio, _ = soundfile.read(args.out / name, dtype="float32")
            said = " ".join(transcribe(part, "en") for part in windows(audio))
            found = error_rate(
                [AnswerAudio(0, story, audio[:RATE], RATE)],
                lambda samples, language, said=said: said,
            )
            known[name] = {
                "wer": round(found.error_rate, 5),
                "repeated": repeated(words(said), words(story)),
            }
            (args.out / name).with_suffix(".txt").write_text(said)
            print(name, known[name], flush=True)
    rows = [item | known[item["audio"]] for item in spoken]
    args.json.write_text(json.dumps({"words": len(story.split()), "rows": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    every = commands.add_parser("speak")
    every.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    every.add_argument("--jobs", type=int, default=1)
    every.set_defaults(run=speak)
    single = commands.add_parser("one")
    single.add_argument("way", choices=WAYS)
    single.add_argument("seed", type=int)
    single.set_defaults(run=lambda args: speak_one(args.way, args.seed, args.out))
    scored = commands.add_parser("score")
    scored.add_argument("--whisper", required=True)
    scored.add_argument("--json", type=Path, required=True)
    scored.set_defaults(run=score)
    for command in (every, single, scored):
        command.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
