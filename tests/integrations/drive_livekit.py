"""The LiveKit plugin: alone, and in an AgentSession that speaks through a loudspeaker and is interrupted. Prints JSON."""

import asyncio
import json
import sys
import time

from livekit.agents import Agent, AgentSession, APIConnectOptions, APIStatusError
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.agents.voice import io
from livekit.agents.voice.transcription.synchronizer import TranscriptSynchronizer
from livekit.plugins import stentor

ADDRESS, DEAF, LONG = (
    sys.argv[1] + "/v1",
    sys.argv[2] + "/v1",
    {"seed": 8, "min_frames": 24, "max_frames": 24},
)
TEXT = "One is here. Two, is here!"
ONCE = APIConnectOptions(max_retry=0)


async def spoken(tts: stentor.TTS, parts: list[str]) -> dict:
    """Events of a stream for text that comes in parts."""
    samples, words, final = 0, [], 0
    async with tts.stream(conn_options=ONCE) as stream:
        for part in parts:
            stream.push_text(part)
            await asyncio.sleep(0.01)
        stream.end_input()
        async for event in stream:
            samples += event.frame.samples_per_channel
            final += event.is_final
            words += [
                [str(w), w.start_time]
                for w in event.frame.userdata.get(USERDATA_TIMED_TRANSCRIPT) or []
            ]
    ordered = [start for _, start in words] == sorted(start for _, start in words)
    return {"samples": samples, "words": [w for w, _ in words], "ordered": ordered, "final": final}


async def refused(**settings: object) -> dict:
    tts = stentor.TTS(base_url=ADDRESS, **settings)
    try:
        await tts.synthesize(TEXT, conn_options=ONCE).collect()
    except APIStatusError as e:
        return {"status": e.status_code, "message": e.message, "retryable": e.retryable}
    finally:
        await tts.aclose()
    return {}


async def interrupted(tts: stentor.TTS) -> int:
    """Leave a stream after its first audio. The server has long to go."""
    async with tts.stream(conn_options=ONCE) as stream:
        stream.push_text("One is here. " * 400)
        stream.flush()
        return (await anext(stream)).frame.samples_per_channel


class Loudspeaker(io.AudioOutput):
    """Plays what it is given by the clock."""

    def __init__(self) -> None:
        super().__init__(
            label="Loudspeaker",
            capabilities=io.AudioOutputCapabilities(pause=False),
            sample_rate=24000,
        )
        self.seconds, self.began, self.ending = 0.0, None, None

    @property
    def played(self) -> float:
        return (
            0.0
            if self.began is None
            else min(self.seconds, asyncio.get_running_loop().time() - self.began)
        )

    async def capture_frame(self, frame: object) -> None:
        await super().capture_frame(frame)
        if self.began is None:
            self.began = asyncio.get_running_loop().time()
            self.on_playback_started(created_at=time.time())
        self.seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        if self.began is not None:
            left = self.seconds - self.played
            self.ending = asyncio.get_running_loop().call_later(left, self.finish, False)

    def clear_buffer(self) -> None:
        if self.began is not None:
            self.finish(True)

    def finish(self, interrupted: bool) -> None:
        if self.ending is not None:
            self.ending.cancel()
        position, self.seconds, self.began, self.ending = self.played, 0.0, None, None
        self.on_playback_finished(playback_position=position, interrupted=interrupted)


class Screen(io.TextOutput):
    def __init__(self) -> None:
        super().__init__(label="Screen", next_in_chain=None)
        self.shown = ""

    async def capture_text(self, text: str) -> None:
        self.shown += text

    def flush(self) -> None:
        return


async def in_a_session() -> dict:
    """History of a conversation: of speech that was heard to its end, and of speech that was not."""
    tts = stentor.TTS(base_url=ADDRESS, options=LONG)
    screen = Screen()
    synchronizer = TranscriptSynchronizer(
        next_in_chain_audio=Loudspeaker(), next_in_chain_text=screen
    )
    async with AgentSession(tts=tts, use_tts_aligned_transcript=True) as session:
        session.output.audio, session.output.transcription = (
            synchronizer.audio_output,
            synchronizer.text_output,
        )
        await session.start(Agent(instructions=""), record=False)
        await session.say(TEXT)
        text = "One is here. Two, is here! " * 50
        handle = session.say(text)
        before = len(screen.shown)
        while len(screen.shown) < before + 20:
            await asyncio.sleep(0.02)
        await handle.interrupt()
        await handle
        heard, cut = [item.text_content for item in session.history.items if item.type == "message"]
    await tts.aclose()
    return {
        "heard": heard,
        "cut": len(cut),
        "prefix": text.startswith(cut.strip()),
        "whole": len(text),
    }


async def main() -> dict:
    tts = stentor.TTS(base_url=ADDRESS, voice="low", options=LONG)
    deaf = stentor.TTS(base_url=DEAF, options=LONG)
    first = await spoken(tts, ["One is ", "here", ". Two, ", "is here!"])
    again = await spoken(tts, [TEXT])
    whole = await tts.synthesize(TEXT, conn_options=ONCE).collect()
    tts.update_options(speed=2.0)
    result = {
        "streamed": first,
        "the same": first == again,
        "whole": whole.samples_per_channel,
        "fast": (await spoken(tts, [TEXT]))["samples"],
        "sentences": (await spoken(deaf, [TEXT]))["words"],
        "unknown voice": await refused(voice="nobody"),
        "interrupted": await interrupted(tts),
        "session": await in_a_session(),
    }
    await tts.aclose()
    await deaf.aclose()
    return result


print(json.dumps(asyncio.run(main())))
