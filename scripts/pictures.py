"""Make the pictures and the sound of the README: the page while it speaks, light and dark, and a
sentence as MP3.

Run: python scripts/pictures.py [FOLDER]      (default docs/assets)
Needs: Chromium, and stentor with its server and audio extras.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from pathlib import Path

# this tree, also where none is installed
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from stentor.cli import main as stentor
from tests.helpers.chromium_page import opened
from tests.helpers.served_page import READY, STATE
from tests.helpers.server_live import process

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets"

TEXT = (
    "Stentor was the herald of the Greeks at Troy, and his voice was as loud as fifty men's. "
    "This one fits on a laptop, and starts to speak before you have finished reading the line."
)
SAMPLE = (
    "Hello there. I am stentor. I speak while I am still thinking about the end of the sentence."
)
WIDTH, HEIGHT = 1280, 840
TRIES = 5  # on a busy machine


def pictures(folder: Path) -> None:
    """Page in a browser, in the midst of a text that it speaks."""
    with (
        tempfile.TemporaryDirectory() as work,
        process("--voices-dir", f"{work}/voices", "--memory-gb", "0.1", model=()) as (_, url),
        opened(Path(work), WIDTH, HEIGHT) as page,
    ):
        for scheme in ("light", "dark"):
            scheme_of_page = [{"name": "prefers-color-scheme", "value": scheme}]
            page.call("Emulation.setEmulatedMedia", features=scheme_of_page)
            for _ in range(TRIES):
                page.open(url, READY)
                page.fill(input=TEXT)
                page.click("#speak")
                page.until(f"{STATE} == 'speaking'")
                page.eval("new Promise(resolve => setTimeout(resolve, 3000))")
                shot = page.call("Page.captureScreenshot", format="png")
                if page.eval("document.getElementById('underruns').textContent") == "0":
                    break
            else:
                raise SystemExit("this machine is too busy: the speech has gaps")
            (folder / f"page-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ASSETS)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    stentor(["say", SAMPLE, "--seed", "1", "-o", str(folder / "hello.mp3")])
    pictures(folder)


if __name__ == "__main__":
    main()
