"""stentor and the official package `pocket-tts` in turns on the same cores, with the same random weights.

    pip install --target DIR pocket-tts==4.0.1
    PYTHONPATH=$PWD:DIR python benchmarks/pocket/turns.py --json FILE
    PYTHONPATH=$PWD:DIR python benchmarks/pocket/turns.py --release english_7m_2026-10 --json FILE

A round measures each side once: a stream of ten seconds of audio from 40 tokens of text and a voice of ten seconds, and
of stentor also four texts one after another and at once. Sides are processes that wait while others work. `int8` is the
package's own quantisation. Wall time counts what other work takes from the machine, CPU time does not. First audio is
that of a stream whose voice is known to the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import yaml

FRAMES, HOP, RATE, FIRST_END = 125, 1920, 24_000, 6
TEXT = "abcde fghij klmno pqrst uvwxy zabcd efg"
TEXTS = [TEXT, TEXT[::-1], TEXT.replace("a", "e"), TEXT.replace("k", "o")]
NEVER_LESS = -1e9
"""A threshold that every frame passes, so that the tail says how long speech is."""
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?"
SIDES = ("package", "package int8", "stentor")


def make_checkpoint(folder: Path, release: str) -> None:
    """Random weights in 16 bits, in the released layout and of released sizes, with a tokenizer of letters and a
    voice, as the package writes them."""
    import pocket_tts
    import safetensors.torch

    source = Path(pocket_tts.__file__).parent / "config" / f"{release}.yaml"
    config = yaml.safe_load(source.read_text(encoding="utf-8"))
    special = {"<unk>": 0.0, "<s>": 0.0, "</s>": 0.0, "<pad>": 0.0}
    write_tokenizer(folder, special)
    table = config["flow_lm"]["lookup_table"]
    table.update(tokenizer="tokenizers", tokenizer_path=str(folder / "tokenizer.json"))
    for name in ("weights_path", "weights_path_without_voice_cloning"):
        config.pop(name)
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    torch.manual_seed(0)
    model = pocket_tts.TTSModel.load_model(config=file)
    weights = {name: t.bfloat16().contiguous() for name, t in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    config["weights_path"] = str(folder / "model.safetensors")
    file.write_text(yaml.safe_dump(config))
    model = pocket_tts.TTSModel.load_model(config=file)
    wav = 0.1 * torch.randn(1, 10 * RATE - HOP)
    (folder / "embeddings").mkdir()
    pocket_tts.export_model_state(
        model.get_state_for_audio_prompt(wav), folder / "embeddings" / "noise.safetensors"
    )


def write_tokenizer(folder: Path, special: Mapping[str, float]) -> None:
    """A tokenizer of LETTERS behind special tokens with these scores, of 4,000 ids."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocab = [*special.items(), *((letter, -5.0) for letter in LETTERS)]
    vocab += [(f"filler{i}", -99.0) for i in range(len(vocab), 4000)]
    tokens = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokens.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokens.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokens.save(str(folder / "tokenizer.json"))


def measured(pieces: Iterator[int]) -> dict[str, float]:
    """Seconds of wall and CPU time until pieces of so many samples have come, and until the first has."""
    wall, cpu, samples, first = time.perf_counter(), time.process_time(), 0, None
    for piece in pieces:
        first = first or time.perf_counter() - wall
        samples += piece
    assert samples == FRAMES * HOP, samples
    assert first is not None
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "first": first}


def package_side(folder: Path, threads: int, int8: bool) -> Callable[[], dict[str, Any]]:
    """A call that measures the package once. It sets one thread when it is imported."""
    from pocket_tts import TTSModel

    torch.set_num_threads(threads)
    model = TTSModel.load_model(
        config=folder / "config.yaml", eos_threshold=NEVER_LESS, quantize=int8
    )
    state = model.get_state_for_audio_prompt(folder / "embeddings" / "noise.safetensors")

    def run() -> dict[str, Any]:
        torch.set_num_threads(threads)
        pieces = model.generate_audio_stream(state, TEXT, frames_after_eos=FRAMES - FIRST_END)
        return measured(len(piece) for piece in pieces)

    return run


