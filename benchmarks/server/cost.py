"""Measure what the HTTP server costs the engine: 64 streams at the pace of a GPU, with and without the server.

Run: python benchmarks/server/cost.py [--streams 64] [--pace 600 1500] [--switch 5 0.2] [--json FILE]
Needs: the packages of `stentor[server]` and `stentor[bench]`. No GPU.

Waiting replaces the device's work: a step takes as long as the pace says, and codec samples exist already. What
remains is the engine's thread, the event loop and the interpreter lock that they share.
The table shows the pace that was reached, the share of a core that each thread took, how late steps were launched, and
the event loop's microseconds per chunk of audio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from stentor import TTS, registry  # noqa: E402
from stentor.engine.engine import Engine  # noqa: E402
from stentor.engine.sequence import LENGTH  # noqa: E402

HOP, RATE = 1920, 24000
OPS = 6  # small tensor operations per step, which let go of the interpreter lock as launches do


def toy(slots: int) -> TTS:
    """The toy with frames as long as those of a released model, for `Paced`."""
    model = registry.load("dummy:toy", torch.device("cpu"), None, {})
    model.spec = replace(model.spec, hop=HOP, sample_rate=RATE)
    with mock.patch.object(registry, "load", return_value=model):
        return TTS("dummy:toy", device="cpu", max_num_seqs=slots, memory_gb=0.5, max_frames=1024)


class Paced:
    """An engine whose device takes `step` seconds per step and nothing else."""

    def __init__(self, tts: TTS, step: float) -> None:
        engine, self.step = tts.engine, step
        model, runner = engine.model, engine.runner
        self.report, self.limit = runner.slots.report, runner.slots.table["max_frames"]
        self.noise = torch.rand(runner.sizes.slots, 25 * HOP) - 0.5
        self.scratch = torch.zeros(8)
        self.busy_until = 0.0
        self.late: list[float] = []  # seconds a step was launched after the device had run dry
        runner.decode_graphs.fn = self.decode
        model.codec.decode = lambda frames, state, call: (self.noise[: len(frames), : frames.shape[1] * HOP], state)
        runner.device.download = self.download

    @staticmethod
    def download(value: torch.Tensor) -> torch.Tensor:
        """Samples are in host memory already: a GPU copies them there by itself."""
        return value if value.ndim == 2 and value.shape[-1] % HOP == 0 else value.clone()

    def decode(self, batch: int, max_pages: int, num_evals: int) -> None:
        now = time.perf_counter()
        if 0 < now - self.busy_until < 0.5:
            self.late.append(now - self.busy_until)
        time.sleep(max(0.0, self.busy_until - now))  # the engine is one step ahead of its device
        self.busy_until = max(now, self.busy_until) + self.step
        for _ in range(OPS):
            self.scratch.add_(1)
        self.report[:, 0] += 1
        self.report[:, 1] = (self.report[:, 0] >= self.limit) * LENGTH


class Threads:
    """CPU seconds of the engine's thread and of this one."""

    def __init__(self, engine: Engine) -> None:
        self.ids = {"engine": engine._thread.native_id, "loop": threading.main_thread().native_id}

    def __call__(self) -> dict[str, float]:
        out = {}
        for name, tid in self.ids.items():
            fields = Path(f"/proc/{os.getpid()}/task/{tid}/stat").read_text().rpartition(")")[2].split()
            out[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return out


def body(frames: int) -> dict[str, Any]:
    return {"max_new_tokens": frames, "min_frames": frames}


def serve(a: argparse.Namespace) -> None:
    """The server process: it prints where it listens, and its figures when it has to end."""
    import asyncio

    import uvicorn

    from stentor.server.app import create_app
    from stentor.server.config import ServerConfig

    torch.set_num_threads(1)
    if a.switch_ms:
        sys.setswitchinterval(a.switch_ms / 1e3)
    tts = toy(a.streams)
    paced = Paced(tts, a.step)
    config = ServerConfig(models=("dummy:toy",), warmup=False, max_active_requests=1000)
    app = create_app(config, load=lambda name, model: lambda: tts)
    server = uvicorn.Server(uvicorn.Config(app, port=a.port, log_level="warning", access_log=False))

    async def main() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        threads = Threads(tts.engine)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        paced.late.clear()
        before, chunks, began = threads(), tts.engine.stats.frames, time.monotonic()
        await asyncio.to_thread(sys.stdin.readline)
        wall, after = time.monotonic() - began, threads()
        late = np.array(paced.late or [0.0]) * 1e3
        facts: dict[str, Any] = {f"{n}_share": (after[n] - before[n]) / wall for n in after}
        facts |= {"frames": tts.engine.stats.frames - chunks, "loop_seconds": after["loop"] - before["loop"]}
        facts |= {"late_ms": [float(np.percentile(late, q)) for q in (50, 90, 99)], "late_sum": float(late.sum() / 1e3)}
        print(json.dumps(facts), flush=True)
        server.should_exit = True
        await task

    asyncio.run(main())


def through_http(a: argparse.Namespace, pace: float, switch: float) -> dict[str, Any]:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    step = a.streams * HOP / RATE / pace
    here = [sys.executable, str(Path(__file__).resolve()), "--serve", "--port", str(port), "--step", str(step)]
    here += ["--streams", str(a.streams), "--switch-ms", str(switch)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    server = subprocess.Popen(here, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT)
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.readline().strip() == "ready"
        server.stdin.write("go\n")
        server.stdin.flush()
        bench = [sys.executable, "-m", "stentor", "bench", "serve", "--base-url", f"http://127.0.0.1:{port}"]
        bench += ["--max-concurrency", str(a.streams), "--num-prompts", str(a.waves * a.streams), "--disable-tqdm"]
        bench += ["--extra-body", json.dumps({**body(a.frames), "guard": a.guard}), "--dataset-name", "short"]
        bench += ["--response-format", "pcm", "--save-result", "--result-dir", a.work, "--result-filename", "r"]
        subprocess.run(bench, env=environment, cwd=ROOT, check=True, capture_output=True, timeout=120)
        server.stdin.write("end\n")
        server.stdin.flush()
        facts: dict[str, Any] = json.loads(server.stdout.readline())
    finally:
        server.terminate()
    found = json.loads((Path(a.work) / "r.json").read_text())
    records = (Path(a.work) / "r.requests.jsonl").read_text().splitlines()
    chunks = sum(len(json.loads(x)["chunk_times_s"]) for x in records)
    facts["loop_us_per_chunk"] = facts["loop_seconds"] / max(1, chunks) * 1e6
    facts |= {"pace": pace, "switch_ms": switch, "chunks": chunks, "step_ms": step * 1e3}
    facts |= {"audio_s_per_s": found["audio_throughput"], "ttfa_p50_ms": found["median_audio_ttfp_ms"]}
    return facts


def alone(a: argparse.Namespace, pace: float) -> dict[str, Any]:
    """The same without a server: a thread per stream takes what comes."""
    step = a.streams * HOP / RATE / pace
    with toy(a.streams) as tts:
        paced = Paced(tts, step)
        began = time.monotonic()
        for _ in range(a.waves):
            req = tts.request("Hello.", seed=1, max_frames=a.frames, min_frames=a.frames)
            streams = [tts.submit(req) for _ in range(a.streams)]
            for stream in streams:
                for _ in stream:
                    pass
        wall = time.monotonic() - began
    late = np.array(paced.late or [0.0]) * 1e3
    audio = a.waves * a.streams * a.frames * HOP / RATE
    return {
        "pace": pace,
        "audio_s_per_s": audio / wall,
        "late_ms": [float(np.percentile(late, q)) for q in (50, 90, 99)],
    }


def line(name: str, f: dict[str, Any]) -> str:
    late = " / ".join(f"{x:.2f}" for x in f["late_ms"])
    shares = "" if "loop_share" not in f else (
        f"  loop {100 * f['loop_share']:.0f} % engine {100 * f['engine_share']:.0f} %  "
        f"{f['loop_us_per_chunk']:.0f} us/chunk of {f['chunks']}  ttfa {f['ttfa_p50_ms']:.0f} ms"
    )  # fmt: skip
    return f"{name:<22} pace {f['pace']:>6.0f}  got {f['audio_s_per_s']:>7.1f}  late p50/90/99 {late} ms{shares}"


def main() -> None:
    import tempfile

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--frames", type=int, default=150)
    p.add_argument("--waves", type=int, default=4)
    p.add_argument("--pace", type=float, nargs="+", default=[600.0, 1500.0])
    p.add_argument("--switch", type=float, nargs="+", default=[0.0], help="ms; 0: as the server sets it")
    p.add_argument("--guard", action="store_true")
    p.add_argument("--json", type=Path)
    p.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    p.add_argument("--step", type=float, help=argparse.SUPPRESS)
    p.add_argument("--switch-ms", type=float, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.serve:
        serve(a)
        return
    torch.set_num_threads(1)
    a.work = tempfile.mkdtemp()
    results = []
    for pace in a.pace:
        results.append(("no server", alone(a, pace)))
        print(line(*results[-1]), flush=True)
        for switch in a.switch:
            name = "http" if not switch else f"http, switch {switch} ms"
            results.append((name, through_http(a, pace, switch)))
            print(line(*results[-1]), flush=True)
    if a.json is not None:
        a.json.write_text(json.dumps([{"case": n, **f} for n, f in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
