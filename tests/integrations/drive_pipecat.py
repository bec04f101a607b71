"""The Pipecat service in a pipeline, driven by Pipecat's own test tool. Prints JSON."""

import asyncio
import json
import sys
from collections.abc import Iterable, Iterator

from loguru import logger
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.pipeline.worker import PipelineParams
from pipecat.tests.utils import SleepFrame, run_test
from pipecat_stentor import StentorTTSService

logger.remove()
ADDRESS, DEAF, LONG = (
    sys.argv[1] + "/v1",
    sys.argv[2] + "/v1",
    {"seed": 8, "min_frames": 24, "max_frames": 24},
)
RATE = PipelineParams(audio_out_sample_rate=24000)
PLAIN = {TTSStartedFrame: "started", TTSStoppedFrame: "stopped"}


def reply(*tokens: str) -> list:
    return [LLMFullResponseStartFrame(), *map(LLMTextFrame, tokens), LLMFullResponseEndFrame()]


class Ear(BaseObserver):
    """Notes when words come out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = 0

    async def on_push_frame(self, data: FramePushed) -> None:
        self.words += isinstance(data.frame, TTSTextFrame)

    def wait(self, words: int) -> Iterator[SleepFrame]:
        """Frames that do nothing until so many words have come."""
        while self.words < words:
            yield SleepFrame(0.05)


async def run(
    frames: Iterable, address: str = ADDRESS, ear: Ear | None = None, **settings: object
) -> dict:
    """Output of a pipeline: audio, words with their times, and the frames between them in their order."""
    options = {"options": LONG} | settings
    tts = StentorTTSService(base_url=address, **options)
    given = {"frames_to_send": frames, "pipeline_params": RATE, "start_timeout": 30.0}
    down, up = await run_test(tts, **given, observers=[ear] if ear else [])
    words = [f for f in down if isinstance(f, TTSTextFrame)]
    pts = [f.pts for f in words]
    return {
        "samples": sum(len(f.audio) // 2 for f in down if isinstance(f, TTSAudioRawFrame)),
        "words": [f.text for f in words],
        "seconds": [round((p - pts[0]) / 1e9, 2) for p in pts],
        "order": [PLAIN[type(f)] for f in down if type(f) in PLAIN],
        "contexts": len({f.context_id for f in down if isinstance(f, TTSAudioRawFrame)}),
        "errors": [f.error for f in [*up, *down] if isinstance(f, ErrorFrame)],
    }


async def main() -> dict:
    settings = StentorTTSService.Settings
    speak = TTSSpeakFrame("One is here. Two, is here!")
    fast = TTSUpdateSettingsFrame(delta=settings(speed=2.0))
    lone = TTSUpdateSettingsFrame(delta=settings(voice="nobody"))
    ear = Ear()

    def interrupted() -> Iterator:
        yield from [LLMFullResponseStartFrame(), LLMTextFrame("One is here. " * 400)]
        yield from ear.wait(6)
        yield from [InterruptionFrame(), *reply("Two!")]

    aside = [
        LLMFullResponseStartFrame(),
        LLMTextFrame("One is here. "),
        TTSSpeakFrame("Two!"),
        LLMTextFrame("One is here."),
    ]
    return {
        "spoken": await run([speak]),
        "streamed": await run(reply("One ", "is ", "here", ". Two", ", is ", "here!")),
        "twice": await run([*reply("One is here."), *reply("Two, is here!")]),
        "fast": await run([speak, fast, TTSSpeakFrame("One is here. Two, is here!")]),
        "aside": await run([*aside, LLMFullResponseEndFrame()]),
        "sentences": await run([speak], DEAF),
        "interrupted": await run(interrupted(), ear=ear),
        "refused": await run([speak, lone, TTSSpeakFrame("Two!")]),
        "nobody": await run([speak], settings=settings(voice="nobody")),
        "unreachable": await run([speak], "http://127.0.0.1:9/v1"),
    }


print(json.dumps(asyncio.run(main())))
