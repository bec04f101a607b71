"""A model on two devices without Ray: audio of one engine and of two, and streams while engines
and servers end.

Run: python benchmarks/replicas/devices.py [--parts loads,voice] --json FILE [MODEL ...]
     python benchmarks/replicas/devices.py --devices cpu,cpu --slots 4 --streams 2,4 --audio 0.5 \\
             --clients 4 --processes 1 --seconds 2 --json FILE dummy:toy              a dry run
Needs: two GPUs, and the packages of `stentor[server]` and `stentor[bench]`.

One server has each model twice: `first` on the first device, `second` on the second.

loads    closed loops of `--streams` streams a device: of `first` alone, and of both, in turns
voice    a voice that is uploaded once speaks on both devices
killed   SIGKILL for the engine of one device under load, until the server has started it again
updated  SIGTERM for the server under load, and a new one on its port
rolled   a server for each device and clients that use both; each server is stopped and started
         anew, one after the other, as behind a proxy

All servers start at once, since that takes longest, and are measured one after another. A part that
fails costs only its own figures. Streams of the last three parts end with all of their audio, with
an error that has a code (`error`), in the middle (`broken`, raw audio only), or without a
connection (`refused`). Nothing else may happen (`wrong`).
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import wave
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from benchmarks.processes import ENGINE, CpuUse, Sampler, running
from benchmarks.replicas.closed_loop import Loop, percentiles
from benchmarks.replicas.streams import PATH, Crowd, Speech, Stream, milliseconds
from benchmarks.server.serve import ROOT, Server, body, slug

MODELS = ("dummy:qwen3-tts-1.7b-customvoice", "dummy:voxcpm2")
NAMES = ("first", "second")
ARMS = {"one": NAMES[:1], "two": NAMES}
PARTS = ("loads", "voice", "killed", "updated", "rolled")
START_S = 120.0
QUIET_S = 3.0  # of load before and after an event
TEXT = "Please leave the parcel with the neighbours, they are at home."
VOICE_S = 4.0  # of a voice that is uploaded
VOICE_HZ = 24_000


@dataclass
class Place:
    """A server, and how to start it again on the same port."""

    args: argparse.Namespace
    model: str
    log: Path
    device: str
    names: Sequence[str]
    flags: Sequence[str] = ()
    tree: Path = ROOT
    server: Server = field(init=False)
    port: int | None = None

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> float:
        """Seconds until it takes requests. RuntimeError with the end of its log if it does not."""
        flags = [*self.flags]
        if self.args.memory_gb:
            at = self.args.models.index(self.model)
            flags += ["--max-memory-gb", self.args.memory_gb[at]]
        if "cpu" in self.device:
            flags += ["--threads", "1", "--memory-gb", "0.05"]
        self.server = Server(
            [self.model] * max(1, len(self.names)),
            self.device,
            self.args.slots,
            self.log,
            flags,
            self.tree,
            names=self.names,
            port=self.port,
        )
        self.port = self.server.port
        seconds = self.server.ready(START_S)
        if seconds is None:
            raise RuntimeError(self.log.read_text(errors="replace")[-3000:])
        return round(seconds, 1)

    def end(self) -> float:
        """Stop it as an operator does. Seconds until it has ended."""
        began = time.monotonic()
        self.server.process.send_signal(signal.SIGTERM)
        self.server.process.wait(self.args.drain_seconds + 30)
        return round(time.monotonic() - began, 1)

    def health(self) -> dict[str, Any]:
        """States of its models by name."""
        return health(self.url)


class Reply(NamedTuple):
    """An answer, and seconds until its first bytes."""

    status: int
    body: bytes
    first_s: float


def fetch(method: str, url: str, **options: Any) -> Reply:
    """Request something over a connection of its own. options: of aiohttp."""

    async def reply() -> Reply:
        began = time.monotonic()
        async with (
            aiohttp.ClientSession(trust_env=False) as session,
            session.request(method, url, **options) as answer,
        ):
            part = await answer.content.readany()
            first = time.monotonic() - began
            return Reply(answer.status, part + await answer.read(), first)

    return asyncio.run(reply())


def health(url: str) -> dict[str, Any]:
    """States of a server's models by name. They come with 503 while one is down."""
    states: dict[str, Any] = json.loads(fetch("GET", url + "/health").body)["models"]
    return states


