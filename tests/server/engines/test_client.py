"""Requests of an API process to an engine that a test plays, and to a real one."""

from __future__ import annotations

import asyncio
import base64
import gc
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stentor
from stentor.audio import Recording
from stentor.engine.health import Health
from stentor.engine.once import LruCache
from stentor.engine.stream import Chunk
from stentor.errors import EngineError, InvalidRequest, Overloaded
from stentor.models.info import Adapter, ReferenceAudio, SpeechRequest
from stentor.server.engines import client
from stentor.server.engines import messages as m
from stentor.server.engines.client import EngineClient, EngineLink, EngineStream, Facts
from stentor.server.engines.process import ready
from stentor.server.limits import LIMITS
from tests.helpers import virtual_time
from tests.helpers.local_engine import local_engine
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, tone_wav
from tests.helpers.wire import transmitted

HOP, WIDTH = 6, 7


class Played:
    """A client, and the engine that a test plays for it: the commands that it has had, with their arrays."""

    def __init__(self, told: m.Ready, api: int = 0) -> None:
        self.commands: list[m.Command] = []
        self.arrays: list[list[np.ndarray]] = []
        self.client = EngineClient("toy", api, self._take)
        self.client.receive([told], m.Reader(memoryview(b"")))

    def _take(self, command: m.Command, arrays: Sequence[np.ndarray]) -> None:
        self.commands.append(command)
        self.arrays.append(list(arrays))

    def had(self, kind: type[Any]) -> list[Any]:
        return [c for c in self.commands if isinstance(c, kind)]

    def say(self, *events: m.Event, arrays: Sequence[np.ndarray] = ()) -> None:
        found, data = m.events(transmitted(events, arrays))
        self.client.receive(found, m.Reader(data))

    def accept(self, stream: EngineStream) -> None:
        self.say(m.Accepted(stream.id, 5, 0, 900, [(0, 2), (2, 5)]))

    def audio(
        self, stream: EngineStream, frames: int, finish: str | None = None, value: float = 0.0
    ) -> None:
        self.say(chunk(stream, frames, finish), arrays=arrays(frames, value))

    def request(self, text: str = "Hello.", **options: Any) -> SpeechRequest:
        return self.client.request(text, **{"seed": 3, **options})

    def submit(self, **options: Any) -> EngineStream:
        return self.client.submit(self.request(**options), True)


def chunk(stream: EngineStream, frames: int, finish: str | None = None) -> m.Audio:
    return m.Audio(stream.id, frames * HOP, frames, False, finish, 5, 900)


def arrays(frames: int, value: float) -> list[np.ndarray]:
    return [np.full(frames * HOP, value, np.float32), np.full((frames, WIDTH), value, np.float32)]


Test = Callable[[Played], Awaitable[None]]


@pytest.fixture(scope="module")
def told() -> m.Ready:
    """Message of the toy's engine once it is loaded."""
    with stentor.TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        found = ready(tts, [])
    assert (found.info.hop, found.frame) == (HOP, ((WIDTH,), "float32"))
    return found


@pytest.fixture
def play(told: m.Ready) -> Callable[[Test], None]:
    """Run a test in a loop whose clock waits for nothing."""

    def run(test: Test) -> None:
        async def main(loop: virtual_time.VirtualTimeLoop) -> None:
            await test(Played(told))

        virtual_time.run(main)

    return run


def reference(value: float = 0.1, cacheable: bool = True) -> ReferenceAudio:
    return ReferenceAudio(Recording(np.full(800, value, np.float32), 800, cacheable), None)


async def chunks(stream: EngineStream) -> list[Chunk]:
    return [c async for c in stream]


# -- requests


