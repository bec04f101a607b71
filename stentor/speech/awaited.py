"""Passages for asyncio: whole, as a stream, and from text that is still being written.

Prompts are made in threads, as they may wait for the encoding of a recording. All else runs in the caller's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import suppress

from stentor.arguments import not_unicode
from stentor.errors import InvalidRequest, StentorError
from stentor.speech.live_text import TextFeed, TextTail, extended
from stentor.speech.passage import JoinedPieces, Passage
from stentor.speech.piece import Piece
from stentor.speech.result import Speech


async def speak(passages: Sequence[Passage]) -> list[Speech | StentorError]:
    """Speak all of them together, and give the speech of each, or its error.

    Overloaded if the queue has no room for the first one. The others are not refused then.
    """
    first, *others = passages
    try:
        begun = await _next_piece(first)
        for passage in others:
            passage.queue.admit()
        rest = [asyncio.create_task(_spoken(passage, None)) for passage in others]
        try:
            return [await _spoken(first, begun), *[await task for task in rest]]
        finally:
            for task in rest:
                task.cancel()
    except BaseException:
        for passage in passages:
            passage.cancel()
        raise


async def stream(make: Callable[[], Passage]) -> AsyncGenerator[Speech, None]:
    """The audio of a passage as it is generated. `make` is called in a thread."""
    passage = await asyncio.to_thread(make)
    pieces = JoinedPieces(passage)
    try:
        while not pieces.ended and (piece := await _next_piece(passage)) is not None:
            pieces.begin(piece)
            async for chunk in piece.astream():
                yield pieces.take(chunk)
    finally:
        passage.cancel()


async def live(make: Callable[[], tuple[Passage, TextFeed]], texts: AsyncIterable[str]) -> AsyncGenerator[Speech, None]:
    """The audio of text that is still being written. An error of who writes it is raised after what it has written.

    make: a passage that grows, and what cuts the text for it. It is called in a thread.
    """
    passage, feed = await asyncio.to_thread(make)
    pieces = JoinedPieces(passage)
    writing = asyncio.create_task(_write(feed, texts))
    try:
        async for segment, tail in feed.segments():
            passage.add(segment, live=tail is not None)
            piece = await _next_piece(passage)
            assert piece is not None
            pieces.begin(piece)
            appending = None if tail is None else asyncio.create_task(_append(piece, tail))
            try:
                async for chunk in piece.astream():
                    if appending is not None and tail is not None and chunk.finish is not None:
                        appending.cancel()  # before the tail is closed, which would give it the text that is left
                        tail.close()  # the next segment begins with that text
                    yield pieces.take(chunk)
                if appending is not None and appending.done() and not appending.cancelled():
                    appending.result()
            finally:
                if appending is not None:
                    appending.cancel()
        await writing
        if passage.pieces:
            yield pieces.finish()
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await writing  # it closes what it reads from
        passage.cancel()


async def _next_piece(passage: Passage) -> Piece | None:
    """Queue the next piece. None: there is none left."""
    await asyncio.to_thread(passage.prepare)
    return passage.next()


async def _spoken(passage: Passage, begun: Piece | None) -> Speech | StentorError:
    """Speak a passage, of which a piece may have begun."""
    try:
        running = deque([] if begun is None else [begun])
        while len(running) < passage.at_once and (piece := await _next_piece(passage)) is not None:
            running.append(piece)
        while running:
            piece = running.popleft()
            await piece.gather()
            following: Piece | None = piece  # its next try
            if piece.done:
                passage.ended(piece)
                following = await _next_piece(passage)
            if following is not None:
                running.append(following)
        speech = passage.speech()
    except Exception as e:
        passage.fail(e)
        assert passage.error is not None
        return passage.error
    passage.warn_if_cut(speech.finish_reason)
    return speech


async def _write(feed: TextFeed, texts: AsyncIterable[str]) -> None:
    try:
        async for text in texts:
            if not isinstance(text, str):
                raise InvalidRequest("text", f"must bring strings, got {type(text).__name__}")
            if (wrong := not_unicode(text)) is not None:
                raise InvalidRequest("text", wrong)
            feed.write(text)
    finally:
        feed.end()


async def _append(piece: Piece, tail: TextTail) -> None:
    """Give a piece the text that arrives while it is spoken. If it refuses the text, it ends, and this raises why."""
    try:
        async for text, last in tail.parts():
            piece.append(text, last)
            piece.segment = extended(piece.segment, text)
    except Exception:
        piece.cancel()
        raise
