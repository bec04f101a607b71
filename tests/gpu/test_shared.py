"""Two models of a server on one GPU, under the MPS daemon that it starts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from stentor.host.machine import MPS_CONTROL
from tests.helpers.descendants import alive, children, engines
from tests.helpers.patience import STUCK_S, until

pytestmark = pytest.mark.gpu
KILLS = 4
WORDS = "serve dummy:toy dummy:toy --served-model-name a --served-model-name b --port 0 --memory-gb 0.2 --mps on"
BODY = {"input": "Hello there, one two three.", "seed": 3, "response_format": "pcm", "guard": False}


@dataclass
class Shared:
    """A server, where it answers, and the pipe folder of its daemon."""

    process: subprocess.Popen[bytes]
    http: httpx.Client
    pipe: Path

    def speech(self, model: str) -> bytes | None:
        """Speech of a model. None while it is being restarted."""
        answer = self.http.post("/v1/audio/speech", json={"model": model, **BODY})
        if answer.status_code == 503:
            return None
        assert answer.status_code == 200, answer.text
        return answer.content

    def clients(self) -> set[int]:
        """Processes that are clients of the daemon's servers."""
        servers = self.ask("get_server_list")
        return {pid for server in servers for pid in self.ask(f"get_client_list {server}")}

    def ask(self, command: str) -> list[int]:
        """Numbers that the daemon answers with."""
        answer = subprocess.run(
            [MPS_CONTROL],
            input=f"{command}\n",
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe)},
            capture_output=True,
            text=True,
            check=True,
        )
        return [int(word) for word in answer.stdout.split()]


@pytest.fixture(autouse=True)
def _can_start_a_daemon() -> None:
    if shutil.which(MPS_CONTROL) is None:
        pytest.skip(f"needs {MPS_CONTROL} on PATH")
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        pytest.skip("the machine has a daemon")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    log = tmp_path / "log"
    with log.open("w") as sink:
        command = [sys.executable, "-m", "stentor", *WORDS.split(), "--voices-dir", str(tmp_path)]
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        until(lambda: "Ready." in log.read_text() or process.poll() is not None)
        page = re.search(r"Page: (\S+)", log.read_text())
        assert page is not None, log.read_text()
        variables = Path(f"/proc/{engines(process.pid)[0]}/environ").read_text().split("\0")
        [pipe] = [v.partition("=")[2] for v in variables if v.startswith("CUDA_MPS_PIPE")]
        with httpx.Client(base_url=page[1], timeout=STUCK_S, trust_env=False) as http:
            yield Shared(process, http, Path(pipe))
    finally:
        process.kill()
        process.wait()


def test_kills_of_one_engine_leave_the_other_and_no_daemon_stays_after_the_server(
    shared: Shared,
) -> None:
    first, second = engines(shared.process.pid)
    assert {first, second} <= shared.clients()
    expected = shared.speech("b")

    for _ in range(KILLS):
        [victim] = [pid for pid in engines(shared.process.pid) if pid != second]
        with ThreadPoolExecutor(1) as pool:  # more rows in a batch round in another order
            answers = [pool.submit(shared.speech, "b") for _ in range(8)]
            os.kill(victim, signal.SIGKILL)
            assert {answer.result() for answer in answers} == {expected}
        assert until(lambda: shared.speech("a") == expected)
    assert second in engines(shared.process.pid)

    [watcher] = children(shared.process.pid, "stentor.server.engines.mps_daemon")
    [daemon] = children(watcher, MPS_CONTROL)
    shared.process.kill()
    assert until(lambda: not alive(watcher) and not alive(daemon))
    assert not shared.pipe.parent.exists()
