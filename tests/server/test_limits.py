"""The table of limits in docs/serving/limits.md is what the code has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import stentor.server
from stentor.engine.voice import ENCODINGS
from stentor.server.config import ServerConfig, default
from stentor.server.limits import LIMITS, table
from stentor.speech.speaking import SIDE_BY_SIDE

DOC = Path(__file__).parents[2] / "docs" / "serving" / "limits.md"
SERVER = Path(stentor.server.__file__).parent
NO_LIMITS = {  # numbers that are not limits, and why
    "http/frames.py CONTROL": "an opcode",
    "http/frames.py POLICY_VIOLATION": "a close code",
    "config.py MAX_LABEL_BYTES": "of DNS",
    "doors/elevenlabs/contexts.py ENOUGH": "what ElevenLabs' protocol says",
    "doors/elevenlabs/routes.py AUDIO": "HTTP statuses",
    "doors/elevenlabs/routes.py TIMED": "HTTP statuses",
    "doors/realtime/response.py RATE": "of OpenAI's pcm",
    "doors/wyoming.py PCM": "how pcm is",
    "speech/outcomes.py OK_SECONDS": "the threshold of a metric",
    "api_processes.py BEAT_SECONDS": "how often a process reports",
    "api_processes.py CLOSE_POLL_SECONDS": "how often an end is looked for",
    "api_processes.py READ_BYTES": "how a socket is read",
    "status_line.py INTERVAL_SECONDS": "how often the line is drawn",
    "status_line.py WINDOW": "how far back a rate looks",
    "status_line.py maxlen": "the same",
    "main.py GPU_API_PROCESSES": "a default, which a flag changes",
    "main.py GPU_MIN_CPUS": "a default, which a flag changes",
    "main.py POLL_SECONDS": "how often an end is looked for",
    "stop_signals.py CRASHED": "an exit code",
    "metrics.py ENGINE_GAUGES": "shares, by what there is",
    "origins.py DEFAULT_PORTS": "ports of schemes",
    "engines/client.py COMMAND_BYTES": "what a command counts in a limit",
    "engines/launch.py CONNECT_SECONDS": "how often it is tried to send a descriptor",
    "engines/messages.py API_BITS": "how ids are made",
    "engines/mps.py START_SECONDS": "of the daemon's process",
    "engines/mps.py END_SECONDS": "of the daemon's process",
    "engines/mps_daemon.py START_SECONDS": "of the daemon",
    "engines/mps_daemon.py CLIENT_SECONDS": "of engines that end",
    "engines/mps_daemon.py COMMAND_SECONDS": "of an answer of the daemon",
    "engines/mps_daemon.py EXIT_SECONDS": "of the daemon",
    "engines/mps_daemon.py POLL_SECONDS": "how often the daemon is looked at",
    "engines/pool.py TRY_EVERY": "how often a failing engine is tried",
    "engines/process.py BEAT_SECONDS": "how often an engine says how it is",
    "engines/process.py READ_BYTES": "how a socket is read",
    "engines/process.py MAX_BUFFERS": "of the system, for one write to a socket",
    "engines/service.py QUICK_CHARS": "which prompts have no thread of their own",
    "engines/process.py ThreadPoolExecutor": "the warm-up runs in one thread",
    "engines/service.py ThreadPoolExecutor": "adapters are loaded one after another",
    "errors.py TYPES": "HTTP statuses",
    "model_hosts.py ThreadPoolExecutor": "audio is aligned in one thread, in its order",
    "http/routes_speech.py BATCH_RESPONSES": "HTTP statuses",
    "http/routes_speech.py SPEECH_RESPONSES": "HTTP statuses",
    "metrics.py SECONDS": "buckets of histograms",
    "metrics.py FAST": "buckets of histograms",
    "metrics.py RTF": "buckets of histograms",
    "engines/lifecycle.py WATCH_SECONDS": "how often an engine is looked at",
    "engines/lifecycle.py WRONG": "an exit code",
    "engines/process.py CPU_SECONDS": "what is encoded at start",
    "engines/process.py GPU_SECONDS": "what is encoded at start",
    "engines/process.py NOISE_HZ": "of the recording at start",
}
LIMITING = ("max_length", "max_workers", "maxlen", "maxsize", "timeout")
START, END = "<!-- limits: stentor/server/limits.py -->\n", "<!-- end of limits -->\n"


def documented() -> str:
    return DOC.read_text().partition(START)[2].partition(END)[0]


def test_the_table_of_limits_in_the_docs_is_current() -> None:
    """After a change of a limit: python -m tests.server.test_limits"""
    assert documented() == table()


def test_flags_of_limits_have_their_defaults_from_the_table() -> None:
    options = {f.name: default(f) for f in fields(ServerConfig)}
    flags = [f.name for f in fields(LIMITS) if f.metadata["flag"]]
    assert flags
    assert {name: options[name] for name in flags} == {
        name: getattr(LIMITS, name) for name in flags
    }
    assert not {f.name for f in fields(LIMITS) if not f.metadata["flag"]} & set(options)


def _holds_number(node: ast.AST) -> bool:
    """Whether an expression has a number of its own. Those that convert the unit of a limit do not count."""
    parts = list(ast.walk(node))
    if any(isinstance(part, ast.Name) and part.id == "LIMITS" for part in parts):
        return False
    return any(
        isinstance(part, ast.Constant) and type(part.value) in (int, float) and part.value != 0
        for part in parts
    )


def _numbers(source: str) -> Iterator[str]:
    """Names of module and class constants that hold a number, and arguments that limit something by a number."""
    tree = ast.parse(source)
    bodies = [tree.body, *(n.body for n in tree.body if isinstance(n, ast.ClassDef))]
    for line in (line for body in bodies for line in body):
        if (
            isinstance(line, ast.Assign | ast.AnnAssign)
            and line.value is not None
            and _holds_number(line.value)
        ):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            yield from (
                n.id
                for t in targets
                for n in ast.walk(t)
                if isinstance(n, ast.Name) and n.id.isupper()
            )
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        yield from (
            str(k.arg) for k in call.keywords if k.arg in LIMITING and _holds_number(k.value)
        )
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        if (
            name in ("timeout", "Semaphore", "ThreadPoolExecutor")
            and call.args
            and _holds_number(call.args[0])
        ):
            yield name


def test_no_number_of_the_server_is_a_limit_outside_the_table() -> None:
    files = [p for p in sorted(SERVER.rglob("*.py")) if p.name != "limits.py"]
    found = {f"{p.relative_to(SERVER)} {name}" for p in files for name in _numbers(p.read_text())}
    assert found == set(NO_LIMITS)


def test_a_number_that_limits_something_is_found() -> None:
    hidden = """
