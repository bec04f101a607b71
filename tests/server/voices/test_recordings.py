"""A voice is decoded, resampled and hashed once, however many requests, pieces and tries speak with it."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stentor import audio
from stentor.audio import Recording
from stentor.server.errors import ApiError
from stentor.server.voices import recordings, references, store
from stentor.server.voices.recordings import Recordings
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, count, tone_wav

ASK: dict[str, Any] = {
    "input": "Hello there. And here.",
    "split_granularity": "sentence",
    "response_format": "pcm",
}
SPEC = SimpleNamespace(reference_seconds=(0.05, 5.0), reference_rate=600)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often audio was decoded, resampled and hashed, and the file of a voice looked at."""
    found: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a: (found.update([name]), plain(*a))[1])

    counted(references, "decode")
    counted(audio, "resample")
    counted(audio, "digest")
    counted(store, "_identity")
    return found


def uri(hz: float) -> str:
    return "data:audio/wav;base64," + base64.b64encode(tone_wav(hz=hz)).decode()


def test_an_uploaded_voice_is_resampled_and_hashed_once(
    live: Live, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"audio_sample": ("v.wav", tone_wav(hz=317.0), "audio/wav")}
    assert (
        live.http.post(
            "/v1/audio/voices", data={"name": "ada", "consent": "yes"}, files=files
        ).status_code
        == 200
    )
    monkeypatch.setattr(recordings, "LOOK_SECONDS", 1000.0)
    monkeypatch.setattr(recordings, "STALE_SECONDS", 1000.0)
    calls.clear()
    before = {name: count(live, name) for name in NAMES}
    assert {live.speech(**ASK, voice="ada", seed=seed).status_code for seed in range(3)} == {200}
    # for the first request, its reading, and what looks now and then
    assert calls.pop("_identity") < 3 + 1
    assert calls == {"resample": 1, "digest": 1}
    found = {name: count(live, name) - before[name] for name in NAMES}
    assert found == {
        'engine_reference_misses_total{model_name="dummy:toy"}': 1,
        'engine_reference_hits_total{model_name="dummy:toy"}': 5,  # three requests of two pieces
        'engine_codec_state_misses_total{model_name="dummy:toy"}': 1,
        'engine_codec_state_hits_total{model_name="dummy:toy"}': 5,
    }
    live.http.delete("/v1/audio/voices/ada")


NAMES = [
    f'engine_{cache}_{what}_total{{model_name="dummy:toy"}}'
    for cache in ("reference", "codec_state")
    for what in ("hits", "misses")
]


def test_a_voice_that_a_request_brings_is_decoded_and_resampled_once_and_its_samples_are_not_hashed(
    live: Live, calls: Counter[str]
) -> None:
    """The key of its encoding is that of what the request brought, which is hashed already."""
    misses = 'engine_reference_misses_total{model_name="dummy:toy"}'
    before = count(live, misses)
    for seed in range(3):
        assert live.speech(**ASK, ref_audio=uri(523.0), seed=seed).status_code == 200
    assert calls == {"decode": 1, "resample": 1}
    assert live.speech(**ASK, ref_audio=uri(524.0)).status_code == 200
    assert count(live, misses) - before == 2


class Source:
    """Stands for what decodes. It waits until it is let go."""

    def __init__(self) -> None:
        self.going = asyncio.Event()
        self.loads: list[str] = []
        self.ended: list[str] = []

    def changes(self, source: str) -> bool:
        return False

    def holds(self, source: str) -> bool:
        return False

    async def fetched(self, source: str, param: str) -> bytes | None:
        self.loads.append(source)
        try:
            await self.going.wait()
        finally:
            self.ended.append(source)
        return None

    def read(
        self, source: str, param: str, seconds: float, data: bytes | None
    ) -> tuple[np.ndarray, int]:
        if source == "wrong":
            raise ApiError(400, "wrong", param=param)
        return np.sin(np.arange(600, dtype=np.float32)), 1200


async def until(true: Any) -> None:
    async with asyncio.timeout(STUCK_S):
        while not true():
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)


def with_recordings(run: Any) -> None:
    async def main() -> None:
        source = Source()
        with ThreadPoolExecutor(1) as pool:
            host: Any = SimpleNamespace(name="toy", spec=SPEC, pool=pool, references=pool)
            made: Any = Recordings(source, None)  # type: ignore[arg-type]
            await run(made, host, source)

    asyncio.run(main())


def test_requests_that_bring_the_same_voice_at_once_share_its_decoding() -> None:
    async def run(made: Recordings, host: Any, source: Source) -> None:
        asked = [asyncio.create_task(made.named(host, "a", "ref_audio")) for _ in range(5)]
        await until(lambda: [m.waiting for m in made._under_way.values()] == [5])
        asked[0].cancel()
        source.going.set()
        found = await asyncio.gather(*asked[1:])
        assert isinstance(found[0], Recording)
        assert len({id(recording) for recording in found}) == 1
        assert await made.named(host, "a", "ref_audio") is found[0]
        assert source.loads == ["a"]

    with_recordings(run)


def test_decoding_that_nobody_waits_for_any_more_ends_and_the_next_request_decodes_again() -> None:
    async def run(made: Recordings, host: Any, source: Source) -> None:
        asked = [asyncio.create_task(made.named(host, "a", "ref_audio")) for _ in range(2)]
        await until(lambda: source.loads)
        for task in asked:
            task.cancel()
        await until(lambda: source.ended)
        source.going.set()
        assert isinstance(await made.named(host, "a", "ref_audio"), Recording)
        assert source.loads == ["a", "a"]

    with_recordings(run)


def test_all_who_wait_get_the_error_and_the_next_request_tries_again() -> None:
    async def run(made: Recordings, host: Any, source: Source) -> None:
        asked = [asyncio.create_task(made.named(host, "wrong", "ref_audio")) for _ in range(3)]
        await until(lambda: [m.waiting for m in made._under_way.values()] == [3])
        source.going.set()
        assert {type(e) for e in await asyncio.gather(*asked, return_exceptions=True)} == {ApiError}
        with pytest.raises(ApiError):
            await made.named(host, "wrong", "ref_audio")
        assert len(source.loads) == 2
        assert len(made.cache) == 0

    with_recordings(run)
