"""Messages between API processes: of any size, to a process that sleeps, and after one is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stentor.errors import EngineError
from stentor.server import api_processes
from stentor.server.api_processes import (
    Answer,
    ApiProcesses,
    Ask,
    Beat,
    Control,
    counters,
    merged,
)
from stentor.server.config import ServerConfig
from stentor.server.engines.attached import AttachedEngine
from stentor.server.engines.launch import restart_pause
from stentor.server.engines.lifecycle import OwnedEngine
from stentor.server.engines.model_engine import ModelEngine
from stentor.server.limits import LIMITS
from stentor.server.model_hosts import ModelHost
from stentor.server.speech.outcomes import Outcome
from stentor.server.stop_signals import CRASHED, StopSignals
from tests.helpers.patience import STUCK_S


async def nothing(ask: Ask) -> Answer:
    return Answer(ask.call)


Pair = tuple[Control, Control]


def with_pair(
    test: Callable[[Control, Control], Awaitable[None]],
    answer: Callable[[Ask], Awaitable[Answer]] = nothing,
    note: Callable[..., None] = lambda message, descriptors: None,
) -> None:
    """Run a test with both ends of a control, of which the second one answers and notes."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ends = Control(ours, nothing), Control(theirs, answer, note)
        async with asyncio.timeout(STUCK_S):
            await test(*ends)
        for end in ends:
            end.close()
            end.close()  # by the reader and by the owner

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 1 << 18, 5 << 20])
def test_an_answer_may_be_of_any_size(size: int) -> None:
    outcome = Outcome("id", "toy", error={"message": "x" * size})

    async def answer(ask: Ask) -> Answer:
        return Answer(ask.call, outcome=outcome)

    async def test(ours: Control, theirs: Control) -> None:
        answers = await asyncio.gather(*(ours.ask("id", STUCK_S) for _ in range(3)))
        assert [a.outcome for a in answers] == [outcome] * 3

    with_pair(test, answer)


def test_states_and_sockets_wait_for_a_process_that_sleeps_and_questions_do_not() -> None:
    received: list[Any] = []

    def note(message: Any, descriptors: deque[int]) -> None:
        if isinstance(message, api_processes.State):
            received.append(message.restarts)
        else:
            received.append(os.fstat(descriptors[0]).st_ino)
            os.close(descriptors.popleft())

    async def test(ours: Control, theirs: Control) -> None:
        asyncio.get_running_loop().remove_reader(theirs._socket)  # it sleeps
        pipes = [os.pipe() for _ in range(3)]
        sent: list[Any] = []
        for restarts in range(3000):  # more than a socket takes
            ours.send(api_processes.State(0, "ready", "a reason" * 20, 1, restarts))
            sent.append(restarts)
            if restarts % 1000 == 999:
                read, write = pipes[restarts // 1000]
                ours.send(api_processes.Attach(0), read)
                sent.append(os.fstat(read).st_ino)
                os.close(read)
                os.close(write)
        assert ours.behind
        assert await ours.ask("id", STUCK_S) == Answer(0)
        asyncio.get_running_loop().add_reader(theirs._socket, theirs._read)
        while len(received) < len(sent):
            await asyncio.sleep(0)
        assert received == sent
        assert not ours.behind

    with_pair(test, note=note)


def test_what_waits_for_a_process_that_is_gone_is_freed() -> None:
    async def test(ours: Control, theirs: Control) -> None:
        asyncio.get_running_loop().remove_reader(theirs._socket)
        read, write = os.pipe()
        while not ours.behind:
            ours.send(api_processes.State(0, "ready", "a reason" * 100, 1, 1))
        ours.send(api_processes.Attach(0), read)
        os.close(read)
        theirs.close()
        ours.close()
        ours.send(Beat({}))
        with pytest.raises(BrokenPipeError):  # the copy of the other end is closed
            os.write(write, b"x")
        os.close(write)

    with_pair(test)


# -- restarts


@pytest.mark.parametrize("crashes", [1, 7, 1024, 10**6])
def test_the_pause_before_a_restart_has_a_limit_after_any_number_of_crashes(crashes: int) -> None:
    assert 0 < restart_pause(crashes) <= LIMITS.restart_seconds


def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(ApiProcesses):
        starts = 0

        def _begin(self, api: int) -> Any:
            self.starts += 1
            if self.starts < 5:
                raise OSError("no descriptors")
            self._ending = True

    async def ended(process: object) -> int:
        return 0

    monkeypatch.setattr(api_processes, "end_of", ended)
    monkeypatch.setattr(api_processes, "restart_pause", lambda crashes: 0)
    processes = Failing(ServerConfig(api_processes=2), 0, StopSignals())
    asyncio.run(processes._keep(1))
    assert processes.starts == 5


def test_a_model_whose_keeper_fails_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []

    async def main() -> None:
        def start(*args: Any) -> Any:
            raise EngineError("no engine")

        lock = asyncio.Lock()
        host = ModelHost("toy", ServerConfig(), codes.append)
        engine = OwnedEngine(host, 0, start, lock)
        host.engines.append(engine)

        async def fails(code: int) -> None:
            raise RuntimeError("on purpose")

        monkeypatch.setattr(engine, "_fail", fails)
        host.start()
        while not codes:
            await asyncio.sleep(0)
        assert host.phase == "failed"
        await host.close()

    asyncio.run(main())
    assert codes == [CRASHED]


def test_a_process_whose_event_loop_stands_still_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_processes, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(
        api_processes, "LIMITS", SimpleNamespace(process_stuck_seconds=-1.0)
    )  # any beat that does not come is too late
    killed: list[int] = []

    async def main() -> None:
        processes = ApiProcesses(ServerConfig(api_processes=3), 0, StopSignals())
        for api in (1, 2):
            processes._controls[api] = SimpleNamespace(silent=0)  # type: ignore[assignment]
            processes._processes[api] = SimpleNamespace(  # type: ignore[assignment]
                kill=lambda api=api: killed.append(api)
            )
        watching = asyncio.create_task(processes._watch())
        while len(killed) < 2:
            await asyncio.sleep(0)
        processes._ending = True
        await watching

    asyncio.run(main())
    assert killed[:2] == [1, 2]


# -- links to engines


def attached_engine(model: str = "toy") -> AttachedEngine:
    host = ModelHost(model, ServerConfig(), lambda code: None)
    engine = AttachedEngine(host, 0, 1)
    host.engines.append(engine)
    return engine


def test_a_model_without_a_link_is_missing_and_not_ready() -> None:
    async def main() -> None:
        engine = attached_engine()
        host = engine.host
        assert not engine.missing
        engine.note("ready", None, 0)
        assert (engine.missing, host.serves, host.phase) == (True, False, "loading")
        ours, theirs = socket.socketpair()
        attaching = asyncio.create_task(engine.attach(ours))
        await asyncio.sleep(0)
        assert not engine.missing
        theirs.close()  # gone before it was ready
        await attaching
        assert (engine.missing, engine.attached) == (True, 1)
        engine.note("restarting", None, 1)
        assert (engine.missing, host.phase) == (False, "restarting")
        await host.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("received", "sent", "pending", "again"),
    [
        (1, 1, 0, True),  # it had one, which is gone
        (0, 0, 0, True),  # none could be made
        (0, 1, 0, False),  # one is on its way
        (1, 1, 1, False),
        (None, 0, 0, False),
    ],
)
def test_a_missing_link_is_sent_again_unless_one_is_on_its_way(
    received: int | None, sent: int, pending: int, again: bool
) -> None:
    attached: list[int] = []

    class Noting(ApiProcesses):
        def _attach(self, api: int, engine: ModelEngine) -> None:
            attached.append(api)

    processes = Noting(ServerConfig(api_processes=2), 0, StopSignals())
    processes.server = SimpleNamespace(hosts=SimpleNamespace(engines=[SimpleNamespace(number=4)]))  # type: ignore[assignment]
    processes._links[1] = SimpleNamespace(sent=Counter({4: sent}), pending=Counter({4: pending}))  # type: ignore[assignment]
    beat = Beat({} if received is None else {4: received})
    processes._note(1, beat, deque())
    assert attached == ([1] if again else [])


