"""The line that a server shows on a terminal."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest

from stentor.server.status_line import Totals, median, shown, text, totals
from tests.helpers.server_live import Live


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_has_streams_first_audio_and_speed():
    before = Totals(0, 0, 10.0, {0.1: 5, 0.2: 5, float("inf"): 5})
    now = Totals(12, 0, 70.0, {0.1: 5, 0.2: 15, float("inf"): 15})
    line = "12 streams \u00b7 first audio p50 150 ms \u00b7 30.0 s of audio per second"
    assert text([before, now], 2.0) == line
    now.waiting = 3
    assert text([before, now], 2.0).startswith("12 streams \u00b7 3 waiting \u00b7 ")
    assert text([Totals()], 0.0) == "0 streams"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({0.1: 4.0, 0.2: 4.0, float("inf"): 4.0}, 0.05),
        ({0.1: 0.0, 0.2: 0.0, float("inf"): 4.0}, 0.2),
        ({0.1: 0.0, float("inf"): 0.0}, None),
        ({}, None),
    ],
)
def test_the_median_is_within_its_bucket(counts: dict[float, float], expected: float | None):
    assert median({}, counts) == expected


def test_the_metrics_of_a_server_have_what_the_line_shows(live: Live):
    live.speech(input="Hello.")
    now = totals(live.http.get("/metrics").text)
    assert now.audio_seconds > 0
    assert now.running >= 0
    assert max(now.first_audio.values()) >= 1


def shown_with(stream: io.StringIO, record: str) -> str:
    """The content of a stream after the line was drawn and a record was logged."""
    handler = logging.StreamHandler(stream)
    log = logging.Logger("test")
    log.addHandler(handler)

    async def exposition() -> str:
        return "stentor:num_requests_running 2.0\n"

    async def run() -> None:
        with shown(stream, [handler], exposition):
            for _ in range(3):
                await asyncio.sleep(0)
            log.warning(record)

    asyncio.run(run())
    return stream.getvalue()


def test_a_record_of_the_log_takes_the_line_away():
    assert shown_with(Terminal(), "a record") == "\r\x1b[K2 streams\r\r\x1b[Ka record\n"


def test_elsewhere_than_on_a_terminal_there_is_no_line():
    assert shown_with(io.StringIO(), "a record") == "a record\n"
