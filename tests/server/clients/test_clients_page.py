"""docs/clients.md says of every client what its payload file says, and its blocks work by copy and paste."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import urlparse

import pytest
import yaml

from tests.helpers.other_pythons import run, run_node, run_python
from tests.helpers.recorded import Client, check_audio, clients
from tests.helpers.server_live import Live

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
CLIENTS = clients()
WORDS = ("list", "speak", "stream", "cancel", "upload")
URL = "http://localhost:8000"


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """The text under each heading."""
    parts = re.split(r"^## (.*)$", page(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def block(client: Client) -> tuple[str, str]:
    """The language and the text of the only block of a client's section."""
    found = re.findall(r"```(\w+)\n(.*?)```", sections()[client.name], re.DOTALL)
    assert len(found) == 1, client.name
    return found[0]


def rows() -> dict[str, list[str]]:
    """The cells of the table by the client's name."""
    cells = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in page().splitlines()
        if line.startswith("| [")
    ]
    return {re.sub(r"^\[(.*)\]\(.*\)$", r"\1", name): rest for name, *rest in cells}


def test_the_table_and_the_sections_are_those_of_the_payload_files() -> None:
    recorded = {c.name for c in CLIENTS}
    assert set(rows()) == recorded
    assert set(sections()) == recorded


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.id)
def test_a_row_and_a_section_say_what_the_payload_file_says(client: Client) -> None:
    does = ", ".join(word for word in WORDS if any(step["does"] == word for step in client.steps))
    assert rows()[client.name] == [
        client.version,
        client.run,
        f"{len(client.steps)} requests work: {does}",
    ]
    assert " ".join(f"**Limits.** {client.cannot}".split()) in " ".join(
        sections()[client.name].split()
    )


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.id)
def test_a_section_begins_with_the_version_that_it_was_seen_with(client: Client) -> None:
    assert sections()[client.name].startswith(f"\n\nSeen with {client.version}.\n\n")


def test_sentences_before_the_sections_that_name_a_client_name_its_version() -> None:
    prose, _, _ = page().partition("\n## ")
    prose = re.sub(r"^```.*?^```$|^\|.*$|^### .*?(?=^### |\Z)", "", prose, flags=re.M | re.S)
    sentences = re.split(r"(?<=[.:])\s+", prose)
    names = re.compile("|".join(re.escape(client.name) for client in CLIENTS))
    assert [s for s in sentences if names.search(s) and not re.search(r"\d\.\d", s)] == []


@pytest.mark.parametrize("client", CLIENTS, ids=lambda c: c.id)
def test_every_client_speaks_and_cancels(client: Client) -> None:
    does = {step["does"] for step in client.steps}
    assert "cancel" in does
    assert does & {"speak", "stream"}


MODULES = {
    "openai_python": "openai",
    "pipecat": "pipecat",
    "livekit": "livekit.agents",
    "litellm": "litellm",
}
PROGRAMS = [c for c in CLIENTS if block(c)[0] in ("python", "js", "bash")]


@pytest.mark.parametrize("client", PROGRAMS, ids=lambda c: c.id)
def test_a_block_that_runs_makes_speech(live: Live, client: Client, tmp_path: Path) -> None:
    language, text = block(client)
    if "wyoming" in text:
        pytest.skip("it listens for Wyoming clients: test_sdks.py runs it")
    program = tmp_path / f"block.{'mjs' if language == 'js' else language}"
    program.write_text(text.replace(URL, live.url), encoding="utf-8")
    if language == "python":
        run_python(MODULES.get(client.id, "requests"), program, cwd=tmp_path)
    elif language == "js":
        run_node(program, cwd=tmp_path)
    elif shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    else:
        run(["bash", str(program)], tmp_path)
    (made,) = tmp_path.glob("hello.*")
    check_audio(made.read_bytes(), made.suffix[1:])
    assert live.idle()


SETTINGS = [c for c in CLIENTS if block(c)[0] in ("ini", "yaml")]


@pytest.mark.parametrize("client", SETTINGS, ids=lambda c: c.id)
def test_settings_lead_to_the_requests_that_are_replayed(client: Client) -> None:
    language, text = block(client)
    lines = text if language == "yaml" else re.sub(r"^(.*?)=", r'"\1": ', text, flags=re.MULTILINE)
    values = list(leaves(yaml.safe_load(lines)))
    (url,) = [v for v in values if str(v).startswith(URL)]
    path = urlparse(url).path.removesuffix("/audio/speech") + "/audio/speech"
    spoken = [s for s in client.steps if s["send"] == f"POST {path}"]
    assert any(s["body"]["model"] in values and s["body"]["voice"] in values for s in spoken)


def leaves(value: object) -> list[object]:
    """The values in nested lists and mappings."""
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in leaves(v)]
    if isinstance(value, list):
        return [leaf for v in value for leaf in leaves(v)]
    return [value]
