"""Hold the released models to their memory budgets while 16 streams speak, with new voices. A table comes last.

Run: python benchmarks/engine/profiles.py --out DIR [PROFILE ...]          all profiles at once, on one GPU
     python benchmarks/engine/profiles.py --out DIR --model dummy:toy --gib 1 --device cpu --seconds 2 --alone 1
                                                                          a dry run without a GPU
Needs: a GPU and nothing but stentor (no server, no checkpoint).

Every profile is a process of its own with `max_memory_gb`. All of them are loaded at once. Then each in turn has its
steps timed and speaks alone, for `--alone` seconds, and at last all speak together for `--seconds`. Texts of one
sentence take 12 seconds of audio. Where the model takes references, streams speak in four known voices, and every
eighth request brings a new one, some of them as long as the model allows.

`peak` is the most that torch has taken from the driver, from the plan of the memory on, and `outside` is what a process
takes beside that (CUDA's context, kernels, launch data of graphs): what the device lacks in all, divided by processes.
`p50` and `p99` are milliseconds from the request to its first audio. `b1`, `b4` and `b16` are milliseconds of a step of
so many rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.step import Bench
from benchmarks.engine.voices import voice
from stentor import TTS

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun."
STREAMS, SECONDS_OF_AUDIO = 16, 12.0
KNOWN_SECONDS = (3.0, 6.0, 10.0, 20.0)  # of the voices that come again
NEW_EVERY, LONGEST_EVERY = 8, 32  # requests
GIB = 2**30


@dataclass(frozen=True)
class Profile:
    """A model and its budget."""

    name: str
    model: str
    quantization: str
    gib: float


PROFILES = (
    Profile("0.6b", "dummy:qwen3-tts-0.6b-base", "auto", 4),
    Profile("1.7b-int8", "dummy:qwen3-tts-1.7b-base", "int8", 6),
    Profile("1.7b", "dummy:qwen3-tts-1.7b-base", "auto", 8),
    Profile("voxcpm2", "dummy:voxcpm2", "auto", 8),
    Profile("fish-int8", "dummy:fish-s2-pro", "int8", 10),
    Profile("fish", "dummy:fish-s2-pro", "auto", 16),
)


class Speakers:
    """Streams that begin a request when their last one has ended."""

    def __init__(self, tts: TTS) -> None:
        spec = tts.spec
        frames = max(2, round(SECONDS_OF_AUDIO * spec.sample_rate / spec.hop))
        fixed = {"min_frames": frames, "max_frames": frames, "ignore_eos": True}
        self.tts, self.options = (
            tts,
            {k: v for k, v in fixed.items() if k in spec.options or k == "max_frames"},
        )
        longest = spec.reference_seconds[1]
        self.known = [voice(tts, min(n, longest), i) for i, n in enumerate(KNOWN_SECONDS)]
        self.lock, self.begun = threading.Lock(), 0

    def speak(self, until: float, found: Counter[str], firsts: list[float]) -> None:
        """Requests one by one. The last is cancelled at `until`."""
        while time.perf_counter() < until:
            with self.lock:
                number = self.begun = self.begun + 1
            started, first, samples = time.perf_counter(), 0.0, 0
            try:
                options = {**self.options, "seed": number, **self.reference(number)}
                stream = self.tts.submit(self.tts.request(f"Number {number}. {TEXT}", **options))
                for chunk in stream:
                    first = first or time.perf_counter()
                    samples += len(chunk.samples)
                    if time.perf_counter() > until:
                        stream.cancel()
                found["done"] += time.perf_counter() < until
                firsts.append(1e3 * (first - started))
            except Exception as e:  # counted by its words
                found["failed"] += 1
                found[f"{type(e).__name__}: {e}"[:160]] += 1
            found["samples"] += samples

    def reference(self, number: int) -> dict[str, Any]:
        if not self.tts.spec.takes_reference:
            return {}
        if number % NEW_EVERY:
            return {"reference": self.known[number % len(self.known)]}
        longest = self.tts.spec.reference_seconds[1]
        seconds = longest if number % LONGEST_EVERY == 0 else min(15.0, longest)
        return {"reference": voice(self.tts, seconds, number)}

    def run(self, seconds: float) -> dict[str, Any]:
        found: Counter[str] = Counter()
        firsts: list[float] = []
        started = time.perf_counter()
        with ThreadPoolExecutor(STREAMS) as pool:
            for stream in [
                pool.submit(self.speak, started + seconds, found, firsts) for _ in range(STREAMS)
            ]:
                stream.result()
        wall = time.perf_counter() - started
        audio = found.pop("samples", 0) / self.tts.sample_rate
        by = sorted(firsts) or [0.0]
        times = {
            "p50": round(statistics.median(by), 1),
            "p99": round(by[int(0.99 * (len(by) - 1))], 1),
        }
        return {
            **found,
            **times,
            "audio_s_per_s": round(audio / wall, 2),
            "seconds": round(wall, 1),
            **memory(),
        }


def memory() -> dict[str, float]:
    """GiB of this process by torch's counts, and of the whole device."""
    if not torch.cuda.is_available():
        return {"reserved": 0.0, "peak": 0.0, "allocated": 0.0, "device": 0.0}
    free, total = torch.cuda.mem_get_info()
    taken = (
        torch.cuda.memory_reserved(),
        torch.cuda.max_memory_reserved(),
        torch.cuda.max_memory_allocated(),
    )
    names = ("reserved", "peak", "allocated", "device")
    return {n: round(v / GIB, 3) for n, v in zip(names, (*taken, total - free), strict=True)}


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def child(profile: Profile, device: str, file: Path) -> None:
    """One profile: does what the parent's lines ask, and answers each with a line of JSON."""
    started = time.perf_counter()
    settings: dict[str, Any] = (
        {"quantization": profile.quantization} if profile.quantization != "auto" else {}
    )
    with TTS(profile.model, device=device, max_memory_gb=profile.gib, **settings) as tts:
        bench = Bench(profile.model, file.parent, device, tts.engine.sizes.slots)
        bench.tts, bench.runner = tts, tts.engine.runner
        sizes = tts.engine.sizes
        found: dict[str, Any] = {
            **asdict(profile),
            "ready_seconds": round(time.perf_counter() - started, 1),
        }
        found |= {"sizes": asdict(sizes), "described": sizes.describe(), "start": memory()}
        speakers = Speakers(tts)
        say(found["start"])
        for line in sys.stdin:
            name, seconds = line.split()
            if name == "report":
                found["last"] = memory()
            elif name == "steps":
                found |= {"ms_per_step": bench.steps(), "weights": bench.weights()}
            else:
                found[name] = speakers.run(float(seconds))
            found["preemptions"], found["eager_calls"] = (
                tts.engine.health().preemptions,
                tts.engine.side.eager_calls,
            )
            file.write_text(json.dumps(found, indent=1) + "\n")
            say(name)


