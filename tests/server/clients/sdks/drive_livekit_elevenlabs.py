"""LiveKit's elevenlabs plugin: voices, whole texts, text that arrives bit by bit with word times. Prints JSON."""

import asyncio
import importlib.metadata
import json
import sys

import aiohttp
from livekit.agents import APIError
from livekit.plugins import elevenlabs

URL = sys.argv[1] + "/v1"
TEXT = "Good morning to you. How are you today?"


def plugin(session: aiohttp.ClientSession, **given: object) -> elevenlabs.TTS:
    settings = {"voice_id": "default", "encoding": "pcm_24000", **given}
    return elevenlabs.TTS(base_url=URL, api_key="any", http_session=session, **settings)


async def whole(tts: elevenlabs.TTS, cancel: bool = False) -> int:
    total = 0
    async with tts.synthesize(TEXT) as stream:
        async for event in stream:
            total += len(event.frame.data)
            if cancel:
                break
    return total


async def bit_by_bit(tts: elevenlabs.TTS) -> dict:
    total, words = 0, []
    rate = tts.sample_rate
    async with tts.stream() as stream:
        for word in TEXT.split(" "):
            stream.push_text(word + " ")
        stream.end_input()
        async for event in stream:
            total += len(event.frame.data)
            words += event.frame.userdata.get("lk.timed_transcripts", [])
    return {
        "bytes": total,
        "seconds": total / rate,
        "words": "".join(map(str, words)).split(),
        "begins": [word.start_time for word in words],
    }


async def main() -> dict:
    async with aiohttp.ClientSession() as session:
        tts = plugin(session)
        got = {"voices": [v.id for v in await tts.list_voices()], "whole": await whole(tts)}
        got["whole mp3"] = await whole(plugin(session, encoding="mp3_22050_32"))
        got["bit by bit"] = await bit_by_bit(tts)
        got["again"] = await bit_by_bit(tts)
        got["by schedule"] = await bit_by_bit(plugin(session, chunk_length_schedule=[50]))
        dialogue = plugin(session, model="eleven_v3")
        got["dialogue"] = await bit_by_bit(dialogue)
        got["dialogue again"] = await bit_by_bit(dialogue)
        got["whole dialogue"] = await whole(dialogue)
        got["cancelled"] = await whole(tts, cancel=True)
        try:
            await whole(plugin(session, voice_id="nobody"))
        except APIError as e:
            got["refused"] = e.status_code
        return got


print(
    json.dumps(
        {"version": importlib.metadata.version("livekit-plugins-elevenlabs")} | asyncio.run(main())
    )
)
