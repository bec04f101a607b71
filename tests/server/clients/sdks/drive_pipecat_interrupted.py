"""Pipecat's services for OpenAI and ElevenLabs while a person interrupts the bot, in a pipeline. Prints JSON."""

import asyncio
import importlib.metadata
import json
import sys

import aiohttp
from interrupted import SENTENCES, aborted, freed
from pipecat.frames.frames import (
    EndFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

URL = sys.argv[1]


class Audible(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def process_frame(self, frame: object, direction: object) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.begun.set()
        await self.push_frame(frame, direction)


async def interrupted(tts: TTSService, complete: bool) -> bool:
    """Whether the server stops. complete: the language model has ended its answer before the person interrupts."""
    audible = Audible()
    worker = PipelineWorker(
        Pipeline([tts, audible]), params=PipelineParams(audio_out_sample_rate=24000)
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    before = aborted(URL)

    async def speak() -> bool:
        await worker.queue_frame(LLMFullResponseStartFrame())
        for sentence in SENTENCES:
            await worker.queue_frame(LLMTextFrame(sentence))
        if complete:
            await worker.queue_frame(LLMFullResponseEndFrame())
        await audible.begun.wait()
        await worker.queue_frame(InterruptionFrame())
        stopped = await freed(URL, before)  # while the pipeline and its connection live on
        await worker.queue_frame(EndFrame())
        return stopped

    _, stopped = await asyncio.gather(runner.run(), speak())
    return stopped


async def main() -> dict:
    results = {}
    async with aiohttp.ClientSession() as session:
        for complete in (False, True):
            services = {
                "openai": OpenAITTSService(
                    api_key="any",
                    base_url=f"{URL}/v1",
                    settings=OpenAITTSService.Settings(voice="alloy"),
                ),
                "elevenlabs socket": ElevenLabsTTSService(
                    api_key="any",
                    url=URL.replace("http", "ws", 1),
                    settings=ElevenLabsTTSService.Settings(voice="default"),
                ),
                "elevenlabs http": ElevenLabsHttpTTSService(
                    api_key="any",
                    base_url=URL,
                    aiohttp_session=session,
                    settings=ElevenLabsHttpTTSService.Settings(voice="default"),
                ),
            }
            for name, service in services.items():
                results[f"{name}, {'complete' if complete else 'growing'}"] = await interrupted(
                    service, complete
                )
    return results


print(json.dumps({"version": importlib.metadata.version("pipecat-ai")} | asyncio.run(main())))
