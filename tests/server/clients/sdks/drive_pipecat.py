"""Pipecat's OpenAI TTS service without a pipeline around it. Prints what came as JSON."""

import asyncio
import importlib.metadata
import json
import sys

from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame
from pipecat.services.openai.tts import OpenAITTSService

URL = sys.argv[1] + "/v1"


async def speak() -> dict:
    tts = OpenAITTSService(
        api_key="any",
        base_url=URL,
        sample_rate=24000,
        settings=OpenAITTSService.Settings(voice="alloy"),
    )
    tts._sample_rate = 24000  # a pipeline's StartFrame sets it
    frames = [frame async for frame in tts.run_tts("Good morning.", "one")]
    audio = [f for f in frames if isinstance(f, TTSAudioRawFrame)]
    rest = tts.run_tts("Good morning.", "two")
    async for frame in rest:
        if isinstance(frame, TTSAudioRawFrame):
            break  # the user interrupts
    await rest.aclose()
    return {
        "errors": [f.error for f in frames if isinstance(f, ErrorFrame)],
        "rate": audio[0].sample_rate,
        "bytes": sum(len(f.audio) for f in audio),
    }


print(json.dumps({"version": importlib.metadata.version("pipecat-ai")} | asyncio.run(speak())))
