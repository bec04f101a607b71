"""Kill `stentor batch` with SIGKILL at random moments, resume it, and check what is there. No GPU.

Run: python benchmarks/batch/kills.py [--kills 10] [--items 300] [--replicas 2] [--seed 0] [--json FILE]
Needs: Linux. stentor[ray] for --replicas.

A run that is not killed gives the SHA-256 that each id must have. Then the same command runs in a folder of its own and
is killed when a random share of what is left has been listed, and some random milliseconds later. With --replicas what
is killed is drawn too: the process that was started, a replica (the run goes on, and its Ray starts another), or all of
its processes at once. After every kill each listed id is there once, with its audio. At the end a run is not killed.
One text at a time is spoken in each process, so that equal seeds give equal bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--model", "dummy:toy", "--max-num-seqs", "1", "--threads", "1", "--min-frames", "2", "--max-frames", "12")
POLL_SECONDS = 0.02
LONGEST_SECONDS = 300.0


def start(source: Path, out: Path, flags: list[str]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "stentor", "batch", str(source), str(out), "--resume", *MODEL, *flags]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    log = (out.parent / f"{out.name}.log").open("ab")
    with log:
        return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log)


def below(pid: int) -> dict[int, str]:
    """The processes below one, with their command lines."""
    parents: dict[int, list[int]] = {}
    words = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = dict[int, str](), [pid]
    while left:
        for child in parents.get(left.pop(), []):
            found[child] = words[child]
            left.append(child)
    return found


def listed(out: Path) -> list[dict[str, Any]]:
    path = out / "manifest.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def wait_for(run: subprocess.Popen[bytes], out: Path, count: int) -> bool:
    """Whether the run has listed so many items before it has ended."""
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        if len(listed(out)) >= count:
            return run.poll() is None
        if run.poll() is not None:
            return False
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"{count} items were not listed in {LONGEST_SECONDS:g} s")


def kill(run: subprocess.Popen[bytes], target: str) -> int:
    """SIGKILL to one of the processes or to all. How many were killed."""
    processes = below(run.pid)
    actors = [pid for pid, words in processes.items() if words.startswith("ray::Replica")]
    if target == "replica" and not actors:
        return 0
    chosen = {"starter": [run.pid], "replica": actors[:1], "all": [run.pid, *processes]}[target]
    gone = 0
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
            gone += 1
        except ProcessLookupError:
            pass
    return gone


def ended(processes: dict[int, str]) -> None:
    """Wait until what a run had started has ended by itself. Kills what has not."""
    until = time.monotonic() + 30
    left = set(processes)
    while left and time.monotonic() < until:
        left = {pid for pid in left if _words(pid) == processes[pid]}
        time.sleep(0.1)
    for pid in left:
        if _words(pid) == processes[pid]:
            os.kill(pid, signal.SIGKILL)


def _words(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() or None
    except OSError:
        return None


def check(out: Path, expected: dict[str, str]) -> int:
    """How many ids are listed. AssertionError unless each is there once with the bytes that it should have."""
    rows = listed(out)
    ids = Counter(row["id"] for row in rows)
    assert not [id for id, count in ids.items() if count > 1], "an id is listed twice"
    for row in rows:
        assert row["status"] == "ok", row
        audio = (out / row["path"]).read_bytes()
        assert hashlib.sha256(audio).hexdigest() == row["sha256"] == expected[row["id"]], row["id"]
    return len(rows)


def one_kill(source: Path, out: Path, flags: list[str], draw: random.Random, items: int) -> dict[str, Any]:
    before = len(listed(out))
    wanted = before + draw.randint(0, max(1, (items - before) // 3))
    target = draw.choice(("starter", "replica", "all")) if flags else "starter"
    run = start(source, out, flags)
    if not wait_for(run, out, wanted):
        return {"target": target, "listed_before": before, "killed": 0, "code": run.wait()}
    time.sleep(draw.random() * 0.2)
    processes = below(run.pid)
    killed = kill(run, target)
    if target == "replica":
        wait_for(run, out, min(items, len(listed(out)) + 5))  # the run goes on
        kill(run, "starter")
    run.wait()
    ended(processes)
    return {"target": target, "listed_before": before, "listed": len(listed(out)), "killed": killed}


def _write(args: argparse.Namespace, result: dict[str, Any]) -> None:
    if args.json is None:
        return
    args.json.parent.mkdir(parents=True, exist_ok=True)
    given = {name: str(value) for name, value in vars(args).items() if name != "json"}
    args.json.write_text(json.dumps({"arguments": given, **result}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--replicas", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    flags = [] if args.replicas is None else ["--replicas", str(args.replicas)]
    draw, kills = random.Random(args.seed), []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        asked = [{"id": f"i{n:04}", "text": f"Line number {n}."} for n in range(args.items)]
        (folder / "in.jsonl").write_text("".join(json.dumps(item) + "\n" for item in asked))
        plain = start(folder / "in.jsonl", folder / "plain", []).wait()
        expected = {row["id"]: row["sha256"] for row in listed(folder / "plain")}
        assert len(expected) == args.items, f"the run that is not killed ended with {plain}"
        for _ in range(3 * args.kills):  # a busy machine may be too slow for Ray to start
            kills.append(one_kill(folder / "in.jsonl", folder / "out", flags, draw, args.items))
            kills[-1]["whole"] = check(folder / "out", expected)
            print(kills[-1], flush=True)
            _write(args, {"kills": kills})
            if sum(each["killed"] > 0 for each in kills) == args.kills:
                break
        last = start(folder / "in.jsonl", folder / "out", flags)
        code, left = last.wait(), below(last.pid)
        whole = check(folder / "out", expected)
        order = [row["id"] for row in listed(folder / "out")] == [item["id"] for item in asked]
    result = {
        "kills": kills,
        "exit_codes": {"not_killed": plain, "last": code},
        "ids_once_with_equal_sha256": whole,
        "in_the_order_of_the_input": order,
        "processes_left": len(left),
    }
    print(json.dumps(result["exit_codes"]), whole, order)
    _write(args, result)
    if (whole, order) != (args.items, True):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
