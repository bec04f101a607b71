"""Load of a thousand GPUs on each shared part, simulated or computed from measurements. No GPU, no Ray.

Run: python benchmarks/scaling/arithmetic.py serve.json [--gpus 1000] [--per-host 8] [--json FILE]
Needs: stentor[server], and what benchmarks/server/serve.py wrote.

rates     requests, chunks and bytes per second, from the models in serve.json at 64 streams
balance   HAProxies that each know their own connections alone give requests to the replica where they have fewest.
          Requests arrive at random (Poisson) at a random HAProxy. A replica speaks as many as it has slots, and the
          others wait. Event by event, in simulated time.
outcomes  `stentor.server.speech.outcomes.Outcomes` in this process: additions per second of a core, bytes of each, and
          how many seconds of requests are kept
metrics   time series of /metrics of one server with dummy:toy after some requests
"""

from __future__ import annotations

import argparse
import heapq
import json
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
import stentor
from stentor.server.limits import LIMITS
from stentor.server.speech.outcomes import Outcome, Outcomes
from stentor.speech.timing import SegmentTiming
from tests.helpers.server_live import serving

AUDIO_SECONDS = 12.0  # of a request there
STREAMS = 64  # at once on a GPU there
PCM_BYTES, MP3_BYTES = 2 * 24_000, 128_000 / 8  # of a second of audio
REPLICAS_OF_AN_ACTOR = 8  # as in stentor.ray.outcomes, which needs Ray
KEPT_BY_AN_ACTOR = REPLICAS_OF_AN_ACTOR * LIMITS.outcomes
HAPROXY_CONNECTIONS = 4096  # RAY_SERVE_HAPROXY_MAXCONN of Ray 2.60
CHECK_SECONDS = 5.0  # RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER
LOADS = (0.7, 0.9)
ROUNDS = 3  # of a mean request's length that are simulated after as many for a steady state


def rates(serve: Path, gpus: int) -> dict[str, Any]:
    found = {}
    with stentor.TTS("dummy:toy", memory_gb=0.02, max_num_seqs=1, threads=1) as tts:
        frames = 150  # 12 s of 80 ms
        chunks = sum(1 for _ in tts.stream("A text.", max_frames=frames, min_frames=frames))
    for measured in json.loads(serve.read_text()):
        audio = measured["c64"]["audio_throughput"] * gpus
        found[measured["model"]] = {
            "audio_seconds_per_second": audio,
            "requests_per_second": audio / AUDIO_SECONDS,
            "chunks_per_second": audio / AUDIO_SECONDS * chunks,
            "pcm_gbit_per_second": audio * PCM_BYTES * 8 / 1e9,
            "mp3_gbit_per_second": audio * MP3_BYTES * 8 / 1e9,
        }
    return {"chunks_of_a_request": chunks, "streams": STREAMS * gpus, "models": found}


class Proxy:
    """`balance leastconn` with the connections of one HAProxy: among equals, the one that was taken longest ago."""

    def __init__(self, replicas: int, draw: random.Random) -> None:
        self.counts = [0] * replicas
        order = list(range(replicas))
        draw.shuffle(order)
        self.turn = replicas
        self.heap = [(0, at, replica) for at, replica in enumerate(order)]
        self.key = {replica: (0, at) for at, replica in enumerate(order)}
        heapq.heapify(self.heap)

    def take(self) -> int:
        while True:
            count, at, replica = heapq.heappop(self.heap)
            if self.key[replica] == (count, at):
                self._moved(replica, 1)
                return replica

    def ended(self, replica: int) -> None:
        self._moved(replica, -1)

    def _moved(self, replica: int, by: int) -> None:
        self.counts[replica] += by
        self.turn += 1
        self.key[replica] = (self.counts[replica], self.turn)
        heapq.heappush(self.heap, (self.counts[replica], self.turn, replica))


