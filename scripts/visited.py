"""List the files of the package that a request visits from the socket to its first audio:
`python scripts/visited.py`.

It serves a toy model, with every process traced from its start, and requests streamed audio. A
file counts if one of its functions is called after the request is sent and before the first audio
has come. What runs without a request too, such as heartbeats, is marked.

With `--walks` it follows the request's text, seed and recording instead: the files with a function
that is called with one of them, and the classes that hold it in an attribute.
"""

from __future__ import annotations

import argparse
import array
import base64
import http.client
import io
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import time
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1] / "stentor"
APART = ("kernels/", "layers/")
IDLE, REQUEST = 1, 2
WORD = "Quizzical"
SEED = 987654321
RATE = 6000  # of the toy's recordings
SAMPLES = 7351
TRACER = """
import mmap, os, sys, threading, time
_flag = mmap.mmap(os.open({flag!r}, os.O_RDWR), 1)
_out = open(f"{folder}/{{os.getpid()}}.visits", "w", buffering=1)
_seen = set()

def _is(value):
    if isinstance(value, str):
        if {word!r} in value and len(value) < 200:
            return "text"
        return "recording" if len(value) > {samples} else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "recording" if len(value) > {samples} else None
    if isinstance(value, int):
        return "seed" if value == {seed} else None
    if type(value).__module__ in ("numpy", "torch"):
        if getattr(value, "ndim", 0) != 1:
            return None
        return "recording" if 0.9 * {samples} <= len(value) <= 9 * {samples} else None

def _follow(value):
    # what a value is, or holds, and the class that holds it
    if (kind := _is(value)) is not None:
        yield kind, ""
    elif isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        for item in value[:8]:
            yield from _follow(item)
    elif isinstance(value, dict):
        for item in list(value.values())[:30]:
            if (kind := _is(item)) is not None:
                yield kind, ""
    elif type(value).__module__.startswith("stentor"):
        names = (*getattr(value, "__dict__", ()), *getattr(value, "_fields", ()))
        names += getattr(type(value), "__struct_fields__", ())
        for name in names:
            if (kind := _is(getattr(value, name, None))) is not None:
                yield kind, type(value).__module__ + "." + type(value).__qualname__

def _note(frame, event, arg):
    window = _flag[0]
    if not window or event != "call":
        return
    file = frame.f_code.co_filename
    if not file.startswith({root!r}):
        return
    rows = [("visit", "")]
    if {walks!r} and window == {request}:
        for value in list(frame.f_locals.values()):
            rows += _follow(value)
    for kind, holder in rows:
        if (window, file, kind, holder) not in _seen:
            _seen.add((window, file, kind, holder))
            _out.write(f"{{window}} {{time.monotonic()}} {{file}} {{kind}} {{holder}}\\n")

threading.setprofile(_note)
sys.setprofile(_note)
"""


def ask(port: int, text: str, **fields: Any) -> None:
    """Return at the first byte of the streamed audio, and read the rest."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps(
        {"model": "dummy:toy", "input": text, "response_format": "pcm", "stream": True, **fields}
    )
    connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read(1)


def recording() -> str:
    """A tone as a data: URI."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setparams((1, 2, RATE, SAMPLES, "NONE", ""))
        samples = [round(9000 * math.sin(i / 5)) for i in range(SAMPLES)]
        file.writeframes(array.array("h", samples).tobytes())
    return f"data:audio/wav;base64,{base64.b64encode(data.getvalue()).decode()}"


def serve(port: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a server whose processes run the tracer, and wait until it is ready."""
    path = os.pathsep.join([folder, str(ROOT.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, *f"-m stentor serve dummy:toy --port {port} --device cpu".split()]
    server = subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL
    )
    while server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                return server
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server ended")


@dataclass(frozen=True)
class Visit:
    """A call in a file of the package. kind: "visit", or what it was called with: "text", "seed" or
    "recording". holder: the class that holds that, or ""."""

    at: float
    window: int
    file: str
    kind: str
    holder: str


def visits(port: int, walks: bool) -> list[Visit]:
    """Visits of the windows IDLE and REQUEST, in order."""
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder, "flag")
        flag.write_bytes(b"\0")
        tracer = TRACER.format(
            flag=str(flag),
            folder=folder,
            root=f"{ROOT}{os.sep}",
            walks=walks,
            request=REQUEST,
            word=WORD,
            seed=SEED,
            samples=SAMPLES,
        )
        Path(folder, "sitecustomize.py").write_text(tracer, encoding="utf-8")
        server = serve(port, folder)
        try:
            with flag.open("r+b") as file, mmap.mmap(file.fileno(), 1) as window:
                ask(port, "This one loads what is loaded once.")
                time.sleep(2)
                window[0] = IDLE
                time.sleep(2)
                window[0] = REQUEST
                if walks:
                    ask(port, f"Hello {WORD} there.", seed=SEED, ref_audio=recording())
                else:
                    ask(port, "Hello there.")
                window[0] = 0
        finally:
            server.terminate()
            server.wait()
        lines = [
            line.split(" ")
            for file in Path(folder).glob("*.visits")
            for line in file.read_text().splitlines()
        ]
    rows = [
        Visit(float(at), int(window), str(Path(file).relative_to(ROOT)), kind, holder)
        for window, at, file, kind, holder in lines
    ]
    return sorted(rows, key=lambda visit: visit.at)


def print_walks(rows: list[Visit]) -> None:
    """Print the files and the holders of the text, the seed and the recording."""
    for kind in ("text", "seed", "recording"):
        walk = [visit for visit in rows if visit.kind == kind]
        files = dict.fromkeys(v.file for v in walk if not v.file.startswith(APART))
        holders = dict.fromkeys(v.holder.removeprefix("stentor.") for v in walk if v.holder)
        passed = {v.file for v in walk if not v.holder and not v.file.startswith(APART)}
        print(
            f"{kind}: {len(files)} files, {len(passed)} of them with it as an argument of its own, "
            f"and {len(holders)} holders"
        )
        print("  files: " + ", ".join(files))
        print("  holders: " + ", ".join(holders))


def print_visits(rows: list[Visit]) -> None:
    """Print the files that a request visits, in their order."""
    files = list(dict.fromkeys(visit.file for visit in rows if visit.window == REQUEST))
    idle = {visit.file for visit in rows if visit.window == IDLE}
    package_files = [file for file in files if not file.startswith(APART)]
    for file in package_files:
        print(file + (" (without a request too)" if file in idle else ""))
    others = len(files) - len(package_files)
    print(f"{len(package_files)} files, and {others} of layers and kernels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8791)
    parser.add_argument("--walks", action="store_true", help="follow text, seed and recording")
    args = parser.parse_args()
    rows = visits(args.port, args.walks)
    if args.walks:
        print_walks(rows)
    else:
        print_visits(rows)


if __name__ == "__main__":
    main()