class Child:
    """A profile's process. Its answers come through a queue, so that waiting for one has an end."""

    def __init__(self, profile: Profile, args: argparse.Namespace) -> None:
        self.name, self.out = profile.name, args.out
        command = [
            sys.executable,
            str(Path(__file__).resolve()),
            "--out",
            str(args.out),
            "--device",
            args.device,
        ]
        command += ["--one", json.dumps(asdict(profile))]
        self.log = (args.out / f"{profile.name}.log").open("w")
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.log, text=True
        )
        self.answers: Queue[str] = Queue()
        threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self.answers.put(line)
        self.answers.put("")

    def ask(self, *words: object) -> None:
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()

    def answered(self, end: float) -> bool:
        """Whether a line came before `end`."""
        try:
            return self.answers.get(timeout=max(0.1, end - time.monotonic())) != ""
        except Empty:
            return False


def drive(profiles: list[Profile], args: argparse.Namespace) -> None:
    end = time.monotonic() + args.limit
    children = [Child(p, args) for p in profiles]
    ready = [c for c in children if c.answered(end - args.seconds / 2)]
    print(
        f"{len(ready)} of {len(children)} are loaded, {end - time.monotonic():.0f} s left",
        flush=True,
    )
    for c in ready:
        for name, length in (("steps", 0), ("alone", args.alone)):
            c.ask(name, length)
            c.answered(end)
    seconds = max(1.0, min(args.seconds, end - time.monotonic() - 10))
    for c in ready:
        c.ask("together", seconds)
    still = [c for c in ready if c.answered(end)]
    for c in still:
        c.ask("report", 0)
        c.answered(end)
    for c in children:
        c.process.kill()
        c.process.wait()
        c.log.close()
        if c not in still:
            print(f"== {c.name}\n{(c.out / f'{c.name}.log').read_text()[-1500:]}", flush=True)
    print(table(args.out), flush=True)


def table(out: Path) -> str:
    found = [json.loads(f.read_text()) for f in sorted(out.glob("profile_*.json"))]
    last = [f["last"] for f in found if "last" in f]
    outside = (
        (max(m["device"] for m in last) - sum(m["reserved"] for m in last)) / len(last)
        if last
        else 0.0
    )
    columns = "budget  peak  ratio  slots  done  failed  p50 ms  p99 ms  audio-s/s"
    columns += " | alone: p50 ms  p99 ms  audio-s/s  b1  b4  b16"
    lines = [f"outside torch: {outside:.2f} GiB a process", f"{'profile':<12} {columns}"]
    for f in found:
        if "together" in f:
            a, t = f["alone"], f["together"]
            cells = [f["gib"], t["peak"], round(t["peak"] / f["gib"], 3), f["sizes"]["slots"]]
            cells += [t.get("done", 0), t.get("failed", 0), t["p50"], t["p99"], t["audio_s_per_s"]]
            alone = [
                a["p50"],
                a["p99"],
                a["audio_s_per_s"],
                *(f["ms_per_step"].get(f"b{n}", "-") for n in (1, 4, 16)),
            ]
            lines.append(f"{f['name']:<12} " + "  ".join(f"{c:>6}" for c in (*cells, *alone)))
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("names", nargs="*", metavar="PROFILE", help=", ".join(p.name for p in PROFILES))
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--device", default="cuda")
    p.add_argument("--model", help="another model, with --gib and --quantization")
    p.add_argument("--gib", type=float, default=8)
    p.add_argument("--quantization", default="auto")
    p.add_argument("--seconds", type=float, default=120.0)
    p.add_argument("--alone", type=float, default=4.0)
    p.add_argument("--limit", type=float, default=235.0, help="seconds in all")
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.one:
        profile = Profile(**json.loads(a.one))
        child(profile, a.device, a.out / f"profile_{profile.name}.json")
    elif a.model:
        drive([Profile(a.model.rpartition(":")[2], a.model, a.quantization, a.gib)], a)
    else:
        drive([x for x in PROFILES if not a.names or x.name in a.names], a)


if __name__ == "__main__":
    main()
