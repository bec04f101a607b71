"""The web page as tests drive it: when it is ready, what it downloads, axe, and speech that a test hands out."""

from __future__ import annotations

import base64
import shutil
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.helpers import chromium_page
from tests.helpers.chromium_page import Page
from tests.helpers.patience import STUCK_S

browser = pytest.mark.skipif(chromium_page.BINARY is None, reason="no Chromium on this machine")
READY = "document.readyState == 'complete' && !document.getElementById('speak').disabled"
STATE = "document.body.dataset.state"
# Records what goes to the loudspeaker, block by block, beside the page's own node.
RECORDER = """
  window.heard = [];
  const blob = new Blob([`registerProcessor("tap", class extends AudioWorkletProcessor {
    process(inputs) { if (inputs[0][0]) this.port.postMessage(inputs[0][0].slice()); return true; } })`],
    { type: "text/javascript" });
  const connect = AudioNode.prototype.connect;
  AudioNode.prototype.connect = function (to, ...rest) {
    if (to === this.context.destination) {
      this.context.audioWorklet.addModule(URL.createObjectURL(blob)).then(() => {
        const tap = new AudioWorkletNode(this.context, "tap", { numberOfOutputs: 0 });
        tap.port.onmessage = (e) => window.heard.push(e.data);
        connect.call(this, tap);
      });
    }
    return connect.call(this, to, ...rest);
  };
"""
# The answer of /v1/audio/speech comes from window.speech: feed(seconds), tell(type, facts), end(), close(), fail(). The clock stands
# at window.now.
SCRIPTED = """
  window.now = 0;
  performance.now = () => window.now * 1000;
  const fetched = window.fetch;
  window.fetch = (url, options = {}) => {
    if (!String(url).endsWith('/v1/audio/speech') || JSON.parse(options.body).response_format !== 'pcm') return fetched(url, options);
    window.asked = JSON.parse(options.body);
    let to;
    const body = new ReadableStream({ start: (controller) => { to = controller; } });
    const rate = 8000;
    let written = 0;
    window.speech = {
      tell(type, facts) { to.enqueue(new TextEncoder().encode(`event: ${type}\ndata: ${JSON.stringify({ type, ...facts })}\n\n`)); },
      feed(seconds) {
        const samples = Int16Array.from({ length: seconds * rate }, (_, i) => 8000 * Math.sin((written + i) / 4));
        written += samples.length;
        const bytes = Array.from(new Uint8Array(samples.buffer), (byte) => String.fromCharCode(byte)).join('');
        this.tell('speech.audio.delta', { audio: btoa(bytes) });
      },
      end(facts) { this.tell('speech.audio.done', { finish_reason: 'stop', ...facts }); to.close(); },
      close() { to.close(); },
      fail() { to.error(new TypeError('network error')); },
    };
    return Promise.resolve(new Response(body, { headers: { 'X-Sample-Rate': rate, 'X-Seed': 11, 'X-Request-Id': 'r' } }));
  };
"""


def finished(page: Page, seconds: float = STUCK_S) -> None:
    page.until(f"!['idle', 'waiting', 'speaking'].includes({STATE})", seconds)


def visible(page: Page, id: str) -> bool:
    found: bool = page.eval(f"document.getElementById({id!r}).checkVisibility()")
    return found


def downloaded_file(page: Page) -> Path:
    """The file that the button saves."""
    folder = page.folder / "downloads"
    shutil.rmtree(folder, ignore_errors=True)
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#save")
    end = time.monotonic() + STUCK_S
    while not (found := [f for f in folder.glob("stentor-*") if f.suffix != ".crdownload"]):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found[0]


def downloaded(page: Page) -> tuple[np.ndarray, int, str]:
    """The WAV file that the button saves: int16 samples, rate, the file's name."""
    file = downloaded_file(page)
    samples, rate = soundfile.read(file, dtype="int16")
    return samples, rate, file.name


def axe_violations(page: Page) -> list[str]:
    """Violations that axe finds on the page as it is now."""
    script = files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    page.eval(script + "; 0")
    found: list[str] = page.eval(
        "axe.run(document).then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | ')))"
    )
    return found


def rendered(
    page: Page, samples: np.ndarray, rate: int, out: int, sizes: str = "() => 1e9"
) -> np.ndarray:
    """Output of a Ring for samples pushed in parts of sizes() while it is read."""
    data = base64.b64encode(samples.astype("<i2").tobytes()).decode()
    made = page.eval(f"""(async () => {{
      const {{ Ring }} = await import('/web/ring.js');
      const all = new Int16Array(Uint8Array.from(atob({data!r}), c => c.charCodeAt(0)).buffer);
      const ring = new Ring({out});
      const sizes = {sizes};
      ring.start(1, {rate}, 0.05);
      const made = [];
      const block = new Float32Array(128);
      for (let at = 0; ring.phase !== 'idle';) {{
        if (at < all.length) {{
          const n = sizes();
          ring.push(all.subarray(at, at + n));
          at += n;
          if (at >= all.length) ring.end();
        }}
        ring.read(block);
        if (ring.heard) made.push(...block);
      }}
      return made;
    }})()""")
    return np.array(made[: int(np.ceil(len(samples) * out / rate))], np.float32)
