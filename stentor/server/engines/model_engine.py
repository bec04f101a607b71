"""One engine of a model, as a process knows it: its phase and its client."""

from __future__ import annotations

from typing import Literal, Protocol

from stentor.engine.health import Health
from stentor.server.config import ServerConfig
from stentor.server.engines.client import EngineClient
from stentor.server.engines.messages import Ready

Phase = Literal[
    "loading", "ready", "restarting", "unloading", "unloaded", "reloading", "failed", "closed"
]
AWAY = ("unloading", "unloaded", "reloading")  # phases in which a request has the model loaded


class EngineHost(Protocol):
    """The model of an engine."""

    name: str
    config: ServerConfig
    engines: list[ModelEngine]
    created: int

    @property
    def serves(self) -> bool:
        """Whether a request would be taken now."""

    def changed(self, engine: ModelEngine) -> None:
        """Report that an engine has entered another phase."""


class ModelEngine:
    """One engine of a model, as this process knows it. Everything happens on the event loop."""

    def __init__(self, host: EngineHost, number: int) -> None:
        """number: its place among the engines of the server."""
        self.host = host
        self.number = number
        self.phase: Phase = "loading"
        self.reason: str | None = None  # why it is not ready
        self.restarts = 0
        self.client: EngineClient | None = None  # while this process reaches it
        self.ready: Ready | None = None  # of the last load

    @property
    def label(self) -> str:
        """Its model, and which engine of several it is, for the log."""
        engines = self.host.engines
        if len(engines) == 1:
            return self.host.name
        device = self.host.config.engines[self.number].device
        return f"{self.host.name} (engine {self.number - engines[0].number + 1}, {device})"

    @property
    def known(self) -> bool:
        """Whether it was ready once."""
        return self.ready is not None

    @property
    def health(self) -> Health | None:
        """How it was half a second ago at most. None: it is not loaded."""
        if self.client is None:
            return None
        return self.client.health

    async def refresh(self) -> None:
        """Update `health` from the engine."""
        if self.client is not None and self.phase == "ready":
            await self.client.refresh()

    def start(self) -> None:
        """Begin to load it."""

    async def close(self) -> None:
        """Serve no more requests."""
        self.become("closed")

    def kill(self) -> None:
        """Kill its process, if this process has started it. For any thread."""

    def become(self, phase: Phase) -> None:
        """Enter a phase, and report it."""
        self.phase = phase
        self.host.changed(self)
