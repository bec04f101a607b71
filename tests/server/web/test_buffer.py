"""When the page begins to play: late enough that nothing is missing, no later than needed. Time is counted, not measured."""

from __future__ import annotations

import json

import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import READY, browser
from tests.helpers.server_live import Live

# Speech of `seconds` arrives in the server's growing parts, each `rtf` times its own length after the one before it.
SIMULATED = """(async ({ rtf, seconds, expected, known, swing, fixed }) => {
  const { Ring } = await import('/web/ring.js');
  const { StartBuffer } = await import('/web/buffer.js');
  const sizes = [0.16, 0.16, 0.16, 0.16, 0.32, 0.32, 0.48, 0.64, 0.8];
  const ring = new Ring(1000);
  const buffer = new StartBuffer(expected, known, fixed);
  const wait = () => Math.min(1e6, buffer.need(ring.position / 1000));
  const parts = [];
  for (let made = 0, at = 0.1, i = 0; made < seconds - 1e-9; i++) {
    const size = Math.min(sizes[i] ?? 0.96, seconds - made);
    at += size * rtf * (1 + swing * Math.sin(i * 2.4));
    parts.push([at, size]);
    made += size;
  }
  ring.start(1, 1000, wait());
  const first = parts[0][0];
  const out = new Float32Array(10);
  let began = null;
  for (let now = 0; ring.phase !== 'idle'; now += 0.01) {
    while (parts.length && parts[0][0] <= now) {
      const [at, size] = parts.shift();
      buffer.arrived(at, size);
      ring.push(new Int16Array(Math.round(size * 1000)).fill(1000));
      ring.take({ id: 1, wait: wait() });
      if (!parts.length) { buffer.ended = true; ring.end(); }
    }
    ring.read(out);
    if (ring.heard && began === null) began = now - first;
  }
  return { gaps: ring.underruns, began };
})"""


@pytest.fixture(scope="module")
def page(tab: Page, live: Live) -> Page:
    tab.open(live.url, READY)
    return tab


def played(page: Page, rtf: float, seconds: float, **more: float) -> tuple[int, float]:
    """Gaps that were heard, and seconds from the first audio to the first that is heard."""
    given = {
        "rtf": rtf,
        "seconds": seconds,
        "expected": seconds,
        "known": None,
        "swing": 0,
        "fixed": None,
        **more,
    }
    found = page.eval(f"{SIMULATED}({json.dumps(given)})")
    return found["gaps"], found["began"]


@browser
@pytest.mark.parametrize("seconds", [1.5, 6.0, 30.0])
@pytest.mark.parametrize("rtf", [0.05, 0.3, 0.55, 0.8, 0.95, 1.0, 1.2, 2.0, 5.0])
def test_speech_plays_without_a_gap_however_slowly_it_is_made(
    page: Page, rtf: float, seconds: float
):
    for guess in (0.85, 1.0, 1.3):  # of the length
        for swing in (0.0, 0.15):  # of the rate
            gaps, began = played(page, rtf, seconds, expected=seconds * guess, swing=swing)
            assert gaps == 0, (guess, swing)
            assert began <= seconds * rtf + 0.02  # at the latest when all of it is here


@browser
def test_a_fast_server_is_heard_at_once_and_a_slow_one_no_later_than_it_must_be(page: Page):
    assert played(page, 0.05, 20)[1] <= 0.15
    assert played(page, 0.5, 20)[1] <= 0.4
    must = 20 * (
        2 - 1
    )  # at RTF 2 half of 20 s has to be here when it begins, and takes 20 s to make
    assert must <= played(page, 2.0, 20)[1] <= 1.4 * must


@browser
def test_what_is_known_of_the_server_or_set_by_hand_counts(page: Page):
    assert played(page, 0.5, 20, known=2.0)[1] <= 0.25  # without a look at the rate first
    gaps, began = played(page, 2.0, 20, fixed=0)
    assert began <= 0.02
    assert gaps > 0  # as asked for


@browser
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (
            "The sea was calm that morning, and every boat in the harbour waited for the wind.",
            (4, 6.5),
        ),
        ("今天早上海面平静，港口里的每条船都在等风。", (3.5, 6)),
        ("Call 555 0199 at 10:45.", (3, 5)),
        ("Wait [pause 2s] here<break time='500ms'/>.", (2.8, 3.8)),
        ("", (0, 0)),
    ],
)
def test_the_length_of_speech_is_estimated_from_its_text(
    page: Page, text: str, seconds: tuple[float, float]
):
    found = page.eval(f"import('/web/buffer.js').then(m => m.expectedSeconds({json.dumps(text)}))")
    assert seconds[0] <= found <= seconds[1]
    twice = page.eval(
        f"import('/web/buffer.js').then(m => m.expectedSeconds({json.dumps(text)}, 2))"
    )
    assert twice <= found


@browser
def test_the_time_until_it_begins_is_told(page: Page):
    found = page.eval("""import('/web/buffer.js').then(({ StartBuffer }) => {
      const buffer = new StartBuffer(10);
      const told = [buffer.startsIn()];
      buffer.arrived(0, 0.16);
      told.push(buffer.startsIn());
      buffer.arrived(1, 0.5);  // half as fast as it is heard
      told.push(buffer.startsIn());
      for (let i = 1; i <= 8; i++) buffer.arrived(1 + 2 * i, 1);
      told.push(buffer.startsIn());
      return told;
    })""")
    assert found[:2] == [None, None]
    assert 10 < found[2] < 20
    assert found[3] == 0
