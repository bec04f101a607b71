"""A speech server for whole-command tests: real HTTP and WebSocket, streaming a tone at a known pace.

`serving` runs it in a thread, since commands make an event loop of their own.
"""

import asyncio
import base64
import json
import tempfile
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import numpy as np
from aiohttp import WSMsgType, web

from tests.bench.fake_server import tone
from tests.helpers.patience import STUCK_S


@dataclass
class Behaviour:
    """How the server speaks. Audio comes in pieces of `piece_s`, one every `pace_s`."""

    seconds_per_letter: float = 0.01
    piece_s: float = 0.08
    pace_s: float = 0.02
    first_s: float = 0.03
    rate: int = 24000
    capacity: int | None = None
    """More requests at once than this are answered with 429."""
    noisy: bool = False
    """Audio differs from request to request."""


class SpeechServer:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.bodies: list[dict] = []
        self.running = 0

    def app(self) -> web.Application:
        """For one event loop."""
        made = web.Application()
        made.router.add_post("/v1/audio/speech", self.speech)
        made.router.add_get("/v1/audio/speech/stream", self.socket)
        made.router.add_post("/generate", self.generate)
        made.router.add_post("/v1/tts", self.tts)
        made.router.add_get("/v1/models", self.models)
        made.router.add_get("/version", self.version)
        return made

    def audio(self, text: str) -> np.ndarray:
        samples = tone(max(0.2, len(text) * self.behaviour.seconds_per_letter), self.behaviour.rate)
        if self.behaviour.noisy:
            samples = samples * np.float32(0.5 + 0.01 * len(self.bodies))
        return np.round(samples * 32767).astype("<i2")

    async def pieces(self, text: str):
        step = round(self.behaviour.piece_s * self.behaviour.rate)
        audio = self.audio(text)
        await asyncio.sleep(self.behaviour.first_s)
        for start in range(0, audio.size, step):
            if start:
                await asyncio.sleep(self.behaviour.pace_s)
            yield audio[start : start + step].tobytes()

    async def stream(
        self, request, body, text, headers, wrap=lambda data: data, tail=b"", head=b""
    ):
        self.bodies.append(body)
        if self.behaviour.capacity is not None and self.running >= self.behaviour.capacity:
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        self.running += 1
        try:
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            if head:
                await response.write(head)
            async for piece in self.pieces(text):
                await response.write(wrap(piece))
            await response.write(tail)
            return response
        finally:
            self.running -= 1

    async def speech(self, request):
        body = await request.json()
        if not isinstance(body.get("input"), str):
            return web.json_response(
                {"error": {"message": "input is required", "param": "input"}}, status=400
            )
        if body.get("voice") == "nobody":
            return web.json_response(
                {"error": {"message": "voice 'nobody' is unknown"}}, status=400
            )
        rate = str(self.behaviour.rate)
        if body.get("stream_format") != "sse":
            headers = {"Content-Type": "audio/pcm", "X-Sample-Rate": rate}
            return await self.stream(request, body, body["input"], headers)

        def event(data):
            delta = {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
            return f"event: speech.audio.delta\ndata: {json.dumps(delta)}\n\n".encode()

        done = {"type": "speech.audio.done", "usage": {"input_tokens": 5, "output_tokens": 40}}
        tail = f"event: speech.audio.done\ndata: {json.dumps(done)}\n\n".encode()
        headers = {"Content-Type": "text/event-stream", "X-Sample-Rate": rate}
        return await self.stream(request, body, body["input"], headers, event, tail)

    async def generate(self, request):
        body = await request.json()
        rate = self.behaviour.rate
        headers = {
            "Content-Type": f"audio/L16;rate={rate};channels=1",
            "X-Audio-Sample-Rate": str(rate),
        }
        return await self.stream(request, body, body["target_text"], headers)

    async def tts(self, request):
        from tests.bench.fake_server import wav_header

        body = await request.json()
        head = wav_header(self.behaviour.rate).data
        return await self.stream(
            request, body, body["text"], {"Content-Type": "audio/wav"}, head=head
        )

    async def socket(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        config, text = None, ""
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            event = json.loads(message.data)
            if event["type"] == "session.config":
                config = event
                self.bodies.append(event)
            elif event["type"] == "input.text":
                text += event["text"]
            elif event["type"] == "input.done":
                start = {"type": "audio.start", "format": "pcm", "sample_rate": self.behaviour.rate}
                await socket.send_json(start)
                if config.get("voice") == "breaks":
                    await socket.send_bytes(self.audio(text)[:1200].tobytes())
                    await socket.send_json({"type": "error", "message": "engine died"})
                    continue
                async for piece in self.pieces(text):
                    await socket.send_bytes(piece)
                await socket.send_json({"type": "audio.done", "error": False})
                await socket.send_json({"type": "session.done", "text": text})
            elif event["type"] == "session.close":
                break
        await socket.close()
        return socket

    async def models(self, request):
        return web.json_response({"data": [{"id": "fake/tone-1"}]})

    async def version(self, request):
        return web.json_response({"version": "1.2.3"})


@asynccontextmanager
async def on_socket(app):
    """The path of a Unix socket on which `app` answers."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    with tempfile.TemporaryDirectory() as folder:
        await web.UnixSite(runner, f"{folder}/socket").start()
        try:
            yield f"{folder}/socket"
        finally:
            await runner.cleanup()


@contextmanager
def serving(behaviour: Behaviour | None = None):
    """The server on a free port, in a thread; yields (url, server)."""
    server = SpeechServer(behaviour or Behaviour())
    ready = threading.Event()
    address: list = []

    async def serve():
        runner = web.AppRunner(server.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stop = asyncio.Event()
        address.extend(
            [f"http://127.0.0.1:{runner.addresses[0][1]}", asyncio.get_running_loop(), stop]
        )
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(STUCK_S)
    url, loop, stop = address
    try:
        yield url, server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(STUCK_S)
