"""The text lights up while it is spoken, what was left out is named, times are saved, and a voice is tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import (
    READY,
    SCRIPTED,
    STATE,
    axe_violations,
    browser,
    downloaded_file,
    finished,
    visible,
)
from tests.helpers.server_live import Live, serving, toy

TEXT = "One 😀 is here. Two, is here!"
LONG = {"min_frames": 24, "max_frames": 24}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(tmp_path_factory.mktemp("voices"), toy(kind="dummy:toy-words")) as live:
        yield live


@pytest.fixture
def page(tab: Page, words: Live) -> Page:
    tab.resize(1280, 800)
    tab.open(words.url, READY)
    return tab


@pytest.fixture
def scripted(tab: Page, words: Live) -> Iterator[Page]:
    tab.resize(1280, 800)
    with tab.injected(SCRIPTED):
        tab.open(words.url + "/?scripted", READY)
        yield tab


def tell(page: Page, type: str, text: str, start: float, of: str = TEXT) -> None:
    """An event about a piece of the text, as the server counts its characters."""
    at = of.index(text)
    facts = {
        "text": text,
        "start": start,
        "end": start + 0.5,
        "start_char": at,
        "end_char": at + len(text),
    }
    page.eval(f"speech.tell('speech.audio.{type}', {json.dumps(facts)})")


def lit(page: Page, name: str) -> list[str]:
    found: list[str] = page.eval(
        f"[...CSS.highlights.get('{name}')].map(range => range.toString())"
    )
    return found


def lights(page: Page, said: list[str], current: list[str]) -> None:
    """Wait until the page, which paints a frame at a time, lights these pieces."""
    shown = "['said', 'current'].map(name => [...CSS.highlights.get(name)].map(range => range.toString()))"
    page.until(f"JSON.stringify({shown}) == JSON.stringify({json.dumps([said, current])})")


def spoken(page: Page, text: str, *events: tuple[str, str, float]) -> None:
    """A page that has paused speech of 60 s."""
    page.fill(input=text)
    page.click("#speak")
    page.until("window.speech")
    for kind, piece, start in events:
        tell(page, kind, piece, start, text)
    page.eval("speech.feed(60)")
    page.eval("speech.end()")
    page.until(f"{STATE} == 'speaking'")
    page.click("#play")
    page.until(f"{STATE} == 'paused'")


def seek(page: Page, seconds: float) -> None:
    page.eval(
        f"(s => {{ s.value = {seconds}; s.dispatchEvent(new Event('input')); }})(document.getElementById('seek'))"
    )


@browser
def test_the_word_that_is_heard_is_lit_also_behind_a_character_that_counts_as_two(scripted: Page):
    spoken(
        scripted,
        TEXT,
        ("word", "One", 0),
        ("word", "is", 20),
        ("word", "here.", 30),
        ("word", "Two,", 40),
    )
    for seconds, said, current in [
        (10, "", "One"),
        (31, "One 😀 is ", "here."),
        (59, "One 😀 is here. ", "Two,"),
    ]:
        seek(scripted, seconds)
        lights(scripted, [said], [current])
    assert scripted.text("said") == TEXT
    assert axe_violations(scripted) == []
    seek(scripted, 59.9)
    scripted.click("#play")
    scripted.until(f"{STATE} == 'done'")
    lights(scripted, [TEXT], [])


@browser
def test_sentences_are_lit_where_a_model_does_not_know_its_words(tab: Page, live: Live):
    tab.resize(1280, 800)
    with tab.injected(SCRIPTED):
        tab.open(live.url + "/?scripted", READY)
        spoken(tab, TEXT, ("segment", "One 😀 is here.", 0), ("segment", "Two, is here!", 30))
        seek(tab, 45)
        lights(tab, ["One 😀 is here. "], ["Two, is here!"])


@browser
def test_the_words_of_a_sentence_take_its_place(scripted: Page):
    sentence = ("segment", "One 😀 is here.", 0)
    spoken(
        scripted,
        TEXT,
        sentence,
        ("word", "One", 0),
        ("word", "is", 20),
        ("segment", "Two, is here!", 30),
    )
    for seconds, said, current in [
        (21, "One 😀 ", "is"),
        (45, "One 😀 is here. ", "Two, is here!"),
    ]:
        seek(scripted, seconds)
        lights(scripted, [said], [current])


@browser
def test_a_strict_server_speaks_a_language_whose_words_it_cannot_time(tab: Page, tmp_path: Path):
    with serving(tmp_path, toy(languages=("english", "german")), strict=True) as strict:
        tab.open(strict.url, READY)
        tab.fill(input="Die Katze sitzt auf dem Tisch.")
        tab.click("#speak")
        tab.until(f"{STATE} == 'done'")
        refused = [problem for problem in tab.problems if "400" in problem]
        assert len(refused) == len(tab.problems) == 1


@browser
def test_a_word_that_is_out_of_sight_is_scrolled_to(scripted: Page):
    text = "Word. " * 400 + "Last."
    spoken(scripted, text, ("word", "Word.", 0), ("word", "Last.", 30))
    box = "document.getElementById('said')"
    assert scripted.eval(f"[{box}.scrollTop, {box}.tabIndex]") == [0, 0]
    scripted.click("#play")
    scripted.until(f"{STATE} == 'speaking'")
    seek(scripted, 31)
    scripted.until(f"{box}.scrollTop > 500")
    assert axe_violations(scripted) == []
    scripted.click("#stop")


@browser
def test_what_was_left_out_is_crossed_out_and_named(scripted: Page):
    text = "Hello 你好 there. 😀 And 你好 again."
    ignored = [
        {"param": "input", "text": "😀"},
        {"param": "input", "text": "你好"},
        {"param": "language"},
    ]
    scripted.fill(input=text)
    scripted.click("#speak")
    scripted.until("window.speech")
    tell(scripted, "ignored", "😀", 1, text)
    scripted.eval("speech.feed(2)")
    scripted.until(
        "document.getElementById('unspoken').textContent.includes('😀')"
    )  # before all of it has come
    scripted.eval(f"speech.end({json.dumps({'ignored': ignored})})")
    finished(scripted)
    scripted.until("document.getElementById('unspoken').textContent.includes('Language')")
    assert scripted.text("unspoken") == (
        "Not spoken, because this voice cannot read it: 😀, 你好. This model does not use: Language."
    )
    assert lit(scripted, "left-out") == ["😀", "你好", "你好"]
    assert axe_violations(scripted) == []
    scripted.fill(input="Hello.")
    scripted.click("#speak")
    assert not visible(scripted, "unspoken")


@browser
def test_a_failure_midway_is_said_by_its_event(scripted: Page):
    scripted.click("#speak")
    scripted.until("window.speech")
    scripted.eval("speech.feed(1)")
    scripted.eval(
        "speech.tell('speech.audio.error', { error: { message: 'x', code: 'engine_error', param: null } })"
    )
    scripted.until(
        "document.getElementById('error').textContent.startsWith('The server failed while it was speaking')"
    )
    assert scripted.text("status") == "Not spoken to the end."


@browser
def test_an_answer_that_ends_without_its_last_event_was_broken_off(scripted: Page):
    scripted.click("#speak")
    scripted.until("window.speech")
    scripted.eval("speech.feed(1)")
    scripted.eval("speech.close()")
    scripted.until(
        "document.getElementById('error').textContent.startsWith('The connection to the server was lost')"
    )


@browser
def test_subtitles_and_the_text_are_saved(page: Page, words: Live):
    page.fill(input=TEXT, seed=8, **LONG)
    page.click("#speak")
    finished(page)
    lines = {}
    for kind in ("srt", "vtt", "txt"):
        page.eval(f"document.getElementById('format').value = '{kind}'")
        file = downloaded_file(page)
        page.until("!document.getElementById('save').disabled")
        assert file.name == f"stentor-8.{kind}"
        lines[kind] = file.read_text(encoding="utf-8")
    assert lines["txt"] == TEXT
    ask = {"input": TEXT, "seed": 8, "response_format": "pcm", **LONG}
    assert lines["srt"] == words.speech(**ask, timestamps="srt").json()["subtitles"]
    assert (
        lines["vtt"]
        == words.speech(**ask, timestamps="vtt", word_timestamps=True).json()["subtitles"]
    )
    assert "<00:00:00." in lines["vtt"]
    assert page.problems == []


@browser
def test_a_voice_says_a_sentence_before_it_is_chosen_and_leaves_the_speech_alone(
    page: Page, words: Live
):
    page.fill(input=TEXT, **LONG)
    page.click("#speak")
    finished(page)
    before = page.text("status")
    page.fill(voice="high")
    asked = words.tts.engine.stats.finished
    page.click("#preview-voice")
    page.until("document.getElementById('preview-voice').textContent == 'Stop'")
    page.until("document.getElementById('preview-voice').textContent == 'Preview'")
    assert words.tts.engine.stats.finished > asked
    assert (page.text("status"), page.text("said"), page.text("error")) == (before, TEXT, "")
    assert page.problems == []
