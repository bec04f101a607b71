"""A Ray cluster of one node on this machine, for benchmarks and tests of replicas. It leaves no process behind.

`serve run` and `serve deploy` need a Ray that somebody has started. Here it is `ray start --head`, with the variables
that stentor asks for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.replicas.apart import MARK, Apart, apart
from stentor.ray import environment
from stentor.server.config import ServerConfig

ROOT = Path(__file__).resolve().parents[2]
READY_S = 300.0
PROGRAMS = {"ray": "ray.scripts.scripts", "serve": "ray.serve.scripts"}
QUICK_END = {
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"
}  # for replicas that nobody uses when they end
CORES = 64  # that Ray counts: replicas here share the machine's


class NotReady(Exception):
    """Something did not happen in time. The text has the last state."""


class Cluster:
    """The node. url: of the proxy. Files are deployed as `serve deploy` does."""

    def __init__(self, place: Apart, variables: Mapping[str, str]) -> None:
        self.place, self.folder, self.mark, self.port = place, place.folder, place.mark, place.proxy
        self.gcs, self.dashboard, self.agent, self.client = place.ports[5:9]
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **place.environment,
            **variables,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "RAY_ADDRESS": f"127.0.0.1:{self.gcs}",
        }
        self.log = self.folder / "ray.log"

    def start(self) -> None:
        words = [
            "start",
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            f"--port={self.gcs}",
            f"--num-cpus={CORES}",
        ]
        words += [
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.dashboard}",
            "--disable-usage-stats",
        ]
        words += [
            f"--dashboard-agent-listen-port={self.agent}",
            f"--ray-client-server-port={self.client}",
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*program("ray"), *words, "--object-store-memory=200000000"],
                env={k: v for k, v in self.env.items() if k != "RAY_ADDRESS"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait(
            lambda: self.process.poll() is not None or self._api() is not None,
            lambda: self.log.read_text()[-2000:],
        )
        if self.process.poll() is not None:
            raise NotReady(self.log.read_text()[-2000:])

    def serve(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `serve WORDS` to its end."""
        return subprocess.run(
            [*program("serve"), *words],
            env=self.env,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=READY_S,
            **options,
        )

    def deploy(self, config: Mapping[str, Any]) -> None:
        """`serve deploy FILE`. Returns when Serve has taken the file, long before replicas have changed."""
        file = self.folder / "serve.json"  # JSON is YAML
        whole = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self.port},
            **config,
        }
        file.write_text(json.dumps(whole), encoding="utf-8")
        done = self.serve("deploy", str(file), "--address", f"http://127.0.0.1:{self.dashboard}")
        if done.returncode:
            raise NotReady(done.stdout + done.stderr)

    def applications(self) -> dict[str, Any]:
        """Status that Serve gives of its applications, by name."""
        return (self._api() or {}).get("applications", {})

    def replicas(self, application: str) -> dict[str, str]:
        """States of the replicas of an application, by id. RUNNING ones get requests."""
        deployments = self.applications().get(application, {}).get("deployments", {})
        return {
            r["replica_id"]: r["state"] for d in deployments.values() for r in d.get("replicas", ())
        }

    def running(
        self,
        application: str,
        count: int,
        instead_of: frozenset[str] = frozenset(),
        seconds: float = READY_S,
    ) -> None:
        """Wait until so many replicas run, none of them in `instead_of`, and no other is left."""

        def settled() -> bool:
            now = self.replicas(application)
            status = self.applications().get(application, {}).get("status")
            if status == "DEPLOY_FAILED":
                raise NotReady(str(self.applications()))
            return (
                status == "RUNNING"
                and len(now) == count
                and set(now.values()) == {"RUNNING"}
                and not instead_of & set(now)
            )

        wait(settled, lambda: f"{self.applications()}", seconds)
        wait(lambda: answers(self.url + "/ready"), lambda: "the proxy does not answer", seconds)

    def stop(self) -> None:
        """End Serve and Ray, then whatever of it is left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.serve("shutdown", "-y", "--address", f"http://127.0.0.1:{self.dashboard}")
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        for pid in marked(self.mark, self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def _api(self) -> dict[str, Any] | None:
        try:
            address = f"http://127.0.0.1:{self.dashboard}/api/serve/applications/"
            asked = urllib.request.Request(
                address, headers={"Authorization": f"Bearer {self.mark}"}
            )
            with urllib.request.urlopen(asked, timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def cluster(variables: Mapping[str, str] | None = None, **settings: Any) -> Iterator[Cluster]:
    """A started node for a server of these settings. Serve runs nothing yet. variables: of its environment, beside."""
    with apart() as place:
        made = Cluster(
            place, environment.wanted(ServerConfig(replicas=1, **settings)) | dict(variables or {})
        )
        try:
            made.start()
            yield made
        finally:
            made.stop()


def application(
    args: Mapping[str, Any], import_path: str = "stentor.ray:app", **deployment: Any
) -> dict[str, Any]:
    """A file for `serve deploy` with one application. deployment: what Serve shall change, such as num_replicas."""
    made: dict[str, Any] = {
        "name": "stentor",
        "route_prefix": "/",
        "import_path": import_path,
        "args": dict(args),
    }
    if deployment:
        made["deployments"] = [{"name": "stentor", **deployment}]
    return {"applications": [made]}


def marked(mark: str, session: int) -> list[int]:
    """Processes of a cluster: those of its session, and those with its mark. Workers write their title over it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
                if (
                    int(state[3]) == session
                    or f"{MARK}={mark}".encode() in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
    return found


def program(name: str) -> list[str]:
    """The words of a command of Ray. Also where its packages lie in a folder of PYTHONPATH, which has no programs."""
    return [sys.executable, "-m", PROGRAMS[name]]


def wait(true: Callable[[], object], state: Callable[[], str], seconds: float = READY_S) -> None:
    """Wait until something is true. NotReady has the state."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise NotReady(f"after {seconds:g} s: {state()}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
