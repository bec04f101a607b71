"""Pipecat's ElevenLabs services in a pipeline: over a socket and over HTTP, with word times. Prints JSON."""

import asyncio
import importlib.metadata
import json
import sys

import aiohttp
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

URL = sys.argv[1]
TEXTS = ("Good morning to you. How are you today?", "Fine.")


class Heard(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.words, self.errors, self.done = 0, [], [], asyncio.Event()
        self.stopped = 0

    async def process_frame(self, frame: object, direction: object) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.bytes += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words += frame.text.split()
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        elif isinstance(frame, TTSStoppedFrame):
            self.stopped += 1
            if self.stopped == len(TEXTS):
                self.done.set()
        await self.push_frame(frame, direction)


async def heard(tts: TTSService) -> dict:
    found = Heard()
    worker = PipelineWorker(
        Pipeline([tts, found]), params=PipelineParams(audio_out_sample_rate=24000)
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)

    async def speak() -> None:
        for text in TEXTS:
            await worker.queue_frame(TTSSpeakFrame(text))
        await asyncio.wait_for(found.done.wait(), 60)
        await worker.queue_frame(EndFrame())

    await asyncio.gather(runner.run(), speak())
    return {"bytes": found.bytes, "words": found.words, "errors": found.errors}


async def main() -> dict:
    async with aiohttp.ClientSession() as session:
        got = {}
        settings = ElevenLabsTTSService.Settings(voice="default", stability=0.5)
        socket = ElevenLabsTTSService(
            api_key="any", url=URL.replace("http", "ws", 1), settings=settings
        )
        got["socket"] = await heard(socket)
        http = ElevenLabsHttpTTSService(
            api_key="any",
            base_url=URL,
            aiohttp_session=session,
            settings=ElevenLabsHttpTTSService.Settings(voice="default"),
        )
        got["http"] = await heard(http)
        return got


print(json.dumps({"version": importlib.metadata.version("pipecat-ai")} | asyncio.run(main())))
