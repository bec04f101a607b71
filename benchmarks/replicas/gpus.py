"""Replicas on two GPUs of one host, half shares of one GPU, and `stentor batch` beside the server's best.

Run: python benchmarks/replicas/gpus.py [--seconds 8] [--json FILE]
     python benchmarks/replicas/gpus.py --device cpu --model dummy:toy --slots 4 --frames 20 --short-frames 4 \\
             --items 100 --processes 1 --json FILE                                  a dry run
Needs: two GPUs, and the packages of `stentor[ray]` and `stentor[bench]`.

one     one replica, with as many clients as it has slots, then with short requests and twice as many clients.
two     two replicas with a GPU each, and twice the clients.
halves  two replicas that share the second GPU, each with a budget of memory that is read while they speak.
batch   `stentor batch` with short items, as long as the short requests.

All replicas start at once, since that takes longest, and are asked one arm after another. Those that nobody asks use
none of their GPU. Clients are processes of `stentor bench serve`, each with its part of the streams.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.processes import Sampler
from benchmarks.replicas.apart import Apart, apart
from benchmarks.replicas.closed_loop import Loop, paths
from benchmarks.replicas.cluster import QUICK_END, marked
from stentor.bench.load import prompts

MODEL = "dummy:qwen3-tts-1.7b-customvoice"
READY_S, ENDING_S = 240.0, 20.0
SYNCS = 40
ENVIRONMENT = QUICK_END | {
    "RAY_memory_monitor_refresh_ms": "0"
}  # memory of a lent machine grows as it is used
RESERVED = re.compile(r"^stentor:gpu_memory_bytes\{.*\} (\S+)$", re.MULTILINE)
SAID = re.compile(r"([\d.]+) s of audio in ([\d.]+) s \(([\d.]+) .*load ([\d.]+) s")


@dataclass
class Arm:
    """`stentor serve --replicas`. devices: of CUDA that its Ray sees. lines: what it has printed."""

    replicas: int
    devices: str
    flags: list[str]
    place: Apart = field(init=False)
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.place.proxy}"

    @property
    def each(self) -> list[str]:
        """Addresses where replicas may listen at ports of their own, counted up by Ray."""
        return [f"http://127.0.0.1:{port}" for port in self.place.replicas[: 2 * self.replicas]]


@contextlib.contextmanager
def serving(arm: Arm, args: argparse.Namespace) -> Iterator[float]:
    """Seconds from its start until it takes requests. RuntimeError with its last lines if it does not."""
    began = time.monotonic()
    with apart() as place, tempfile.TemporaryDirectory() as voices:
        arm.place = place
        words = [
            args.model,
            "--replicas",
            str(arm.replicas),
            "--port",
            str(place.proxy),
            "--voices-dir",
            voices,
        ]
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "stentor",
                "serve",
                *words,
                "--no-log-requests",
                "--no-guard",
                *arm.flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=place.environment | ENVIRONMENT | paths() | {"CUDA_VISIBLE_DEVICES": arm.devices},
            start_new_session=True,
        ) as process:
            reader = threading.Thread(
                target=lambda: arm.lines.extend(process.stdout or ()), daemon=True
            )
            reader.start()
            try:
                while not any(f"{arm.replicas} replicas on" in line for line in list(arm.lines)):
                    if process.poll() is not None or time.monotonic() > began + READY_S:
                        raise RuntimeError("".join(arm.lines[-30:]) + place.logs()[-6000:])
                    time.sleep(0.1)
                yield time.monotonic() - began
            finally:  # nobody streams now, so nothing has to end well, and a lease is short
                for pid in marked(place.mark, process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                reader.join(ENDING_S)


def load(
    url: str, clients: int, frames: int, texts: str, args: argparse.Namespace
) -> dict[str, Any]:
    """Figures of a closed loop of clients in several processes."""
    extra = forced(frames, args.model, "max_new_tokens") | {"guard": False}
    return Loop(url, [None], clients, args.processes, args.seconds, [extra], texts).run()


def forced(frames: int, model: str, name: str) -> dict[str, Any]:
    """Options of so many frames, whatever the model says. name: of the most frames."""
    return {name: frames} | ({"min_frames": frames} if "toy" in model else {"ignore_eos": True})


class Reserved(Sampler):
    """Most GPU memory in bytes that each replica has reserved, read at its own port."""

    def __init__(self, arm: Arm) -> None:
        super().__init__()
        self.arm = arm
        self.most: dict[str, float] = {}

    def sample(self) -> None:
        for url in self.arm.each:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(url + "/metrics", timeout=30) as answer,
            ):
                found = RESERVED.search(answer.read().decode())
                self.most[url] = max(self.most.get(url, 0.0), float(found[1]) if found else 0.0)


def on_gpus() -> str:
    """GPU memory of each process, from nvidia-smi. Empty without GPUs."""
    ask = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout
    return ""


def sync_ms(folder: Path) -> float:
    """Median of what a sync of a new file takes: a batch has one for each item."""
    took = []
    for i in range(SYNCS):
        with (folder / f"sync{i}").open("wb") as file:
            file.write(bytes(72_000))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return round(1e3 * median(took), 2)


def batch(args: argparse.Namespace) -> dict[str, Any]:
    """`stentor batch` with short items on the first device. The rate is the one that it prints, without the load."""
    texts = prompts.select(prompts.load("short"), args.items, 0)
    with tempfile.TemporaryDirectory() as name:
        folder, synced = Path(name), sync_ms(Path(name))
        options = forced(args.short_frames, args.model, "max_frames")
        lines = [json.dumps({"text": item.text, "retries": 1, **options}) for item in texts]
        (folder / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = ["batch", str(folder / "in.jsonl"), str(folder / "out"), "--model", args.model]
        words += ["--max-num-seqs", str(args.slots), "--device", args.device]
        command = [sys.executable, "-m", "stentor", *words]
        done = subprocess.run(
            command, env=os.environ | paths(), capture_output=True, text=True, check=False
        )
        print(done.stdout[-600:], done.stderr[-600:], flush=True)
        said = SAID.search(done.stdout)
        listed = [
            json.loads(line)
            for line in (folder / "out" / "manifest.jsonl").read_text().splitlines()
        ]
    if said is None:
        raise RuntimeError(f"exit code {done.returncode}")
    audio, took, rate, loaded = map(float, said.groups())
    complete = sum(row["status"] == "ok" for row in listed)
    row = {
        "items": complete,
        "audio_s": audio,
        "seconds": took,
        "audio_s_per_s": rate,
        "load_s": loaded,
    }
    return {**row, "sync_ms": synced}


def arms(args: argparse.Namespace) -> dict[str, Arm]:
    slots = ["--max-num-seqs", str(args.slots), "--max-active-requests", str(8 * args.slots)]
    if args.device == "cpu":
        plain = [*slots, "--device", "cpu", "--threads", "1", "--memory-gb", "0.01"]
        return {"one": Arm(1, "", plain), "two": Arm(2, "", plain), "halves": Arm(2, "", plain)}
    whole = [*slots, "--gpus-per-replica", "1", "--max-memory-gb", str(args.whole_gb)]
    half = [*slots, "--gpus-per-replica", "0.5", "--max-memory-gb", str(args.half_gb)]
    return {"one": Arm(1, "0", whole), "two": Arm(2, "0,1", whole), "halves": Arm(2, "1", half)}


def ask(running: dict[str, Arm], row: dict[str, Any], args: argparse.Namespace) -> None:
    """The loads of what runs, each written to the row when it is done."""
    long, short, slots = (
        (args.frames, "medium", args),
        (args.short_frames, "short", args),
        args.slots,
    )
    for name, clients, given in (
        ("one", slots, long),
        ("two", 2 * slots, long),
        ("one_short", slots, short),
        ("one_short_twice", 2 * slots, short),
        ("halves", 2 * slots, long),
    ):
        arm = running.get(name.split("_")[0])
        if arm is None:
            continue
        with Reserved(arm) as held:
            row[name] = load(arm.url, clients, *given)
        row[name]["most_reserved_gib"] = [round(most / 2**30, 2) for most in held.most.values()]
        keep(row, args)
    row["nvidia_smi"] = on_gpus()
    keep(row, args)
    if {"one", "two"} <= set(row):
        row["two_by_one"] = round(row["two"]["audio_s_per_s"] / row["one"]["audio_s_per_s"], 3)
        keep(row, args)


def keep(row: dict[str, Any], args: argparse.Namespace) -> None:
    name = list(row)[-1]
    print(name, json.dumps(row[name]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--slots", type=int, default=128, help="of each replica, and of the batch")
    parser.add_argument("--frames", type=int, default=150, help="of each stream")
    parser.add_argument(
        "--short-frames", type=int, default=19, help="of each short request, and of each item"
    )
    parser.add_argument("--items", type=int, default=10_000, help="of the batch")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load")
    parser.add_argument("--processes", type=int, default=8, help="of clients")
    parser.add_argument("--whole-gb", type=float, default=40.0, help="GiB of a replica")
    parser.add_argument(
        "--half-gb", type=float, default=32.0, help="GiB of a replica that shares its GPU"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    row: dict[str, Any] = {"settings": vars(args) | {"json": None}, "cores": os.cpu_count()}
    started, ready = arms(args), dict[str, float]()
    with contextlib.ExitStack() as held, ThreadPoolExecutor(len(started)) as pool:
        begun = {
            name: pool.submit(held.enter_context, serving(arm, args))
            for name, arm in started.items()
        }
        for name, each in begun.items():
            try:
                ready[name] = round(each.result(), 1)
            except RuntimeError as e:  # the others still say something
                print(f"{name} did not start: {e}", flush=True)
        row["ready_after_s"] = ready
        keep(row, args)
        ask({name: started[name] for name in ready}, row, args)
    row["batch"] = batch(args)
    best = max(
        (row[name]["audio_s_per_s"] for name in ("one_short", "one_short_twice") if name in row),
        default=None,
    )
    row["batch"]["of_the_servers_best"] = best and round(row["batch"]["audio_s_per_s"] / best, 3)
    keep(row, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
