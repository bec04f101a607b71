"""A voice is made once, and nobody waits for the audio of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from stentor.audio import Recording
from stentor.engine.once import CacheCounts, Claim
from stentor.engine.preparation import Preparation
from stentor.engine.running.device import Device
from stentor.engine.voice import ENCODINGS, VoiceEncoder
from stentor.errors import EngineError
from stentor.layers.types import Launch
from stentor.models.base import Prompt, SpeechModel, Voice, VoiceSource
from stentor.models.info import SpeechRequest
from tests.helpers.patience import STUCK_S

KEPT = 3
SPEC = SimpleNamespace(takes_reference=True, reference_seconds=(1.0, 2.0), reference_rate=600)


def audio(value: float, cacheable: bool = True) -> Recording:
    return Recording(np.full(4, value, np.float32), 600, cacheable)


def source(value: float, cacheable: bool = True, role: str = "reference") -> VoiceSource:
    return VoiceSource(audio(value, cacheable), role)


def encoder(encode: Callable[[float], None]) -> VoiceEncoder:
    """An encoder whose family doubles the samples, after it has called `encode` with the first of them."""

    def model_encode(wav: torch.Tensor, role: str, launch: Launch) -> dict[str, torch.Tensor]:
        encode(float(wav[0]))
        return {"frames": 2 * wav}

    return VoiceEncoder(
        cast(SpeechModel, SimpleNamespace(encode=model_encode, spec=SPEC)), Device("cpu"), KEPT
    )


def encoded(made: VoiceEncoder, *args: Any, **more: Any) -> np.ndarray:
    """Frames of a recording, doubled by the family, once they are made."""
    return made.claim(source(*args, **more)).result().features["frames"]


def frames_of(voices: Sequence[Voice]) -> Prompt:
    frames = np.concatenate([voice.features["frames"] for voice in voices])
    return Prompt({}, frames, np.zeros(0), {}, 1, 0, codec_prefix=frames[:0])


def preparation(made: VoiceEncoder, *sources: VoiceSource) -> Preparation:
    """A prompt in the making that needs these voices."""

    def prompt(request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        return frames_of(voices)

    model = SimpleNamespace(references=lambda request: list(sources), prompt=prompt)
    return Preparation(cast(SpeechModel, model), made, cast(Any, None), SpeechRequest("text"))


class Gate:
    """Encodings wait here until the test lets them go."""

    def __init__(self, *values: float) -> None:
        self.values = values
        self.entered, self.going = threading.Semaphore(0), threading.Event()
        self.encoded: list[float] = []

    def __call__(self, value: float) -> None:
        self.encoded.append(value)
        self.entered.release()
        if value in self.values:
            assert self.going.wait(STUCK_S)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=STUCK_S)


def test_what_is_cached_does_not_wait_for_audio_that_is_encoded() -> None:
    gate = Gate(2.0)
    voice_encoder = encoder(gate)
    encoded(voice_encoder, 1)
    gate.wait()
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(encoded, voice_encoder, 2)
        gate.wait()
        quick = pool.submit(encoded, voice_encoder, 1)
        try:
            assert quick.result(STUCK_S).tolist() == [2.0] * 4
            assert not slow.done()
        finally:
            gate.going.set()
    assert slow.result().tolist() == [4.0] * 4


def test_different_references_are_encoded_side_by_side() -> None:
    gate = Gate(*range(ENCODINGS))
    voice_encoder = encoder(gate)
    with ThreadPoolExecutor(ENCODINGS) as pool:
        futures = [pool.submit(encoded, voice_encoder, i) for i in range(ENCODINGS)]
        try:
            gate.wait(ENCODINGS)  # all are inside
        finally:
            gate.going.set()
    assert [f.result()[0] for f in futures] == [2.0 * i for i in range(ENCODINGS)]


def test_one_reference_that_many_ask_for_at_once_is_encoded_once() -> None:
    gate = Gate(1.0)
    voice_encoder = encoder(gate)
    with ThreadPoolExecutor(4) as pool:
        futures: list[Future[Any]] = [pool.submit(encoded, voice_encoder, 1) for _ in range(8)]
        gate.wait()
        gate.going.set()
    assert [f.result()[0] for f in futures] == [2.0] * 8
    assert gate.encoded == [1.0]


def test_a_failure_reaches_all_who_wait_and_the_next_call_tries_again() -> None:
    calls: list[float] = []
    going = threading.Event()

    def fail_once(value: float) -> None:
        calls.append(value)
        if len(calls) == 1:
            assert going.wait(STUCK_S)
            raise torch.OutOfMemoryError("no room")

    voice_encoder = encoder(fail_once)
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(encoded, voice_encoder, 1)
        going.set()
        with pytest.raises(torch.OutOfMemoryError):
            failing.result(STUCK_S)
    assert encoded(voice_encoder, 1).tolist() == [2.0] * 4
    assert calls == [1.0, 1.0]


def test_roles_have_their_own_features() -> None:
    gate = Gate()
    voice_encoder = encoder(gate)
    for _ in range(2):
        for role in ("reference", "prompt"):
            assert encoded(voice_encoder, 1, role=role).tolist() == [2.0] * 4
    assert gate.encoded == [1.0, 1.0]
    assert (
        voice_encoder.counts().hits,
        voice_encoder.counts().misses,
        voice_encoder.counts().entries,
    ) == (2, 2, 2)


def test_the_least_recently_used_features_go_and_audio_that_will_not_come_again_is_not_kept() -> (
    None
):
    gate = Gate()
    voice_encoder = encoder(gate)
    for value in (0, 1, 2, 0, 3, 0, 1):
        encoded(voice_encoder, value)
    assert gate.encoded == [0.0, 1.0, 2.0, 3.0, 1.0]
    for _ in range(2):
        encoded(voice_encoder, 9, cacheable=False)
    assert gate.encoded[5:] == [9.0, 9.0]
    assert voice_encoder.counts().entries == KEPT
    encoded(voice_encoder, 1)
    assert len(gate.encoded) == 7


def test_who_must_not_wait_is_told_what_to_wait_for_and_keeps_what_it_got() -> None:
    gate = Gate(1.0)
    voice_encoder = encoder(gate)
    waiting = preparation(voice_encoder, source(1))
    waits = waiting.advance()
    gate.wait()
    gate.going.set()
    assert isinstance(waits, Claim)
    assert waits.result().features["frames"].tolist() == [2.0] * 4
    for value in range(2, 3 + KEPT):  # others take its place in the cache
        encoded(voice_encoder, value)
    prompt = waiting.advance()
    assert isinstance(prompt, Prompt)
    assert prompt.frames.tolist() == [2.0] * 4
    assert gate.encoded.count(1.0) == 1


def test_several_new_references_of_a_request_are_encoded_side_by_side() -> None:
    gate = Gate(*range(ENCODINGS))
    waiting = preparation(encoder(gate), *(source(i) for i in range(ENCODINGS)))
    gate.wait(ENCODINGS)  # all are inside
    gate.going.set()
    assert waiting.wait().frames.tolist() == [2.0 * i for i in range(ENCODINGS) for _ in range(4)]
    waiting.cancel()
    assert sorted(gate.encoded) == [*range(ENCODINGS)]


def test_what_a_family_hears_of_a_recording_is_made_once_beside_the_caller() -> None:
    threads: list[str] = []

    def louder(recording: Recording) -> Recording:
        threads.append(threading.current_thread().name)
        return replace(recording, samples=3 * recording.samples)

    voice_encoder = encoder(lambda value: None)
    for _ in range(2):
        voice = voice_encoder.claim(VoiceSource(audio(1), "reference", louder)).result()
        assert voice.features["frames"].tolist() == [6.0] * 4
    assert [name.rpartition("_")[0] for name in threads] == ["stentor-encode"]


def test_what_a_voice_makes_once_is_made_again_for_another_key_only() -> None:
    voice, numbers = Voice("a", {}), iter(range(9))
    assert [voice.once(key, lambda: next(numbers)) for key in ("x", "x", "y", "y", "x")] == [
        0,
        0,
        1,
        1,
        2,
    ]


def test_an_encoding_that_has_not_begun_ends_with_the_last_who_wants_it() -> None:
    gate = Gate(*range(ENCODINGS))
    voice_encoder = encoder(gate)
    running = [voice_encoder.claim(source(i)) for i in range(ENCODINGS)]
    gate.wait(ENCODINGS)
    unwanted, first_claim = (voice_encoder.claim(source(i)) for i in (7, 8))
    again = voice_encoder.claim(source(8))
    for claim in (unwanted, first_claim, first_claim, *running):
        claim.cancel()
    assert unwanted.done
    gate.going.set()
    assert again.result().features["frames"].tolist() == [16.0] * 4
    assert sorted(gate.encoded) == [*range(ENCODINGS), 8.0]


def test_a_codec_state_of_a_request_that_was_given_up_meanwhile_is_not_made() -> None:
    """A server leaves a request in its own thread while another may still be making the prompt."""
    released: list[str] = []

    def prompt(request: SpeechRequest, voices: Sequence[Voice]) -> Prompt:
        waiting.cancel()
        made = frames_of(voices)
        made.codec_prefix = made.frames
        return made

    primer = SimpleNamespace(claim=lambda prompt: Claim(Future(), lambda: released.append("state")))
    model = SimpleNamespace(references=lambda request: [source(1)], prompt=prompt)
    made = encoder(lambda value: None)
    waiting = Preparation(cast(SpeechModel, model), made, cast(Any, primer), SpeechRequest("text"))
    encoded(made, 1)
    assert isinstance(waiting.advance(), Claim)
    assert released == ["state"]


def test_closing_waits_for_what_runs_and_fails_what_has_not_begun() -> None:
    gate = Gate(*range(ENCODINGS))
    voice_encoder = encoder(gate)
    running = [voice_encoder.claim(source(i)) for i in range(ENCODINGS)]
    gate.wait(ENCODINGS)
    waiting = voice_encoder.claim(source(7))
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(voice_encoder.close)
        with pytest.raises(EngineError):
            waiting.result()
        gate.going.set()
        closing.result(STUCK_S)
    assert [claim.result().features["frames"][0] for claim in running] == [
        2.0 * i for i in range(ENCODINGS)
    ]
    with pytest.raises(EngineError):
        encoded(voice_encoder, 7)


def test_a_start_with_too_little_memory_for_the_longest_reference_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(value: float) -> None:
        raise torch.OutOfMemoryError("no room")

    voice_encoder = encoder(fail)
    voice_encoder.warm_up()
    messages = [
        record.getMessage() for record in caplog.records if record.name.startswith("stentor")
    ]
    assert messages == ["no memory to encode 1 s of reference audio"] * ENCODINGS
    assert voice_encoder.counts() == CacheCounts()
