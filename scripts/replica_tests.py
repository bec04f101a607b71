"""Run the tests of replicas: tests/ray, then the server's client and streaming tests.

Run: python scripts/replica_tests.py                            all tests, as CI does
     python scripts/replica_tests.py --replicas 2 [PYTEST ...]  the server's tests with 2 replicas
     python scripts/replica_tests.py --replicas 2 --voice       the same with the built-in voice
Needs: `stentor[ray]`, and the tests' packages.

`stentor serve --replicas N` runs while the server's tests do. Tests that look into the process skip
with that reason, and are listed. Tests that start a server with settings of their own are left out.
A part that takes too long is interrupted. After a failure the ends of the server's and of Ray's
logs are printed. No process is left behind.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# this tree, also where none is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.replicas import ROOT, Replicas, replicas

PART_S = 1800  # of one part, also on two cores for which fifteen others wait
ENDING_S = 200  # after an interrupt: what a test has started ends with it
LEFT_OUT = {  # of tests/ray, by what is not run without being named
    "tests/ray/test_rolling.py": "clients stream for minutes, since every replica that goes drains for 30 s",
    "tests/ray/test_balance.py::test_the_number_of_replicas_follows_the_load": "Serve takes a replica away after 120 s "
    "without load, by its own clock",
}
OF_VOICE = "tests/ray/test_embedded_voice.py"
OF_RAY = ("tests/ray", "tests/batch/test_over_ray.py", f"--ignore={OF_VOICE}")
OF_SERVER = ("tests/server", "--ignore=tests/server/web")
TOY = ("--max-num-seqs", "8", "--memory-gb", "0.01", "--threads", "1", "--request-timeout", "60")
VOICE = ("--memory-gb", "0.1", "--threads", "1")


def pytest(words: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run tests in a process of their own. Its exit code, which is printed unless it is 0. 1: it
    had to be interrupted. Below 0 it is a signal, and the tests may have passed before."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "--durations=8",
        "-p",
        "no:cacheprovider",
        *words,
    ]
    command += ["-o", f"faulthandler_timeout={PART_S // 2}"]
    child = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONFAULTHANDLER": "1", **variables}
    )
    try:
        if code := child.wait(PART_S):
            print(f"pytest's exit code is {code}", flush=True)
        return code
    except subprocess.TimeoutExpired:
        print(f"interrupted after {PART_S} s", flush=True)
        return 1
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # pytest ends what its tests have started
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(ENDING_S)
            child.kill()


def of_ray() -> int:
    """Tests that start replicas of their own, one after another."""
    for test, reason in LEFT_OUT.items():
        print(f"left out: {test}: {reason}", flush=True)
    words = [*OF_RAY, *(f"--deselect={test}" for test in LEFT_OUT)]
    return pytest(words, {})


def of_server(count: int, voice: bool, words: Sequence[str]) -> int:
    """The server's client and streaming tests, against so many replicas."""
    with tempfile.TemporaryDirectory() as folder:
        voices = str(Path(folder) / "voices")
        models, flags = ((), VOICE) if voice else (("dummy:toy",), TOY)
        with replicas(count, "--voices-dir", voices, *flags, models=models) as running:
            code = pytest(words, _where(running, voices, voice))
            if code:
                print(running.told(), flush=True)
            return code


def _where(running: Replicas, voices: str, voice: bool) -> dict[str, str]:
    """Environment that tests/helpers/server_remote.py reads."""
    first = str(running.place.replicas[0])
    variables = {
        "STENTOR_TEST_URL": running.url,
        "STENTOR_TEST_PORT": first,
        "STENTOR_TEST_VOICES": voices,
    }
    return variables | ({"STENTOR_TEST_VOICE": "1"} if voice else {})


def everything() -> int:
    """Each part, also after one that failed."""
    parts: dict[str, Callable[[], int]] = {
        "tests/ray": of_ray,
        "toy model on two replicas": lambda: of_server(2, False, OF_SERVER),
        "built-in voice on two replicas": lambda: of_server(2, True, (OF_VOICE, *OF_SERVER)),
    }
    failed = []
    for name, part in parts.items():
        began = time.monotonic()
        print(f"== {name}", flush=True)
        if part():
            failed.append(name)
        print(
            f"== {name}: {'failed' if name in failed else 'passed'}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed", flush=True)
    return int(bool(failed))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int)
    parser.add_argument(
        "--voice", action="store_true", help="the built-in voice, not the toy model"
    )
    args, words = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the replicas end too
    # also where a shell has it ignored, here and in children
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if args.replicas is None:
        return everything()
    chosen = any((ROOT / word.split("::")[0]).exists() for word in words)
    return of_server(args.replicas, args.voice, [*(() if chosen else OF_SERVER), *words])


if __name__ == "__main__":
    sys.exit(main())
