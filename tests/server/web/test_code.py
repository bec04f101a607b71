"""The code that the page shows for its settings does what it says: it is run, in each language."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.patience import STUCK_S
from tests.helpers.served_page import READY, axe_violations, browser
from tests.helpers.server_live import Live, decoded, serving, tone_wav

TEXT = """It's "quoted", costs $5 or `nothing`, \\ and ${HOME}:\na second line, true."""
SETTINGS = {"seed": 7, "temperature": 0.5, "min_frames": 60, "max_frames": 60}
RUN = {
    "curl": ("bash", "-c"),
    "python": (sys.executable, "-c"),
    "javascript": ("node", "--input-type=module", "-e"),
}
languages = pytest.mark.parametrize("language", RUN)


def shown(page: Page, language: str) -> str:
    if not page.eval("document.getElementById('code').open"):
        page.click("#code summary")
    page.eval(f"document.querySelector('[name=code-language][value={language}]').click()")
    page.until("document.getElementById('program').textContent")
    return page.text("program")


def run(program: str, language: str, folder: Path, **env: str) -> bytes:
    """Audio that the program saves."""
    tool = RUN[language]
    if shutil.which(tool[0]) is None or (language == "curl" and shutil.which("curl") is None):
        pytest.skip(f"no {language} on this machine")
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "NO_PROXY": "127.0.0.1", **env}
    done = subprocess.run(
        [*tool, program],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=STUCK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return (folder / "speech.mp3").read_bytes()


def assert_same(answer: bytes, wanted: bytes) -> None:
    np.testing.assert_allclose(decoded(answer)[0][:2000], decoded(wanted)[0][:2000], atol=2e-2)


@browser
@languages
def test_the_code_speaks_as_the_page_would(page: Page, live: Live, tmp_path: Path, language: str):
    page.fill(
        input=TEXT, voice="low", instructions="slowly", language="English", speed=1.25, **SETTINGS
    )
    found = run(shown(page, language), language, tmp_path)
    wanted = {
        "input": TEXT,
        "voice": "low",
        "instructions": "slowly",
        "language": "English",
        "speed": 1.25,
        **SETTINGS,
    }
    assert_same(found, live.speech(**wanted, response_format="mp3").content)
    assert axe_violations(page) == []


@browser
@languages
def test_the_code_of_a_clone_reads_the_recording(
    page: Page, live: Live, tmp_path: Path, language: str
):
    page.click("#mode-clone")
    page.fill(input=TEXT, **SETTINGS)
    recording = tone_wav(2.0)
    (tmp_path / "reference.wav").write_bytes(recording)
    found = run(shown(page, language), language, tmp_path)
    files = live.http.post(
        "/v1/audio/voices",
        data={"name": "toned", "consent": "x"},
        files={"audio_sample": recording},
    )
    assert files.status_code == 200, files.text
    try:
        assert_same(
            found, live.speech(input=TEXT, voice="toned", **SETTINGS, response_format="mp3").content
        )
    finally:
        live.http.delete("/v1/audio/voices/toned")


@browser
def test_the_code_follows_the_settings_and_says_what_is_wrong_with_them(page: Page):
    assert '"voice": "default"' in shown(page, "curl")
    page.fill(voice="high", seed=9)
    assert '"voice": "high"' in page.text("program")
    assert '"seed": 9' in page.text("program")
    page.fill(temperature=9)
    assert page.text("program") == "“Randomness” must be a number from 0 to 2."


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), api_key=("secret-key",)) as running:
        yield running


@browser
@languages
def test_the_key_is_taken_from_the_environment_and_never_shown(
    tab: Page, locked: Live, tmp_path: Path, language: str
):
    tab.open(locked.url + "/openapi.json", "document.readyState == 'complete'")
    tab.eval("sessionStorage.setItem('stentor-key', 'secret-key')")
    tab.open(locked.url, READY)
    program = shown(tab, language)
    assert "secret" not in program
    assert run(program, language, tmp_path, STENTOR_API_KEY="secret-key")


@browser
def test_copy_puts_the_code_on_the_clipboard(page: Page, live: Live):
    page.call(
        "Browser.grantPermissions",
        origin=live.url,
        permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
    )
    program = shown(page, "python")
    page.click("#copy")
    page.until("document.getElementById('copy-state').textContent == 'Copied'")
    assert page.eval("navigator.clipboard.readText()") == program
