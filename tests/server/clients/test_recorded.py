"""Requests of other servers' clients work as they are, against `stentor serve` without a flag: with a tiny checkpoint of
every family and with the built-in voice.

The server's answers follow from what a model takes. A model with voices and one with reference audio stand for the
others, for which some clients are enough.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import stentor
from stentor.api import DEFAULT_VOICE
from tests.helpers.recorded import Replay, clients
from tests.helpers.server_live import Live, serving, tone_wav
from tests.helpers.tiny import checkpoint

CLIENTS = {c.id: c for c in clients()}
SOME = ("kokoro_fastapi", "openai_python", "sglang_omni", "vllm_omni")
MODELS = {"voice": SOME, "qwen3_tts": tuple(CLIENTS), "voxcpm2": tuple(CLIENTS), "fish_s2": SOME}
TEXT = "Good morning."
FRAMES = 4  # of a request at most: most of the work of these tests
SEED = 5  # of every request that gives none, so that all of them speak as long as they did in the last run
RECORDING = tone_wav(2.0, 16000)


@contextmanager
def served(model: str, folder: Path) -> Iterator[Live]:
    """A server of one of MODELS."""
    if model == "voice" and not (DEFAULT_VOICE / "config.json").is_file():
        pytest.skip("the built-in voice is not in this build: docs/training.md")
    path: Path | None = None if model == "voice" else checkpoint(model, folder / "checkpoint")

    def load(name: str, model: str | None) -> object:
        return lambda: stentor.TTS(
            path, device="cpu", threads=1, memory_gb=0.05, max_num_seqs=2, max_frames=FRAMES
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "randbits", lambda k: SEED)
        with serving(
            folder / "voices", load, model=None if path is None else f"tiny/{model}"
        ) as running:
            yield running


class OneServer:
    """The server that was asked for last: tests that follow one another with one model share it."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self.folders, self.model, self.ending = folders, "", ExitStack()

    def of(self, model: str) -> Live:
        if model != self.model:
            self.ending.close()
            self.live = self.ending.enter_context(served(model, self.folders.mktemp(model)))
            self.model = model
        return self.live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneServer]:
    one = OneServer(tmp_path_factory)
    with one.ending:
        yield one


@pytest.fixture
def live(server: OneServer, model: str) -> Live:
    return server.of(model)


@pytest.mark.parametrize(
    ("model", "client"), [(model, name) for model, names in MODELS.items() for name in names]
)
def test_a_clients_requests_work_as_they_are_sent(live: Live, client: str) -> None:
    reference = "data:audio/wav;base64," + base64.b64encode(RECORDING).decode()
    replay = Replay(live, text=TEXT, reference=reference, recording=RECORDING)
    for step in CLIENTS[client].steps:
        try:
            replay.run(step)
        except Exception as e:
            e.add_note(f"{CLIENTS[client].name}: {step['send']} {step.get('body', '')}")
            raise
