"""Two models on one GPU without CUDA MPS: as two processes, which take turns, and as two engines of one process.

Run: python benchmarks/engine/two_engines.py --json FILE [MODEL MODEL]
     python benchmarks/engine/two_engines.py --device cpu --slots 4 --streams 1,2 --audio 0.5 --seconds 1 --json FILE \\
             dummy:toy dummy:toy                                                  a dry run
Needs: a GPU and nothing but stentor (no server, no checkpoint).

Each model has closed loops of `--streams` streams, all models at once. `processes` has a process for each model, with
streams of different priority as `stentor serve` has them. `threads` has one process for all models, and `equal` too,
with streams of one priority. All processes load first and are measured in turns, while the others are idle. Figures
are seconds of audio that came in the `--seconds` behind the first two, and milliseconds to the first audio of requests
that began in them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.engine.schedule_sim import TEXT, options
from benchmarks.replicas.streams import milliseconds
from stentor import TTS

WARM_S = 2.0
MODELS = ["dummy:qwen3-tts-0.6b-customvoice", "dummy:voxcpm2"]
READY_S = 200.0


@dataclass
class Received:
    """Audio that the clients of a model received: (moment, seconds of audio) and (begin, seconds to the first audio)."""

    audio: list[tuple[float, float]] = field(default_factory=list)
    first: list[tuple[float, float]] = field(default_factory=list)


async def client(tts: TTS, audio_s: float, end: float, received: Received) -> None:
    """Request streams one after another until the end, and read them."""
    request = options(tts, audio_s)
    while time.monotonic() < end:
        began = time.monotonic()
        waiting = True
        async for speech in tts.astream(TEXT, **request):
            now = time.monotonic()
            if waiting:
                received.first.append((began, now - began))
                waiting = False
            received.audio.append((now, len(speech.samples) / tts.sample_rate))


async def load(models: Sequence[TTS], streams: int, audio_s: float, seconds: float) -> list[Any]:
    """Figures of each model under closed loops of all of them."""
    start = time.monotonic() + WARM_S
    end = start + seconds
    received = [Received() for _ in models]
    async with asyncio.TaskGroup() as group:
        for tts, one in zip(models, received, strict=True):
            for _ in range(streams):
                group.create_task(client(tts, audio_s, end, one))

    figures = []
    for one in received:
        audio = sum(length for moment, length in one.audio if start <= moment < end)
        first = [length for began, length in one.first if start <= began < end]
        figures.append(
            {
                "audio_s_per_s": round(audio / seconds, 1),
                "first_audio_ms": milliseconds(first) if first else {},
            }
        )
    return figures


def serve(
    models: Sequence[str], priorities: bool, args: argparse.Namespace, connection: Connection
) -> None:
    """Load models, then answer numbers of streams with figures, until None."""
    where = {"device": args.device, "max_num_seqs": args.slots, "memory_gb": args.memory_gb}
    loaded = [TTS(model, stream_priorities=priorities, **where) for model in models]
    connection.send(None)
    while (streams := connection.recv()) is not None:
        connection.send(asyncio.run(load(loaded, streams, args.audio, args.seconds)))
    for tts in loaded:
        tts.close()


class Arm:
    """Processes that have all models."""

    def __init__(
        self, groups: Sequence[Sequence[str]], priorities: bool, args: argparse.Namespace
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.connections = []
        for models in groups:
            ours, theirs = context.Pipe()
            context.Process(
                target=serve, args=(models, priorities, args, theirs), daemon=True
            ).start()
            theirs.close()
            self.connections.append(ours)

    def ask(self, streams: int | None) -> list[Any]:
        """Have all processes run a load at once. Figures of all models."""
        for connection in self.connections:
            connection.send(streams)
        if streams is None:
            return []
        return [figures for connection in self.connections for figures in connection.recv()]

    def wait(self) -> None:
        """Return once the models are loaded."""
        for connection in self.connections:
            if not connection.poll(READY_S):
                raise TimeoutError(f"not ready within {READY_S:g} s")
            connection.recv()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=MODELS)
    p.add_argument("--device", default="cuda")
    p.add_argument("--slots", type=int, default=64)
    p.add_argument("--streams", type=numbers, default=[1, 16, 64])
    p.add_argument("--audio", type=float, default=9.0, help="seconds of audio per request")
    p.add_argument("--seconds", type=float, default=4.0)
    p.add_argument("--memory-gb", type=float, default=4.0, help="for KV pages, of each model")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--json", type=Path, required=True)
    args = p.parse_args()

    arms = {
        "processes": Arm([[model] for model in args.models], True, args),
        "threads": Arm([args.models], True, args),
        "equal": Arm([args.models], False, args),
    }
    for arm in arms.values():
        arm.wait()
    rows = []
    for turn in range(args.rounds):
        for streams in args.streams:
            for name, arm in arms.items():
                figures = arm.ask(streams)
                total = round(sum(row["audio_s_per_s"] for row in figures), 1)
                rows.append(
                    {
                        "round": turn,
                        "arm": name,
                        "streams": streams,
                        "total": total,
                        "models": figures,
                    }
                )
                print(json.dumps(rows[-1]), flush=True)
                args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for arm in arms.values():
        arm.ask(None)


if __name__ == "__main__":
    main()
