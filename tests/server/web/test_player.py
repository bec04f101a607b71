"""Playing of speech: gathered, paused, sought through, louder and softer, saved. The speech is the test's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import (
    READY,
    RECORDER,
    SCRIPTED,
    STATE,
    axe_violations,
    browser,
    downloaded_file,
    finished,
)
from tests.helpers.server_live import Live, decoded

STATUS = "document.getElementById('status').textContent"
TIME = "document.getElementById('time').textContent"


@pytest.fixture(scope="module")
def scripted(tab: Page, live: Live) -> Iterator[Page]:
    tab.resize(1280, 800)
    with tab.injected(RECORDER + SCRIPTED):
        tab.open(live.url + "/?scripted", READY)
        yield tab


@pytest.fixture
def page(scripted: Page, live: Live) -> Page:
    scripted.resize(1280, 800)
    scripted.open(live.url + "/?scripted", READY)
    return scripted


def speak(page: Page, seconds: float = 0, ended: bool = False) -> None:
    page.click("#speak")
    page.until("window.speech")
    if seconds:
        feed(page, seconds)
    if ended:
        page.eval("speech.end()")
        page.until("!document.getElementById('save').disabled")


def feed(page: Page, seconds: float, after: float = 0) -> None:
    """`after` seconds later on the page's clock, so much speech has come."""
    before = page.eval("document.getElementById('wave').dataset.seconds") or "0"
    page.eval(f"window.now += {after}, speech.feed({seconds})")
    page.until(f"Number(document.getElementById('wave').dataset.seconds) > {before}")


@browser
def test_a_slow_server_is_waited_for_and_the_wait_is_told(page: Page):
    speak(page, 0.2)
    assert page.eval(STATE) == "waiting"
    feed(page, 0.5, after=1)  # at half the rate at which it is heard, of about 5 s
    found = re.search(r"starts in about (\d+) s\. Press Play to start now\.", page.eval(STATUS))
    assert found
    assert 3 <= int(found[1]) <= 8
    feed(page, 0.5, after=1)
    assert page.eval(STATE) == "waiting"
    assert page.eval("document.getElementById('play').ariaLabel") == "Play now"
    assert axe_violations(page) == []
    for _ in range(4):
        feed(page, 1.0, after=1.5)
    page.until(f"{STATE} == 'speaking'")  # though more may come
    page.click("#stop")


@browser
def test_play_starts_what_is_gathered_at_once(page: Page):
    speak(page, 0.2)
    feed(page, 3, after=60)
    assert page.eval(STATE) == "waiting"
    page.click("#play")
    page.until(f"{STATE} == 'speaking'")
    assert axe_violations(page) == []
    page.click("#stop")
    assert page.text("status") == "Stopped after 3.20 s of audio"


@browser
def test_a_fast_server_is_heard_after_the_first_second_of_speech(page: Page):
    speak(page, 0.2)
    feed(page, 1.5)
    page.until(f"{STATE} == 'speaking'")
    page.click("#stop")


@browser
def test_speech_is_paused_and_goes_on_where_it_was(page: Page):
    speak(page, 60, ended=True)
    page.until(f"{STATE} == 'speaking'")
    assert re.fullmatch(r"\d+\.\d s", page.text("lead"))
    page.click("#play")
    page.until(f"{STATE} == 'paused'")
    at = page.eval("Number(document.getElementById('seek').value)")
    assert at < 59
    assert page.eval("document.getElementById('play').ariaLabel") == "Play"
    assert axe_violations(page) == []
    page.click("#play")
    page.until(f"{STATE} == 'speaking'")
    page.until(f"Number(document.getElementById('seek').value) > {at}")
    page.press("Escape")
    assert page.eval(STATE) == "stopped"


@browser
def test_speech_is_sought_through_by_mouse_and_keys(page: Page):
    speak(page, 60, ended=True)
    page.until(f"{STATE} == 'speaking'")
    page.click("#play")
    page.until(f"{STATE} == 'paused'")
    page.click("#seek")  # in its middle
    assert page.eval(TIME) == "0:30 / 1:00"
    assert page.eval("document.activeElement.id") == "seek"
    page.press("ArrowRight")
    assert page.eval(TIME) == "0:35 / 1:00"
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert page.eval(TIME) == "0:25 / 1:00"
    assert (
        page.eval("document.getElementById('seek').getAttribute('aria-valuetext')")
        == "0:25 of 1:00"
    )
    page.click("#play")
    page.until(f"{STATE} == 'speaking'")
    # it is heard from there
    assert page.eval("Number(document.getElementById('seek').value)") >= 25
    page.click("#stop")


