"""Hold the benchmark tool against a client that shares no code with it: Python's http.client, a thread for each stream.

Run: python benchmarks/server/independent.py [--out FILE] [--concurrency 1,4,16,64] [MODEL ...]
     python benchmarks/server/independent.py --device cpu --audio 0.5 --concurrency 1,2 dummy:toy      a dry run
Needs: a GPU, and the packages of `stentor[server]` and `stentor[bench]`. About 60 s for a model.

One server answers both in turn: raw PCM, the same forced length, a closed loop with as many requests. The plain client
counts bytes of audio by itself, and its first audio is when the first byte of the body is read. The table says how far
its audio seconds per second and its median first audio are from those of `stentor bench serve`.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.server.serve import START, Server, body, load, load_arguments, serving, slug

TEXT = "Number {}. The quick brown fox jumps over the lazy dog, and then it sleeps in the warm afternoon sun by the river."
NUMBER = itertools.count(1)


def speak(port: int, fields: dict[str, Any]) -> tuple[float, float]:
    """One request: seconds to its first byte of audio, and seconds of audio. RuntimeError if it is refused."""
    line = {
        "model": "tts-1",
        "input": TEXT.format(next(NUMBER)),
        "response_format": "pcm",
        "stream": True,
        **fields,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    began = time.perf_counter()
    connection.request(
        "POST", "/v1/audio/speech", json.dumps(line), {"Content-Type": "application/json"}
    )
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}: {answer.read(500)!r}")
    rate = int(answer.headers["X-Sample-Rate"])
    count = len(answer.read(1))
    first = time.perf_counter() - began
    while more := answer.read1(1 << 16):
        count += len(more)
    connection.close()
    return first, count / 2 / rate


def closed_loop(
    server: Server, streams: int, waves: int, fields: dict[str, Any]
) -> dict[str, float]:
    """Run one thread per stream. Each takes the next request when its last one has ended."""
    left = itertools.repeat(None, max(5, waves * streams))
    found: list[tuple[float, float]] = []
    failed: list[str] = []

    def stream() -> None:
        for _ in left:  # next() of it is atomic: all threads share the count
            try:
                found.append(speak(server.port, fields))
            except (OSError, RuntimeError, http.client.HTTPException) as e:
                failed.append(str(e))

    threads = [threading.Thread(target=stream) for _ in range(streams)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - began
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
    return {
        "audio_throughput": sum(seconds for _, seconds in found) / wall,
        "median_first_audio_ms": 1e3 * statistics.median(first for first, _ in found),
    }


def compare(server: Server, model: str, streams: int, a: argparse.Namespace) -> dict[str, Any]:
    tool = load(server, model, streams, a, 60.0)
    fields = body(model, a.audio)
    speak(server.port, fields)  # as the tool does
    plain = closed_loop(server, streams, a.waves, fields)
    return {
        "streams": streams,
        "tool": {k: tool[k] for k in ("audio_throughput", "median_audio_ttfp_ms")},
        "plain": plain,
        "throughput_differs": plain["audio_throughput"] / tool["audio_throughput"] - 1,
    }


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=["dummy:qwen3-tts-1.7b-customvoice"])
    p.add_argument("--out", type=Path, default=Path("independent.json"))
    p.add_argument("--device", default="cuda")
    p.add_argument("--max-num-seqs", type=int, default=64)
    load_arguments(p)
    p.add_argument(
        "--concurrency", type=lambda s: [int(x) for x in s.split(",")], default=[1, 4, 16, 64]
    )
    a = p.parse_args()
    a.work = Path(tempfile.mkdtemp())
    rows = []
    for model in a.models:
        with serving(model, a.device, a.max_num_seqs, a.work / f"{slug(model)}.log") as server:
            if server.ready(START) is None:
                sys.exit(f"{model} was never ready:\n{server.log.read_text()[-2000:]}")
            for streams in a.concurrency:
                rows.append({"model": model, **compare(server, model, streams, a)})
                a.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(
        "model                          c   audio-s/s: tool, plain     first audio p50, ms: tool, plain   differs"
    )
    for r in rows:
        tool, plain = r["tool"], r["plain"]
        print(
            f"{r['model'].removeprefix('dummy:'):<30} {r['streams']:<3} {tool['audio_throughput']:>9.1f}"
            f" {plain['audio_throughput']:>9.1f} {tool['median_audio_ttfp_ms']:>17.1f}"
            f" {plain['median_first_audio_ms']:>9.1f} {100 * r['throughput_differs']:>18.1f} %"
        )


if __name__ == "__main__":
    main()
