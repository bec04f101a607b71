"""Decisions of the page's modules without a server: when to ask it, how to name things, how to say what went wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import READY, browser
from tests.helpers.server_live import Live


@pytest.fixture(scope="module")
def page(tab: Page, live: Live) -> Page:
    tab.open(live.url, READY)
    return tab


# A Watch on a clock that a test moves: `answers` are what the server says, one after another; "." is a look.
WATCHED = """(async (answers, hidden) => {
  const { Watch } = await import('/web/watch.js');
  const page = new EventTarget();
  page.hidden = false;
  const log = [];
  const pauses = [];
  let next = null;
  const clock = { setTimeout: (f, ms) => { pauses.push(ms / 1000); next = f; return 1; }, clearTimeout: () => { next = null; } };
  let lists = 0;
  let now = null;
  const watch = new Watch({
    ready: async () => { if (now === 'down') throw new Error(); return { ready: now === 'ready', phase: now }; },
    lists: async () => { lists++; if (now === 'locked') throw Object.assign(new Error(), { status: 401 }); },
    tell: (state) => log.push(state.kind),
  }, page, clock);
  for (const [i, answer] of answers.entries()) {
    now = answer;
    if (answer === 'hide' || answer === 'show') {
      page.hidden = answer === 'hide';
      now = 'ready';
      page.dispatchEvent(new Event('visibilitychange'));
      if (answer === 'hide') { log.push(next === null ? 'silent' : 'asks'); continue; }
      await new Promise((done) => setTimeout(done));
      continue;
    }
    await (i === 0 ? watch.check() : next());
    await new Promise((done) => setTimeout(done));
  }
  return { log, pauses, lists };
})"""


def watched(page: Page, *answers: str) -> dict[str, Any]:
    found: dict[str, Any] = page.eval(f"{WATCHED}({json.dumps(answers)})")
    return found


@browser
def test_the_server_is_asked_ever_less_often_while_nothing_changes(page: Page):
    found = watched(page, *["ready"] * 8)
    assert found["pauses"][:3] == [3, 4.5, 6.75]
    assert found["pauses"][-1] == max(found["pauses"]) == 15
    assert found["lists"] == 1  # /ready alone tells that nothing has changed
    away = watched(page, *["down"] * 9)["pauses"]
    assert (away[0], away[-1]) == (1, 10)
    assert away == sorted(away)


@browser
def test_a_change_is_followed_closely_and_the_lists_are_loaded_again(page: Page):
    found = watched(page, "ready", "ready", "down", "down", "restarting", "ready", "ready")
    assert found["log"] == ["ready", "ready", "down", "down", "unready", "ready", "ready"]
    assert found["pauses"] == [3, 4.5, 1, 1.5, 1, 3, 4.5]
    assert found["lists"] == 3  # at first, and in each look from the return on until all is well


@browser
def test_a_server_that_asks_for_a_key_is_not_asked_for_its_lists_again(page: Page):
    found = watched(page, "locked", "locked", "locked")
    assert (found["log"], found["lists"]) == (["locked"] * 3, 1)


@browser
def test_a_page_that_nobody_sees_asks_nothing(page: Page):
    found = watched(page, "ready", "hide", "show", "ready")
    assert found["log"] == ["ready", "silent", "ready", "ready"]
    assert found["lists"] == 2  # once more when it is seen again


@browser
@pytest.mark.parametrize(
    ("ids", "names"),
    [
        (["/models/qwen3-tts/"], ["qwen3-tts"]),
        (["C:\\voices\\mine"], ["mine"]),
        (["openbmb/VoxCPM2", "stentor"], ["VoxCPM2", "stentor"]),
        (["/a/x/base", "/a/y/base"], ["x/base", "y/base"]),
        (["/c/hub/models--openbmb--VoxCPM2/snapshots/4ad2"], ["VoxCPM2"]),
        (["/"], ["/"]),
    ],
)
def test_a_model_is_called_by_the_last_part_of_its_path(
    page: Page, ids: list[str], names: list[str]
):
    found = page.eval(
        f"import('/web/names.js').then(m => [...m.shortNames({json.dumps(ids)}).values()])"
    )
    assert found == names


def said(page: Page, midway: bool = False, **facts: Any) -> str:
    message = facts.pop("message", "")
    found: str = page.eval(
        "Promise.all([import('/web/server.js'), import('/web/words.js')]).then(([s, w]) => "
        f"w.inWords(new s.Refused({json.dumps(message)}, {json.dumps(facts)}), {json.dumps(midway)}))"
    )
    return found


@browser
@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"lost": True}, "did not answer"),
        ({"status": 401, "code": "invalid_api_key"}, "requires a key"),
        (
            {"status": 503, "code": "queue_full", "retryAfter": 3},
            "busy with other requests. Try again in about 3 s",
        ),
        ({"status": 429}, "busy"),
        ({"status": 503, "code": "not_ready", "message": "model 'x' is loading"}, "not ready yet"),
        ({"status": 504, "code": "request_timeout"}, "Try a shorter text"),
        ({"status": 500, "code": "engine_error"}, "failed while it was speaking"),
        ({"status": 502}, "Try again in a moment"),  # a proxy's page
        ({"status": 418}, "did not accept"),
        (
            {"status": 400, "param": "top_p", "message": "top_p: must be from 0 to 1, got 7"},
            "“Share of choices” must be from 0 to 1, and it is 7.",
        ),
        (
            {
                "status": 400,
                "param": "ref_audio",
                "message": "ref_audio: audio is 0.20 s long, must be 1 to 30 s",
            },
            "The recording is 0.20 s long, must be 1 to 30 s.",
        ),
        (
            {"status": 400, "param": "prompt_text", "message": "prompt_text: needs prompt_audio"},
            "The transcript of the recording needs the recording.",
        ),
        (
            {"status": 400, "param": "some_thing", "message": "some_thing: is odd"},
            "“Some thing” is odd.",
        ),
    ],
)
def test_an_error_is_said_in_words_for_people(page: Page, facts: dict[str, Any], words: str):
    found = said(page, **facts)
    assert words in found
    assert found.endswith((".", "…"))


@browser
def test_a_connection_lost_midway_is_said_to_leave_what_came(page: Page):
    assert "can be heard and saved" in said(page, midway=True, lost=True)


@browser
def test_a_bug_is_not_shown_as_its_stack(page: Page):
    found = page.eval(
        "import('/web/words.js').then(w => w.inWords(new TypeError('x is undefined')))"
    )
    assert found == "Something on this page has failed. Reload it and try again."


WRONG = (
    {"input": ""},
    {"input": "Hello." + " [pause 10s]" * 100},
    {"input": "Hello.", "voice": "nobody"},
    {"input": "Hello.", "model": "gone"},
    {"input": "Hello.", "top_k": 10_000},
    {"input": "Hello.", "speed": 9},
    {"input": "Hello.", "ref_audio": "data:audio/wav;base64,AAAA"},
    {"input": "Hello.", "ref_audio": "data:audio/wav;base64"},
    {"input": "x" * 30_000},
)


@browser
@pytest.mark.parametrize("body", WRONG, ids=lambda body: str(body)[:40])
def test_what_the_server_refuses_is_said_without_names_of_its_api(
    page: Page, live: Live, body: dict[str, Any]
):
    answer = live.speech(**body)
    assert answer.status_code >= 400
    error = answer.json()["error"]
    found = said(
        page, status=answer.status_code, **{k: error[k] for k in ("message", "code", "param")}
    )
    assert not re.search(r"[a-z]_[a-z]|[{}]|\b(4|5)\d\d\b|\bparam\b|^[a-z]", found), found
    assert found.endswith((".", "…"))
