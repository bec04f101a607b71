"""The package wyoming: what there is, a whole text, a text in pieces, errors, a client that leaves. Prints JSON.

Its second argument is the port.
"""

import asyncio
import importlib.metadata
import json
import sys

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

PORT, TEXT = int(sys.argv[2]), "Good morning. How are you?"


async def heard(client: AsyncTcpClient, last: type = AudioStop) -> dict:
    """Events up to this one, an error or the end."""
    kinds, total, rate = [], 0, 0
    while (event := await asyncio.wait_for(client.read_event(), 60)) is not None:
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
        if AudioStart.is_type(event.type):
            rate = AudioStart.from_event(event).rate
        elif AudioChunk.is_type(event.type):
            total += len(AudioChunk.from_event(event).audio)
        if Error.is_type(event.type):
            return {"error": Error.from_event(event).code, "then": await client.read_event()}
        if last.is_type(event.type):
            break
    return {"kinds": kinds, "rate": rate, "bytes": total}


async def main() -> dict:
    got = {"version": importlib.metadata.version("wyoming")}
    async with AsyncTcpClient("127.0.0.1", PORT) as client:
        await client.write_event(Describe().event())
        info = Info.from_event(await client.read_event())
        got["programs"] = [[p.name, p.supports_synthesize_streaming] for p in info.tts]
        got["voices"] = [v.name for v in info.tts[0].voices]
        got["languages"] = info.tts[0].voices[0].languages
        await client.write_event(Ping("it").event())
        got["pong"] = Pong.from_event(await client.read_event()).text
        voice = SynthesizeVoice(name=got["voices"][-1])
        await client.write_event(Synthesize(TEXT, voice).event())
        got["whole"] = await heard(client)
        await client.write_event(SynthesizeStart(voice=voice).event())
        for word in TEXT.split():
            await client.write_event(SynthesizeChunk(word + " ").event())
        await client.write_event(Synthesize(TEXT, voice).event())  # for servers that take no pieces
        await client.write_event(SynthesizeStop().event())
        got["in pieces"] = await heard(client, SynthesizeStopped)
        await client.write_event(Synthesize(TEXT, SynthesizeVoice(name="nobody")).event())
        got["refused"] = await heard(client)
    async with AsyncTcpClient("127.0.0.1", PORT) as client:
        await client.write_event(Synthesize(TEXT * 20).event())
        got["left after"] = (await heard(client, AudioChunk))["bytes"] > 0
    return got


print(json.dumps(asyncio.run(main())))
