"""The page and its server: the key that it asks for, its death and return, a model that is started again."""

from __future__ import annotations

import json
import socket
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
    finished,
    visible,
)
from tests.helpers.server_live import Live, serving, tone_wav

KEY = "schlüssel-1"
LOCKED = "document.readyState == 'complete' && document.getElementById('login').checkVisibility()"
STATES = """
  window.states = [];
  new MutationObserver(() => states.push(document.body.dataset.state)).observe(document.body, { attributes: true });
"""
SHORT = {"min_frames": 20, "max_frames": 20}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with serving(
        tmp_path_factory.mktemp("voices"), api_key=("other", KEY), max_input_chars=300
    ) as live:
        yield live


def unlock(page: Page, key: str) -> None:
    page.eval(f"document.getElementById('key').value = {json.dumps(key)}")
    page.click("#unlock")


@pytest.fixture
def before(tab: Page, locked: Live) -> Page:
    """A page that has no key yet, at the width of a phone."""
    tab.resize(360, 740)
    tab.open(locked.url + "/openapi.json", "document.readyState == 'complete'")
    tab.eval("sessionStorage.clear()")
    tab.open(locked.url, LOCKED)
    return tab


@browser
def test_before_login_the_page_says_that_a_key_is_needed_and_where_it_goes(before: Page):
    assert before.text("model-state") == "A key is needed"
    assert "Enter the API key of this server" in before.text("key-help")
    assert before.eval("document.activeElement.id") == "key"
    usable = "[...document.querySelectorAll('#form :is(input, select, textarea, button)')].filter(e => !e.matches(':disabled'))"
    assert before.eval(f"{usable}.length") == 0
    empty = "[...document.querySelectorAll('select')].filter(e => e.checkVisibility() && !e.options.length).length"
    assert before.eval(empty) == 0
    assert not visible(before, "output")
    assert before.eval("document.documentElement.scrollWidth") == 360
    assert axe_violations(before) == []


@browser
def test_a_wrong_key_is_called_wrong_and_the_right_one_opens_the_page(before: Page):
    unlock(before, "no such key")
    before.until("document.getElementById('key-error').checkVisibility()")
    assert before.text("key-error") == "This key is wrong. Check that it is complete."
    assert before.eval("document.getElementById('key').ariaInvalid") == "true"
    assert axe_violations(before) == []
    unlock(before, f" {KEY} ")
    before.until(READY)
    assert not visible(before, "login")
    assert before.eval("document.activeElement.id") == "text"
    assert before.text("count").startswith("81 of 300 characters")
    before.fill(**SHORT)
    before.click("#speak")
    finished(before)
    assert (before.eval(STATE), visible(before, "error")) == ("done", False)
    before.click("#forget")
    before.until(LOCKED)
    assert not visible(before, "key-error")


@browser
def test_a_key_that_has_been_changed_on_the_server_is_asked_for_again(before: Page, locked: Live):
    before.eval("sessionStorage.setItem('stentor-key', 'of-yesterday')")
    before.open(locked.url + "/?again", LOCKED)
    assert before.text("key-error") == "The server no longer accepts the saved key."


@browser
def test_a_text_that_is_too_long_is_said_before_it_is_sent(before: Page):
    unlock(before, KEY)
    before.until(READY)
    before.fill(input="x" * 301)
    assert before.text("count").startswith("301 of 300 characters")
    assert before.eval("document.getElementById('count').className.includes('bad')")
    before.click("#speak")
    before.until("document.getElementById('error').checkVisibility()")
    assert (
        before.text("error")
        == "The text has 301 characters. This server speaks at most 300 at once."
    )


