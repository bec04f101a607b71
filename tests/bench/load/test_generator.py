"""The load generator keeps to its schedule, says when it could not, and hides nothing. Time is virtual."""

import asyncio
import time

import numpy as np
import pytest

from stentor.bench.load import generator
from stentor.bench.load.generator import LoadPlan
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Reply
from tests.helpers import virtual_time


class Sleeper:
    """A sender whose answers take `seconds`; counts how many run at once."""

    def __init__(self, loop, seconds=0.05):
        self.loop = loop
        self.clock = loop.time
        self.seconds = seconds
        self.running = self.most = 0

    async def send(self, prompt):
        reply = Reply(sent=self.clock())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        reply.ended = self.clock()
        return reply


def texts(count):
    return [TextItem(i, f"text {i}") for i in range(count)]


def run(plan, seconds=0.05, kind=Sleeper):
    """The trace of a plan and the sender that answered it."""

    async def main(loop):
        sender = kind(loop, seconds)
        return await generator.run(plan, sender), sender

    return virtual_time.run(main)


def test_an_open_loop_sends_on_time_however_slow_the_server_is():
    offsets = np.arange(20) * 0.02
    trace, sender = run(LoadPlan(texts(20), offsets), seconds=1.0)
    sent = [exchange.reply.sent - trace.started for exchange in trace.exchanges]
    assert sent == pytest.approx(list(offsets), abs=1e-9)
    assert [exchange.planned - trace.started for exchange in trace.exchanges] == pytest.approx(
        list(offsets), abs=1e-9
    )
    assert sender.most == 20
    assert max(trace.loop_delays) == pytest.approx(0.0, abs=1e-9)


def test_a_blocked_client_shows_as_send_lag_and_as_loop_delay():
    class Blocker(Sleeper):
        async def send(self, prompt):
            if prompt.index == 3:
                self.loop.advance(0.1)
            return await super().send(prompt)

    trace, _ = run(LoadPlan(texts(10), np.arange(10) * 0.02), seconds=0.01, kind=Blocker)
    lag = [exchange.released - exchange.planned for exchange in trace.exchanges]
    # Request 3 is released at 0.06 s and blocks until 0.16 s; 4 to 7 were due at 0.08, 0.10, 0.12 and 0.14 s.
    assert lag == pytest.approx([0, 0, 0, 0, 0.08, 0.06, 0.04, 0.02, 0, 0], abs=1e-9)
    assert max(trace.loop_delays) >= 0.09


def test_arrivals_beyond_the_limit_in_flight_are_dropped_and_kept_on_record():
    trace, _ = run(LoadPlan(texts(10), np.zeros(10), max_in_flight=4))
    assert [exchange.reply is None for exchange in trace.exchanges] == [False] * 4 + [True] * 6


def test_a_concurrency_limit_holds_and_waiting_shows_as_client_queue():
    trace, sender = run(LoadPlan(texts(6), np.zeros(6), max_concurrency=2))
    assert sender.most == 2
    waits = [exchange.reply.sent - exchange.released for exchange in trace.exchanges]
    assert waits == pytest.approx([0, 0, 0.05, 0.05, 0.1, 0.1], abs=1e-9)


def test_a_closed_loop_keeps_its_concurrency_full_and_sends_each_prompt_once():
    trace, sender = run(LoadPlan(texts(9), None, max_concurrency=3), seconds=0.03)
    assert sender.most == 3
    assert sorted(exchange.prompt.index for exchange in trace.exchanges) == list(range(9))
    assert trace.ended - trace.started == pytest.approx(0.09, abs=1e-9)


def test_a_closed_loop_with_a_duration_repeats_prompts_until_the_time_is_over():
    trace, _ = run(LoadPlan(texts(2), None, max_concurrency=2, duration=0.31), seconds=0.02)
    assert len(trace.exchanges) == 2 * 16
    assert max(exchange.planned for exchange in trace.exchanges) - trace.started == pytest.approx(
        0.3, abs=1e-9
    )
    assert all(exchange.reply for exchange in trace.exchanges)


def test_the_client_states_the_processor_time_it_used():
    class Burner(Sleeper):
        async def send(self, prompt):
            end = time.process_time() + 0.05
            while time.process_time() < end:
                pass
            return await super().send(prompt)

    before = time.process_time()
    trace, _ = run(LoadPlan(texts(3), np.zeros(3)), seconds=0.0, kind=Burner)
    assert 0.15 <= trace.cpu_s <= time.process_time() - before


def test_an_interrupt_stops_every_request():
    async def interrupted(loop):
        sender = Sleeper(loop, 60)
        task = asyncio.create_task(generator.run(LoadPlan(texts(5), np.zeros(5)), sender))
        await asyncio.sleep(0.05)
        assert sender.running == 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    assert virtual_time.run(interrupted) == []