@browser
def test_speech_is_sought_through_while_it_is_made(page: Page):
    speak(page, 0.2)
    feed(page, 12)
    page.until(f"{STATE} == 'speaking'")
    page.eval("document.getElementById('seek').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.until("Number(document.getElementById('seek').value) >= 10")
    feed(page, 2)
    page.eval("speech.end()")
    finished(page)
    assert (page.eval(STATE), page.eval(TIME)) == (
        "done",
        "0:14 / 0:14",
    )  # what came later was heard too


@browser
def test_the_keyboard_speaks_stops_and_plays(page: Page):
    page.eval("document.getElementById('text').focus()")
    page.press("Enter", ctrl=True)
    page.until("window.speech")
    feed(page, 60)
    page.until(f"{STATE} == 'speaking'")
    page.press("Escape")
    assert page.eval(STATE) == "stopped"
    page.eval("document.getElementById('play').focus()")
    page.press("Enter")
    page.until(f"{STATE} == 'speaking'")
    page.press("Enter")
    page.until(f"{STATE} == 'paused'")


@browser
def test_the_volume_sets_how_loud_it_is(page: Page):
    def becomes(least: float, most: float) -> None:
        """Wait until what is heard is no louder and no softer. What was played before may still be on its way."""
        page.eval("window.heard = []")
        loudest = "Math.max(...window.heard.slice(-40).flatMap(a => [...a]))"
        page.until(f"window.heard.length > 60 && {loudest} >= {least} && {loudest} <= {most}")

    peak = 8000 / 32768
    speak(page, 60, ended=True)
    page.until(f"{STATE} == 'speaking'")
    becomes(0.98 * peak, 1.02 * peak)
    page.eval(
        "(v => { v.value = 0.5; v.dispatchEvent(new Event('input')); })(document.getElementById('volume'))"
    )
    becomes(0.1 * peak, 0.3 * peak)
    page.eval(
        "(v => { v.value = 0; v.dispatchEvent(new Event('input')); })(document.getElementById('volume'))"
    )
    becomes(0.0, 1e-3)
    assert page.eval("document.getElementById('volume').getAttribute('aria-valuetext')") == "0 %"
    page.click("#stop")


@browser
@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_what_was_made_is_saved_in_the_chosen_format(page: Page, live: Live, format: str):
    page.fill(min_frames=20, max_frames=20)
    speak(page, 1, ended=True)
    page.eval(f"document.getElementById('format').value = '{format}'")
    file = downloaded_file(page)
    page.until("!document.getElementById('save').disabled")
    assert file.name == f"stentor-11.{format}"
    if format == "wav":
        assert len(decoded(file.read_bytes())[0]) == 8000
    else:  # the server has spoken the same text with the same seed
        asked = page.eval("window.asked")
        again = live.speech(
            **{
                **asked,
                "seed": 11,
                "response_format": format,
                "stream_format": None,
                "stream": False,
                "timestamps": "none",
                "word_timestamps": False,
            }
        )
        np.testing.assert_allclose(
            decoded(file.read_bytes())[0], decoded(again.content)[0], atol=2e-3
        )


@browser
def test_the_page_passes_axe_when_it_is_ready_and_when_all_has_been_said(page: Page):
    assert axe_violations(page) == []
    page.click("#more summary")
    assert axe_violations(page) == []
    speak(page, 0.5, ended=True)
    finished(page)
    assert axe_violations(page) == []
    page.resize(360, 740)
    assert axe_violations(page) == []
    assert page.eval("document.documentElement.scrollWidth") == 360


@browser
def test_every_option_has_a_plain_name_and_a_line_that_says_what_it_does(page: Page):
    options = page.eval(
        "[...document.querySelectorAll('#options .option')].map(o => [o.querySelector('label').firstChild.data, "
        "document.getElementById(o.querySelector('input').getAttribute('aria-describedby')).textContent])"
    )
    titles = [title for title, _ in options]
    assert titles[:5] == [
        "Seed",
        "Start buffer, seconds",
        "Randomness",
        "Choices",
        "Share of choices",
    ]
    assert not [t for t in titles if "_" in t]
    assert all(hint.endswith(".") and len(hint) < 75 for _, hint in options)
