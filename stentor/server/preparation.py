"""A request's preparation in its model's threads. It ends soon after its request has been given up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from stentor.api import TTS
from stentor.engine.once import Claim
from stentor.models.base import Prompt, SpeechRequest
from stentor.text.front_end import Check, proceed

T = TypeVar("T")


class Abandoned(Exception):
    """This work is not needed any more: its request was cancelled, timed out, or lost its client."""


async def prepare(pool: Executor, work: Callable[[Check], T]) -> T:
    """`work(check)`, run in `pool`. Cancelling this call makes `check` raise Abandoned.

    A thread cannot be stopped from outside. `work` therefore calls `check` between the parts of what may take long.
    """
    abandoned = threading.Event()

    def check() -> None:
        if abandoned.is_set():
            raise Abandoned

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, check)
    finally:
        abandoned.set()


async def make_prompt(pool: Executor, tts: TTS, request: SpeechRequest) -> Prompt | None:
    """The prompt of a request, made in `pool`, or here if that takes half a millisecond at most. None: there is nothing
    to speak in it.

    No thread of `pool` waits for reference audio: the engine's own threads encode it meanwhile.
    """
    preparation = tts.prepare(request)

    def work(check: Check) -> Prompt | Claim[Any] | None:
        return preparation.advance(check) if tts.speakable(request.text, check) else None

    try:
        found = work(proceed) if _quick(tts, request) else await prepare(pool, work)
        while isinstance(found, Claim):
            await _done(found)
            found = await prepare(pool, work)
        return found
    finally:
        preparation.leave()


def _quick(tts: TTS, request: SpeechRequest) -> bool:
    """Whether a prompt is made sooner here than a thread would begin to."""
    given = (request.reference, request.prompt, *request.more_references)
    said = sum(len(audio.text or "") for audio in given if audio is not None)
    return len(request.text) + len(request.instructions or "") + said <= tts.spec.quick_prompt_chars


async def _done(claim: Claim[Any]) -> None:
    """Wait until a claim has its result or its error."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def tell(future: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    claim.future.add_done_callback(tell)
    await done.wait()
