"""Requests that come together: each reaches its engine before the next is handled, and engines know that others follow."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from stentor.engine.engine import Engine
from stentor.server.eager import begin
from stentor.server.http.connections import Connection
from stentor.server.http.middleware import STARTS, Starts
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving, until

TOGETHER = 4
EAGER = sys.version_info >= (3, 12)
at_once = pytest.mark.skipif(not EAGER, reason="tasks begin at once from Python 3.12 on")


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Live]:
    """A server that makes short prompts without a thread."""
    with serving(tmp_path) as live:
        live.tts._model.spec = replace(live.tts.spec, quick_prompt_chars=100)
        yield live


def test_work_that_waits_for_nothing_is_done_at_once() -> None:
    async def main() -> tuple[bool, str]:
        async def work() -> str:
            return "done"

        task = begin(work())
        return task.done(), await task

    assert asyncio.run(main()) == (EAGER, "done")


def test_an_error_comes_where_the_task_is_awaited() -> None:
    async def main() -> None:
        async def work() -> None:
            raise ValueError("mine")

        task = begin(work())
        with pytest.raises(ValueError, match="mine"):
            await task

    asyncio.run(main())


def speak_at_once(live: Live, count: int) -> list[bytes]:
    """The answers to requests that are in the server's sockets before it reads the first."""
    body = json.dumps({"input": "Hello.", "stream": True, "response_format": "pcm", "max_new_tokens": 3}).encode()
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    host, port = live.url.removeprefix("http://").split(":")
    made: list[Connection] = []
    plain = Connection.connection_made

    def noting(self: Connection, transport: asyncio.BaseTransport) -> None:
        plain(self, transport)
        made.append(self)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Connection, "connection_made", noting))
        clients = [stack.enter_context(socket.create_connection((host, int(port)), STUCK_S)) for _ in range(count)]
        assert until(lambda: len(made) == count)
        held, go = threading.Event(), threading.Event()
        live.loop.call_soon_threadsafe(lambda: (held.set(), go.wait(STUCK_S)))
        assert held.wait(STUCK_S)
        for client in clients:
            client.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        go.set()
        return [b"".join(iter(lambda c=client: c.recv(1 << 16), b"")) for client in clients]  # type: ignore[misc]


@at_once
def test_each_request_reaches_its_engine_before_the_next_is_handled(quick: Live) -> None:
    order: list[str] = []
    complete, submit = Connection.on_message_complete, Engine.submit
    plan = quick.server.planner.speech

    async def planned(*given: Any) -> Any:
        order.append("plan")
        return await plan(*given)

    def submitted(self: Engine, *given: Any, **named: Any) -> Any:
        order.append("submit")
        return submit(self, *given, **named)

    def read(self: Connection) -> None:
        order.append("read")
        complete(self)

    patches = (
        mock.patch.object(quick.server.planner, "speech", planned),
        mock.patch.object(Engine, "submit", submitted),
        mock.patch.object(Connection, "on_message_complete", read),
    )
    with patches[0], patches[1], patches[2]:
        answers = speak_at_once(quick, TOGETHER)
    assert all(a.startswith(b"HTTP/1.1 200") for a in answers)
    assert order == ["read"] * TOGETHER + ["plan", "submit"] * TOGETHER


@at_once
def test_the_engine_expects_the_requests_that_were_read(quick: Live) -> None:
    upcoming, seen = quick.tts.engine.upcoming, []
    plan = quick.server.planner.speech

    async def planned(*given: Any) -> Any:
        seen.append(len(upcoming._tickets))
        return await plan(*given)

    with mock.patch.object(quick.server.planner, "speech", planned):
        answers = speak_at_once(quick, TOGETHER)
    assert all(a.startswith(b"HTTP/1.1 200") for a in answers)
    assert seen == [4, 3, 2, 1]
    assert until(lambda: not upcoming)


def test_few_requests_begin_in_one_iteration_and_engines_expect_the_others() -> None:
    async def main() -> list[tuple[int, int]]:
        expected: list[int] = []
        begun: list[tuple[int, int]] = []  # the iteration, and how many others are expected

        def arriving() -> Callable[[], None]:
            expected.append(1)
            return expected.pop

        starts, iteration = Starts(arriving), 0

        async def request() -> None:
            await starts.wait({})
            begun.append((iteration, len(expected)))

        tasks = [asyncio.create_task(request()) for _ in range(2 * STARTS + 1)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            iteration += 1
        await asyncio.sleep(0)
        assert not expected
        return begun

    begun = asyncio.run(main())
    assert len(begun) == 2 * STARTS + 1
    assert max(Counter(at for at, _ in begun).values()) == STARTS
    assert [count for _, count in begun[STARTS:]] == sorted((count for _, count in begun[STARTS:]), reverse=True)
    assert begun[STARTS][1] == STARTS + 1


def test_a_request_that_was_given_up_while_it_waited_holds_up_no_other() -> None:
    async def main() -> tuple[list[int], int]:
        expected: list[int] = []
        begun: list[int] = []

        def arriving() -> Callable[[], None]:
            expected.append(1)
            return expected.pop

        starts = Starts(arriving)

        async def request(number: int) -> None:
            await starts.wait({})
            begun.append(number)

        tasks = [asyncio.create_task(request(number)) for number in range(2 * STARTS + 1)]
        await asyncio.sleep(0)
        for task in tasks[STARTS : 2 * STARTS]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        return begun, len(expected)

    begun, expected = asyncio.run(main())
    assert begun == [*range(STARTS), 2 * STARTS]
    assert not expected


@pytest.mark.parametrize("body", [b'{"input": ""}', b"{", b'{"input": "Hello.", "model": "nobody"}'])
def test_the_engine_does_not_expect_a_request_that_was_refused(quick: Live, body: bytes) -> None:
    answer = quick.http.post("/v1/audio/speech", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 404)
    assert until(lambda: not quick.tts.engine.upcoming)


@pytest.mark.parametrize("text", ["Hello there.", "Hello there. " * 20])
def test_a_short_prompt_is_made_without_a_thread_and_a_long_one_in_one(quick: Live, text: str) -> None:
    threads: list[str] = []
    prompt = quick.tts._model.prompt

    def noting(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return prompt(*given)

    with mock.patch.object(quick.tts._model, "prompt", noting):
        assert quick.speech(input=text, response_format="pcm", split_granularity="none").status_code == 200
    assert [name.startswith("stentor-prepare") for name in threads] == [len(text) > 100]
