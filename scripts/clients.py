"""Drive the newest release of each client's SDK, and write their versions into docs/clients.md.

Run: python scripts/clients.py FOLDER
FOLDER: for environments, 3 GB. What is there is brought up to date.
It needs Python 3.12 as `python3.12`, npm, and the package index of each. The tests that drive SDKs
decide: if one fails, nothing is written.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAYLOADS = ROOT / "tests" / "server" / "clients"
PAGE = ROOT / "docs" / "clients.md"
TESTS = ("tests/server/clients/test_sdks.py", "tests/server/doors/test_sdks.py")
ENVIRONMENTS = {  # packages that fit together
    "agents": (
        "pipecat-ai[openai,elevenlabs]",
        "livekit-plugins-openai",
        "livekit-plugins-elevenlabs",
        "litellm",
        "openai[realtime]",
        "elevenlabs",
        "wyoming",
    ),
    "wyoming_openai": ("wyoming_openai",),
}
NODE = "node@22"
"""Needed by openai 7 and ai 7: with an older Node, npm installs their older releases."""
NODE_PACKAGES = ("openai", "ai", "@ai-sdk/openai")
CLIENTS = {  # by payload file: the versions that stand in the table, and the driver
    "openai_python": ("{openai}", "drive_openai.py"),
    "openai_node": ("{node openai}", "drive_node.mjs"),
    "vercel_ai": ("ai {node ai}, @ai-sdk/openai {node @ai-sdk/openai}", "drive_node.mjs"),
    "pipecat": ("{pipecat-ai}", "drive_pipecat.py"),
    "livekit": ("{livekit-plugins-openai}", "drive_livekit.py"),
    "litellm": ("{litellm}", "drive_litellm.py"),
    "wyoming_openai": ("{wyoming_openai}", "drive_wyoming_openai.py"),
}
DOORS = {  # by the first cell of their row
    "ElevenLabs SDK for Python": "{elevenlabs}",
    "LiveKit's elevenlabs plugin": "{livekit-plugins-elevenlabs}",
    "Pipecat's ElevenLabs services": "{pipecat-ai}",
    "OpenAI SDK for Python, Realtime": "{openai}",
    "wyoming": "{wyoming}",
}


def install(folder: Path) -> dict[str, str]:
    """Install the newest releases. Returns versions by package, those of npm as `node NAME`."""
    versions = {}
    for name, packages in ENVIRONMENTS.items():
        python = folder / name / "bin" / "python"
        if not python.is_file():
            subprocess.run(["python3.12", "-m", "venv", str(folder / name)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", "--upgrade", *packages], check=True)
        listed = subprocess.run(
            [*pip, "list", "--format", "json"], check=True, capture_output=True, text=True
        )
        installed = {entry["name"]: entry["version"] for entry in json.loads(listed.stdout)}
        versions |= {p: installed[p] for p in (q.partition("[")[0] for q in packages)}

    npm = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder)]
    subprocess.run([*npm, NODE], check=True)
    newest = [f"{name}@latest" for name in NODE_PACKAGES]
    subprocess.run([*npm, *newest], check=True, env=environment(folder))
    for name in NODE_PACKAGES:
        package = json.loads((folder / "node_modules" / name / "package.json").read_text())
        versions[f"node {name}"] = package["version"]
    return versions


def environment(folder: Path) -> dict[str, str]:
    """Variables by which the tests find the SDKs."""
    pythons = [str(folder / name / "bin" / "python") for name in ENVIRONMENTS]
    node = folder / "node_modules" / ".bin"
    return {
        **os.environ,
        "CLIENTS_PYTHON": os.pathsep.join(pythons),
        "NODE_CLIENTS": str(folder),
        "PATH": f"{node}{os.pathsep}{os.environ['PATH']}",
    }


def filled(template: str, versions: Mapping[str, str]) -> str:
    """A template with the versions of packages in place of their names in braces."""
    return re.sub(r"\{(.+?)\}", lambda m: versions[m[1]], template)


def with_fields(payload: str, fields: Mapping[str, str]) -> str:
    """The text of a payload file with other values of one-line fields."""
    for name, value in fields.items():
        line = f"{name}: {json.dumps(value)}"
        payload, count = re.subn(rf"^{name}: .*$", lambda _, new=line: new, payload, flags=re.M)
        assert count == 1, name
    return payload


def with_row(page: str, name: str, cells: Mapping[int, str]) -> str:
    """A page with other cells in the row of a client, by their number from 0."""
    lines = page.splitlines(keepends=True)
    (at,) = (
        i
        for i, line in enumerate(lines)
        if re.match(rf"\| (\[{re.escape(name)}\]\(|{re.escape(name)} \|)", line)
    )
    row = [cell.strip() for cell in lines[at].strip().strip("|").split("|")]
    for number, cell in cells.items():
        row[number] = cell
    lines[at] = f"| {' | '.join(row)} |\n"
    return "".join(lines)


def write(versions: Mapping[str, str], day: str) -> None:
    """Write versions into the payload files and the tables of the page."""
    page = PAGE.read_text(encoding="utf-8")
    for id, (template, driver) in CLIENTS.items():
        file = PAYLOADS / f"{id}.yaml"
        payload = file.read_text(encoding="utf-8")
        version = filled(template, versions)
        driven = f"driven on {day} ({driver})"
        run = f"{driven}, its requests are replayed by the tests"
        file.write_text(with_fields(payload, {"version": version, "run": run}), encoding="utf-8")
        name = payload.partition("\n")[0].removeprefix("name: ")
        page = with_row(page, name, {1: version, 2: run})
    for name, template in DOORS.items():
        page = with_row(page, name, {1: filled(template, versions)})
    PAGE.write_text(page, encoding="utf-8")


def main(folder: Path) -> int:
    """Install, drive, write. Returns the tests' status."""
    folder.mkdir(parents=True, exist_ok=True)
    versions = install(folder)
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", *TESTS]
    status = subprocess.run(tests, cwd=ROOT, env=environment(folder), check=False).returncode
    if status == 0:
        write(versions, datetime.date.today().isoformat())
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
