"""ElevenLabs' SDK: lists, whole, streamed, with times, over a socket, cancelled. Prints what came as JSON."""

import asyncio
import base64
import importlib.metadata
import json
import sys

from elevenlabs import VoiceSettings
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError

URL, TEXT = sys.argv[1], "Good morning. How are you?"
client = ElevenLabs(base_url=URL, api_key="any")
client.text_to_speech._ws_base_url = URL.replace(
    "http", "ws", 1
)  # it takes wss, whatever the address
speech = client.text_to_speech
got = {"version": importlib.metadata.version("elevenlabs")}
got["models"] = [m.model_id for m in client.models.list() if m.can_do_text_to_speech]
got["voices"] = [v.voice_id for v in client.voices.get_all().voices]
got["found"] = [
    v.voice_id for v in client.voices.search(search=got["voices"][0], page_size=1).voices
]
got["voice"] = client.voices.get(got["voices"][0]).name
got["default"] = b"".join(speech.convert("default", text=TEXT))[:2].hex()
got["streamed"] = {
    name: len(
        b"".join(
            speech.stream(
                "default", text=TEXT, output_format=name, model_id="eleven_flash_v2_5", seed=5
            )
        )
    )
    for name in ("mp3_22050_32", "pcm_16000", "opus_48000_64", "ulaw_8000")
}
settings = VoiceSettings(stability=0.5, speed=2.0)
with speech.with_raw_response.convert(
    "default", text=TEXT, output_format="pcm_16000", voice_settings=settings, seed=5
) as raw:
    got["ignored"] = raw.headers["x-ignored"]
    got["fast"] = len(b"".join(raw.data)) / got["streamed"]["pcm_16000"]
timed = speech.convert_with_timestamps("default", text=TEXT, output_format="wav_24000")
got["timed"] = {
    "text": "".join(timed.alignment.characters),
    "start": base64.b64decode(timed.audio_base_64)[:4].hex(),
}
lines = list(speech.stream_with_timestamps("default", text=TEXT, output_format="pcm_16000"))
got["lines"] = {
    "text": "".join(c for line in lines if line.alignment for c in line.alignment.characters),
    "ends": [line.alignment.character_end_times_seconds[-1] for line in lines if line.alignment][
        -1
    ],
    "bytes": sum(len(base64.b64decode(line.audio_base_64)) for line in lines),
}
words = (f"{word} " for word in TEXT.split())
got["socket"] = sum(
    map(len, speech.convert_realtime("default", text=words, output_format="pcm_16000"))
)


def refused(**given: object) -> str:
    try:
        b"".join(speech.convert(**{"voice_id": "default", "text": TEXT, **given}))
    except ApiError as e:
        return f"{e.status_code} {e.body['detail']['message'].partition(':')[0]}"
    return ""


got["refused"] = [
    refused(voice_id="nobody"),
    refused(output_format="mp3_8000_8"),
    refused(text=""),
    refused(model_id="x"),
]
try:
    list(speech.convert_realtime("nobody", text=iter(["Hello. "])))
except ApiError as e:
    got["refused"].append(f"{e.status_code} {e.body['message'].partition(':')[0]}")


async def cancel() -> bool:
    client = AsyncElevenLabs(base_url=URL, api_key="any")
    answer = client.text_to_speech.stream("default", text=TEXT, output_format="pcm_16000")
    part = await anext(answer)
    await answer.aclose()
    return bool(part)


got["cancelled"] = asyncio.run(cancel())
print(json.dumps(got))
