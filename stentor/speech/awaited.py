"""Driver of `Speaking` for asyncio: texts whole, as a stream, and while they are still being
written.

Prompts are made in threads, as they may wait for the encoding of a recording. All else runs in the
caller's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import suppress

from stentor.arguments import not_unicode
from stentor.engine.stream import AudioStream
from stentor.errors import InvalidRequest, StentorError
from stentor.speech.live_text import TextFeed, TextTail
from stentor.speech.result import Speech
from stentor.speech.speaking import SpokenSegment
from stentor.speech.spoken_text import SpokenText


async def speak(texts: Sequence[SpokenText]) -> list[Speech | StentorError]:
    """Speak all of them together, and return the speech of each, or its error.

    Overloaded if the queue has no room for the first one. The others are not refused then.
    """
    first, *others = texts
    try:
        stream = await _start(first)
        for text in others:
            text.speaking.admit()
        rest = [asyncio.create_task(_spoken(text, None)) for text in others]
        try:
            return [await _spoken(first, stream), *[await task for task in rest]]
        finally:
            for task in rest:
                task.cancel()
    except BaseException:
        for text in texts:
            text.cancel()
        raise


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
    if not text.prepared:
        await asyncio.to_thread(text.prepare)
    return text.start()


async def _spoken(text: SpokenText, begun: SpokenSegment | None) -> Speech | StentorError:
    """Speak a text, of which a segment may have begun."""
    try:
        running = deque([] if begun is None else [begun])
        while True:
            while (current := await _start(text)) is not None:
                running.append(current)
            if not running:
                return text.outcome()
            oldest = running.popleft()
            async for chunk in text.achunks(oldest):
                text.keep(oldest, chunk)
    except Exception as e:
        return text.fail(e)


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
