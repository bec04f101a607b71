"""SIGKILL for engines that share a GPU under CUDA MPS, and the audio of one beside them.

Run: python benchmarks/server/mps_kills.py --json FILE
     python benchmarks/server/mps_kills.py --device cpu --survivor dummy:toy --victims dummy:toy,dummy:toy,dummy:toy \\
             --kills 3 --audio 0.5 --mps off --json FILE                              a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`.

One server has the survivor and the victims, all under load. The survivor's only client sends one request over and
over, so each answer must have the bytes of the first. Victims are killed one by one, as soon as two of them are ready;
the server starts each again. At the end the server ends on SIGTERM. The file also has the memory in use on the GPU and
the processes of CUDA MPS, before the server and after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.processes import ENGINE, running
from benchmarks.replicas.devices import TEXT, fetch, figures, health, words
from benchmarks.replicas.streams import PATH, Crowd, Speech
from benchmarks.server.serve import Server, body, gpu_memory

SURVIVOR = "survivor"
VICTIMS = ["dummy:toy"] * 3
READY_S = 200.0
ENDING_S = 20.0  # of the last streams and the server
MPS = "nvidia-cuda-mps"


def form(model: str, name: str, seconds: float) -> dict[str, Any]:
    """The request for so much audio of a model."""
    fixed = {
        "model": name,
        "input": TEXT,
        "seed": 3,
        "response_format": "pcm",
        "stream_format": "audio",
    }
    return body(model, seconds) | fixed


class Survivor:
    """A client of one model, in a thread, with the digests and errors of its answers. Several would
    share steps, which changes bytes."""

    def __init__(self, server: Server, request: Mapping[str, Any]) -> None:
        self.answers: Counter[str] = Counter()
        self._server = server
        self._request = request
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def answer(self) -> str:
        """Digest of the audio of one answer, or its error."""
        try:
            reply = fetch("POST", self._server.url + PATH, json=self._request)
        except (aiohttp.ClientError, OSError) as e:
            return repr(e)[:200]
        if reply.status != 200:
            return f"{reply.status}: {reply.body[:200]!r}"
        return f"{len(reply.body)} bytes, SHA-256 {hashlib.sha256(reply.body).hexdigest()[:16]}"

    def _speak(self) -> None:
        while not self._over.is_set():
            self.answers[self.answer()] += 1


def kill(server: Server, survivor: int, killed: list[int], end: float) -> bool:
    """Kill the engine of a victim once two are ready. False if there is no time left."""
    while time.monotonic() < end:
        models = health(server.url)
        ready = [n for n, state in models.items() if n != SURVIVOR and state["phase"] == "ready"]
        victims = [
            pid for pid in running(server.process.pid, ENGINE) if pid not in (survivor, *killed)
        ]
        if len(ready) >= 2 and len(victims) >= 2:
            os.kill(victims[0], signal.SIGKILL)
            killed.append(victims[0])
            return True
        time.sleep(0.1)
    return False


def mps_processes() -> list[str]:
    """Command lines of the processes of CUDA MPS."""
    done = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(MPS)]


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--survivor", default="dummy:qwen3-tts-0.6b-customvoice")
    p.add_argument("--victims", type=words, default=VICTIMS)
    p.add_argument("--kills", type=int, default=50)
    p.add_argument("--audio", type=float, default=9.0, help="seconds of audio per request")
    p.add_argument("--device", default="cuda")
    p.add_argument("--mps", default="auto")
    p.add_argument("--memory-gb", default="4", help="for KV pages, of each engine")
    p.add_argument("--limit", type=float, default=500.0, help="seconds for everything")
    p.add_argument("--json", type=Path, required=True)
    args = p.parse_args()
    end = time.monotonic() + args.limit

    row: dict[str, Any] = {"settings": {**vars(args), "json": None}}
    row["before"] = {"gpu_gib": gpu_memory(), "mps": mps_processes()}
    names = [SURVIVOR, *(f"victim-{i}" for i in range(len(args.victims)))]
    models = [args.survivor, *args.victims]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        flags = ["--mps", args.mps, "--memory-gb", args.memory_gb]
        server = Server(models, args.device, 16, log, flags, names=names)
        try:
            row["ready_after_s"] = server.ready(READY_S)
            if row["ready_after_s"] is not None:
                measure(row, server, dict(zip(names, models, strict=True)), args, end)
            server.process.send_signal(signal.SIGTERM)
            row["exit_code"] = server.process.wait(60)
        finally:
            server.process.kill()
            row["log"] = log.read_text(errors="replace")[-4000:]

    time.sleep(1)
    row["after"] = {"gpu_gib": gpu_memory(), "mps": mps_processes()}
    args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: row[key] for key in row if key not in ("settings", "log")}, indent=1))
    answers = row.get("survivor", {}).get("answers", {})
    return int(len(answers) != 1 or row["survivor"]["restarts"] > 0)


def measure(
    row: dict[str, Any],
    server: Server,
    models: Mapping[str, str],
    args: argparse.Namespace,
    end: float,
) -> None:
    """Load all models, kill victims, and add the outcomes to the row."""
    survivor = Survivor(server, form(args.survivor, SURVIVOR, args.audio))
    first = survivor.answer()
    engine = running(server.process.pid, ENGINE)[0]
    speeches = []
    for name, model in models.items():
        if name != SURVIVOR:
            request = form(model, name, args.audio)
            reply = fetch("POST", server.url + PATH, json=request)
            if reply.status != 200:
                raise RuntimeError(f"{name}: {reply.status}: {reply.body[:300]!r}")
            speeches += [Speech(request, len(reply.body))] * 2

    killed: list[int] = []
    survivor.start()
    with Crowd([server.url], len(speeches), 2, speeches) as victims:
        time.sleep(2)
        while len(killed) < args.kills and kill(server, engine, killed, end - ENDING_S):
            time.sleep(0.3)
        time.sleep(3)
        survivor.stop()

    row["kills"] = len(killed)
    row["restarts"] = {name: state["restarts"] for name, state in health(server.url).items()}
    row["survivor"] = {
        "first_answer": first,
        "answers": dict(survivor.answers),
        "restarts": row["restarts"].get(SURVIVOR),
        "same_process": engine in running(server.process.pid, ENGINE),
    }
    row["victims"] = {
        key: value for key, value in figures(victims.streams).items() if key != "by_model"
    }


if __name__ == "__main__":
    sys.exit(main())
