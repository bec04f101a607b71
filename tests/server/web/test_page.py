"""The web page in a real browser, against a real server."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

import stentor
from stentor.output.marks import comment
from tests.helpers.chromium_page import Page
from tests.helpers.patience import until
from tests.helpers.served_page import (
    READY,
    RECORDER,
    STATE,
    browser,
    downloaded,
    downloaded_file,
    finished,
    rendered,
    visible,
)
from tests.helpers.server_live import Live, held, serving

TINY = Path(__file__).parents[2] / "fixtures" / "voxcpm2"
LONG = {"min_frames": 100, "max_frames": 100}  # 1 s of the toy's audio
GATHERED = {
    **LONG,
    "wait": 30,
}  # heard once all of it has come: on a busy machine it may come more slowly than it plays


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with the toy (600 Hz, voices, manners) and a tiny model of 48 kHz that takes every mode."""
    checkpoint = next(p.parent for p in sorted(TINY.rglob("config.json")))
    models = {"model": ("dummy:toy", str(checkpoint)), "served_model_name": ("toy", "tiny")}
    with serving(tmp_path_factory.mktemp("voices"), loaded, **models, guard=False) as live:
        yield live


@pytest.fixture(scope="module")
def http(two: Live) -> httpx.Client:
    return two.http


def loaded(name: str, model: str | None) -> Callable[[], stentor.TTS]:
    return lambda: stentor.TTS(model, name=name, threads=1, memory_gb=0.05)


@pytest.fixture
def page(tab: Page, http: httpx.Client) -> Page:
    tab.resize(1280, 800)
    tab.open(str(http.base_url), READY)
    return tab


def test_the_page_is_served_with_everything_it_names_and_nothing_from_elsewhere(http: httpx.Client):
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    names = re.findall(r'(?:src|href)="(web/[^"]+)"', page.text)
    names += ["web/worklet.js"]
    for name in names:  # grows by what each imports
        imported = (
            f"web/{n}" for n in re.findall(r'from "\./(\w+\.js)"', http.get(f"/{name}").text)
        )
        names += [n for n in dict.fromkeys(imported) if n not in names]
    assert len(names) > 20
    for name in names:
        asset = http.get(f"/{name}")
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[
            name.rpartition(".")[2]
        ]
        assert (asset.status_code, asset.headers["content-type"].partition(";")[0]) == (200, kind)
        assert "default-src 'self'" in asset.headers["content-security-policy"]
        assert not re.search(r"https?://(?!www\.w3\.org)", asset.text)


def test_the_apis_page_comes_from_this_server_alone(http: httpx.Client):
    page = http.get("/docs")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert "web/swagger-ui-bundle.js" in names
    for name in (*names, "openapi.json"):
        assert name.startswith(("web/", "openapi"))
        assert http.get(f"/{name}").status_code == 200


@browser
def test_the_apis_page_lists_the_operations_without_a_complaint(tab: Page, http: httpx.Client):
    tab.open(f"{http.base_url}/docs", "document.querySelectorAll('.opblock').length > 5")
    assert tab.problems == []


