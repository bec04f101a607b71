#!/usr/bin/env bash
# livekit-plugins-elevenlabs 1.8.9 and pipecat-ai 1.14.0: when a word is spoken, by the same messages of the same protocol.
#
# Behaviour: both speak ElevenLabs' multi-stream-input and read character times from `charStartTimesMs` and
# `charDurationsMs`. Pipecat adds up the spans of the messages: each message counts from the end of the one before.
# LiveKit takes the numbers as they are: each message counts from the beginning of the text. A server that restarts at zero
# in each message gives LiveKit times that jump back, and one that counts on gives Pipecat times that grow too fast. No
# stream of times suits both. Only their queries differ: LiveKit asks for `sync_alignment=true`, Pipecat does not. For
# ElevenLabs' dialogue models LiveKit has a third reading: times count from the beginning of the audio of their message.
#
# The usual guess: a documented field has one meaning, two clients that are in production agree on it, and a server that was
# tested with one works with the other.
#
# Output seen (2026-11-29), for two sentences of one second each:
#   each message from zero: Pipecat Good 0.0, day. 0.5, How 1.0, so? 1.5
#   each message from zero: LiveKit Good 0.0, day. 0.5, How 0.0, so? 0.5
#   counted on:             Pipecat Good 0.0, day. 0.5, How 2.0, so? 2.5
#   counted on:             LiveKit Good 0.0, day. 0.5, How 1.0, so? 1.5
#
# Why it matters: voice bots cut the transcript of an interrupted turn by these times. Wrong ones leave words in the
# model's memory that nobody heard, or drop some that everybody did.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    'pipecat-ai[elevenlabs]==1.14.0' livekit-plugins-elevenlabs==1.8.9

cat > "$folder/words.py" <<'PY'
import asyncio
import base64
import json
import sys

import aiohttp
from livekit.plugins import elevenlabs
from pipecat.services.elevenlabs.tts import calculate_word_times
from websockets.asyncio.server import serve

SENTENCES = ("Good day. ", "How so? ")
SILENCE = base64.b64encode(bytes(48_000)).decode()  # one second of pcm_24000


def messages(counted_on: bool) -> list[dict]:
    """The times of two sentences, whose words take half a second each."""
    result = []
    for i, text in enumerate(SENTENCES):
        first, second = (len(word) + 1 for word in text.split())
        durations = [500 // first] * first + [500 // second] * second
        durations[first - 1] += 500 - sum(durations[:first])
        durations[-1] += 1000 - sum(durations)
        starts = [sum(durations[:k]) + (1000 * i if counted_on else 0) for k in range(len(text))]
        times = {"chars": list(text), "charStartTimesMs": starts, "charDurationsMs": durations}
        result.append({"audio": SILENCE, "alignment": times, "normalizedAlignment": times})
    return result


def by_pipecat(counted_on: bool) -> list[tuple[str, float]]:
    """The loop of ElevenLabsTTSService._receive_messages."""
    words, clock, partial, begun = [], 0.0, "", 0.0
    for message in messages(counted_on):
        times = message["alignment"]
        spoken, partial, begun = calculate_word_times(times, clock, partial, begun)
        words += spoken
        clock += (times["charStartTimesMs"][-1] + times["charDurationsMs"][-1]) / 1000
    return words


async def by_livekit(counted_on: bool) -> list[tuple[str, float]]:
    async def answer(socket) -> None:
        async for message in socket:
            request = json.loads(message)
            if request.get("close_context"):
                for part in [*messages(counted_on), {"isFinal": True}]:
                    await socket.send(json.dumps({**part, "contextId": request["context_id"]}))

    async with serve(answer, "127.0.0.1", 0) as server, aiohttp.ClientSession() as session:
        port = server.sockets[0].getsockname()[1]
        tts = elevenlabs.TTS(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="any",
            encoding="pcm_24000",
            http_session=session,
        )
        words = []
        async with tts.stream() as stream:
            stream.push_text("".join(SENTENCES))
            stream.end_input()
            async for event in stream:
                words += event.frame.userdata.get("lk.timed_transcripts", [])
        await tts.aclose()
    return [(str(word).strip(), word.start_time) for word in words if str(word).strip()]


seen = {}
for label, counted_on in (("each message from zero:", False), ("counted on:", True)):
    for client, words in (
        ("Pipecat", by_pipecat(counted_on)),
        ("LiveKit", asyncio.run(by_livekit(counted_on))),
    ):
        seen[client, counted_on] = [round(begin, 1) for _, begin in words]
        line = ", ".join(f"{word} {begin:.1f}" for word, begin in words)
        print(f"{label:23} {client} {line}")
sys.exit(
    seen
    != {
        ("Pipecat", False): [0.0, 0.5, 1.0, 1.5],
        ("LiveKit", False): [0.0, 0.5, 0.0, 0.5],
        ("Pipecat", True): [0.0, 0.5, 2.0, 2.5],
        ("LiveKit", True): [0.0, 0.5, 1.0, 1.5],
    }
)
PY
"$folder/venv/bin/python" "$folder/words.py" 2>/dev/null
