"""Closed loops of streams by processes of `stentor bench serve`, and their figures together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WARM_S = 2.0  # of a load, before its window
ENDING_S = 120.0  # for streams that run at the end of a window, and for their analysis
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Loop:
    """A load. models: names for requests, each with `clients` streams at once by `processes`
    processes; None: requests name no model. seconds: of the window. extras: fields of each request,
    of which client process i sends the i-th, from the first again behind the last."""

    url: str
    models: Sequence[str | None]
    clients: int
    processes: int
    seconds: float
    extras: Sequence[Mapping[str, Any]]
    texts: str = "medium"

    def run(self) -> dict[str, Any]:
        """Run the load to its end. Returns its figures, and the seconds of audio of all its
        requests, also of those outside the window."""
        shares = [len(range(i, self.clients, self.processes)) for i in range(self.processes)]
        parts = [(model, share) for model in self.models for share in shares if share]
        with tempfile.TemporaryDirectory() as folder:
            started = [
                subprocess.Popen(
                    self._command(folder, i, *part),
                    env=os.environ | paths(),
                    stdout=subprocess.DEVNULL,
                )
                for i, part in enumerate(parts)
            ]
            for process in started:
                process.wait(WARM_S + self.seconds + ENDING_S)
            return self._figures(Path(folder), len(parts))

    def _command(self, folder: str, number: int, model: str | None, clients: int) -> list[str]:
        extra = self.extras[number % len(self.extras)]
        words = [
            *(sys.executable, "-m", "stentor", "bench", "serve", "--base-url", self.url),
            *("--response-format", "pcm", "--disable-tqdm", "--save-result"),
            *("--warmup-seconds", f"{WARM_S}", "--duration", f"{self.seconds}"),
            *("--dataset-name", self.texts, "--extra-body", json.dumps(extra)),
            *("--ready-check-timeout-sec", "0", "--result-dir", folder),
            *("--result-filename", f"{number}", "--seed", f"{number}"),
            *("--max-concurrency", f"{clients}"),
        ]
        if model is not None:
            words += ["--model", model]
        return words

    def _figures(self, folder: Path, parts: int) -> dict[str, Any]:
        results = [json.loads((folder / f"{i}.json").read_text()) for i in range(parts)]
        requests = [
            json.loads(line)
            for i in range(parts)
            for line in (folder / f"{i}.requests.jsonl").read_text().splitlines()
        ]
        measured = [r for r in requests if r["in_window"] and r["failure"] is None]
        failures = sorted({r["failure"] for r in requests if r["failure"] is not None})
        return {
            "clients": self.clients * len(self.models),
            "audio_s_per_s": round(sum(r["audio_throughput"] for r in results), 1),
            "requests_per_s": round(sum(r["request_throughput"] for r in results), 1),
            "completed": sum(r["completed"] for r in results),
            "failed": sum(r["failed"] for r in results),
            "failures": failures,
            "first_audio_ms": percentiles([r["audio_ttfp_ms"] for r in measured]),
            "stalled_requests": sum(r["underrun_requests"] for r in results),
            "stalls": sum(r["stalls"] for r in results),
            "busiest_client_of_one_core": round(max(r["client_cpu"] for r in results), 2),
            "p99_client_loop_delay_ms": round(
                max(r["p99_client_loop_delay_ms"] for r in results), 1
            ),
            "audio_s": round(sum(r["samples"] / r["sample_rate"] for r in requests), 1),
        }


def paths() -> dict[str, str]:
    """The environment variable with which Python imports this tree."""
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Percentiles of values, in their unit. Empty without values."""
    if not values:
        return {}
    return {f"p{p}": round(float(np.percentile(values, p)), 1) for p in PERCENTILES}
