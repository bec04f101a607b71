"""List the files of the package that a request visits from the socket to its first audio:
`python scripts/visited.py`.

It serves a toy model, with every process traced from its start, and asks it for streamed audio. A
file counts if one of its functions is called after the request is sent and before the first audio
has come. What runs without a request too, such as heartbeats, is marked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1] / "stentor"
APART = ("kernels/", "layers/")
IDLE, REQUEST = 1, 2
TRACER = """
import mmap, os, sys, threading, time
_flag = mmap.mmap(os.open({flag!r}, os.O_RDWR), 1)
_out = open(f"{folder}/{{os.getpid()}}.visits", "w", buffering=1)
_seen = set()

def _note(frame, event, arg):
    window = _flag[0]
    if window and event == "call":
        file = frame.f_code.co_filename
        if file.startswith({root!r}) and (window, file) not in _seen:
            _seen.add((window, file))
            _out.write(f"{{window}} {{time.monotonic()}} {{file}}\\n")

threading.setprofile(_note)
sys.setprofile(_note)
"""


def ask(port: int, text: str) -> None:
    """Return at the first byte of the streamed audio, and read the rest."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps(
        {"model": "dummy:toy", "input": text, "response_format": "pcm", "stream": True}
    )
    connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read(1)


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


def visits(port: int) -> tuple[list[str], set[str]]:
    """Files that a request visits in their order, and those that are visited without one."""
    with tempfile.TemporaryDirectory() as folder:
        flag = Path(folder, "flag")
        flag.write_bytes(b"\0")
        tracer = TRACER.format(flag=str(flag), folder=folder, root=f"{ROOT}{os.sep}")
        Path(folder, "sitecustomize.py").write_text(tracer, encoding="utf-8")
        server = serve(port, folder)
        try:
            with flag.open("r+b") as file, mmap.mmap(file.fileno(), 1) as window:
                ask(port, "This one loads what is loaded once.")
                time.sleep(2)
                window[0] = IDLE
                time.sleep(2)
                window[0] = REQUEST
                ask(port, "Hello there.")
                window[0] = 0
        finally:
            server.terminate()
            server.wait()
        lines = [
            line.split()
            for file in Path(folder).glob("*.visits")
            for line in file.read_text().splitlines()
        ]
    rows = sorted(
        (float(at), int(window), str(Path(file).relative_to(ROOT))) for window, at, file in lines
    )
    visited = list(dict.fromkeys(file for _, window, file in rows if window == REQUEST))
    return visited, {file for _, window, file in rows if window == IDLE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8791)
    files, idle = visits(parser.parse_args().port)
    package_files = [file for file in files if not file.startswith(APART)]
    for file in package_files:
        print(file + (" (without a request too)" if file in idle else ""))
    print(
        f"{len(package_files)} files, and {len(files) - len(package_files)} of layers and kernels"
    )


if __name__ == "__main__":
    main()
