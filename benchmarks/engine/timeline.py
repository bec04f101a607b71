"""When each captured call runs on the GPU while requests that start together are served: what waits for what.

Run: python benchmarks/engine/timeline.py MODEL [--requests 4 16] [--seconds 12] [--gap 0.15] [--out FILE.json]
     python benchmarks/engine/timeline.py dummy:cosyvoice3 --requests 64 --seconds 10 --options '{"stream_window": 20}'
     python benchmarks/engine/timeline.py dummy:toy --device cpu --requests 2 --seconds 0.5       a dry run
Needs: a GPU and nothing but stentor (no server, no checkpoint).

An event stands before and behind each replay of a graph, and costs microseconds. Per number of requests it prints the
first calls in order, then each kind of call with how many there were and what one took, and how long streams were free.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.streams import forced_length
from stentor import TTS
from stentor.engine.cuda_graphs import CudaGraphRunner

TEXT = "Before we go on, let me repeat the address, just to be sure that I have written it down correctly."
SHOWN = 26  # first calls of a table


class Recorder:
    """Calls of graph runners, with when they were launched and ran."""

    def __init__(self, cuda: bool) -> None:
        self.cuda, self.calls, self.began = cuda, list[dict[str, Any]](), 0.0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, calls are recorded."""
        plain = CudaGraphRunner.__call__

        def recorded(runner: CudaGraphRunner, *key: int) -> None:
            launched, before = time.perf_counter(), self.event()
            plain(runner, *key)
            self.calls.append({"name": runner.name, "key": key, "launched": launched, "events": (before, self.event())})

        self.synchronize()
        self.calls, self.began, self.first = [], time.perf_counter(), self.event()
        self.synchronize()
        with mock.patch.object(CudaGraphRunner, "__call__", recorded):
            yield
        self.synchronize()

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def event(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def times(self) -> list[dict[str, Any]]:
        """Milliseconds since the recording began: launched by the host, began and ended on the device."""
        found = [
            {
                "name": call["name"],
                "key": list(call["key"]),
                "launched": round(1e3 * (call["launched"] - self.began), 3),
                "began": round(self._ms(call["events"][0]), 3),
                "ended": round(self._ms(call["events"][1]), 3),
            }
            for call in self.calls
        ]
        return sorted(found, key=lambda call: call["began"])

    def _ms(self, event: Any) -> float:
        return float(self.first.elapsed_time(event)) if self.cuda else 1e3 * (event - self.first)


def serve(tts: TTS, recorder: Recorder, count: int, seconds: float, gap: float) -> dict[str, Any]:
    """Requests that are submitted `gap` ms apart, of so many seconds of audio each."""
    frames = max(1, round(seconds * tts.sample_rate / tts.spec.hop))
    options = forced_length(tts, frames)
    options |= {"voice": tts.spec.voices[0]} if tts.spec.voices else {}
    requests = [tts.request(f"{i}. {TEXT}", seed=i, **options) for i in range(count)]

    def hear(stream: Any) -> list[float]:
        return [1e3 * (time.perf_counter() - recorder.began) for _ in stream]

    with recorder.recording(), ThreadPoolExecutor(count) as pool:
        waiting = []
        for i, request in enumerate(requests):
            while 1e3 * (time.perf_counter() - recorder.began) < i * gap:
                time.sleep(0)
            waiting.append(pool.submit(hear, tts.submit(request)))
        heard = [w.result() for w in waiting]
    wall = max(h[-1] for h in heard)
    firsts = sorted(h[0] for h in heard)
    return {
        "requests": count,
        "audio_s_per_s": round(count * frames * tts.spec.hop / tts.sample_rate / wall * 1e3, 1),
        "wall_ms": round(wall, 1),
        "first_audio_ms": [round(firsts[i], 1) for i in (0, count // 2, -1)],
        "calls": recorder.times(),
    }


def table(found: dict[str, Any]) -> str:
    """The first calls, then kinds of calls, then what streams wait."""
    lines = [f"{found['requests']} requests: { ({k: v for k, v in found.items() if k != 'calls'}) }"]
    last: dict[bool, float] = defaultdict(float)
    waited: dict[bool, float] = defaultdict(float)
    kinds: dict[str, list[float]] = defaultdict(list)
    for i, call in enumerate(found["calls"]):
        codec = "codec" in call["name"]
        free = max(0.0, call["began"] - last[codec])
        waited[codec] += free
        last[codec] = max(last[codec], call["ended"])
        took = call["ended"] - call["began"]
        kinds[f"{call['name']} {call['key']}"].append(took)
        if i < SHOWN:
            lines.append(
                f"  launched {call['launched']:8.2f}  ran {call['began']:8.2f} to {call['ended']:8.2f} "
                f"({took:6.2f}, {free:5.2f} free)  {call['name']} {call['key']}"
            )
    for kind, took in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        lines.append(f"  {len(took):4d} x {statistics.median(took):7.3f} ms, {sum(took):8.1f} in all: {kind}")
    lines.append(f"  free between calls: language model {waited[False]:.1f} ms, codec {waited[True]:.1f} ms")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--gap", type=float, default=0.15, help="ms between two requests (default %(default)s)")
    parser.add_argument("--options", type=json.loads, default={}, help="of TTS, as JSON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    recorder = Recorder(args.device != "cpu")
    results = []
    with TTS(args.model, device=args.device, **{"capture_all": True, **args.options}) as tts:
        for count in args.requests:
            serve(tts, recorder, count, args.seconds, args.gap)  # so that nothing runs for the first time
            results.append(serve(tts, recorder, count, args.seconds, args.gap))
            print(table(results[-1]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
