"""The README's examples are tests: its Python runs, its commands parse, its links lead somewhere."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import soundfile

import stentor
from stentor.api import DEFAULT_VOICE
from stentor.cli import parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TINY = ROOT / "tests" / "fixtures" / "voxcpm2"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[str]:
    found = [
        line for page in PAGES for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()
    ]
    return sorted({line.split("|")[-1].strip() for line in found if re.match(r"(.*\| )?stentor ", line)})


@pytest.mark.skipif(not (DEFAULT_VOICE / "config.json").is_file(), reason="the embedded voice is not in this build")
def test_the_readmes_first_example_speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec"), {})
    assert soundfile.info(tmp_path / "hello.wav").duration > 0.3


def test_the_readmes_cloning_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("me.wav", 0.3 * np.sin(np.arange(16000) / 20), 16000)
    checkpoint = next(p.parent for p in sorted(TINY.rglob("config.json")))
    with stentor.TTS(checkpoint) as tts:
        monkeypatch.setattr(tts, "generate", lambda text, **o: stentor.TTS.generate(tts, text, max_frames=3, **o))
        exec(compile(blocks(ROOT / "README.md", "python")[1], "README.md", "exec"), {"stentor": stentor, "tts": tts})
        assert tts.engine.health().stats.finished == 3


@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_docs_parses(command: str):
    parser().parse_args(shlex.split(command, comments=True)[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_benchmarks_scripts_and_results_that_pages_name_exist():
    named = {
        path
        for page in [*PAGES, ROOT / "CHANGELOG.md"]
        for path in re.findall(
            r"\b(?:benchmarks|scripts)/[\w./-]+\.(?:jsonl|json|py)\b", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