def balance(replicas: int, proxies: int, slots: int, load: float) -> dict[str, Any]:
    """Waiting of requests in units of a mean request, whose length is 0.5 to 1.5 of that."""
    draw = random.Random(0)
    ways = [Proxy(replicas, draw) for _ in range(proxies)]
    running, waiting = [0] * replicas, [deque[tuple[float, int]]() for _ in range(replicas)]
    ends: list[tuple[float, int, int]] = []
    rate, now, waits, arrivals = replicas * slots * load, 0.0, list[float](), 0
    while now < 2 * ROUNDS:
        now += draw.expovariate(rate)
        while ends and ends[0][0] <= now:
            ended, proxy, replica = heapq.heappop(ends)
            ways[proxy].ended(replica)
            if waiting[replica]:
                since, other = waiting[replica].popleft()
                heapq.heappush(ends, (ended + 0.5 + draw.random(), other, replica))
                if since > ROUNDS:
                    waits.append(ended - since)
            else:
                running[replica] -= 1
        proxy = draw.randrange(proxies)
        replica = ways[proxy].take()
        arrivals += now > ROUNDS
        if running[replica] < slots:
            running[replica] += 1
            heapq.heappush(ends, (now + 0.5 + draw.random(), proxy, replica))
        else:
            waiting[replica].append((now, proxy))
    busy = sorted(running)
    return {
        "replicas": replicas,
        "proxies": proxies,
        "slots": slots,
        "load": load,
        "requests": arrivals,
        "share_that_waited": len(waits) / arrivals,
        "mean_wait_of_those": statistics.mean(waits) if waits else 0.0,
        "running_least_median_most": [busy[0], busy[len(busy) // 2], busy[-1]],
    }


def outcomes(requests_per_second: float, actors: int) -> dict[str, Any]:
    timings = [
        SegmentTiming(
            n, "A sentence of an ordinary length.", 4.0 * n, 4.0 * n + 4, 34 * n, 34 * n + 33
        )
        for n in range(3)
    ]
    usage = {"input_tokens": 40, "output_tokens": 150, "total_tokens": 190}
    made = (
        Outcome(f"r{n:032}", "m", "completed", "stop", 1, 12.0, usage, timings)
        for n in range(20_000)
    )
    sent = [pickle.dumps(outcome) for outcome in made]
    kept = Outcomes(KEPT_BY_AN_ACTOR)
    began = time.process_time()
    for message in sent:
        kept.add(pickle.loads(message))
    took = time.process_time() - began
    return {
        "bytes_of_one": statistics.mean(map(len, sent)),
        "unpickled_and_added_per_cpu_second": len(sent) / took,
        "requests_per_second": requests_per_second,
        "actors": actors,
        "additions_per_second_to_each": requests_per_second / actors,
        "kept_by_each": KEPT_BY_AN_ACTOR,
        "seconds_kept": KEPT_BY_AN_ACTOR * actors / requests_per_second,
    }


def metrics(gpus: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as live:
        for form in ("mp3", "pcm", "wav"):
            assert (
                live.speech(input="Hello.", response_format=form, max_frames=4).status_code == 200
            )
        text = live.http.get("/metrics").text
    series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    return {
        "series": series,
        "bytes": len(text),
        "series_of_all": series * gpus,
        "bytes_of_all": len(text) * gpus,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("serve", type=Path, help="what benchmarks/server/serve.py wrote")
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    hosts = args.gpus // args.per_host
    found: dict[str, Any] = {
        "gpus": args.gpus,
        "hosts": hosts,
        "rates": rates(args.serve, args.gpus),
    }
    most = max(model["requests_per_second"] for model in found["rates"]["models"].values())
    found["outcomes"] = outcomes(most, -(-args.gpus // REPLICAS_OF_AN_ACTOR))
    found["metrics"] = metrics(args.gpus)
    found["haproxy"] = {
        "gpus_of_one_at_its_connections": HAPROXY_CONNECTIONS / STREAMS,
        "health_checks_per_second_of_a_replica": hosts / CHECK_SECONDS,
        "health_checks_per_second": hosts * args.gpus / CHECK_SECONDS,
    }
    print(json.dumps(found, indent=1), flush=True)
    found["balance"] = []
    for proxies in (1, hosts):
        for load in LOADS:
            found["balance"].append(balance(args.gpus, proxies, STREAMS, load))
            print(json.dumps(found["balance"][-1]), flush=True)
            if args.json is not None:
                args.json.parent.mkdir(parents=True, exist_ok=True)
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
