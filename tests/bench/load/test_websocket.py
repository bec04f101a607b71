"""The WebSocket client: the same figures, with the set-up apart from them and text that may come in pieces."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from stentor.bench.load.backends import BACKENDS, RequestDefaults
from stentor.bench.load.client import ServerTarget
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Spool
from tests.bench.fake_server import chunks, tone
from tests.bench.speech_server import on_socket
from tests.bench.unix_client import URL, UnixClient, result_of
from tests.helpers import virtual_time

TOLERANCE = 1e-9


def clock():
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def scripted(script, log, handshake=0.0):
    """A socket that plays `script(socket, stamp)` when the text is complete; `log` gets names and times."""

    async def handler(request):
        await asyncio.sleep(handshake)
        socket = web.WebSocketResponse()
        await socket.prepare(request)

        async def stamp(name, action):
            log.append((name, clock()))
            await action

        async for message in socket:
            event = json.loads(message.data)
            log.append((event["type"], clock(), event))
            if event["type"] == "input.done":
                await script(socket, stamp)
        return socket

    app = web.Application()
    app.router.add_get("/v1/audio/speech/stream", handler)
    async with on_socket(app) as path:
        yield path


async def ask(path, text="One two three.", text_rate=None, timeout_s=5.0):
    spool = Spool()
    target = ServerTarget(
        URL,
        BACKENDS["websocket"],
        RequestDefaults(voice="amy"),
        text_rate=text_rate,
        timeout_s=timeout_s,
    )
    prompt = TextItem(0, text)
    async with UnixClient(target, spool, path) as client:
        client.prepare([prompt])
        reply = await client.send(prompt)
    result = result_of(prompt, reply, spool, "websocket")
    spool.close()
    return result


def at(log, name, last=False):
    times = [row[1] for row in log if row[0] == name]
    return times[-1 if last else 0]


async def speak(socket, stamp):
    await stamp("start", socket.send_json({"type": "audio.start", "sample_rate": 16000}))
    for send in chunks(tone(0.3, 16000), 0.1, 16000):
        await asyncio.sleep(0.06)
        await stamp("chunk", socket.send_bytes(send.data))
    await asyncio.sleep(0.25)
    await stamp("chunk", socket.send_bytes(chunks(tone(0.1, 16000), 0.1, 16000)[0].data))
    await stamp("end", socket.send_json({"type": "session.done"}))


def test_socket_times_run_from_the_first_text_and_the_handshake_is_apart():
    async def check(_):
        log = []
        async with scripted(speak, log, handshake=0.1) as path:
            result = await ask(path)
        assert result.completed
        assert result.sample_rate == 16000
        text = at(log, "input.text")
        truth = {"ttfb": at(log, "start"), "first_pcm": at(log, "chunk"), "e2el": at(log, "end")}
        for name, when in truth.items():
            assert result.metrics[name] == pytest.approx(when - text, abs=TOLERANCE), name
        assert result.metrics["ws_setup"] == pytest.approx(0.1)
        arrivals = [row[1] for row in log if row[0] == "chunk"]
        assert result.stalls == 1
        assert result.metrics["stall_max"] == pytest.approx(
            arrivals[3] - arrivals[0] - 0.3, abs=TOLERANCE
        )
        assert result.metrics["audio_duration"] == pytest.approx(0.4)

    virtual_time.run(check)


def test_the_session_is_configured_before_the_text_and_closed_after():
    async def check(_):
        log = []
        async with scripted(speak, log) as path:
            await ask(path)
            await asyncio.sleep(0.05)
        kinds = [row[0] for row in log if row[0] not in ("start", "chunk", "end")]
        assert kinds == ["session.config", "input.text", "input.done", "session.close"]
        config = log[0][2]
        assert (config["voice"], config["response_format"], config["stream_audio"]) == (
            "amy",
            "pcm",
            True,
        )
        assert "input" not in config

    virtual_time.run(check)


def test_text_can_be_sent_at_the_pace_of_a_language_model():
    async def check(_):
        log = []
        async with scripted(speak, log) as path:
            result = await ask(path, "One two three four.", text_rate=100.0)
        pieces = [row[2]["text"] for row in log if row[0] == "input.text"]
        assert pieces == ["One ", "two ", "three ", "four."]
        gap = at(log, "input.text", last=True) - at(log, "input.text")
        assert gap == pytest.approx(0.14)
        assert result.metrics["text_ingress"] == pytest.approx(gap, abs=TOLERANCE)
        after = at(log, "end") - at(log, "input.done")
        assert result.metrics["after_text"] == pytest.approx(after, abs=TOLERANCE)

    virtual_time.run(check)


def test_an_error_message_in_mid_stream_is_a_failure():
    async def broken(socket, stamp):
        await socket.send_bytes(b"\1\0" * 500)
        await socket.send_json({"type": "error", "message": "engine died", "partial_audio": True})

    async def check(_):
        async with scripted(broken, []) as path:
            return await ask(path)

    result = virtual_time.run(check)
    assert result.failure == ("server_error", "engine died")
    assert result.samples == 500


def test_a_socket_that_closes_early_is_incomplete():
    async def gone(socket, stamp):
        await socket.send_bytes(b"\1\0" * 500)
        await socket.close(code=1011)

    async def check(_):
        async with scripted(gone, []) as path:
            return await ask(path)

    assert virtual_time.run(check).failure.kind == "incomplete"


def test_a_refused_handshake_is_named_by_its_status():
    async def check(_):
        async def full(request):
            return web.Response(status=503, text="full")

        app = web.Application()
        app.router.add_get("/v1/audio/speech/stream", full)
        async with on_socket(app) as path:
            return await ask(path)

    assert virtual_time.run(check).failure.kind == "http_503"


def test_a_silent_socket_is_a_timeout():
    async def silent(socket, stamp):
        await asyncio.sleep(20)

    async def check(_):
        async with scripted(silent, []) as path:
            return await ask(path, timeout_s=0.3)

    assert virtual_time.run(check).failure.kind == "timeout"
