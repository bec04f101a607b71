"""The listener's buffer: what it resamples, and what it does when it runs dry."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.chromium_page import Page
from tests.helpers.served_page import READY, browser, rendered
from tests.helpers.server_live import Live


@pytest.fixture(scope="module")
def page(tab: Page, live: Live) -> Page:
    tab.open(live.url, READY)
    return tab


@browser
@pytest.mark.parametrize(
    ("rate", "out"), [(600, 48000), (24000, 48000), (48000, 44100), (48000, 16000), (44100, 44100)]
)
def test_the_ring_resamples_a_tone_to_what_it_is_however_it_arrives(
    page: Page, rate: int, out: int
):
    hz = rate / 10 if out >= rate else out / 5
    samples = np.round(np.sin(2 * np.pi * hz * np.arange(rate) / rate) * 20000).astype(np.int16)
    made = rendered(page, samples, rate, out)
    expected = np.sin(2 * np.pi * hz * np.arange(len(made)) / out) * 20000 / 32768
    middle = slice(len(made) // 4, -len(made) // 4)
    assert np.abs(made - expected)[middle].max() < 1e-3
    parts = rendered(page, samples, rate, out, "() => 1 + Math.floor(Math.random() * 2000)")
    if rate >= out:  # enough arrives per block, so that nothing runs dry
        assert np.array_equal(parts[: len(made)], made)


@browser
def test_the_ring_keeps_out_what_the_output_cannot_carry(page: Page):
    tone = np.round(np.sin(2 * np.pi * 12000 * np.arange(48000) / 48000) * 20000).astype(np.int16)
    assert np.abs(rendered(page, tone, 48000, 16000)[2000:-2000]).max() < 0.003


@browser
def test_an_underrun_is_counted_and_gathers_before_it_goes_on(page: Page):
    states = page.eval("""(async () => {
      const { Ring } = await import('/web/ring.js');
      const ring = new Ring(1000);
      ring.start(1, 1000, 0.1);
      const out = new Float32Array(100);
      const states = [];
      const feed = (n) => { ring.push(new Int16Array(n).fill(8000)); };
      const read = () => { ring.read(out); states.push([ring.phase, ring.underruns, ring.stalled, out[99]]); };
      feed(50); read();             // too little to begin with
      feed(100); read();            // begins
      read();                       // 50 are there, then silence
      feed(350); read();            // gathers
      feed(100); read();            // goes on
      ring.end(); for (let i = 0; i < 5; i++) read();
      return states;
    })()""")
    phases = [s[0] for s in states]
    assert phases[:5] == ["filling", "playing", "filling", "filling", "playing"]
    assert [s[1] for s in states][:5] == [0, 0, 1, 1, 1]
    assert states[4][2] == 150
    assert (phases[-1], states[-1][1], states[-1][3]) == ("idle", 1, 0)
