"""The openai SDK: list, speak, stream, cancel. Prints what came as JSON."""

import asyncio
import json
import sys

import openai

URL = sys.argv[1] + "/v1"
got = {"version": openai.__version__}
with openai.OpenAI(base_url=URL, api_key="any", max_retries=0) as client:
    got["models"] = [m.id for m in client.models.list()]
    got["default"] = (
        client.audio.speech.create(model="tts-1", voice="alloy", input="Good morning.")
        .read()[:4]
        .hex()
    )
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="nova",
        input="Good morning.",
        response_format="pcm",
        instructions="Speak slowly.",
    ) as answer:
        got["streamed"] = sum(len(part) for part in answer.iter_bytes())
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts",
        voice="nova",
        input="Good morning.",
        response_format="pcm",
        stream_format="sse",
    ) as answer:
        got["events"] = sorted(
            {json.loads(line[6:])["type"] for line in answer.iter_lines() if line[:5] == "data:"}
        )


async def cancel() -> bool:
    async with (
        openai.AsyncOpenAI(base_url=URL, api_key="any", max_retries=0) as client,
        client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input="Good morning.", response_format="pcm"
        ) as answer,
    ):
        async for part in answer.iter_bytes():
            return bool(part)
    return False


got["cancelled"] = asyncio.run(cancel())
print(json.dumps(got))
