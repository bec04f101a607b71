"""One text that arrives over an ElevenLabs socket, and the messages that its client gets."""

from __future__ import annotations

import base64
from typing import Any, Protocol

from stentor.server.doors.elevenlabs.alignment import Aligner
from stentor.server.doors.elevenlabs.fields import ignored
from stentor.server.errors import ApiError
from stentor.server.speech.live_speech import LiveSpeech
from stentor.server.speech.output import RunningRequest
from stentor.server.speech.plan import SpeechPlan
from stentor.server.state import Server
from stentor.server.ws.socket import SocketOutbox
from stentor.speech.speaking import SpokenSegment
from stentor.speech.timing import SegmentTiming
from stentor.text.sentences import Segment

ENOUGH = 50  # characters that try_trigger_generation needs, the least that a schedule of ElevenLabs may ask for


class Owner(Protocol):
    """The socket of a context."""

    out: SocketOutbox

    def failed(self, context: Context, error: ApiError) -> None:
        """Its speech goes no further."""

    def ended(self, context: Context) -> None:
        """All of its text has been spoken."""


class Schedule:
    """Holds text back until there is as much of it as the client's chunk_length_schedule wants. Without one, none."""

    def __init__(self, lengths: list[float] | None) -> None:
        self._lengths = list(lengths or [0])
        self._held = ""

    def write(self, text: str, trigger: bool) -> str:
        """Text that may be spoken now. trigger: less is enough."""
        self._held += text
        if len(self._held) < (min(ENOUGH, self._lengths[0]) if trigger else self._lengths[0]):
            return ""
        if len(self._lengths) > 1:
            del self._lengths[0]
        return self.take()

    def take(self) -> str:
        """All text that is held."""
        text, self._held = self._held, ""
        return text

    @property
    def size(self) -> int:
        """Characters that are held."""
        return len(self._held)


class Context(LiveSpeech):
    """Text until the client closes it. name: that of the client, None where a socket has one text."""

    def __init__(
        self,
        owner: Owner,
        server: Server,
        plan: SpeechPlan,
        id: str,
        name: str | None,
        cleanup: str | None,
        lengths: list[float] | None,
        auto: bool,
        traceparent: str | None,
    ) -> None:
        """auto: each message is spoken at once, as it says the client, who sends whole phrases."""
        super().__init__(server, plan, id, cleanup=cleanup, traceparent=traceparent)
        self.owner, self.name, self.auto = owner, name, auto
        self.schedule = Schedule(None if auto else lengths)
        self.aligner = Aligner()
        self.closed = False  # nothing more is written

    @property
    def size(self) -> int:
        """Characters written so far."""
        return len(self.feed.text) + self.schedule.size

    def write(self, text: str, trigger: bool, flush: bool) -> None:
        """Take text, and speak what the schedule lets pass. flush: all of it."""
        ready = self.schedule.write(text, trigger)
        if flush or (self.auto and text.strip()):
            self.feed.flush(ready + self.schedule.take())
        elif ready:
            self.feed.write(ready)

    def close(self) -> None:
        """Nothing follows: speak the rest."""
        if not self.closed:
            self.closed = True
            self.feed.end(self.schedule.take())

    # -- to the client --

    def segment_begins(self, index: int, segment: Segment) -> None:
        return

    def audio(self, data: bytes) -> None:
        self._send(base64.b64encode(data).decode(), None)

    def segment_ends(self, index: int, times: SegmentTiming, current: SpokenSegment) -> None:
        """Its characters' times. They count from the end of the characters before, as ElevenLabs counts."""
        characters = self.aligner.take(self.feed.text, [times])
        if characters.text:
            self._send("", characters.as_ms())

    def _send(self, audio: str, alignment: dict[str, Any] | None) -> None:
        self.message(audio=audio, isFinal=None, alignment=alignment, normalizedAlignment=alignment)

    def failure(self, error: ApiError) -> None:
        self.closed = True
        self.feed.end()
        self.owner.failed(self, error)

    def end(self, running: RunningRequest | None) -> None:
        if not self.failed:
            known = {**self.plan.output.marks.as_json(), **ignored(self.plan.ignored).as_json()}
            self.message(audio=None, isFinal=True, **known)
            self.owner.ended(self)

    def message(self, **body: Any) -> None:
        """Queue a message, with the context's name if it has one."""
        named = {} if self.name is None else {"contextId": self.name}
        self.owner.out.json({**body, **named}, audio=bool(body.get("audio")))