MOST = 5
A, B = 2.0, x
class C:
    D: int = 3 << 20
    plain: int = 7
e = Field(max_length=200)
f = ThreadPoolExecutor(4)
async with asyncio.timeout(5): pass
ONE, NAME = LIMITS.most << 20, "text"
"""
    assert list(_numbers(hidden)) == [
        "MOST",
        "A",
        "B",
        "D",
        "max_length",
        "ThreadPoolExecutor",
        "timeout",
    ]


def test_limits_that_other_rooms_hold_are_those_of_the_table() -> None:
    assert (LIMITS.segments, LIMITS.encoding_threads) == (SIDE_BY_SIDE, ENCODINGS)


def test_no_deadline_is_by_a_clock_that_may_be_set() -> None:
    """The system's time is for what people and collectors of traces read, and for the age of files."""
    files = sorted(SERVER.parent.rglob("*.py"))
    calls = (
        "time.time(",
        "datetime.now(",
        "utcnow(",
        "time.time_ns(",
        "st_mtime",
        "st_ctime",
        "getmtime(",
    )
    found = {
        path.relative_to(SERVER.parent).as_posix()
        for path in files
        if any(c in path.read_text() for c in calls)
    }
    named_by_date = {"bench/campaign.py", "bench/report/output.py"}
    assert (
        found
        == {
            "server/model_hosts.py",
            "server/traces.py",
            "server/voices/store.py",
            "server/voices/consents.py",
        }
        | named_by_date
    )


if __name__ == "__main__":
    before, _, rest = DOC.read_text().partition(START)
    DOC.write_text(before + START + table() + END + rest.partition(END)[2])