# -- metrics

PAGE = """# TYPE stentor:requests_success_total counter
stentor:requests_success_total{{model_name="toy"}} {done}
# TYPE stentor:audio_rtf histogram
stentor:audio_rtf_bucket{{model_name="toy",le="+Inf"}} {done}
stentor:audio_rtf_count{{model_name="toy"}} {done}
stentor:audio_rtf_sum{{model_name="toy"}} {done}
# TYPE stentor:websocket_sessions gauge
stentor:websocket_sessions {open}
# TYPE stentor:engine_steps_total counter
stentor:engine_steps_total{{model_name="toy"}} 9
"""


def lines(page: str) -> dict[str, float]:
    words = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in words}


def test_counters_of_a_process_that_is_gone_or_silent_stay() -> None:
    """Its open sessions do not, and its engines' steps were never its own."""

    class Peer:
        """A process that answers with its pages, and then no more."""

        def __init__(self, *pages: str) -> None:
            self.pages = list(pages)

        async def ask(self) -> Answer:
            return Answer(0, self.pages.pop(0) if self.pages else None)

        def close(self) -> None: ...

    async def main() -> None:
        processes = ApiProcesses(ServerConfig(api_processes=3), 0, StopSignals())
        own = SimpleNamespace(text=lambda: PAGE.format(done=1, open=1))
        processes.server = SimpleNamespace(metrics=own)  # type: ignore[assignment]
        processes._controls = {  # type: ignore[assignment]
            1: Peer(PAGE.format(done=10, open=2)),
            2: Peer(PAGE.format(done=100, open=3), PAGE.format(done=101, open=3)),
        }
        want = [(111, 6), (112, 6), (112, 6), (112, 4), (113, 5), (113, 2)]
        seen: list[tuple[float, float]] = []
        for step in range(len(want)):
            if step == 3:
                processes._forget(1)
            if step == 4:
                processes._controls[1] = Peer(PAGE.format(done=1, open=1))  # type: ignore[assignment]
            if step == 5:
                processes._forget(2)
            found = lines(await processes.metrics())
            assert found["stentor:engine_steps_total"] == 9
            assert found["stentor:audio_rtf_count"] == found["stentor:requests_success_total"]
            seen.append(
                (found["stentor:requests_success_total"], found["stentor:websocket_sessions"])
            )
        assert seen == want

    asyncio.run(main())


def test_counters_are_what_a_process_counted_itself_and_what_only_grows() -> None:
    assert lines(counters(PAGE.format(done=4, open=2))).keys() == {
        "stentor:requests_success_total",
        "stentor:audio_rtf_bucket",
        "stentor:audio_rtf_count",
        "stentor:audio_rtf_sum",
    }
    assert lines(merged("", [])) == {}
