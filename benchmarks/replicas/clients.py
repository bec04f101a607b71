"""Clients of a replica that leave or do not read: when their slot is free, and what memory they cost. No GPU.

Run: python benchmarks/replicas/clients.py [--leavers 20] [--seconds 30] [--json FILE]
Needs: the packages of `stentor[ray]` and `stentor[bench]`. Linux.

leave   a client closes its connection in the middle of a stream. Timed until the replica's own port says that nothing
        runs there.
stall   a client asks for a long text and reads nothing, three times. Memory of the replica and of HAProxy is read
        every 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
from benchmarks.replicas import cpu, streams
from benchmarks.replicas.cluster import Cluster, application, cluster, marked

GIVEN = {"model": "dummy:toy", "max-num-seqs": 4, "guard": False, "max-buffered-mb": 0.25, "threads": 1}
SLOW = r"speech_stream_aborted_total\{.*slow_client"
POLL_S = 0.01
SENTENCES = 400
LONGEST_S = 120.0


async def value(session: aiohttp.ClientSession, metric: str) -> float:
    """The sum of the replica's metrics that match."""
    async with session.get("/metrics") as answer:
        page = await answer.text()
    return sum(float(line.split()[-1]) for line in page.splitlines() if re.match("stentor:" + metric, line))


def own_port(running: Cluster) -> aiohttp.ClientSession:
    """A client of the only replica, at its own port."""
    return aiohttp.ClientSession(f"http://127.0.0.1:{running.place.replicas[0]}", trust_env=False)


async def until_idle(session: aiohttp.ClientSession) -> float:
    """Seconds until nothing runs."""
    began = time.monotonic()
    while await value(session, "num_requests_running"):
        if time.monotonic() > began + LONGEST_S:
            raise SystemExit(f"a slot is not free after {LONGEST_S:g} s")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began


async def leave(running: Cluster, leavers: int) -> dict[str, Any]:
    took = []
    async with own_port(running) as session:
        for _ in range(leavers):
            client = aiohttp.ClientSession(trust_env=False)
            answer = await client.post(running.url + streams.PATH, json=streams.body(1000))
            await answer.content.readany()
            assert await value(session, "num_requests_running") == 1
            answer.close()
            await client.close()
            took.append(await until_idle(session))
    return {"clients": leavers, "slot_free_ms": {**streams.milliseconds(took), "most": round(1e3 * max(took), 1)}}


async def stall(running: Cluster, seconds: float) -> dict[str, Any]:
    """One client that does not read."""
    processes = cpu.kinds(marked(running.mark, running.process.pid))
    watched = {name: processes[name] for name in ("replica", "haproxy")}
    text = " ".join(f"This is sentence number {i} of a long text that nobody reads." for i in range(SENTENCES))
    ask = {**streams.body(900, text[:20_000]), "response_format": "wav", "sample_rate": 48_000, "speed": 0.25}
    data = json.dumps(ask).encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    held: dict[str, list[float]] = {name: [] for name in watched}
    async with own_port(running) as session:
        before = await value(session, SLOW)
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            s.connect(("127.0.0.1", running.port))
            s.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            began, cut = time.monotonic(), None
            while time.monotonic() < began + seconds:
                for name, pids in watched.items():
                    held[name].append(sum(map(cpu.resident_mb, pids)))
                if cut is None and await value(session, SLOW) > before:
                    cut = time.monotonic() - began
                await asyncio.sleep(0.05)
        free = await until_idle(session)
    memory = {name: {"before": round(mb[0], 1), "most": round(max(mb), 1)} for name, mb in held.items()}
    return {"cut_after_s": cut and round(cut, 2), "slot_free_after_its_end_s": round(free, 2), "memory_mb": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leavers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="that the client reads nothing")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with cluster() as running:
        running.deploy(application(GIVEN, num_replicas=1))
        running.running("stentor", 1)
        asyncio.run(streams.load(running.url, 4, 60, lambda n: n < 16))  # warm
        row = {"leave": asyncio.run(leave(running, args.leavers))}
        print(json.dumps(row), flush=True)
        row |= {"stall": [asyncio.run(stall(running, args.seconds)) for _ in range(3)]}
    print(json.dumps(row["stall"]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