def speaking(tts: Any, texts: list[str], options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A call that measures stentor once: the first text as a stream, then all, one after another and at once."""

    def seconds(call: Callable[[], object]) -> dict[str, float]:
        wall = time.perf_counter()
        cpu = time.process_time()
        call()
        return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}

    def run() -> dict[str, Any]:
        alone = measured(len(chunk.samples) for chunk in tts.stream(texts[0], **options))
        one_by_one = seconds(lambda: [tts.generate(text, retries=1, **options) for text in texts])
        at_once = seconds(lambda: tts.generate(texts, retries=1, **options))
        return {**alone, "one_by_one": one_by_one, "at_once": at_once}

    return run


def stentor_side(folder: Path, threads: int) -> Callable[[], dict[str, Any]]:
    """Measure stentor with four texts, one after another and at once."""
    from stentor import TTS

    tts = TTS(folder, device="cpu", threads=threads, max_num_seqs=4)
    options = {"eos_threshold": NEVER_LESS, "frames_after_eos": FRAMES - FIRST_END, "seed": 1}

    return speaking(tts, TEXTS, options)


def side_of(side: str, folder: Path, threads: int) -> Callable[[], dict[str, Any]]:
    """A call that measures a side once."""
    if side == "stentor":
        return stentor_side(folder, threads)
    return package_side(folder, threads, side.endswith("int8"))


def work(run: Callable[[], dict[str, Any]]) -> None:
    """Measure once for each line of the standard input."""
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


class Side:
    """A process of one side of a script, on some cores."""

    def __init__(self, side: str, folder: Path, threads: int, script: str = __file__) -> None:
        command = [
            sys.executable,
            script,
            "--side",
            side,
            "--folder",
            str(folder),
            "--threads",
            str(threads),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        cores = sorted(os.sched_getaffinity(0))[:threads]
        pin = ["taskset", "-c", ",".join(map(str, cores))]
        self.process = subprocess.Popen([*pin, *command], **pipes)
        self._line()

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def measure(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the side has ended"
        return line


def summary(
    rounds: list[dict[str, dict[str, Any]]], names: tuple[str, ...] = SIDES
) -> dict[str, Any]:
    """Medians over rounds: of each side, and of ratios within a round. names: stentor's is the last."""
    audio = FRAMES * HOP / RATE
    middle = statistics.median

    def ratio(other: str, key: str) -> float:
        return middle(r["stentor"][key] / r[other][key] for r in rounds)

    sides = {
        side: {
            "rtf": middle(r[side]["wall"] for r in rounds) / audio,
            "cpu_seconds_per_audio_second": middle(r[side]["cpu"] for r in rounds) / audio,
            "first_audio_ms": 1e3 * middle(r[side]["first"] for r in rounds),
        }
        for side in names
    }
    at_once = {
        k: middle(r["stentor"]["one_by_one"][k] / r["stentor"]["at_once"][k] for r in rounds)
        for k in ("wall", "cpu")
    }
    ratios = {
        other: {key: ratio(other, key) for key in ("wall", "cpu", "first")} for other in names[:-1]
    }
    return {"sides": sides, "stentor_over": ratios, "four_at_once": at_once}


def in_turns(
    names: tuple[str, ...], folder: Path, rounds: int, threads: int, script: str
) -> dict[str, Any]:
    """Rounds of all sides of a script with a number of threads, on as many cores. Prints their medians."""
    runs: list[dict[str, dict[str, Any]]] = []
    load: list[float] = []
    with ExitStack() as open_sides:
        sides = {
            side: open_sides.enter_context(Side(side, folder, threads, script)) for side in names
        }
        for _ in range(rounds):
            load.append(os.getloadavg()[0])
            runs.append({side: process.measure() for side, process in sides.items()})
    medians = {"threads": threads, **summary(runs, names)}
    print(json.dumps(medians, indent=1), flush=True)
    return {**medians, "rounds": runs, "load": load}


def compare(release: str, rounds: int, threads: list[int]) -> dict[str, Any]:
    """All rounds with each number of threads, on as many cores."""
    from importlib.metadata import version

    found: dict[str, Any] = {
        "release": release,
        "package": version("pocket-tts"),
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "settings": [],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, release)
        for count in threads:
            found["settings"].append(in_turns(SIDES, folder, rounds, count, __file__))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", default="english_2026-10")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        work(side_of(args.side, args.folder, args.threads[0]))
        return
    found = compare(args.release, args.rounds, args.threads)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
