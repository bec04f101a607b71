"""LiveKit's plugins for OpenAI and ElevenLabs while a person interrupts the agent. Prints JSON."""

import asyncio
import importlib.metadata
import json
import sys

import aiohttp
from interrupted import SENTENCES, aborted, freed
from livekit.plugins import elevenlabs, openai

URL = sys.argv[1]


async def openai_http() -> bool:
    before = aborted(URL)
    tts = openai.TTS(base_url=f"{URL}/v1", api_key="any", model="tts-1", voice="alloy")
    stream = tts.synthesize("".join(SENTENCES))
    await anext(aiter(stream))
    await stream.aclose()
    stopped = await freed(URL, before)
    await tts.aclose()
    return stopped


async def elevenlabs_socket(session: aiohttp.ClientSession, **options: object) -> bool:
    """The connection lives on: the next turn uses it."""
    before = aborted(URL)
    tts = elevenlabs.TTS(
        base_url=f"{URL}/v1",
        api_key="any",
        voice_id="default",
        encoding="pcm_24000",
        http_session=session,
        **options,
    )
    stream = tts.stream()
    for sentence in SENTENCES:
        stream.push_text(sentence)
    await anext(aiter(stream))
    await stream.aclose()
    stopped = await freed(URL, before)
    await tts.aclose()
    return stopped


async def main() -> dict:
    async with aiohttp.ClientSession() as session:
        return {
            "openai": await openai_http(),
            "elevenlabs, sentences": await elevenlabs_socket(session),
            "elevenlabs, words": await elevenlabs_socket(session, auto_mode=False),
        }


print(
    json.dumps(
        {"version": importlib.metadata.version("livekit-plugins-elevenlabs")} | asyncio.run(main())
    )
)