def test_audio_follows_what_is_known_of_the_prompt(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        stream = played.submit(seed=3)
        (sent,) = played.had(m.Submit)
        assert (sent.id, sent.text, sent.seed, sent.streaming) == (stream.id, "Hello.", 3, True)
        played.accept(stream)
        assert await stream.accepted() == Facts(5, 0, 900, (range(2), range(2, 5)))
        played.audio(stream, 2, None, 0.25)
        played.audio(stream, 1, "stop", 0.5)
        first, last = await chunks(stream)
        assert (first.finish, last.finish) == (None, "stop")
        assert np.array_equal(first.samples, np.full(2 * HOP, 0.25, np.float32))
        assert np.array_equal(last.frames, np.full((1, WIDTH), 0.5, np.float32))
        assert (stream.ended, played.client.open) == (True, 0)
        stream.cancel()
        assert played.had(m.Cancel) == []

    play(test)


def test_what_is_known_of_a_prompt_grows_with_live_text(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        stream = played.submit()
        played.accept(stream)
        stream.append(" More.", last=True)
        assert played.had(m.Append) == [m.Append(stream.id, " More.", True)]
        played.say(m.Audio(stream.id, HOP, 1, False, "stop", 9, 1200), arrays=arrays(1, 0.0))
        await chunks(stream)
        assert stream.facts == Facts(9, 0, 1200, (range(2), range(2, 5)))

    play(test)


def test_audio_that_nobody_wants_any_more_is_passed_over(play: Callable[[Test], None]) -> None:
    """Its samples stand before those of others in one message."""

    async def test(played: Played) -> None:
        gone, stream = played.submit(), played.submit()
        played.accept(gone)
        played.accept(stream)
        gone.cancel()
        gone.cancel()
        assert played.had(m.Cancel) == [m.Cancel(gone.id)]
        both = (chunk(gone, 3), chunk(stream, 1, "length"))
        played.say(*both, arrays=[*arrays(3, 0.1), *arrays(1, 0.7)])
        (found,) = await chunks(stream)
        assert np.array_equal(found.samples, np.full(HOP, 0.7, np.float32))

    play(test)


@pytest.mark.parametrize("early", [True, False])
def test_a_request_that_fails_raises_where_its_caller_waits(
    play: Callable[[Test], None], early: bool
) -> None:
    async def test(played: Played) -> None:
        stream = played.submit()
        waiting = asyncio.create_task(stream.accepted())
        await asyncio.sleep(0)
        if not early:
            played.accept(stream)
            assert await waiting is not None
        played.say(m.Ended(stream.id, m.error(Overloaded("the queue is full"))))
        with pytest.raises(Overloaded, match="the queue is full"):
            await (waiting if early else chunks(stream))
        assert played.client.open == 0

    play(test)


def test_a_text_without_anything_to_speak_is_told(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        stream = played.submit(text="...")
        played.say(m.Unspeakable(stream.id))
        assert await stream.accepted() is None
        assert played.client.open == 0

    play(test)


def test_a_check_has_the_prompt_made_and_leaves_nothing_open(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        for error in (None, InvalidRequest("input", "is too long")):
            checking = asyncio.create_task(played.client.check(played.request()))
            await asyncio.sleep(0)
            sent = played.had(m.Submit)[-1]
            assert sent.check_only
            event = (
                m.Ended(sent.id, m.error(error)) if error else m.Accepted(sent.id, 5, 0, 900, [])
            )
            played.say(event)
            found = (await asyncio.gather(checking, return_exceptions=True))[0]
            assert str(found) == str(error)
            assert played.client.open == 0

    play(test)


# -- credit


# -- recordings


def test_a_recording_crosses_once_and_again_if_the_engine_has_dropped_it(
    play: Callable[[Test], None],
) -> None:
    async def test(played: Played) -> None:
        given, other = reference(), reference(0.2)
        request = replace(played.request(), reference=given, more_references=(other, given))
        stream = played.client.submit(request, True)
        first = played.had(m.Submit)[-1]
        assert [r.size for r in first.recordings] == [800, 800, 0]
        assert [r.recording for r in first.references] == [0, 1, 2]
        assert np.array_equal(
            np.concatenate(played.arrays[-1]), np.concatenate([given.samples, other.samples])
        )
        again = played.client.submit(replace(request, seed=4), True)
        assert [r.size for r in played.had(m.Submit)[-1].recordings] == [0, 0, 0]
        assert played.arrays[-1] == []
        played.say(m.Resend(again.id))
        sent = played.had(m.Submit)[-1]
        assert (sent.id, sent.seed, [r.size for r in sent.recordings]) == (
            again.id,
            4,
            [800, 800, 800],
        )
        played.accept(again)
        assert await again.accepted() is not None
        assert not stream.ended

    play(test)


def test_a_request_that_was_cancelled_is_not_sent_again(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        stream = played.client.submit(replace(played.request(), reference=reference()), True)
        stream.cancel()
        played.say(m.Resend(stream.id))
        assert len(played.had(m.Submit)) == 1

    play(test)


def test_a_recording_that_no_cache_keeps_is_sent_each_time(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        request = replace(played.request(), reference=reference(cacheable=False))
        for _ in range(2):
            played.client.submit(request, True)
            assert [r.size for r in played.had(m.Submit)[-1].recordings] == [800]

    play(test)


def test_a_real_engine_asks_for_what_it_has_dropped(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = "data:audio/wav;base64," + base64.b64encode(tone_wav(hz=321.0)).decode()
    ask = {
        "input": "Hello there.",
        "seed": 5,
        "response_format": "pcm",
        "ref_audio": uri,
        "guard": False,
    }
    first = live.speech(**ask)
    assert first.status_code == 200
    engine = local_engine(live.server.hosts.all[0])
    dropped: LruCache[Recording] = LruCache(float("inf"))
    monkeypatch.setattr(engine._service, "_recordings", dropped)
    assert live.speech(**ask).content == first.content
    assert len(dropped) == 1


# -- adapters


def adapter(name: str, number: int) -> Adapter:
    return Adapter(name, number, bytes([number]), f"/{name}")


def test_an_adapter_is_released_when_it_is_unloaded_and_no_request_holds_it(
    play: Callable[[Test], None],
) -> None:
    async def released(played: Played) -> list[int]:
        gc.collect()
        await asyncio.sleep(0)
        return [r.number for r in played.had(m.ReleaseLora)]

    async def test(played: Played) -> None:
        one, two = adapter("one", 1), adapter("two", 2)
        played.say(m.Adapters([one, two]))
        request = played.request(lora="one")
        with pytest.raises(InvalidRequest, match="'three' is not loaded; loaded: one, two"):
            played.request(lora="three")
        played.say(m.Adapters([one, two, adapter("three", 3)]))
        assert await released(played) == []
        played.say(m.Adapters([two]))
        assert await released(played) == [3]  # the request holds the other
        played.client.submit(request, True)
        assert played.had(m.Submit)[-1].adapter == 1
        del request
        for stream in list(played.client._open.values()):
            stream.cancel()
        del stream
        assert await released(played) == [3, 1]
        played.say(m.Adapters([two, adapter("one", 4)]))  # another of this name
        assert played.request(lora="one").lora is played.client.adapters["one"]
        assert played.client.adapters["one"].number == 4

    play(test)


def test_a_lost_engine_is_not_told_of_adapters(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        played.say(m.Adapters([adapter("one", 1)]))
        played.client.lose(EngineError("gone"))
        gc.collect()
        await asyncio.sleep(0)
        assert played.commands == []
        with pytest.raises(InvalidRequest, match="loaded: none"):
            played.request(lora="one")

    play(test)


# -- a lost engine


def test_a_lost_engine_ends_all_that_is_open_and_takes_nothing_more(
    play: Callable[[Test], None],
) -> None:
    async def test(played: Played) -> None:
        client = played.client
        early, running = played.submit(), played.submit()
        played.accept(running)
        played.audio(running, 2)
        waiting = [
            asyncio.create_task(early.accepted()),
            asyncio.create_task(client.speakable(["One."])),
            asyncio.create_task(client.load_lora("one", "/one")),
            asyncio.create_task(client.check(played.request())),
        ]
        await asyncio.sleep(0)
        client.lose(EngineError("the engine's process has ended (signal 9)"))
        client.lose(EngineError("something else, later"))
        for found in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(found, EngineError)
            assert "signal 9" in str(found)
        reading = aiter(running)
        assert len((await anext(reading)).frames) == 2  # what had come is there
        with pytest.raises(EngineError, match="signal 9"):
            await anext(reading)
        assert client.open == 0
        count = len(played.commands)
        with pytest.raises(EngineError, match="signal 9"):
            played.submit()
        with pytest.raises(EngineError, match="signal 9"):
            await client.speakable(["One."])
        for stream in (early, running):
            stream.append("more")
            stream.cancel()
        await client.refresh()
        assert len(played.commands) == count

    play(test)


def test_an_engine_that_breaks_while_it_is_loaded_raises_for_those_who_wait(told: m.Ready) -> None:
    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        client = EngineClient("toy", 0, lambda *_: None)
        client.receive(
            [m.Broken(m.error(InvalidRequest("dtype", "is wrong")))], m.Reader(memoryview(b""))
        )
        with pytest.raises(InvalidRequest, match="dtype: is wrong"):
            await client.ready
        assert isinstance(client.lost, EngineError)

    virtual_time.run(main)


def test_a_call_raises_what_the_engine_has_raised(play: Callable[[Test], None]) -> None:
    async def test(played: Played) -> None:
        calling = asyncio.create_task(played.client.load_lora("one", "/one"))
        await asyncio.sleep(0)
        (sent,) = played.had(m.LoadLora)
        played.say(m.Result(sent.call, m.error(InvalidRequest("max_loras", "all slots are taken"))))
        with pytest.raises(InvalidRequest, match="all slots are taken") as raised:
            await calling
        assert raised.value.param == "max_loras"
        played.say(m.Result(sent.call))  # nobody waits for it any more

    play(test)


def test_asking_how_an_engine_is_takes_no_longer_than_its_limit(
    play: Callable[[Test], None], told: m.Ready
) -> None:
    async def test(played: Played) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await played.client.refresh()
        assert loop.time() - began == pytest.approx(LIMITS.health_seconds)
        asking = asyncio.create_task(played.client.refresh())
        await asyncio.sleep(0)
        now = Health(True, None, 1, 2, 3, 4, 5, 6, 7, 8)
        played.say(m.Beat(now), m.Result(played.had(m.AskHealth)[-1].call))
        await asking
        assert played.client.health == now

    play(test)


def test_the_ids_of_api_processes_never_meet(told: m.Ready) -> None:
    async def main(loop: virtual_time.VirtualTimeLoop) -> None:
        ids = [Played(told, api).submit().id for api in (0, 1, 2)]
        assert [id >> m.API_BITS for id in ids] == [0, 1, 2]

    virtual_time.run(main)


# -- an engine that does not read


SMALL_BUFFER = 1 << 14


class Unread:
    """A link to an engine whose end of the socket nobody reads, until `read`."""

    def __init__(self, link: EngineLink, theirs: socket.socket) -> None:
        self.link = link
        self.client = link.client
        self.theirs = theirs

    @classmethod
    async def open(cls, told: m.Ready) -> Unread:
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
        theirs.setblocking(False)
        link = EngineLink("toy", 0)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
        link.client.receive([told], m.Reader(memoryview(b"")))
        return cls(link, theirs)

    def submit(self, seconds: float = 0.0, text: str = "Hello.") -> EngineStream:
        req = self.client.request(text)
        if seconds:
            samples = np.zeros(int(seconds * 24000), np.float32)
            req = replace(req, reference=ReferenceAudio(Recording(samples, 24000, False), None))
        return self.client.submit(req, True)

    async def read(self, ids: set[int]) -> list[m.Command]:
        """Every command until those of `ids` have come."""
        unpacker = m.Unpacker()
        commands: list[m.Command] = []
        while not ids <= {c.id for c in commands if isinstance(c, m.Submit | m.Cancel)}:
            data = await asyncio.get_running_loop().sock_recv(self.theirs, 1 << 16)
            for parts in unpacker.feed(data):
                commands += m.commands(parts)[0]
        return commands


def unread(told: m.Ready, test: Callable[[Unread], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = await Unread.open(told)
        async with asyncio.timeout(STUCK_S):
            await test(engine)
        engine.link.close()
        engine.theirs.close()

    asyncio.run(main())


def test_a_request_that_was_cancelled_before_it_was_written_is_never_sent(told: m.Ready) -> None:
    async def test(engine: Unread) -> None:
        first = engine.submit(seconds=30)  # fills the socket
        kept = engine.submit(text="This one stays.")
        for _ in range(200):
            stream = engine.submit(seconds=30)
            stream.append("more text")
            stream.cancel()
        last = engine.submit(text="So does this one.")
        commands = await engine.read({first.id, kept.id, last.id})
        assert [c.id for c in commands if isinstance(c, m.Submit)] == [first.id, kept.id, last.id]
        assert len(commands) == 3

    unread(told, test)


def test_a_request_that_was_written_is_cancelled_in_its_turn(told: m.Ready) -> None:
    async def test(engine: Unread) -> None:
        first = engine.submit(seconds=30)
        other = engine.submit()
        first.cancel()
        last = engine.submit()
        kinds = [(type(c), c.id) for c in await engine.read({last.id})]  # type: ignore[union-attr]
        want = [(m.Submit, first.id), (m.Submit, other.id), (m.Cancel, first.id)]
        assert kinds == [*want, (m.Submit, last.id)]

    unread(told, test)


def test_beyond_a_limit_requests_are_refused_until_the_engine_reads(
    told: m.Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LIMITS", replace(LIMITS, unsent_mb=8))

    async def test(engine: Unread) -> None:
        streams = [engine.submit(seconds=30) for _ in range(20)]  # 2.7 MiB each
        waiting = [stream for stream in streams if not stream.ended]
        assert 3 <= len(waiting) <= 6
        for stream in streams[len(waiting) :]:
            with pytest.raises(Overloaded):
                await stream.accepted()
        assert engine.client.open == len(waiting)
        waiting[-1].cancel()
        again = engine.submit(seconds=30)
        await engine.read({again.id})
        assert not engine.submit(seconds=30).ended

    unread(told, test)


def test_health_of_an_engine_that_does_not_read_is_that_of_its_last_beat(told: m.Ready) -> None:
    async def test(engine: Unread) -> None:
        first = engine.submit(seconds=30)
        last = engine.submit()
        for _ in range(1000):
            await engine.client.refresh()
        assert len(await engine.read({first.id, last.id})) == 2

    unread(told, test)


def test_what_waits_for_an_engine_ends_with_it(told: m.Ready) -> None:
    async def test(engine: Unread) -> None:
        streams = [engine.submit(seconds=30) for _ in range(4)]
        engine.theirs.close()
        for stream in streams:
            with pytest.raises(EngineError):
                await stream.accepted()
        assert engine.client.open == 0

    unread(told, test)
