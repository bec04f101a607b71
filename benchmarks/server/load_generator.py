"""Measure whether the load generator is the bottleneck: 500 concurrent streams, the delay of every chunk.

Run: python benchmarks/server/load_generator.py [--streams 500] [--seconds 20] [--together] [--json FILE]
Needs: Linux with two cores, and the packages of `stentor[bench]`.

A server process on one core sends every stream 80 ms of audio each 80 ms and writes the time into each chunk. The
client is the one of `stentor bench serve`, held to another core. The delay between a chunk's departure and the
client's time stamp for it is what the load generator (and the loopback) adds to every figure it reports.

`--together` sends the chunks of all streams at the same moment, as a server does whose engine steps all rows at once.
The last of 500 chunks then waits until the client has read the other 499.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor.bench.load import generator, prompts
from stentor.bench.load.backends import BACKENDS, RequestDefaults
from stentor.bench.load.client import Client, ServerTarget
from stentor.bench.load.generator import LoadPlan, fixed_count
from stentor.bench.load.record import Exchange, Floats, Spool
from stentor.bench.report import facts

RATE = 24000
CHUNK_S = 0.080
CHUNK_BYTES = round(RATE * CHUNK_S) * 2
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: audio/pcm\r\nX-Sample-Rate: 24000\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
START_SECONDS = 300  # of a process on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each stream")
    parser.add_argument(
        "--together", action="store_true", help="send all streams' chunks at the same moment"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    row = measure(args.streams, args.seconds, args.together)
    print(table(row))
    if args.json:
        args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(streams: int, seconds: float, together: bool) -> dict[str, Any]:
    """Run server and client on a core each. Returns the figures by name."""
    ready, send = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(send, seconds, together), daemon=True
    )
    server.start()
    if not ready.poll(START_SECONDS):
        raise RuntimeError("the server process did not start in time")
    port = ready.recv()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        return asyncio.run(_load(port, streams, seconds)) | {
            "together": together,
            "server_own_core": len(cores) > 1,
        }
    finally:
        os.sched_setaffinity(0, set(cores))
        server.terminate()
        server.join()


async def _load(port: int, streams: int, seconds: float) -> dict[str, Any]:
    texts = prompts.select(prompts.load("short"), streams, 0)
    spool = Spool()
    target = ServerTarget(f"http://127.0.0.1:{port}", BACKENDS["stentor"], RequestDefaults())
    async with Client(target, spool) as client:
        client.prepare(texts)
        # All streams open within a fifth of their length, so that they overlap for the rest of it.
        offsets = fixed_count(streams, streams / (seconds / 5), 1.0, 0)
        waited = _waited_for_core()
        with generator.garbage_collection_off():
            trace = await generator.run(LoadPlan(texts, offsets), client)
        waited = _waited_for_core() - waited
    row = _figures(trace, spool, seconds) | {"waited_for_core_s": waited}
    spool.close()
    return row | {"streams": streams, "stream_seconds": seconds, "client": facts.client_facts()}


def _figures(trace: generator.LoadTrace, spool: Spool, seconds: float) -> dict[str, Any]:
    delays = np.concatenate([_delays(exchange, spool) for exchange in trace.exchanges])
    replies = [exchange.reply for exchange in trace.exchanges if exchange.reply]
    whole = round(seconds / CHUNK_S) * CHUNK_BYTES
    lag = np.array([exchange.released - exchange.planned for exchange in trace.exchanges])
    events = sorted([(r.sent, 1) for r in replies] + [(r.ended, -1) for r in replies])
    return {
        "completed": sum(r.failure is None and r.body.size == whole for r in replies),
        "peak_concurrency": int(np.cumsum([step for _, step in events]).max()),
        "chunks_per_second": delays.size / (trace.ended - trace.started),
        "delay_ms": _marks(delays),
        "send_lag_ms": _marks(lag),
        "loop_delay_ms": _marks(np.array(trace.loop_delays)),
        "client_cpu_of_one_core": trace.cpu_s / (trace.ended - trace.started),
        "load_average": os.getloadavg()[0],
    }


def _waited_for_core() -> float:
    """Seconds that this process was ready to run but another one had its core (Linux)."""
    return int(Path("/proc/self/schedstat").read_text(encoding="utf-8").split()[1]) / 1e9


def _delays(exchange: Exchange, spool: Spool) -> Floats:
    """Seconds from each chunk's departure, written into it, to the arrival of its last byte."""
    if exchange.reply is None:
        return np.zeros(0)
    body = spool.get(exchange.reply.body)
    count = len(body) // CHUNK_BYTES
    sent = np.array(
        [np.frombuffer(body, "<f8", 1, offset=k * CHUNK_BYTES)[0] for k in range(count)]
    )
    ends = np.cumsum([arrival.size for arrival in exchange.reply.arrivals])
    at = np.array([arrival.time for arrival in exchange.reply.arrivals])
    delays: Floats = at[np.searchsorted(ends, (np.arange(count) + 1) * CHUNK_BYTES)] - sent
    return delays


def _marks(seconds: Floats) -> dict[str, float]:
    values = seconds * 1000
    return {f"p{p:g}": round(float(np.percentile(values, p)), 3) for p in (50, 90, 99, 99.9)} | {
        "max": round(float(values.max()), 3)
    }


def table(row: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [
        f"streams {row['streams']} (peak {row['peak_concurrency']}), complete {row['completed']}, "
        f"{row['chunks_per_second']:.0f} chunks/s",
        f"client {100 * row['client_cpu_of_one_core']:.0f} % of one core; other processes held that core for "
        f"{row['waited_for_core_s']:.1f} s while the client was ready to run",
        f"{'ms':<34}{'p50':>8}{'p90':>8}{'p99':>8}{'p99.9':>8}{'max':>8}",
    ]
    names = {
        "delay_ms": "chunk sent -> time stamp",
        "send_lag_ms": "send lag",
        "loop_delay_ms": "event loop delay",
    }
    lines += [
        f"{title:<34}" + "".join(f"{value:>8.2f}" for value in row[key].values())
        for key, title in names.items()
    ]
    return "\n".join(lines)


# ---- the server process


def _serve(ready: Any, seconds: float, together: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    asyncio.run(_listen(ready, round(seconds / CHUNK_S), together))


async def _listen(ready: Any, chunks: int, together: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(
                    int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                )
                writer.write(HEAD)
                await _stream(writer, chunks, together)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _stream(writer: asyncio.StreamWriter, chunks: int, together: bool) -> None:
    rest = bytes(CHUNK_BYTES - 8)
    start = time.perf_counter()
    if together:
        start = (start // CHUNK_S + 1) * CHUNK_S
    for k in range(chunks):
        await asyncio.sleep(max(0.0, start + k * CHUNK_S - time.perf_counter()))
        stamp = np.float64(time.perf_counter()).tobytes()
        writer.write(b"%x\r\n" % CHUNK_BYTES + stamp + rest + b"\r\n")
    writer.write(LAST)
    await writer.drain()


if __name__ == "__main__":
    sys.exit(main())
