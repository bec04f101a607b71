"""Run measurements on the GPUs of a machine that is held for minutes only, and print a short table last.

Run: python tools/gpu_jobs.py [FILE] [--seconds 560] [--gpus 1] [--out DIR] [--pack FILE.tar.gz] [--only NAME ...]
Needs: what the jobs need.

FILE (default: tools/gpu_jobs.toml) names modules that are imported before anything starts, and jobs:

    imports = ["torch", "soundfile"]
    [[job]]
    name = "step"                   # also the folder of what it writes, and of its log, in DIR
    command = "python benchmarks/engine/step.py --one voxcpm2 --out {out}"
    seconds = 120                   # it is stopped after these
    decides = "..."                 # why it is run
    predicted = "..."               # to be compared with what it prints
    gpu = 1                         # default 0. With fewer GPUs it is one that is there
    needs = ["compile"]             # jobs that must have passed before, of any GPU

A GPU's jobs run one after another, in the order of the file. Nothing waits for what cannot come: a job whose needs
failed, or for whose seconds too little time is left, is not run. A second call with the same DIR goes on with the rest.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tools" / "gpu_jobs.toml"
SHOWN = 6  # last lines of a job's output in the table
PASSED = "passed"


@dataclass(frozen=True)
class Job:
    """One command, as the file names it."""

    name: str
    command: str
    seconds: float
    decides: str
    predicted: str
    gpu: int = 0
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job: `passed`, or why not."""

    name: str
    verdict: str
    seconds: float
    tail: list[str]


def read(file: Path) -> tuple[list[str], list[Job]]:
    """Modules to import, and jobs. ValueError for a job that needs one that does not stand before it."""
    content = tomllib.loads(file.read_text())
    jobs = [Job(**{**job, "needs": tuple(job.get("needs", ()))}) for job in content["job"]]
    known: set[str] = set()
    for job in jobs:
        missing = set(job.needs) - known
        if missing:
            raise ValueError(
                f"{job.name} needs {', '.join(sorted(missing))}, which must stand before it"
            )
        known.add(job.name)
    return content["imports"], jobs


class Runner:
    """Jobs and their outcomes, which it keeps in `jobs.json` of the folder `out`."""

    def __init__(self, jobs: list[Job], out: Path, end: float) -> None:
        """end: of all jobs, by time.monotonic()."""
        self.jobs, self.out, self.end = jobs, out, end
        self.names = {job.name for job in jobs}
        self.file = out / "jobs.json"
        before = json.loads(self.file.read_text()) if self.file.exists() else []
        self.outcomes = {
            item["name"]: Outcome(**item) for item in before if item["verdict"] == PASSED
        }
        self.changed = threading.Condition()

    def run(self) -> list[Outcome]:
        """All outcomes, in the order of the jobs. GPUs work side by side."""
        gpus = sorted({job.gpu for job in self.jobs})
        with ThreadPoolExecutor(len(gpus)) as pool:
            for future in [pool.submit(self._run_on, gpu) for gpu in gpus]:
                future.result()
        return [self.outcomes[job.name] for job in self.jobs]

    def _run_on(self, gpu: int) -> None:
        for job in self.jobs:
            if job.gpu == gpu and job.name not in self.outcomes:
                outcome = self._outcome(job)
                with self.changed:
                    self.outcomes[job.name] = outcome
                    self.file.write_text(
                        json.dumps([asdict(o) for o in self.outcomes.values()], indent=1)
                    )
                    self.changed.notify_all()

    def _outcome(self, job: Job) -> Outcome:
        with self.changed:
            self.changed.wait_for(lambda: self.outcomes.keys() >= self.names & set(job.needs))
        failed = [
            name
            for name in job.needs
            if name not in self.outcomes or self.outcomes[name].verdict != PASSED
        ]
        if failed:
            return Outcome(job.name, f"not run: {', '.join(failed)} has not passed", 0.0, [])
        left = self.end - time.monotonic()
        if left < job.seconds:
            return Outcome(
                job.name, f"not run: {max(0, left):.0f} of {job.seconds:.0f} s left", 0.0, []
            )
        return self._start(job)

    def _start(self, job: Job) -> Outcome:
        folder = self.out / job.name
        folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        bin = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PATH": bin,
            "CUDA_VISIBLE_DEVICES": str(job.gpu),
        }
        began, log = time.monotonic(), folder / "log.txt"
        with log.open("wb") as sink:
            child = subprocess.Popen(
                ["bash", "-c", job.command.replace("{out}", str(folder))],
                cwd=ROOT, env=environment, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip
            try:
                code = child.wait(job.seconds)
                verdict = PASSED if code == 0 else f"FAILED ({code})"
            except subprocess.TimeoutExpired:
                verdict = "out of time"
            finally:
                stop(child)
        lines = [x for x in log.read_text(errors="replace").splitlines() if x.strip()]
        return Outcome(job.name, verdict, round(time.monotonic() - began, 1), lines[-SHOWN:])


def stop(child: subprocess.Popen[bytes]) -> None:
    """Kill what a command has left running."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def missing(names: list[str]) -> list[str]:
    """Modules that cannot be imported, with the error."""
    found = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            found.append(f"{name}: {error}")
    return found


def table(jobs: list[Job], outcomes: list[Outcome]) -> str:
    """Print the last line of each job, then a line for each."""
    lines = [f"    {o.name}: {x[:300]}" for o in outcomes for x in o.tail]
    for job, o in zip(jobs, outcomes, strict=True):
        lines.append(
            f"{o.name:<20} {o.verdict:<28} {o.seconds:>6} s  {job.decides}; predicted: {job.predicted}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=FILE)
    parser.add_argument(
        "--seconds", type=float, default=560.0, help="of all jobs (default %(default)s)"
    )
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("gpu_jobs"))
    parser.add_argument("--pack", type=Path, help="also write all of --out to this file")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    args = parser.parse_args()
    imports, jobs = read(args.file)
    unknown = set(args.only or ()) - {job.name for job in jobs}
    if unknown:
        parser.error(
            f"--only: no job is named {', '.join(sorted(unknown))}; there are {', '.join(j.name for j in jobs)}"
        )
    sys.path.insert(0, str(ROOT))  # modules of this tree may be named as well
    lacking = missing(imports)
    if lacking:
        sys.exit("nothing was started, as these cannot be imported:\n" + "\n".join(lacking))
    args.out.mkdir(parents=True, exist_ok=True)
    chosen = [
        replace(j, gpu=j.gpu % args.gpus) for j in jobs if args.only is None or j.name in args.only
    ]
    outcomes = Runner(chosen, args.out.resolve(), time.monotonic() + args.seconds).run()
    if args.pack:
        with tarfile.open(args.pack, "w:gz") as tar:
            tar.add(args.out, ".")
    print(table(chosen, outcomes))


if __name__ == "__main__":
    main()
