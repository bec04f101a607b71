"""The WebSocket client: the same figures, with the set-up apart from them and text that may come in pieces."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from stentor.bench.load.backends import BACKENDS, Ask
from stentor.bench.load.client import Client, Target
from stentor.bench.load.prompts import Prompt
from stentor.bench.load.record import Exchange, Spool
from stentor.bench.metrics.decode import decode
from stentor.bench.metrics.measure import measure
from tests.bench.fake_server import chunks, tone

clock = time.perf_counter


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
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(url, text="One two three.", text_rate=None, timeout_s=5.0):
    spool = Spool()
    target = Target(url, BACKENDS["websocket"], Ask(voice="amy"), text_rate=text_rate, timeout_s=timeout_s)
    prompt = Prompt(0, text)
    async with Client(target, spool) as client:
        client.prepare([prompt])
        reply = await client.send(prompt)
    result = measure(
        Exchange(prompt, reply.sent, reply.sent, reply), decode(reply, spool.get(reply.body), "websocket", 24000)
    )
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


def test_socket_times_run_from_the_first_text_and_the_handshake_is_apart(attempts):
    async def check():
        log = []
        async with scripted(speak, log, handshake=0.1) as url:
            result = await ask(url)
        assert result.completed
        assert result.sample_rate == 16000
        text = at(log, "input.text")
        truth = {"ttfb": at(log, "start"), "first_pcm": at(log, "chunk"), "e2el": at(log, "end")}
        for name, when in truth.items():
            assert result.metrics[name] == pytest.approx(when - text, abs=0.005), name
        assert result.metrics["ws_setup"] >= 0.1
        arrivals = [row[1] for row in log if row[0] == "chunk"]
        assert result.stalls == 1
        assert result.metrics["stall_max"] == pytest.approx(arrivals[3] - arrivals[0] - 0.3, abs=0.005)
        assert result.metrics["audio_duration"] == pytest.approx(0.4)

    attempts(check)


def test_the_session_is_configured_before_the_text_and_closed_after(attempts):
    async def check():
        log = []
        async with scripted(speak, log) as url:
            await ask(url)
            await asyncio.sleep(0.05)
        kinds = [row[0] for row in log if row[0] not in ("start", "chunk", "end")]
        assert kinds == ["session.config", "input.text", "input.done", "session.close"]
        config = log[0][2]
        assert (config["voice"], config["response_format"], config["stream_audio"]) == ("amy", "pcm", True)
        assert "input" not in config

    attempts(check)


def test_text_can_be_sent_at_the_pace_of_a_language_model(attempts):
    async def check():
        log = []
        async with scripted(speak, log) as url:
            result = await ask(url, "One two three four.", text_rate=100.0)
        pieces = [row[2]["text"] for row in log if row[0] == "input.text"]
        assert pieces == ["One ", "two ", "three ", "four."]
        gap = at(log, "input.text", last=True) - at(log, "input.text")
        assert gap == pytest.approx(0.14, abs=0.02)
        assert result.metrics["text_ingress"] == pytest.approx(gap, abs=0.005)
        after = at(log, "end") - at(log, "input.done")
        assert result.metrics["after_text"] == pytest.approx(after, abs=0.005)

    attempts(check)


def test_an_error_message_in_mid_stream_is_a_failure():
    async def broken(socket, stamp):
        await socket.send_bytes(b"\1\0" * 500)
        await socket.send_json({"type": "error", "message": "engine died", "partial_audio": True})

    async def check():
        async with scripted(broken, []) as url:
            return await ask(url)

    result = asyncio.run(check())
    assert result.failure == ("server_error", "engine died")
    assert result.samples == 500


def test_a_socket_that_closes_early_is_incomplete():
    async def gone(socket, stamp):
        await socket.send_bytes(b"\1\0" * 500)
        await socket.close(code=1011)

    async def check():
        async with scripted(gone, []) as url:
            return await ask(url)

    assert asyncio.run(check()).failure.kind == "incomplete"


def test_a_refused_handshake_is_named_by_its_status():
    async def check():
        async def full(request):
            return web.Response(status=503, text="full")

        app = web.Application()
        app.router.add_get("/v1/audio/speech/stream", full)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        result = await ask(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await runner.cleanup()
        return result

    assert asyncio.run(check()).failure.kind == "http_503"


def test_a_silent_socket_is_a_timeout():
    async def silent(socket, stamp):
        await asyncio.sleep(20)

    async def check():
        async with scripted(silent, []) as url:
            return await ask(url, timeout_s=0.3)

    assert asyncio.run(check()).failure.kind == "timeout"
