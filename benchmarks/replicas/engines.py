"""One model as one engine and as several under one name: audio of a closed loop, and streams while
an engine is killed.

Run: python benchmarks/replicas/engines.py [--parts loads,killed] --json FILE [MODEL]
     python benchmarks/replicas/engines.py --devices cuda:0 --engines-per-gpu 2 --parts loads \\
             --streams 128 --json FILE dummy:pocket-tts
     python benchmarks/replicas/engines.py --devices cpu,cpu --slots 4 --streams 2,4 --audio 0.5 \\
             --clients 4 --processes 1 --seconds 2 --json FILE dummy:toy              a dry run
Needs: the GPUs of `--devices`, and the packages of `stentor[server]` and `stentor[bench]`.

Two servers start at once: `one` has one engine on the first device, `several` has
`--engines-per-gpu` on each device. With --named there is a third, `named`, whose engines have a name
and the same number of clients each, so that no balance of requests is in its figures. With --base
`base` has one engine of another tree. They are measured in turns, while the others are idle.

loads    closed loops of `--streams` streams a device
killed   SIGKILL for one engine of `several` under load, until the server has started it again

Streams of `killed` end as in devices.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.processes import ENGINE, running
from benchmarks.replicas.devices import (
    NAMES,
    Place,
    Run,
    crowd,
    device_arguments,
    figures,
    measured_load,
    started,
    wait,
    words,
)

LOAD_S = 12.0  # of a load beside its window
KILL_S = 25.0  # of the part


def engines_per_server(args: argparse.Namespace) -> dict[str, int]:
    """Engines of each server, by label."""
    return {
        "one": 1,
        "several": len(args.devices) * args.engines_per_gpu,
        "named": len(NAMES),
    }


def places_of(args: argparse.Namespace, work: Path) -> dict[str, list[Place]]:
    """The servers by label."""
    (model,) = args.models
    several = [*args.flags, "--engines-per-gpu", str(args.engines_per_gpu)]
    devices = ",".join(args.devices)
    places = {
        "one": [Place(args, model, work / "one.log", args.devices[0], (), args.flags)],
        "several": [Place(args, model, work / "several.log", devices, (), several)],
    }
    if args.named:
        places["named"] = [Place(args, model, work / "named.log", devices, NAMES, args.flags)]
    if args.base:
        place = Place(args, model, work / "base.log", args.devices[0], (), args.flags, args.base)
        places["base"] = [place]
    return places


def wait_for_engines(place: Place, count: int) -> None:
    """Return once so many engines are ready: the server is with the first."""

    def ready() -> bool:
        engines = [engine for state in place.health().values() for engine in state["engines"]]
        return [engine["phase"] for engine in engines] == ["ready"] * count

    wait(ready)


def gpu_lines(place: Place) -> list[str]:
    """Lines of a server's log on how its engines share their GPUs, and on their memory."""
    log = place.log.read_text(encoding="utf-8", errors="replace")
    return [line for line in log.splitlines() if " GPU: " in line or " slots " in line]


def loads(run: Run, places: dict[str, Place]) -> None:
    """Each server in turns, with each number of streams."""
    unnamed: list[str | None] = [None]
    names: dict[str, list[str | None]] = {
        "one": unnamed,
        "base": unnamed,
        "several": unnamed * len(run.args.devices),
        "named": [*NAMES],
        "named, first alone": [NAMES[0]],
        "named, second alone": [NAMES[1]],
    }
    arms = [label for label in names if label.partition(",")[0] in places]
    for streams in run.args.streams:
        for turn in range(run.args.rounds):
            for label in sorted(arms, reverse=bool(turn % 2)):
                if time.monotonic() > run.end - run.args.seconds - LOAD_S:
                    run.note("left out", f"{label} {streams} {turn}", value="no time")
                    continue
                result = measured_load(places[label.partition(",")[0]], names[label], streams)
                run.note("loads", f"{label} {streams} {turn}", value=result)


def killed(run: Run, place: Place, count: int) -> None:
    """Kill one engine under load, and wait until it is ready again."""
    devices: list[str | None] = [None] * len(run.args.devices)
    with crowd([place], devices) as clients:
        began = time.monotonic()
        os.kill(running(place.server.process.pid, ENGINE)[-1], signal.SIGKILL)
        wait(lambda: all(model["restarts"] for model in place.health().values()))
        served = [model["phase"] for model in place.health().values()]
        wait_for_engines(place, count)
        seconds = time.monotonic() - began
    value = {"phase_meanwhile": served, "ready_again_s": round(seconds, 1)}
    run.note("killed", value=value | figures(clients.streams))


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=["dummy:qwen3-tts-1.7b-customvoice"])
    p.add_argument("--parts", type=words, default=["loads", "killed"])
    p.add_argument("--engines-per-gpu", type=int, default=1)
    p.add_argument("--named", action="store_true", help="a server with a name for each engine too")
    p.add_argument("--base", type=Path, help="a tree, to compare with one engine of it")
    p.add_argument("--memory-gb", type=words, default=[], help="of a server; default: the server's")
    device_arguments(p)
    run = Run(p.parse_args())
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready = started(run, places_of(run.args, work), stack)
        places = {label: of[0] for label, of in ready.items()}
        counts = engines_per_server(run.args)
        for label, place in places.items():
            if label == "base":
                continue  # it may know nothing of engines
            wait_for_engines(place, counts[label])
            run.note("all_engines_ready_s", label, value=round(time.monotonic() - run.began, 1))
            run.note("log", label, value=gpu_lines(place))
        if "loads" in run.args.parts:
            run.part("loads", LOAD_S, loads, places)
        if "killed" in run.args.parts and "several" in places:
            run.part("killed", KILL_S, killed, places["several"], counts["several"])
    return int("failed" in run.row)


if __name__ == "__main__":
    sys.exit(main())
