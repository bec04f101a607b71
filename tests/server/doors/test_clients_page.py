"""The blocks of docs/clients.md for the doors work by copy and paste, against the toy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.other_pythons import run_python
from tests.helpers.recorded import check_audio
from tests.helpers.server_live import Live, serving

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
MODULES = {
    "ElevenLabs SDK and plugins": "elevenlabs",
    "OpenAI Realtime": "openai",
    "Wyoming and Home Assistant": "wyoming",
}


def sections() -> dict[str, str]:
    """The text under each heading of a door."""
    parts = re.split(
        r"^### (.*)$", PAGE.read_text(encoding="utf-8").partition("\n## ")[0], flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("home") / "voices", wyoming_port=0) as live:
        yield live


def test_each_door_has_one_block_and_says_what_it_cannot_do() -> None:
    assert list(sections()) == list(MODULES)
    for name, text in sections().items():
        assert text.count("```python\n") == 1, name
        assert "**Limits.**" in text, name


def test_each_door_begins_with_versions_of_the_table() -> None:
    intro, _, _ = PAGE.read_text(encoding="utf-8").partition("\n### ")
    versions = set(re.findall(r"^\| [^|]+ \| ([\d.]+) \|", intro, flags=re.MULTILINE))
    for name, text in sections().items():
        (line,) = re.findall(r"\A\n\nSeen with (.+)\.\n\n", text)
        named = set(re.findall(r"\d+(?:\.\d+)+", line))
        assert named, name
        assert named <= versions, name


@pytest.mark.parametrize("name", MODULES)
def test_a_block_makes_speech(home: Live, name: str, tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", sections()[name], re.DOTALL)
    program = tmp_path / "block.py"
    program.write_text(
        block.replace("http://localhost:8000", home.url).replace(
            "10200", str(home.server.wyoming_port)
        ),
        encoding="utf-8",
    )
    run_python(MODULES[name], program, cwd=tmp_path)
    (made,) = tmp_path.glob("hello.*")
    check_audio(made.read_bytes(), made.suffix[1:])
    assert home.idle()