class Run:
    """The figures of a run. Each is written to the file at once."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.began = time.monotonic()
        self.end = self.began + args.limit
        self.row: dict[str, Any] = {
            "settings": {**vars(args), "json": None},
            "cores": os.cpu_count(),
        }

    def note(self, *path: str, value: Any) -> None:
        level = self.row
        for key in path[:-1]:
            level = level.setdefault(key, {})
        level[path[-1]] = value
        print(" ".join(path), json.dumps(value), flush=True)
        if self.args.json:
            self.args.json.write_text(
                json.dumps(self.row, indent=1, default=str) + "\n", encoding="utf-8"
            )

    def part(self, name: str, seconds: float, work: Callable[..., None], *values: Any) -> None:
        """Do a part if there is time for it: work(this run, *values)."""
        remaining = self.end - time.monotonic()
        if remaining < seconds:
            self.note("left out", name, value=f"{remaining:.0f} of {seconds:.0f} s were left")
            return
        try:
            work(self, *values)
        except Exception:  # the others go on
            self.note("failed", name, value=traceback.format_exc()[-2000:])


class RunningRequests(Sampler):
    """Running requests of each engine of a server."""

    INTERVAL_S = 0.25  # half of the time between two reports of an engine

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._samples: dict[str, list[float]] = {}

    def percentiles(self) -> dict[str, dict[str, float]]:
        """By engine, over the samples in which it had requests."""
        return {
            engine: percentiles([count for count in counts if count])
            for engine, counts in self._samples.items()
        }

    def sample(self) -> None:
        for name, model in self._place.health().items():
            for number, engine in enumerate(model.get("engines", ())):
                counts = self._samples.setdefault(f"{name} {number}", [])
                counts.append(engine.get("running", 0))


def measured_load(place: Place, names: Sequence[str | None], streams: int) -> dict[str, Any]:
    """Figures of a closed loop of so many streams of each name, with the CPU time of the server."""
    args = place.args
    extras = [body(place.model, seconds) for seconds in args.audio]
    loop = Loop(place.url, names, streams, args.processes, args.seconds, extras)
    with CpuUse(place.server.process.pid) as use, RunningRequests(place) as requests:
        figures = loop.run()
    audio = figures["audio_s"] or 1.0
    return figures | {
        "api_cpu_s_per_audio_s": round(use.seconds(use.api) / audio, 5),
        "engine_cpu_s_per_audio_s": round(use.seconds(use.engines) / audio, 5),
        "api_processes": len(use.api),
        "busiest_api_process_of_one_core": round(use.busiest(use.api), 2),
        "busiest_engine_of_one_core": round(use.busiest(use.engines), 2),
        "running_requests": requests.percentiles(),
    }


def loads(run: Run, place: Place, label: str, arms: Mapping[str, Sequence[str]]) -> None:
    """The arms in turns, with each number of streams. arms: names of the engines with streams."""
    for turn in range(run.args.rounds):
        for streams in run.args.streams:
            for arm in sorted(arms, reverse=bool(turn % 2)):
                if time.monotonic() > run.end - run.args.seconds - 8:
                    run.note("left out", f"{label} {streams} {arm} {turn}", value="no time")
                    continue
                figures = measured_load(place, arms[arm], streams)
                run.note(label, "loads", f"{streams} {arm} {turn}", value=figures)


def speeches(place: Place, clients: int, names: Sequence[str | None]) -> list[Speech]:
    """Requests for each name, raw and as events, with the size of their undisturbed answer."""
    requests = []
    for name in names:
        form = body(place.model, place.args.audio[0]) | {
            "input": TEXT,
            "response_format": "pcm",
            "stream_format": "audio",
            "seed": 1,
        }
        if name is not None:
            form["model"] = name
        answer = fetch("POST", place.url + PATH, json=form)
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.body[:300]!r}")
        size = len(answer.body)
        requests += [Speech(form, size), Speech(form | {"stream_format": "sse"}, size)]
    return requests


def figures(streams: Sequence[Stream]) -> dict[str, Any]:
    """Outcomes of streams, in all and by model, and what went wrong."""
    firsts = [s.first for s in streams if s.first is not None]
    faults = Counter((s.model, s.outcome, s.status, s.fault) for s in streams if not s.complete)
    return {
        "streams": len(streams),
        "ended_with_audio_or_an_error": sum(s.outcome != "wrong" for s in streams),
        "outcomes": dict(Counter(s.outcome for s in streams)),
        "by_model": {
            model: dict(Counter(s.outcome for s in streams if s.model == model))
            for model in sorted({s.model for s in streams})
        },
        "first_audio_ms": milliseconds(firsts) if firsts else {},
        "faults": [[*fault, times] for fault, times in faults.most_common(12)],
    }


@contextmanager
def crowd(places: Sequence[Place], names: Sequence[str | None]) -> Iterator[Crowd]:
    """Clients of some servers, from QUIET_S before an event inside to QUIET_S behind it."""
    args = places[0].args
    requests = speeches(places[0], args.clients, names)
    urls = [place.url for place in places]
    with Crowd(urls, len(names) * args.clients, 2 * args.processes, requests) as clients:
        wait(lambda: all(m["running"] for place in places for m in place.health().values()))
        time.sleep(QUIET_S)
        yield clients
        time.sleep(QUIET_S)


def wait(condition: Callable[[], bool]) -> None:
    """Return once a condition is true. TimeoutError if it is not within a start."""
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {START_S:g} s")
        time.sleep(0.05)


def killed(run: Run, place: Place, label: str) -> None:
    """Kill the engine of one device under load, and wait until it is ready again."""
    with crowd([place], NAMES) as clients:
        began = time.monotonic()
        os.kill(running(place.server.process.pid, ENGINE)[-1], signal.SIGKILL)
        wait(lambda: any(model["restarts"] for model in place.health().values()))
        lost = [name for name, model in place.health().items() if model["restarts"]]
        wait(lambda: all(model["phase"] == "ready" for model in place.health().values()))
        ready = time.monotonic() - began
    run.note(
        label,
        "killed",
        value={"model": lost, "ready_again_s": round(ready, 1), **figures(clients.streams)},
    )


def updated(run: Run, place: Place, label: str) -> None:
    """Stop the server under load, and start another one on its port."""
    with crowd([place], NAMES) as clients:
        ended = place.end()
        ready = place.start()
    streams = [s for s in clients.streams if s.outcome != "refused"]
    refused = len(clients.streams) - len(streams)
    value = {"drained_s": ended, "started_s": ready, "refused": refused, **figures(streams)}
    run.note(label, "updated", value=value)


def rolled(run: Run, places: Sequence[Place], label: str) -> None:
    """Stop and start one server after the other."""
    steps = []
    with crowd(places, [None, None]) as clients:
        for place in places:
            steps.append({"drained_s": place.end(), "started_s": place.start()})
            time.sleep(QUIET_S)
    run.note(label, "rolled", value={"steps": steps, **figures(clients.streams)})


def voice(run: Run, place: Place, label: str) -> None:
    """Upload a voice once, and have it speak on both devices, twice on each."""
    form = aiohttp.FormData({"name": "anna", "consent": "generated", "ref_text": "What I say."})
    form.add_field("audio_sample", recording(), filename="voice.wav", content_type="audio/wav")
    upload = fetch("POST", place.url + "/v1/audio/voices", data=form)
    value: dict[str, Any] = {
        "upload": upload.status,
        "upload_ms": round(1e3 * upload.first_s, 1),
    }
    if upload.status != 200:
        value["message"] = upload.body[:300].decode()
    for name in (*NAMES, *NAMES):
        request = body(place.model, place.args.audio[0]) | {"input": TEXT, "response_format": "pcm"}
        request |= {"model": name, "voice": "anna", "stream_format": "audio"}
        answer = fetch("POST", place.url + PATH, json=request)
        figures = {
            "status": answer.status,
            "bytes": len(answer.body),
            "first_audio_ms": round(1e3 * answer.first_s, 1),
        }
        value.setdefault(name, []).append(figures)
    run.note(label, "voice", value=value)


def recording() -> bytes:
    """A WAV file of a hum with pauses."""
    time_s = np.arange(int(VOICE_S * VOICE_HZ)) / VOICE_HZ
    hum = sum(np.sin(2 * np.pi * 140 * k * time_s) / k for k in range(1, 8))
    samples = 8000 * hum * (np.sin(2 * np.pi * 2 * time_s) > -0.5)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(VOICE_HZ)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def places_of(model: str, args: argparse.Namespace, work: Path) -> dict[str, list[Place]]:
    """Servers of a model by label."""
    name = slug(model)
    both = ",".join(args.devices)
    places: dict[str, list[Place]] = {}
    if set(args.parts) - {"rolled"}:
        places[name] = [Place(args, model, work / f"{name}.log", both, NAMES, args.flags)]
    if "rolled" in args.parts:
        places[f"{name}, a server for each device"] = [
            Place(args, model, work / f"{name}_{i}.log", device, [name], args.flags)
            for i, device in enumerate(args.devices)
        ]
    return places


def more_api_processes(args: argparse.Namespace, work: Path) -> dict[str, list[Place]]:
    """Servers of the first model with other numbers of API processes, by label."""
    model = args.models[0]
    places = {}
    for number in args.also_api_processes:
        log = work / f"{slug(model)}_{number}.log"
        flags = [*args.flags, "--api-processes", str(number)]
        place = Place(args, model, log, ",".join(args.devices), NAMES, flags)
        places[f"{slug(model)}, {number} API processes"] = [place]
    return places


def started(run: Run, places: dict[str, list[Place]], stack: ExitStack) -> dict[str, list[Place]]:
    """Start all servers at once. Those that take requests."""
    each = [(label, i, place) for label, of in places.items() for i, place in enumerate(of)]
    with ThreadPoolExecutor(len(each)) as pool:
        starts = [(label, i, place, pool.submit(place.start)) for label, i, place in each]
    failed = set()
    for label, i, place, start in starts:
        stack.callback(lambda place=place: place.server.process.kill())
        try:
            run.note("ready_after_s", f"{label} {i}", value=start.result())
        except RuntimeError as e:
            failed.add(label)
            run.note("failed", f"start of {label}", value=str(e))
    return {label: of for label, of in places.items() if label not in failed}


def measure(run: Run, places: dict[str, list[Place]]) -> None:
    """All parts of the servers of models: the loads of all of them before the rest."""
    work = {"voice": (5.0, voice), "killed": (30.0, killed), "updated": (40.0, updated)}
    single = {label: of[0] for label, of in places.items() if len(of) == 1}
    pairs = {label: of for label, of in places.items() if len(of) == 2}
    for part in run.args.parts:
        for label, place in single.items():
            if part == "loads":
                run.part(label, 15.0, loads, place, label, ARMS)
            elif part != "rolled":
                seconds, function = work[part]
                run.part(f"{label} {part}", seconds, function, place, label)
        for label, pair in pairs.items():
            if part == "rolled":
                run.part(f"{label} rolled", 60.0, rolled, pair, label)


def words(text: str) -> list[str]:
    """Words with commas between them."""
    return text.split(",")


def numbers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(word) for word in words(text)]


def decimals(text: str) -> list[float]:
    """Decimal numbers with commas between them."""
    return [float(word) for word in words(text)]


def chosen_parts(text: str) -> list[str]:
    """Names of parts with commas between them."""
    parts = words(text)
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: parts are {', '.join(PARTS)}")
    return parts


def device_arguments(p: argparse.ArgumentParser) -> None:
    """Arguments of a comparison of engines on several devices."""
    p.add_argument("--devices", type=words, default=["cuda:0", "cuda:1"])
    p.add_argument("--slots", type=int, default=256, help="of each engine")
    p.add_argument(
        "--streams", type=numbers, default=[64, 256], help="a device, of the closed loops"
    )
    p.add_argument("--clients", type=int, default=64, help="a device, of the other parts")
    p.add_argument(
        "--audio",
        type=decimals,
        default=[12.0],
        help="seconds of audio per request; several, with commas, of one client process after another, "
        "so that requests do not run in step",
    )
    p.add_argument("--seconds", type=float, default=6.0, help="of the window of each load")
    p.add_argument("--rounds", type=int, default=1, help="of the loads")
    p.add_argument("--processes", type=int, default=4, help="of clients, for each device")
    p.add_argument("--drain-seconds", type=float, default=30.0)
    p.add_argument(
        "--flags", type=str.split, default=[], help="further flags of stentor serve, in one word"
    )
    p.add_argument("--limit", type=float, default=600.0, help="seconds for everything")
    p.add_argument("--json", type=Path)


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("models", nargs="*", default=list(MODELS))
    p.add_argument("--parts", type=chosen_parts, default=list(PARTS))
    device_arguments(p)
    p.add_argument(
        "--memory-gb",
        type=words,
        default=[],
        help="of an engine of each model; default: the server's",
    )
    p.add_argument(
        "--also-api-processes",
        type=numbers,
        default=[],
        help="measure both engines of the first model with so many API processes too",
    )
    run = Run(p.parse_args())
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places: dict[str, list[Place]] = {}
        for model in run.args.models:
            places |= places_of(model, run.args, work)
        further = more_api_processes(run.args, work)
        ready = started(run, places | further, stack)
        measure(run, {label: of for label, of in ready.items() if label in places})
        for label in further.keys() & ready.keys():
            run.part(label, 15.0, loads, ready[label][0], label, {"two": NAMES})
    return int("failed" in run.row)


if __name__ == "__main__":
    sys.exit(main())
