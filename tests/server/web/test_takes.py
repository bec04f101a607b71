"""Takes of a visit, a dropped text file, and what the figures count."""

from __future__ import annotations

import json

import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import READY, browser
from tests.helpers.server_live import Live

TAKES = "[...document.querySelectorAll('#takes li span')].map((e) => e.textContent)"
DROP = """(([name, bytes]) => {
  const files = new DataTransfer();
  files.items.add(new File([new Uint8Array(bytes)], name));
  const event = new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true });
  document.getElementById('text').dispatchEvent(event);
})"""


@pytest.fixture
def page(tab: Page, live: Live) -> Page:
    tab.open(live.url, READY)
    return tab


def speak(page: Page, number: int, **fields: str | int) -> None:
    page.fill(**fields)
    page.click("#speak")
    page.until(f"({TAKES}).length == {number} && document.body.dataset.state == 'done'")


@browser
def test_takes_are_played_compared_and_deleted(page: Page):
    speak(page, 1, input="One.", seed=1, voice="low")
    speak(page, 2, input="Two, which is longer.", seed=2, voice="high")
    takes = page.eval(TAKES)
    assert [take.split(":")[0] for take in takes] == ["Take 2", "Take 1"]
    assert takes[0].startswith("Take 2: High")
    assert takes[1].endswith("seed 1")

    page.click("#takes li:last-child [data-action=play]")
    page.until("document.getElementById('said').textContent == 'One.'")
    page.click("#takes li:first-child [data-action=compare]")
    page.until("document.getElementById('said').textContent == 'Two, which is longer.'")
    page.click("#takes li:first-child [data-action=remove]")
    page.until(f"({TAKES}).length == 1")
    assert page.text("said") == "One."
    page.click("#takes li:first-child [data-action=remove]")
    page.until("document.getElementById('history').hidden")
    assert page.problems == []


@browser
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_text_file_is_dropped(page: Page, encoding: str):
    data = list("A text\u2026 from a file.".encode(encoding))
    page.eval(f"{DROP}({json.dumps(['a.txt', data])})")
    page.until("document.getElementById('text').value == 'A text\u2026 from a file.'")
    assert page.text("count").startswith("20 of ")


@browser
def test_another_file_is_refused_and_the_text_stays(page: Page):
    page.fill(input="Before.")
    page.eval(f"{DROP}({json.dumps(['a.png', [137, 80, 78, 71, 0, 255]])})")
    page.until("!document.getElementById('error').hidden")
    assert page.text("error") == "a.png is no text file."
    assert page.eval("document.getElementById('text').value") == "Before."


@browser
def test_the_built_in_voices_have_no_default_beside_them(tab: Page, embedded_voice: str):
    tab.open(embedded_voice, READY)
    voices = tab.eval("[...document.getElementById('voice').options].map((o) => o.value)")
    assert voices[0] == "heart"
    assert "" not in voices


@browser
def test_the_first_audio_is_the_first_sound(page: Page):
    found = page.eval("""(async () => {
      const { Utterance } = await import('/web/speech.js');
      const one = new Utterance({});
      Object.assign(one, { rate: 1000, asked: performance.now() });
      one.keep(new Int16Array(500), () => {});
      const silent = one.ttfp;
      one.keep(new Int16Array(100).fill(3000, 50), () => {});
      return [silent, one.sounded - one.first];
    })()""")
    assert found == [None, 550]


@browser
def test_the_text_that_is_read_along_shows_whole_lines(page: Page):
    speak(page, 1, input="Some words of a long text. " * 40, seed=1)
    page.eval("document.getElementById('said').scrollTop = 0")
    lines = page.eval("""(() => {
      const box = document.getElementById('said');
      return box.clientHeight / parseFloat(getComputedStyle(box).lineHeight);
    })()""")
    assert lines == pytest.approx(5, abs=0.02)