def test_an_unchanged_file_is_not_sent_again_and_unknown_names_are_404(http: httpx.Client):
    etag = http.get("/web/app.js").headers["etag"]
    again = http.get("/web/app.js", headers={"If-None-Match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert http.head("/").status_code == 200
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e/app.py", "index.html/x"):
        assert http.get(f"/web/{name}").status_code == 404


@browser
def test_the_page_loads_without_a_complaint_and_shows_what_the_model_takes(page: Page):
    assert page.problems == []
    visible = "[...document.querySelectorAll('#modes label')].filter(e => e.offsetParent).map(e => e.textContent)"
    assert page.eval(visible) == ["Voice design", "Controllable cloning"]
    voices = "[...document.getElementById('voice').options].map(o => o.text)"
    assert page.eval(voices) == ["Default", "Low", "High"]
    assert page.eval("document.querySelector('[name=temperature]').placeholder") == "0.9"
    page.eval(
        "(m => { m.value = 'tiny'; m.dispatchEvent(new Event('change')); })(document.getElementById('model'))"
    )
    page.until("document.getElementById('model-state').textContent.includes('tiny')")
    assert page.eval(visible) == ["Voice design", "Controllable cloning", "Ultimate cloning"]
    assert page.eval("Boolean(document.querySelector('[name=flow_steps]'))")
    assert page.problems == []


@browser
def test_a_stream_plays_without_underrun_and_its_figures_are_shown(page: Page, http: httpx.Client):
    page.fill(input="Every boat waited for the wind.", seed=7, **GATHERED)
    page.click("#speak")
    finished(page)
    assert page.eval(STATE) == "done"
    assert page.text("underruns") == "0"
    assert re.fullmatch(r"\d+ ms|\d+\.\d s", page.text("ttfp"))
    assert re.fullmatch(r"\d+\.\d+×", page.text("rtf"))
    assert "seed 7" in page.text("status")
    asked = {"input": "Every boat waited for the wind.", "seed": 7, **LONG, "model": "toy"}
    whole = http.post("/v1/audio/speech", json={**asked, "response_format": "pcm"})
    samples, rate, name = downloaded(page)
    assert (rate, name) == (600, "stentor-7.wav")
    # streamed or whole: rounding
    assert np.abs(samples - np.frombuffer(whole.content, "<i2").astype(int)).max() <= 1
    assert page.problems == []


@browser
def test_what_the_page_saves_says_that_a_machine_has_made_it(tab: Page, tmp_path: Path):
    with serving(tmp_path / "voices", provenance=True) as live:
        tab.open(live.url, READY)
        tab.fill(input="Hello.", seed=7, min_frames=20, max_frames=20, wait=30)
        tab.click("#speak")
        finished(tab)
        with soundfile.SoundFile(downloaded_file(tab)) as file:
            assert (file.comment, file.frames) == (comment("dummy:toy"), 120)


@browser
def test_what_leaves_the_loudspeaker_is_the_answer_without_a_gap(page: Page, http: httpx.Client):
    with page.injected(RECORDER):
        page.open(str(http.base_url) + "/?recorded", READY)
    page.fill(seed=3, **GATHERED)
    page.click("#speak")
    finished(page)
    heard = np.array(page.eval("window.heard.flatMap(a => [...a])"), np.float32)
    samples, rate, _ = downloaded(page)
    expected = rendered(
        page, samples, rate, page.eval("window.heard.length && new AudioContext().sampleRate")
    )
    start = np.flatnonzero(heard)[0] - np.flatnonzero(expected)[0]
    assert page.text("underruns") == "0"
    assert np.array_equal(heard[start : start + len(expected)], expected)
    assert not heard[start + len(expected) + 128 :].any()


LEFT_OUT = """
  window.named = "";
  const fetched = window.fetch;
  window.fetch = async (url, options = {}) => {
    const answer = await fetched(url, options);
    if (!window.named || !String(url).endsWith("/v1/audio/speech")) return answer;
    const headers = new Headers(answer.headers);
    headers.set("X-Ignored", window.named);
    return new Response(answer.body, { headers });
  };
"""


@browser
def test_what_is_not_spoken_is_named_below_the_status(page: Page, http: httpx.Client):
    with page.injected(LEFT_OUT):
        page.open(str(http.base_url) + "/?named", READY)
    pieces = [f'input="{n}%E4%BD%A0%E5%A5%BD"' for n in range(10)]
    page.eval(f"window.named = {', '.join(['speed', *pieces, '+3'])!r}")
    page.fill(**LONG)
    page.click("#speak")
    finished(page)
    assert visible(page, "unspoken")
    assert page.text("unspoken") == (
        f"Not spoken, because this voice cannot read it: {', '.join(f'{n}你好' for n in range(8))} and 5 more."
    )
    page.resize(360, 740)
    assert page.eval("document.documentElement.scrollWidth") <= 360
    page.eval("window.named = ''")
    page.click("#speak")
    finished(page)
    assert not visible(page, "unspoken")
    assert page.problems == []


@browser
def test_stop_ends_the_work_on_the_server(page: Page, two: Live):
    page.fill(
        input="Every boat waited for the wind that day. " * 20,
        max_frames=200,
        min_frames=200,
        wait=0,
    )
    stopped = two.tts.engine.stats.cancelled
    with held(two, frames=[150]):
        page.click("#speak")
        page.until(f"{STATE} == 'speaking'")
        page.click("#stop")
        assert until(lambda: not two.server.metrics.live)
    assert two.idle()
    assert two.tts.engine.stats.cancelled > stopped
    assert page.eval(STATE) == "stopped"
    assert re.fullmatch(r"Stopped after \d+\.\d\d s of audio", page.text("status"))
    id = page.eval("document.getElementById('status').title").removeprefix("Request ")
    assert two.http.get(f"/v1/audio/speech/{id}").json()["status"] == "cancelled"
    assert len(downloaded(page)[0]) > 0  # what came is kept
    assert page.problems == []


@browser
def test_what_is_wrong_is_said_in_words_and_the_field_is_marked(page: Page):
    page.fill(input="   ")
    page.click("#speak")
    page.until("!document.getElementById('error').hidden")
    assert page.text("error") == "There is no text yet. Type or paste what you want to hear."
    assert page.eval("document.getElementById('text').ariaInvalid") == "true"
    page.fill(input="Hello.", temperature=9)
    page.click("#speak")
    page.until(
        "document.getElementById('error').textContent == '“Randomness” must be a number from 0 to 2.'"
    )
    assert page.eval("document.getElementById('more').open")
    assert page.eval("document.activeElement.name") == "temperature"
    page.fill(temperature="", input="Hello." + " [pause 10s]" * 200)
    assert page.eval("document.getElementById('error').hidden")  # it goes once something is mended
    page.click("#speak")  # only the server knows that this is too long
    page.until("document.getElementById('error').textContent.startsWith('The text')")
    assert page.eval(STATE) == "failed"
    page.fill(input="Hello.")
    page.click("#speak")
    finished(page)
    assert page.eval("document.getElementById('error').hidden")
    assert page.eval(STATE) == "done"


@browser
def test_a_voice_is_recorded_cloned_and_kept(page: Page, http: httpx.Client):
    page.click("#mode-clone")
    page.fill(max_frames=40)
    page.click("#speak")
    page.until("!document.getElementById('error').hidden")
    assert "Record a reference" in page.text("error")
    page.click("#record")
    # The page itself stops a recording that is long enough, which may be before this test looks again.
    page.until(
        "/Recording: (1\\.[2-9]|[2-9])|Recording, /.test(document.getElementById('reference-name').textContent)"
    )
    page.eval(
        "(b => b.classList.contains('recording') && b.click())(document.getElementById('record'))"
    )
    page.until(
        "/Recording, \\d\\.\\d s/.test(document.getElementById('reference-name').textContent)"
    )
    page.click("#speak")
    finished(page)
    assert (page.eval(STATE), page.eval("document.getElementById('error').hidden")) == (
        "done",
        True,
    )
    page.click("#keep summary")
    page.fill(name="mine", consent="My own voice; I consent")
    page.click("#keep-button")
    page.until("[...document.getElementById('voice').options].some(o => o.value == 'mine')")
    assert http.delete("/v1/audio/voices/mine").status_code == 200
    assert page.problems == []


@browser
def test_a_microphone_that_is_refused_is_said_and_a_file_does_instead(
    page: Page, http: httpx.Client, tmp_path: Path
):
    refused = "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError'));"
    with page.injected(refused):
        page.open(str(http.base_url) + "/?refused", READY)
    page.click("#mode-clone")
    page.click("#record")
    page.until("!document.getElementById('error').hidden")
    assert (
        page.text("error")
        == "This page may not use the microphone. Allow it in the browser, or choose a file."
    )
    file = tmp_path / "me.wav"
    soundfile.write(file, 0.3 * np.sin(np.arange(16000) / 20), 16000)
    choose(page, file)
    page.fill(max_frames=40)
    page.click("#speak")
    finished(page)
    assert (page.eval(STATE), page.eval("document.getElementById('error').hidden")) == (
        "done",
        True,
    )
    assert page.problems == []


def choose(page: Page, file: Path) -> None:
    """Take a file as the reference."""
    node = page.call("DOM.getDocument")["root"]["nodeId"]
    found = page.call("DOM.querySelector", nodeId=node, selector="#file")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=found, files=[str(file)])
    page.until(f"document.getElementById('reference-name').textContent == '{file.name}, 1.0 s'")


@browser
def test_ultimate_cloning_sends_the_recording_and_its_words(
    page: Page, http: httpx.Client, tmp_path: Path
):
    file = tmp_path / "me.wav"
    soundfile.write(file, 0.3 * np.sin(np.arange(16000) / 20), 16000)
    page.eval(
        "(m => { m.value = 'tiny'; m.dispatchEvent(new Event('change')); })(document.getElementById('model'))"
    )
    page.until("document.getElementById('model-state').textContent.includes('tiny')")
    page.click("#mode-ultimate")
    choose(page, file)
    page.fill(input=" And it goes on.", seed=5, max_frames=8)
    page.click("#speak")
    page.until("document.getElementById('error').textContent.includes('needs the words')")
    page.fill(ref_text="What I say in it.")
    page.click("#speak")
    finished(page)
    assert page.eval(STATE) == "done"
    data = "data:audio/wav;base64," + base64.b64encode(file.read_bytes()).decode()
    body = {
        "ref_audio": data,
        "prompt_audio": data,
        "prompt_text": "What I say in it.",
        "response_format": "pcm",
    }
    whole = http.post(
        "/v1/audio/speech",
        json={"model": "tiny", "input": " And it goes on.", "seed": 5, "max_frames": 8, **body},
    )
    samples, rate, _ = downloaded(page)
    assert rate == int(whole.headers["x-sample-rate"])
    assert np.abs(samples - np.frombuffer(whole.content, "<i2").astype(int)).max() <= 1


@browser
def test_without_worklets_as_on_a_phone_by_http_the_page_speaks_all_the_same(
    page: Page, http: httpx.Client
):
    gone = (
        "Object.defineProperty(BaseAudioContext.prototype, 'audioWorklet', { value: undefined });"
    )
    gone += "Object.defineProperty(navigator, 'mediaDevices', { value: undefined });"
    page.resize(390, 844)
    with page.injected(gone):
        page.open(str(http.base_url) + "/?old", READY)
    page.fill(**GATHERED)
    page.click("#speak")
    finished(page)
    assert (page.eval(STATE), page.text("error"), page.text("underruns")) == ("done", "", "0")
    assert page.eval("document.getElementById('record').disabled")
    assert page.eval("document.documentElement.scrollWidth") == 390  # nothing sticks out


@browser
def test_everything_that_can_be_used_has_a_name_for_screen_readers(page: Page):
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {
        "button",
        "textbox",
        "combobox",
        "MenuListPopup",
        "spinbutton",
        "checkbox",
        "radio",
        "link",
        "img",
    }
    used = [
        n for n in nodes if not n.get("ignored") and n["role"]["value"] in roles - {"MenuListPopup"}
    ]
    assert len(used) > 10
    unnamed = [
        n for n in used if not n.get("name", {}).get("value") and n["role"]["value"] != "img"
    ]
    assert unnamed == []
