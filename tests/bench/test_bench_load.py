"""The load generator keeps to its schedule, says when it could not, and hides nothing."""

import asyncio
import time

import numpy as np
import pytest

from stentor.bench.load import load
from stentor.bench.load.load import Plan
from stentor.bench.load.prompts import Prompt
from stentor.bench.load.record import Reply

clock = time.perf_counter


class Sleeper:
    """A sender whose answers take as long as it is told; counts how many run at once."""

    def __init__(self, seconds=0.05):
        self.seconds = seconds
        self.running = self.most = 0

    async def send(self, prompt):
        reply = Reply(sent=clock())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        reply.ended = clock()
        return reply


def texts(count):
    return [Prompt(i, f"text {i}") for i in range(count)]


def run(plan, sender):
    return asyncio.run(load.run(plan, sender))


def test_an_open_loop_sends_on_time_however_slow_the_server_is(attempts):
    offsets = np.arange(20) * 0.02

    async def check():
        trace = await load.run(Plan(texts(20), offsets), Sleeper(1.0))
        late = np.array([exchange.reply.sent - exchange.planned for exchange in trace.exchanges])
        assert np.all(late >= 0)
        assert late.max() < 0.005
        planned = np.array([exchange.planned - trace.started for exchange in trace.exchanges])
        assert np.allclose(planned, offsets)

    attempts(check)


def test_a_blocked_client_shows_as_send_lag_and_as_loop_delay():
    class Blocker(Sleeper):
        async def send(self, prompt):
            if prompt.index == 3:
                time.sleep(0.1)
            return await super().send(prompt)

    trace = run(Plan(texts(10), np.arange(10) * 0.02), Blocker(0.01))
    lag = [exchange.released - exchange.planned for exchange in trace.exchanges]
    assert max(lag[4:7]) > 0.04
    assert max(trace.loop_delays) > 0.06


def test_arrivals_beyond_the_limit_in_flight_are_dropped_and_kept_on_record():
    trace = run(Plan(texts(10), np.zeros(10), max_in_flight=4), Sleeper())
    assert [exchange.reply is None for exchange in trace.exchanges] == [False] * 4 + [True] * 6


def test_a_concurrency_limit_holds_and_waiting_shows_as_client_queue():
    sender = Sleeper(0.05)
    trace = run(Plan(texts(6), np.zeros(6), max_concurrency=2), sender)
    assert sender.most == 2
    waits = sorted(exchange.reply.sent - exchange.released for exchange in trace.exchanges)
    assert waits[1] < 0.02
    assert waits[-1] == pytest.approx(0.1, abs=0.04)


def test_a_closed_loop_keeps_its_concurrency_full_and_sends_each_prompt_once():
    sender = Sleeper(0.03)
    trace = run(Plan(texts(9), None, max_concurrency=3), sender)
    assert sender.most == 3
    assert sorted(exchange.prompt.index for exchange in trace.exchanges) == list(range(9))
    assert trace.ended - trace.started == pytest.approx(0.09, abs=0.04)


def test_a_closed_loop_with_a_duration_repeats_prompts_until_the_time_is_over():
    trace = run(Plan(texts(2), None, max_concurrency=2, duration=0.3), Sleeper(0.02))
    assert len(trace.exchanges) > 10
    assert max(exchange.planned for exchange in trace.exchanges) - trace.started < 0.3
    assert all(exchange.reply for exchange in trace.exchanges)


def test_the_client_states_the_processor_time_it_used():
    class Burner(Sleeper):
        async def send(self, prompt):
            end = time.process_time() + 0.05
            while time.process_time() < end:
                pass
            return await super().send(prompt)

    trace = run(Plan(texts(3), np.zeros(3)), Burner(0.0))
    assert 0.15 <= trace.cpu_s < 0.4


def test_an_interrupt_stops_every_request():
    sender = Sleeper(60)

    async def interrupted():
        task = asyncio.create_task(load.run(Plan(texts(5), np.zeros(5)), sender))
        await asyncio.sleep(0.05)
        assert sender.running == 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        return [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]

    assert asyncio.run(interrupted()) == []
