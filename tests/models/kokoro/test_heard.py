"""Kokoro's released weights behind a server, as clients of each kind hear them: whisper-base transcribes what they get.

It skips with its reason where a package with the weights, the voices or whisper is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from stentor.cli import main
from stentor.score.measures import AnswerAudio, Transcriber, at_16k, word_errors
from tests.helpers.kokoro_folder import kokoro_folder
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, decoded, pcm, processes, serving
from tests.helpers.whisper_base import whisper_base
from tests.helpers.ws_talk import talk

RATE = 24_000
WINDOW = 960  # samples
LOWEST_HZ = 60
HIGHEST_HZ = 400
PCM = {"response_format": "pcm", "stream": True}
KEEPER = "The lighthouse keeper counted seven ships before breakfast."
BAKER = "The baker sold every loaf of bread by nine in the morning."
TRAIN = "The last train to the coast leaves at half past ten."
GARDEN = "My grandmother planted roses along the garden wall."
DOCTOR = "A young doctor opened the window and listened to the rain."
CHAPTER = "Nobody had seen the old bridge since the river rose."


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server whose engine has a process of its own, as `stentor serve` starts it."""
    with serving(
        tmp_path_factory.mktemp("voices"),
        model=str(kokoro_folder()),
        start=processes,
        threads=1,
        request_timeout=STUCK_S,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def transcribe(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    return whisper_base(tmp_path_factory.mktemp("whisper"))


def assert_heard(transcribe: Transcriber, text: str, samples: np.ndarray, rate: int = RATE) -> None:
    """At most one word is heard as another."""
    transcript = transcribe(at_16k(AnswerAudio(0, text, samples, rate)), "en")
    assert word_errors(text, transcript).errors <= 1, transcript


def median_pitch(samples: np.ndarray) -> float:
    """Hz, by the autocorrelation of the louder half of windows."""
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[:: WINDOW // 2]
    loudness = np.square(windows).sum(axis=1)
    voiced = windows[loudness > np.median(loudness)]
    spectra = np.abs(np.fft.rfft(voiced, 2 * WINDOW)) ** 2
    correlation = np.fft.irfft(spectra)[:, :WINDOW]
    lags = slice(RATE // HIGHEST_HZ, RATE // LOWEST_HZ)
    periods = lags.start + correlation[:, lags].argmax(axis=1)
    return float(np.median(RATE / periods))


def test_two_streams_at_once_have_a_voice_and_a_text_each(live, transcribe):
    def stream(text: str, voice: str) -> np.ndarray:
        body = {"input": text, "voice": voice, **PCM}
        with (
            httpx.Client(base_url=live.url, timeout=STUCK_S, trust_env=False) as http,
            http.stream("POST", "/v1/audio/speech", json=body) as answer,
        ):
            return pcm(b"".join(answer.iter_bytes()))

    with ThreadPoolExecutor(2) as clients:
        streams = list(clients.map(stream, (KEEPER, BAKER), ("af_heart", "bm_george")))
    for text, samples in zip((KEEPER, BAKER), streams, strict=True):
        assert_heard(transcribe, text, samples)
    assert median_pitch(streams[0]) > 1.3 * median_pitch(streams[1])


def test_text_that_is_still_being_written_is_heard(live, transcribe):
    with talk(live, voice="am_michael") as talking:
        events, audio = talking.say(*(f"{word} " for word in TRAIN.split()))
    assert events[-1]["type"] == "session.done"
    assert_heard(transcribe, TRAIN, pcm(audio))


def test_a_batch_is_heard(live, transcribe, tmp_path):
    items = [
        {"id": "garden", "text": GARDEN, "voice": "af_bella(2)+af_sky(1)"},
        {"id": "doctor", "text": DOCTOR, "voice": "bf_emma"},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(item) + "\n" for item in items))
    out = tmp_path / "out"
    assert main(["batch", str(source), str(out), "--server", live.url]) == 0
    for item in items:
        (file,) = out.glob(f"audio/{item['id']}.*")
        assert_heard(transcribe, item["text"], *decoded(file.read_bytes()))


def test_a_book_is_heard(live, transcribe, tmp_path):
    book = tmp_path / "bridge.md"
    book.write_text(f"# The Bridge\n\n{CHAPTER}\n")
    out = tmp_path / "bridge"
    words = ["book", str(book), "-o", str(out), "--format", "flac", "--server", live.url]
    assert main(words) == 0
    (file,) = Path(out).glob("*.flac")
    assert_heard(transcribe, f"The Bridge. {CHAPTER}", *decoded(file.read_bytes()))