@browser
def test_the_text_box_grows_with_its_text_within_the_window(page: Page):
    height = "document.getElementById('text').clientHeight"
    before = page.eval(height)
    page.fill(input="One line after another.\n" * 8)
    grown = page.eval(height)
    assert grown > before
    page.fill(input="One line after another.\n" * 300)
    assert grown < page.eval(height) <= 400  # half of the window, and it scrolls
    page.fill(input="Short.")
    assert page.eval(height) == before


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given, also while no server listens there."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@browser
def test_the_page_follows_a_server_that_dies_and_returns(tab: Page, tmp_path: Path, port: int):
    tab.resize(1280, 800)
    with serving(tmp_path / "voices", port=port) as live:
        tab.open(live.url, READY)
        files = {"audio_sample": ("a.wav", tone_wav(), "audio/wav")}
        assert live.http.post(
            "/v1/audio/voices", data={"name": "anna", "consent": "yes"}, files=files
        ).is_success
        tab.fill(**SHORT)
        tab.click("#speak")
        finished(tab)
        tab.eval("window.same = true")
    tab.until("document.getElementById('banner').checkVisibility()")  # found by its own look
    assert tab.text("model-state") == "Not connected"
    assert tab.text("banner-text").startswith("The connection to the server was lost.")
    disabled = "['speak', 'stop', 'keep-button'].map(id => document.getElementById(id).disabled)"
    assert tab.eval(disabled) == [True, True, True]
    usable = (
        "[...document.getElementById('format').options].filter(o => !o.disabled).map(o => o.value)"
    )
    assert tab.eval(usable) == ["wav", "txt"]
    assert axe_violations(tab) == []
    tab.eval(STATES)
    tab.click("#play")  # what was spoken is still here
    tab.until("states.includes('speaking') && states.at(-1) == 'done'")
    assert not tab.eval(
        "[...document.getElementById('voice').options].some(o => o.value == 'anna')"
    )
    with serving(tmp_path / "voices", port=port, served_model_name=("/models/other",)):
        tab.until(READY)
        assert tab.eval("window.same")  # no reload
        assert not visible(tab, "banner")
        assert tab.text("model-state") == "other, 0.6 kHz"
        tab.until("[...document.getElementById('voice').options].some(o => o.value == 'anna')")
        tab.fill(voice="anna")
        tab.click("#speak")
        finished(tab)
        assert (tab.eval(STATE), visible(tab, "error")) == ("done", False)


@browser
def test_a_model_that_is_started_again_is_waited_for(page: Page, live: Live):
    engine = live.server.hosts.all[0].engines[0]
    engine.phase = "restarting"
    try:
        page.until("document.getElementById('banner').checkVisibility()")
        assert (
            page.text("banner-text") == "The model crashed and is restarting. This takes a moment."
        )
        assert page.text("model-state") == "dummy:toy is being started again…"
        assert page.eval("document.getElementById('speak').disabled")
    finally:
        engine.phase = "ready"
    page.until(READY)
    assert not visible(page, "banner")


@browser
def test_a_connection_that_breaks_off_leaves_what_came(tab: Page, live: Live):
    tab.resize(1280, 800)
    with tab.injected(SCRIPTED):
        tab.open(live.url + "/?broken", READY)
    tab.click("#speak")
    tab.until("window.speech")
    tab.eval("speech.feed(2)")
    tab.until("document.getElementById('time').textContent.endsWith('0:02')")
    tab.eval("speech.fail()")
    tab.until("document.getElementById('error').checkVisibility()")
    assert (
        tab.text("error")
        == "The connection to the server was lost. What came until then can be heard and saved."
    )
    assert tab.text("status") == "Not spoken to the end."
    assert (
        tab.eval("['play', 'save', 'speak'].map(id => document.getElementById(id).disabled)")
        == [False] * 3
    )
    assert axe_violations(tab) == []


@browser
def test_what_was_spoken_stays_when_the_next_request_fails(tab: Page, live: Live):
    with tab.injected(SCRIPTED):
        tab.open(live.url + "/?kept", READY)
    tab.click("#speak")
    tab.until("window.speech")
    tab.eval("speech.feed(3), speech.end()")
    tab.until("!document.getElementById('save').disabled")
    tab.eval("window.speech = null")
    tab.click("#speak")
    tab.until("window.speech")
    tab.eval("speech.fail()")
    tab.until(f"{STATE} == 'failed'")
    assert tab.text("status") == "Nothing was spoken. The speech before it is still here."
    assert tab.text("time") == "0:00 / 0:03"
