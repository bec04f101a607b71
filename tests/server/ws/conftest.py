"""A clock for sessions that are silent."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stentor.server import sessions
from tests.helpers.server_live import Live
from tests.helpers.ws_talk import IdleClock


@pytest.fixture
def idle_clock(live: Live, monkeypatch: pytest.MonkeyPatch) -> IdleClock:
    """The clock of sessions that begin now. They look at it every 0.3 s and are closed after as long."""
    clock = IdleClock()
    monkeypatch.setattr(sessions, "time", clock)
    monkeypatch.setattr(live.server, "config", replace(live.server.config, ws_idle_seconds=0.3))
    return clock
