"""LiveKit's openai plugin: with the events that it asks tts-1 for, with raw bytes, cancelled. Prints JSON."""

import asyncio
import importlib.metadata
import json
import sys

import aiohttp  # noqa: F401
from livekit.plugins import openai

URL = sys.argv[1] + "/v1"


async def speak(model: str, format: str, cancel: bool = False) -> int:
    tts = openai.TTS(
        base_url=URL, api_key="any", model=model, voice="alloy", response_format=format
    )
    total = 0
    async with tts.synthesize("Good morning.") as stream:
        async for event in stream:
            total += len(event.frame.data)
            if cancel:
                break
    await tts.aclose()
    return total


async def main() -> dict:
    return {
        "tts-1 mp3": await speak("tts-1", "mp3"),
        "gpt-4o-mini-tts mp3": await speak("gpt-4o-mini-tts", "mp3"),
        "gpt-4o-mini-tts pcm": await speak("gpt-4o-mini-tts", "pcm"),
        "cancelled": await speak("gpt-4o-mini-tts", "pcm", cancel=True),
    }


print(
    json.dumps(
        {"version": importlib.metadata.version("livekit-plugins-openai")} | asyncio.run(main())
    )
)
