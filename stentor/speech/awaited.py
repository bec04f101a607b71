"""Texts of this process spoken for asyncio: as a stream, and while they are still being written.

Prompts are made in threads, as they may wait for the encoding of a recording. All else runs in the
caller's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from contextlib import suppress

from stentor.arguments import not_unicode
from stentor.engine.stream import AudioStream
from stentor.errors import InvalidRequest
from stentor.speech.live_text import TextFeed, TextTail
from stentor.speech.result import Speech
from stentor.speech.speaking import SpokenSegment
from stentor.speech.spoken_text import SpokenText


class LoopWaiting:
    """Waits in the event loop, and makes prompts in threads."""

    async def prepare(self, text: SpokenText) -> None:
        if not text.prepared:
            await asyncio.to_thread(text.prepare)

    async def read(self, text: SpokenText, current: SpokenSegment) -> None:
        async for chunk in text.achunks(current):
            text.keep(current, chunk)


async def stream(make: Callable[[], SpokenText]) -> AsyncGenerator[Speech, None]:
    """The audio of a text as it is generated. `make` is called in a thread."""
    text = await asyncio.to_thread(make)
    try:
        while (current := await _start(text)) is not None:
            async for chunk in text.achunks(current):
                yield text.take(current, chunk)
    finally:
        text.cancel()


async def live(
    make: Callable[[], tuple[SpokenText, TextFeed]], texts: AsyncIterable[str]
) -> AsyncGenerator[Speech, None]:
    """The audio of text that is still being written. An error of who writes it is raised after what
    it has written.

    make: a text that grows, and what cuts it. It is called in a thread.
    """
    text, feed = await asyncio.to_thread(make)
    writing = asyncio.create_task(_write(feed, texts))
    try:
        async for segment, tail in feed.segments():
            text.speaking.add(segment, live=tail is not None)
            current = await _start(text)
            assert current is not None
            if tail is None:
                appending = None
            else:
                appending = asyncio.create_task(_append(text.stream(current), current, tail))
            try:
                async for chunk in text.achunks(current):
                    if appending is not None and tail is not None and chunk.finish is not None:
                        # before the tail is closed, which would give it the text that is left
                        appending.cancel()
                        tail.close()  # the next segment begins with that text
                    yield text.take(current, chunk)
                if appending is not None and appending.done() and not appending.cancelled():
                    appending.result()
            finally:
                if appending is not None:
                    appending.cancel()
        await writing
        if text.speaking.segments:
            yield text.finish(feed.silence)
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await writing  # it closes what it reads from
        text.cancel()


async def _start(text: SpokenText) -> SpokenSegment | None:
    """Queue the next segment. None: another has to end first, or none is left."""
    await LoopWaiting().prepare(text)
    return text.start()


async def _write(feed: TextFeed, texts: AsyncIterable[str]) -> None:
    try:
        async for text in texts:
            if not isinstance(text, str):
                raise InvalidRequest("text", f"must bring strings, got {type(text).__name__}")
            if (wrong := not_unicode(text)) is not None:
                raise InvalidRequest("text", wrong)
            await feed.write(text)
    finally:
        await feed.end()


async def _append(stream: AudioStream | None, current: SpokenSegment, tail: TextTail) -> None:
    """Append the text that arrives while a segment is spoken. If it refuses the text, it ends, and
    this raises why."""
    if stream is None:
        return
    try:
        await tail.give(stream.append, current)
    except Exception:
        stream.cancel()
        raise
