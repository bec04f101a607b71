"""Requests that an engine reads at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from stentor import TTS
from tests.helpers.patience import STUCK_S


@contextmanager
def read_at_once(tts: TTS) -> Iterator[None]:
    """The engine, which is idle, plans no step inside: one step admits what is submitted here."""
    inbox = tts.engine.inbox
    submitted = threading.Event()
    get = inbox.get

    def wait(*args: Any) -> Any:
        assert submitted.wait(STUCK_S)
        return get(*args)

    # the thread may stand in the old `get` for the first message, and reads on before it plans
    with mock.patch.object(inbox, "get", wait):
        try:
            yield
        finally:
            submitted.set()
