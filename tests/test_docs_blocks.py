"""Every block of code in the docs runs here, or says before it why not: `<!-- not run: WHY -->`.

Released models are replaced by tiny checkpoints of their family, the server at port 8000 by one with the toy model, and
utterances are a few frames long. `stentor serve` goes as far as its configuration.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub
import pytest
import yaml

import stentor
import stentor.api
import stentor.server.main
from stentor.book import voices
from stentor.cli import main
from stentor.models.info import SpeechRequest
from stentor.say.command import CUT
from stentor.server.config import ServerConfig, from_file, typed
from stentor.server.stop_signals import StopSignals
from stentor.text.lexicon import Lexicon
from tests.fixtures.qwen3_omni import tiny_qwen3_omni
from tests.fixtures.qwen3_tts import tiny_qwen3_tts
from tests.helpers.markdown import Block, blocks, commands
from tests.helpers.server_live import Live, serving, tone_wav

ROOT = Path(__file__).parent.parent
OTHERS = {"clients.md"}  # tests/server/clients/test_clients_page.py runs what it shows
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in OTHERS]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
FIXTURES = ROOT / "tests" / "fixtures"
FRAMES = 4  # of an utterance
QWEN = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
INDENTED = re.compile(r"^\n {4}(?:python|stentor|pip|curl|docker|scripts/)\b", re.MULTILINE)


def to_run(language: str) -> pytest.MarkDecorator:
    """A test per page that has blocks of this language to run."""
    found = {page: [b for b in blocks(page, language) if b.why_not is None] for page in PAGES}
    return pytest.mark.parametrize(
        "run", [pytest.param(b, id=str(page.relative_to(ROOT))) for page, b in found.items() if b]
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), served_model_name=("stentor",)) as running:
        yield running


def short(request: Callable[..., SpeechRequest]) -> Callable[..., SpeechRequest]:
    """`TTS.request` for utterances of a few frames."""

    def made(tts: stentor.TTS, text: str, **options: object) -> SpeechRequest:
        return request(tts, text, **{"max_frames": FRAMES, "min_frames": 0, **options})

    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recording, a book and adapters, where models of the Hub are tiny."""

    def checkpoint(name: str, **_: object) -> str:
        if name.startswith("Qwen/Qwen3-Omni"):
            return str(tiny_qwen3_omni.write(tmp_path / "omni"))
        if name.startswith("Qwen/"):
            kind = QWEN[name.rpartition("-")[2]]
            return str(tiny_qwen3_tts.write(kind, tmp_path / kind))
        return str(
            {
                "openbmb/VoxCPM2": FIXTURES / "voxcpm2",
                "fishaudio/s2-pro": FIXTURES / "fish_s2/checkpoint",
            }[name]
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", checkpoint)
    monkeypatch.setattr(stentor.TTS, "request", short(stentor.TTS.request))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me.wav").write_bytes(tone_wav(2.0))
    (tmp_path / "book.txt").write_text("One sentence. And another.")
    for name in ("anna", "ben"):
        shutil.copytree(FIXTURES / "voxcpm2" / "lora", tmp_path / "adapters" / name)
    return tmp_path


def text_of(block: Block, live: Live) -> str:
    """The block, with the address of the test's server."""
    return block.text.replace("localhost:8000", live.url.removeprefix("http://"))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_block_that_is_not_run_says_why_and_no_command_is_only_indented(page: Path):
    assert [b.line for b in blocks(page) if b.why_not is not None and len(b.why_not) < 10] == []
    assert INDENTED.findall(page.read_text(encoding="utf-8")) == []


@to_run("python")
def test_the_python_of_a_page_runs_in_order(run: list[Block], here: Path, live: Live):
    names: dict[str, object] = {"play": len}
    for block in run:
        at = "\n" * block.line
        exec(compile(at + text_of(block, live), str(block.page), "exec"), names)


@to_run("bash")
def test_the_commands_of_a_page_run(
    run: list[Block], here: Path, live: Live, monkeypatch: pytest.MonkeyPatch
):
    toy = here / "toy"
    toy.mkdir()
    (toy / "config.json").write_text('{"model_type": "toy"}')
    monkeypatch.setattr(stentor.api, "DEFAULT_VOICE", toy)
    served: list[ServerConfig] = []
    monkeypatch.setattr(
        stentor.server.main, "serve", lambda config, stop: served.append(config) or 0
    )
    monkeypatch.setattr(StopSignals, "install", lambda stop: None)  # of this process
    for block in (b for b in blocks(run[0].page, "yaml") if b.why_not is None):
        (here / "server.yaml").write_text(block.text, encoding="utf-8")
    for block in run:
        for command in commands(block):
            execute(
                command.replace("localhost:8000", live.url.removeprefix("http://")), monkeypatch
            )
    asked = sum(
        " serve" in command
        for block in run
        for command in commands(block)
        if command.startswith("stentor")
    )
    assert len(served) == asked


def execute(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one command line: stentor in this process, curl and echo by a shell. Fails for any other."""
    if command.startswith("curl "):
        if shutil.which("curl") is None:
            pytest.skip("curl is not here")
        subprocess.run(
            ["bash", "-c", command.replace("curl -s", "curl -sf", 1)],
            check=True,
            capture_output=True,
        )
        return
    words = shlex.split(command, comments=True)
    if words[0] == "echo":
        at = words.index("|")
        said = " ".join(words[1:at]) + "\n"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
        words = words[at + 1 :]
    assert words[0] == "stentor", (
        f"{command}: run it here, or say before the block why it is not run"
    )
    assert main(words[1:]) in (0, CUT), command  # utterances are cut


@to_run("yaml")
def test_the_files_of_a_page_are_read(run: list[Block], here: Path):
    """A lexicon begins with "words.yaml", the voices of a book with "cast.yaml", and Ray Serve's file has applications. The
    others configure a server."""
    for block in run:
        file, lines = here / "file.yaml", yaml.safe_load(block.text)
        file.write_text(block.text, encoding="utf-8")
        if block.text.startswith("# words.yaml"):
            lexicon = Lexicon.read(file)
            assert all(lexicon.reading(word) for word in lines)
        elif block.text.startswith("# cast.yaml"):
            (here / "alice.wav").touch()
            assert voices.read(file).speakers
        elif "applications" in lines:
            for application in lines["applications"]:
                ServerConfig(**typed(application["args"]))
        else:
            values = from_file(file)
            assert len(values) == len(lines)
            ServerConfig(**values)


@to_run("json")
def test_the_json_of_a_page_is_json(run: list[Block]):
    for block in run:
        for line in block.text.splitlines():
            json.loads(line)
