"""The official openai SDK against a real server: what its users write must work unchanged."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from stentor.models.toy.model import BROKEN
from tests.helpers.patience import until
from tests.helpers.server_live import (
    LAWS,
    Live,
    decoded,
    either_engine,
    held,
    pcm,
    samples_of,
    serving,
)

TEXT = "Hello there, you."
FORMATS = ("mp3", "opus", "aac", "flac", "wav", "pcm", "ulaw", "alaw")
LONG = {"min_frames": 60, "max_frames": 60, "guard": False}


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="any", max_retries=0) as made:
        yield made


@either_engine
@pytest.mark.parametrize("format", FORMATS)
def test_create_and_streaming_create_give_the_same_audio(
    client: openai.OpenAI, live: Live, format: str
) -> None:
    ask = {"model": "dummy:toy", "voice": "low", "input": TEXT, "response_format": format}
    extra = {"seed": 5, "guard": False, "sample_rate": 8_000 if format in LAWS else 24_000}
    whole = client.audio.speech.create(**ask, extra_body={**extra, "stream": False})
    assert int(whole.response.headers["content-length"]) == len(whole.content)
    with client.audio.speech.with_streaming_response.create(
        **ask, extra_body={**extra, "stream_format": "audio"}
    ) as answer:
        assert answer.headers["x-seed"] == "5"
        parts = list(answer.iter_bytes())
    a, b = (samples_of(format, d) for d in (whole.content, b"".join(parts)))
    if format == "mp3":
        b = b[1105 : 1105 + len(a)]
    assert len(a) == len(b)
    assert np.corrcoef(a, b)[0, 1] > 0.99


@pytest.mark.parametrize("format", ["pcm", "mp3", "opus", "aac", "ulaw", "alaw"])
def test_what_its_docs_show_has_bytes_before_the_speech_is_finished(
    client: openai.OpenAI, live: Live, format: str
) -> None:
    extra = {**LONG, "speed": 0.25}  # opus puts a second into a page
    with held(live, frames=[50]) as engine, client.audio.speech.with_streaming_response.create(
        model="dummy:toy", voice="low", input="A long text.", response_format=format, extra_body=extra
    ) as answer:  # fmt: skip
        assert "content-length" not in answer.headers
        parts = answer.iter_bytes()
        assert next(parts)
        assert live.tts.engine.health().running == 1
        engine.go()
        assert b"".join(parts)


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_a_format_whose_header_states_its_length_is_sent_whole(
    client: openai.OpenAI, format: str
) -> None:
    ask = {"model": "dummy:toy", "voice": "low", "input": TEXT, "response_format": format}
    with client.audio.speech.with_streaming_response.create(**ask) as answer:
        assert int(answer.headers["content-length"]) == len(answer.read())


def test_leaving_the_block_cancels(client: openai.OpenAI, live: Live) -> None:
    stopped = live.tts.engine.stats.cancelled
    with held(live, frames=[20]), client.audio.speech.with_streaming_response.create(
        model="dummy:toy", voice="low", input="A long text.", response_format="pcm",
        extra_body={**LONG, "stream_format": "audio"},
    ) as answer:  # fmt: skip
        parts = answer.iter_bytes()  # kept: httpx closes the connection when this is collected
        assert next(parts)
        assert live.tts.engine.health().running == 1
        answer.close()
        assert until(lambda: not live.server.metrics.live)  # the server has noticed
    assert live.idle()
    assert live.tts.engine.stats.cancelled == stopped + 1


def test_server_sent_events_are_asked_for_by_stream_format(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="dummy:toy", voice="low", input=TEXT, response_format="pcm", stream_format="sse"
    ) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert {e["type"] for e in events[:-1]} == {"speech.audio.delta"}
    assert base64.b64decode(events[0]["audio"])
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["total_tokens"] > 0


def test_a_voice_may_be_an_object_and_a_file_be_written(
    client: openai.OpenAI, tmp_path: Path
) -> None:
    answer = client.audio.speech.create(
        model="dummy:toy", voice={"id": "high"}, input=TEXT, speed=1.5
    )  # type: ignore[arg-type]
    answer.write_to_file(tmp_path / "out.mp3")
    assert len(decoded((tmp_path / "out.mp3").read_bytes())[0])


def test_errors_are_the_sdks_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.speech.create(model="dummy:toy", voice="nobody", input=TEXT)
    assert bad.value.param == "voice"
    assert bad.value.code == "voice_not_found"
    with (
        pytest.raises(openai.BadRequestError) as bad,
        client.audio.speech.with_streaming_response.create(
            model="dummy:toy",
            voice="low",
            input=TEXT,
            extra_body={"stream_format": "audio", "cfg": 99},
        ),
    ):
        pass
    assert bad.value.param == "cfg"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.speech.create(model="whisper-1", voice="alloy", input=TEXT)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.InternalServerError) as failed:
        client.audio.speech.create(model="dummy:toy", voice="low", input=BROKEN)
    assert failed.value.code == "engine_error"


def test_keys_and_aliases_make_a_drop_in(tmp_path: Path) -> None:
    settings = {
        "api_key": ("sk-own",),
        "served_model_name": ("tts-1", "gpt-4o-mini-tts"),
    }
    with serving(tmp_path, voice_alias=("alloy=low",), **settings) as live:
        with openai.OpenAI(base_url=f"{live.url}/v1", api_key="sk-own", max_retries=0) as client:
            answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
            assert answer.response.headers["content-type"] == "audio/mpeg"
            assert answer.response.headers["transfer-encoding"] == "chunked"
            told = client.audio.speech.create(
                model="tts-1", voice="alloy", input=TEXT, extra_body={"timestamps": "json"}
            )
            assert told.response.headers["content-type"] == "application/json"
            assert [m.id for m in client.models.list()] == ["tts-1", "gpt-4o-mini-tts", "tts-1-hd"]
            assert client.models.retrieve("tts-1").object == "model"
            assert client.models.retrieve("gpt-4o-mini-tts").id == "gpt-4o-mini-tts"
            assert client.audio.speech.create(
                model="gpt-4o-mini-tts", voice="alloy", input=TEXT
            ).content
        with (
            openai.OpenAI(base_url=f"{live.url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


@either_engine
def test_the_async_client_runs_many_at_once(live: Live) -> None:
    async def check() -> list[bytes]:
        async with openai.AsyncOpenAI(
            base_url=f"{live.url}/v1", api_key="any", max_retries=0
        ) as client:

            async def one(seed: int) -> bytes:
                extra = {"seed": seed, "guard": False, "stream_format": "audio"}
                async with client.audio.speech.with_streaming_response.create(
                    model="dummy:toy",
                    voice="low",
                    input=TEXT,
                    response_format="pcm",
                    extra_body=extra,
                ) as answer:
                    return await answer.read()

            return list(await asyncio.gather(*(one(i) for i in range(8))))

    answers = asyncio.run(check())
    for seed in (0, 7):
        alone = live.speech(
            input=TEXT,
            voice="low",
            seed=seed,
            guard=False,
            response_format="pcm",
            stream_format="audio",
        )
        assert len(alone.content) == len(answers[seed])
        assert np.abs(pcm(alone.content) - pcm(answers[seed])).max() < 2.1 / 32768
