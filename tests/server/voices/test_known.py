"""Uploaded voices are looked up on the disk now and then, not for each request, and what changes is noticed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

import pytest

from stentor.server.voices import recordings
from stentor.server.voices.recordings import KnownVoices
from stentor.server.voices.store import VoiceStore
from stentor.server.voices.voice import Voice
from tests.server.voices.test_voices import TONE

LONG, SHORT = 1000.0, 0.001


class Counted(VoiceStore):
    """Counts how often a voice's file is looked at."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 9, overwrite=True)
        self.looks: Counter[str] = Counter()

    def get(self, name: str) -> Voice | None:
        self.looks[name] += 1
        return super().get(name)


@pytest.fixture
def store(tmp_path: Path) -> Counted:
    made = Counted(tmp_path)
    made.add("ada", "yes", audio=TONE, text="la")
    return made


def run(store: Counted, steps: Callable[[KnownVoices], Awaitable[None]]) -> None:
    async def main() -> None:
        voices = KnownVoices(store)
        try:
            await steps(voices)
        finally:
            voices.close()

    asyncio.run(main())


@pytest.fixture
def no_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "LOOK_SECONDS", LONG)
    monkeypatch.setattr(recordings, "STALE_SECONDS", LONG)


@pytest.mark.usefixtures("no_looks")
def test_a_voice_that_was_asked_for_is_found_without_the_disk(store: Counted) -> None:
    async def steps(voices: KnownVoices) -> None:
        found = [await voices.get(name) for name in ("ada", "ADA ", "ada")]
        assert [v.text for v in found if v is not None] == ["la"] * 3
        assert sum(store.looks.values()) == 1

    run(store, steps)


@pytest.mark.usefixtures("no_looks")
def test_a_voice_that_is_not_there_is_looked_for_each_time(store: Counted) -> None:
    """Another server may have it at any time."""

    async def steps(voices: KnownVoices) -> None:
        assert await voices.get("eve") is None
        VoiceStore(store.folder, 9, True).add("eve", "yes", audio=TONE)
        assert await voices.get("eve") is not None

    run(store, steps)


@pytest.mark.usefixtures("no_looks")
def test_what_this_server_changes_is_forgotten_at_once(store: Counted) -> None:
    async def steps(voices: KnownVoices) -> None:
        await voices.get("ada")
        store.add("Ada", "yes", audio=TONE, text="other words")
        voices.forget("Ada")
        again = await voices.get("ada")
        assert again is not None
        assert again.text == "other words"
        store.delete("ada")
        voices.forget("ada")
        assert await voices.get("ada") is None

    run(store, steps)


@pytest.mark.usefixtures("no_looks")
def test_what_is_read_while_this_server_changes_it_is_not_kept(store: Counted) -> None:
    async def steps(voices: KnownVoices) -> None:
        old = store.get("ada")
        assert old is not None

        def changed_meanwhile(name: str) -> Voice:
            store.add(name, "yes", audio=TONE, text="other words")
            voices.forget(name)
            return old

        with mock.patch.object(store, "get", changed_meanwhile):
            assert await voices.get("ada") is old
        again = await voices.get("ada")
        assert again is not None
        assert again.text == "other words"

    run(store, steps)


def test_what_another_server_changes_is_noticed(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LOOK_SECONDS", SHORT)
    monkeypatch.setattr(recordings, "STALE_SECONDS", LONG)

    async def steps(voices: KnownVoices) -> None:
        async def text() -> str | None:
            found = await voices.get("ada")
            return None if found is None else found.text

        assert await text() == "la"
        other = VoiceStore(store.folder, 9, True)
        other.add("ada", "yes", audio=TONE, text="other words")
        while await text() == "la":
            await asyncio.sleep(SHORT)
        assert await text() == "other words"
        other.delete("ada")
        while await text() is not None:
            await asyncio.sleep(SHORT)

    run(store, steps)


def test_a_voice_that_nobody_could_look_at_lately_is_looked_at_first(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LOOK_SECONDS", LONG)
    monkeypatch.setattr(recordings, "STALE_SECONDS", 0.0)

    async def steps(voices: KnownVoices) -> None:
        for _ in range(3):
            assert await voices.get("ada") is not None
        assert store.looks["ada"] == 3

    run(store, steps)


def test_a_voice_that_nobody_asks_for_is_looked_at_no_more(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "LOOK_SECONDS", SHORT)
    monkeypatch.setattr(recordings, "KEEP_SECONDS", 0.0)

    async def steps(voices: KnownVoices) -> None:
        await voices.get("ada")
        assert voices._looking is not None
        await voices._looking  # it ends
        assert store.looks["ada"] == 1
        assert await voices.get("ada") is not None

    run(store, steps)
