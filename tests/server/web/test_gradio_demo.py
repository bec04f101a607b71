"""The Gradio demo of examples/ in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.patience import STUCK_S
from tests.helpers.served_page import browser


def listening(process: subprocess.Popen[bytes], log: Path, seconds: float = STUCK_S) -> str:
    """Where the server listens, once it is ready."""
    end = time.monotonic() + seconds
    while not (found := re.search(r"running on (http://\S+)", log.read_text())) or (
        httpx.get(found[1] + "/ready", timeout=STUCK_S, trust_env=False).status_code != 200
    ):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return found[1]


@browser
def test_the_gradio_demo_speaks_through_the_same_player(tab: Page, tmp_path: Path):
    pytest.importorskip("gradio", reason="gradio is not installed")
    demo = Path(__file__).parents[3] / "examples" / "gradio_demo.py"
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(demo), "dummy:toy", "--port", "0"], stderr=out
        )
    try:
        url = listening(process, log)
        tab.resize(1280, 800)
        tab.open(f"{url}/gradio/", "Boolean(document.querySelector('#speak') && window.stentor)")
        tab.click("#speak")
        tab.until("document.getElementById('message').textContent.includes('s of audio')")
        assert re.match(r"First audio \d+ ms   RTF \d", tab.text("figures"))
    finally:
        process.terminate()
        process.wait(STUCK_S)
