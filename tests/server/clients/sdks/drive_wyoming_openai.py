"""wyoming-openai with a Wyoming client: what it offers, a whole text, a text in pieces, a client that leaves, each over
/v1/audio/speech and over Realtime.

Prints what came as JSON.
"""

import asyncio
import importlib.metadata
import json
import socket
import sys

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.info import Describe, Info
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeVoice,
)

URL = sys.argv[1] + "/v1"


async def connected(port: int) -> AsyncTcpClient:
    for _ in range(300):
        client = AsyncTcpClient("127.0.0.1", port)
        try:
            await client.connect()
            return client
        except OSError:
            await asyncio.sleep(0.1)
    raise TimeoutError("wyoming_openai does not listen")


async def heard(client: AsyncTcpClient, first: bool = False) -> dict:
    total, rate = 0, 0
    while (event := await asyncio.wait_for(client.read_event(), 60)) is not None:
        if AudioStart.is_type(event.type):
            rate = AudioStart.from_event(event).rate
        elif AudioChunk.is_type(event.type):
            total += len(AudioChunk.from_event(event).audio)
        if AudioStop.is_type(event.type) or (first and total):
            break
    return {"rate": rate, "bytes": total}


async def drive(port: int) -> dict:
    got = {}
    client = await connected(port)
    await client.write_event(Describe().event())
    info = Info.from_event(await client.read_event())
    got["voices"] = [v.name for program in info.tts for v in program.voices]
    voice = SynthesizeVoice(name=got["voices"][0])
    await client.write_event(Synthesize("Good morning.", voice).event())
    got["whole"] = await heard(client)
    await client.disconnect()
    client = await connected(port)
    await client.write_event(SynthesizeStart(voice=voice).event())
    for part in ("Good ", "morning."):
        await client.write_event(SynthesizeChunk(part).event())
    await client.write_event(SynthesizeStop().event())
    got["in pieces"] = await heard(client)
    await client.disconnect()
    client = await connected(port)
    await client.write_event(Synthesize("Good morning.", voice).event())
    got["cancelled"] = await heard(client, first=True)
    await client.disconnect()
    return got


async def spoken_by(*models: str) -> dict:
    """Figures of a run with these flags for models."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--uri", f"tcp://127.0.0.1:{port}", "--languages", "en", "--stt-openai-key", "none"]
    flags += ["--tts-openai-url", URL, "--tts-openai-key", "any", "--tts-voices", "alloy"]
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "wyoming_openai",
        *flags,
        *models,
        stdout=sys.stderr,
        stderr=sys.stderr,
    )
    try:
        return await drive(port)
    finally:
        if program.returncode is None:
            program.terminate()
            await program.wait()


async def main() -> dict:
    speech = await spoken_by("--tts-models", "tts-1", "--tts-streaming-models", "tts-1")
    realtime = await spoken_by("--tts-realtime-models", "gpt-realtime")
    return {**speech, "realtime": realtime}


print(json.dumps({"version": importlib.metadata.version("wyoming_openai")} | asyncio.run(main())))
