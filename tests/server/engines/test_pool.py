"""One model with several engines: requests, voices, adapters, metrics and crashes are those of one
model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from stentor.engine.health import Health, Stats, combined, ended
from stentor.engine.once import CacheCounts
from stentor.errors import EngineError, InvalidRequest
from stentor.models.info import Adapter, SpeechRequest
from stentor.server.config import ServerConfig, build
from stentor.server.engines.client import EngineClient
from stentor.server.engines.launch import EngineFactory, cpu_share
from stentor.server.engines.model_engine import ModelEngine
from stentor.server.engines.mps_policy import policy
from stentor.server.engines.pool import TRY_EVERY, EnginePool, PoolAdapter
from stentor.server.state import Counts
from tests.helpers import adapters
from tests.helpers.descendants import engines, kill
from tests.helpers.local_engine import configured, local_engine
from tests.helpers.patience import until
from tests.helpers.server_live import Live, pcm, serving, tone_wav
from tests.server.test_api_processes import ASK, LONGEST, SPEECH, Processes, frames, several

HEALTH = Health(
    alive=True,
    error=None,
    queued=1,
    running=2,
    free_slots=3,
    free_pages=4,
    pages=5,
    preemptions=6,
    evictions=7,
    eager_calls=8,
    stats=Stats(steps=10, step_seconds=0.5),
    codec_states=CacheCounts(1, 2, 3, 4.0),
    gpu_bytes=100,
)


SOON = 0.05  # seconds of --idle-unload-seconds


# -- which engine a request goes to


class Engine:
    """An engine that counts what it is given."""

    def __init__(self, name: str, open: int = 0, ready: bool = True, lost: bool = False) -> None:
        self.name = name
        self.open = open
        self.health = replace(HEALTH, ready=ready)
        self.lost = EngineError("the engine's process has ended (signal 9)") if lost else None
        self.adapters: dict[str, Adapter] = {}
        self.adapter_numbers: list[int | None] = []

    def submit(self, request: SpeechRequest, *values: object, **options: object) -> Any:
        self.open += 1
        self.adapter_numbers.append(None if request.lora is None else request.lora.number)
        return SimpleNamespace(client=self)

    def request(self, text: str, **options: object) -> SpeechRequest:
        return speech(text)

    def adapter(self, name: str) -> Adapter:
        if name not in self.adapters:
            raise InvalidRequest("lora", f"{name!r} is not loaded")
        return self.adapters[name]


def speech(text: str = "Hello.") -> SpeechRequest:
    return SpeechRequest(
        text=text,
        voice=None,
        language="auto",
        instructions=None,
        reference=None,
        more_references=(),
        prompt=None,
        speaker_embedding=None,
        live=False,
        seed=1,
        options={},
        speed=1.0,
        lora=None,
    )


def pool(*members: Engine) -> EnginePool:
    clients: list[Any] = [*members]
    return EnginePool(lambda: clients)


def test_a_request_goes_to_the_engine_with_the_fewest_open_requests() -> None:
    busy, idle = Engine("busy", open=5), Engine("idle", open=2)
    both = pool(busy, idle)
    for _ in range(5):
        both.submit(speech(), True)
    assert (busy.open, idle.open) == (6, 6)


def several_processes(processes: int) -> list[list[EngineClient]]:
    """Clients of two engines, in each of some API processes."""
    memory = bytearray(Counts.size(engines=2, processes=processes))
    return [
        [
            EngineClient(f"engine {i}", api, lambda *_: None, open_requests=counts.open_requests(i))
            for i in range(2)
        ]
        for api in range(processes)
        for counts in [Counts(2, memory, api)]
    ]


def test_requests_of_other_api_processes_count() -> None:
    """Each process alone would be even, and an engine could have a request more of each of them:
    one row more than a captured step has, or than there are slots."""

    async def test() -> None:
        pools = [EnginePool(lambda clients=clients: clients) for clients in several_processes(3)]  # type: ignore[misc]
        streams = [pool.submit(speech(), True) for _ in range(5) for pool in pools]
        names = Counter(stream.client.name for stream in streams)
        assert sorted(names.values()) == [7, 8]

        for stream in streams:
            if stream.client.name == "engine 0":
                stream.cancel()
        assert [pool.submit(speech(), True).client.name for pool in pools] == ["engine 0"] * 3

    asyncio.run(test())


def test_open_requests_are_those_of_living_processes_and_engines() -> None:
    async def test() -> None:
        first, second = several_processes(2)
        for process, requests in ((first, 2), (second, 3)):
            for client in process:
                for _ in range(requests):
                    client.submit(speech(), True)
        assert [client.open for client in first] == [5, 5]

        second[1].lose(EngineError("gone"))
        assert [client.open for client in first] == [5, 2]

    asyncio.run(test())


def test_counts_of_a_process_that_is_gone_are_forgotten() -> None:
    memory = bytearray(Counts.size(engines=2, processes=2))
    rows = [Counts(2, memory, row) for row in range(2)]
    for counts in rows:
        counts.add("requests", 4)
        counts.open_requests(1).note(3)
    rows[0].clear(1)
    assert [counts.total("requests") for counts in rows] == [4, 4]
    assert [counts.open_requests(1).total for counts in rows] == [3, 3]
    assert rows[1].open_requests(0).total == 0


def test_engines_with_as_many_requests_take_turns() -> None:
    first, second = Engine("first"), Engine("second")
    both = pool(first, second)
    chosen = []
    for _ in range(4):
        stream = both.submit(speech(), True)
        chosen.append(stream.client)
        stream.client.open = 0  # type: ignore[misc]
    assert chosen == [first, second, first, second]


def test_a_stream_stays_on_its_engine_as_long_as_that_takes_requests() -> None:
    first, second = Engine("first", open=9), Engine("second")
    both = pool(first, second)
    earlier: Any = SimpleNamespace(client=first)
    assert both.submit(speech(), True, near=earlier).client is first
    first.lost = EngineError("gone")
    assert both.submit(speech(), True, near=earlier).client is second


def test_an_engine_whose_requests_all_fail_gets_one_of_many_while_another_is_ready() -> None:
    """It ends each at once, so it has the fewest."""
    failing, busy = Engine("failing", ready=False), Engine("busy", open=9)
    both = pool(failing, busy)
    clients = [both.submit(speech(), True).client for _ in range(TRY_EVERY)]
    assert clients == [busy] * (TRY_EVERY - 1) + [failing]
    assert pool(failing).submit(speech(), True).client is failing


def test_without_an_engine_a_request_ends_with_the_error_of_the_lost_one() -> None:
    with pytest.raises(EngineError, match="has ended"):
        pool(Engine("lost", lost=True)).submit(speech(), True)
    with pytest.raises(EngineError, match="the engine has stopped"):
        pool().request("Hello.")


def test_a_request_has_the_slot_that_its_adapter_has_on_its_engine() -> None:
    first, second = Engine("first"), Engine("second", open=1)
    first.adapters["anna"] = Adapter("anna", 1, b"", "folder")
    second.adapters["anna"] = Adapter("anna", 2, b"", "folder")
    both = pool(first, second)
    request = both.request("Hello.", lora="anna")
    assert isinstance(request.lora, PoolAdapter)
    for engine in (first, second):
        engine.adapters.clear()  # unloaded: requests that have it keep it
    for _ in range(3):
        both.submit(request, True)
    assert (first.adapter_numbers, second.adapter_numbers) == ([1, 1], [2])

    with pytest.raises(InvalidRequest, match="'anna' is not loaded"):
        both.request("Hello.", lora="anna")
    third = Engine("third")  # started since
    with pytest.raises(InvalidRequest, match="'anna' is not loaded"):
        pool(third).submit(request, True)


# -- the state of a model


def test_the_state_of_several_engines_is_that_of_one_model() -> None:
    other = replace(HEALTH, alive=False, ready=False, error="the engine has stopped", working=3.0)
    total = combined([HEALTH, other])
    assert (total.alive, total.ready, total.error, total.working) == (True, True, None, 3.0)
    assert (total.queued, total.running, total.free_slots, total.pages) == (2, 4, 6, 10)
    assert (total.evictions, total.stats.steps, total.codec_states.size) == (14, 20, 8.0)
    assert combined([other]).error == "the engine has stopped"


def test_counters_of_engines_that_have_ended_stay_and_what_they_held_does_not() -> None:
    before = ended(HEALTH, ended(HEALTH))
    total = combined([HEALTH], before)
    assert (total.preemptions, total.stats.steps, total.stats.step_seconds) == (18, 30, 1.5)
    assert (total.codec_states.hits, total.codec_states.size) == (3, 4.0)
    assert (total.running, total.pages, total.gpu_bytes) == (2, 5, 100)


# -- flags


@pytest.mark.parametrize(
    ("models", "flags", "places"),
    [
        (1, {}, [(0, "auto")]),
        (1, {"device": ("cuda:0", "cuda:1")}, [(0, "cuda:0"), (0, "cuda:1")]),
        (1, {"engines_per_gpu": 2}, [(0, "auto"), (0, "auto")]),
        (
            1,
            {"device": ("cuda:0", "cpu"), "engines_per_gpu": 2},
            [(0, "cuda:0"), (0, "cuda:0"), (0, "cpu"), (0, "cpu")],
        ),
        (2, {"device": ("cuda:0", "cuda:1")}, [(0, "cuda:0"), (1, "cuda:1")]),
        (2, {"engines_per_gpu": 2}, [(0, "auto"), (0, "auto"), (1, "auto"), (1, "auto")]),
    ],
)
def test_several_devices_of_one_model_and_engines_per_gpu_are_engines(
    models: int, flags: dict[str, Any], places: list[tuple[int, str]]
) -> None:
    config = ServerConfig(("a", "b")[:models], **flags)
    assert [(place.model, place.device) for place in config.engines] == places


@pytest.mark.parametrize(
    ("models", "flags", "message"),
    [
        (1, {"engines_per_gpu": 0}, "engines_per_gpu: must be above 0, got 0"),
        (1, {"device": ("cuda:0", "gpu")}, "device: must be auto, cpu, cuda or cuda:N, got 'gpu'"),
        (1, {"device": ()}, "device: must be auto, cpu, cuda or cuda:N, got nothing"),
        (
            3,
            {"device": ("cuda:0", "cuda:1")},
            "device: give one value, or one per model (3)",
        ),
        (
            1,
            {"device": ("cuda:0", "cuda:1"), "replicas": 2},
            "device: must be one value with replicas: each replica has GPUs of its own",
        ),
        (
            1,
            {"device": ("cuda:0", "cuda:1"), "max_memory_gb": (8.0, 6.0)},
            "max_memory_gb: give one value, or one per model (1)",
        ),
    ],
)
def test_flags_that_name_no_engines_are_refused(
    models: int, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as e:
        ServerConfig(("a", "b", "c")[:models], **flags)
    assert str(e.value) == message


def options(config: ServerConfig) -> list[dict[str, Any]]:
    places = enumerate(config.engines)
    return [EngineFactory("a", "dummy:toy", config, at).options(None) for at, _ in places]


def test_engines_of_one_device_share_the_memory_of_their_model_in_equal_parts() -> None:
    flags: dict[str, Any] = {"max_memory_gb": "12", "memory_gb": 4.0, "engines_per_gpu": 2}
    config = build({"models": ("a",), **flags, "max_memory_gb": (12.0,)}, env={})
    each = options(config)
    assert [o["max_memory_gb"] for o in each] == [6, 6]
    assert [o["memory_gb"] for o in each] == [2, 2]
    shares = [o["gpu_memory_utilization"] for o in each]
    assert shares == pytest.approx([0.45, 0.9])  # the second of what the first has left
    assert {o["max_threads"] for o in each} == {cpu_share(2)}


def test_engines_of_two_devices_have_the_memory_of_a_device_each() -> None:
    config = ServerConfig(("a",), device=("cuda:0", "cuda:1"), max_memory_gb=(12.0,), memory_gb=4.0)
    for engine in options(config):
        assert (engine["max_memory_gb"], engine["memory_gb"]) == (12, 4)
        assert engine["gpu_memory_utilization"] == 0.9


def test_requests_that_wait_are_limited_over_all_engines() -> None:
    config = ServerConfig(("a",), device=("cpu", "cpu"), max_queued_requests=100)
    policies = [EngineFactory("a", None, config, at).policy() for at in range(2)]
    assert [p["max_queue"] for p in policies] == [50, 50]


def test_engines_that_share_a_gpu_run_under_mps_with_equal_parts_of_their_share() -> None:
    config = ServerConfig(("a",), engines_per_gpu=2, gpu_share=(60.0,))
    assert [(use.mps, use.share) for use in policy(config, has_gpu=True)] == [(True, 30)] * 2
    apart = ServerConfig(("a",), device=("cuda:0", "cuda:1"))
    assert not any(use.mps for use in policy(apart, has_gpu=True))


# -- a server


@pytest.fixture(scope="module", params=[1, 2], ids=["one API process", "two"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("voices")
    with several(folder, request.param, "--device", "cpu,cpu") as processes:
        assert until(lambda: all_ready(processes))
        yield processes


def states(server: Processes, pid: int) -> list[dict[str, Any]]:
    """The state of each engine, as a process reports it."""
    engines: list[dict[str, Any]] = server.engine(pid)["engines"]
    return engines


def all_ready(server: Processes) -> bool:
    return all(
        [engine["phase"] for engine in states(server, pid)] == ["ready", "ready"]
        for pid in server.pids
    )


class Reading(threading.Thread):
    """A stream of events that is read to its end."""

    def __init__(self, server: Processes, pid: int, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.answer = server.send(pid, "POST", SPEECH, {**body, "stream_format": "sse"})
        assert self.answer.status == 200
        assert self.answer.peek(1)
        self.types: list[str] = []
        self.error: dict[str, Any] | None = None
        self.start()

    def run(self) -> None:
        for line in self.answer:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                self.types.append(event["type"])
                self.error = event.get("error", self.error)


def test_two_streams_run_on_two_engines_and_each_has_one_slot(server: Processes) -> None:
    pid = server.pids[-1]
    streams = [Reading(server, pid, frames(LONGEST)) for _ in range(2)]
    assert until(lambda: [s["running"] + s["queued"] for s in states(server, pid)] == [1, 1])
    for stream in streams:
        stream.join()
        assert (stream.types[-1], stream.error) == ("speech.audio.done", None)


def test_a_voice_that_was_uploaded_once_speaks_on_each_engine(server: Processes) -> None:
    files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
    form = {"name": "anna", "consent": "yes"}
    upload = httpx.Request("POST", server.url, data=form, files=files)
    kind = {"Content-Type": upload.headers["content-type"]}
    first = server.pids[0]
    assert server.send(first, "POST", "/v1/audio/voices", upload.read(), **kind).status == 200
    misses = server.metric(first, "engine_reference_misses_total")
    speeches = {
        server.speech(pid, {**frames(5), "voice": "anna"}) for pid in server.pids for _ in range(2)
    }
    assert len(speeches) == 1
    assert until(lambda: server.metric(first, "engine_reference_misses_total") == misses + 2)


def test_metrics_of_several_engines_are_those_of_one_model(server: Processes) -> None:
    first = server.pids[0]
    prefills = server.metric(first, "engine_prefills_total")
    for _ in range(4):
        server.speech(first, frames(5))
    for pid in server.pids:
        assert until(lambda pid=pid: server.metric(pid, "engine_prefills_total") == prefills + 4)
        assert server.metric(pid, "engine_up") == 1
        assert server.metric(pid, "model_loads_total") == 2


def test_an_engine_that_is_killed_ends_its_own_streams_and_comes_back(server: Processes) -> None:
    """The last test of this server."""
    first = server.pids[0]
    want = server.speech(first, frames(5))
    prefills = server.metric(first, "engine_prefills_total")
    streams = [Reading(server, server.pids[-1], frames(LONGEST)) for _ in range(2)]
    kill(engines(server.running.pid)[-1])
    for stream in streams:
        stream.join()
    lost, complete = sorted(streams, key=lambda s: s.error is None)
    assert lost.error is not None
    assert (lost.types[-1], lost.error["code"]) == ("speech.audio.error", "engine_error")
    assert (complete.types[-1], complete.error) == ("speech.audio.done", None)

    for pid in server.pids:
        assert server.send(pid, "GET", "/ready").status == 200
        assert server.send(pid, "GET", "/health").status == 200
        assert server.speech(pid, frames(5)) == want
    assert until(lambda: all_ready(server))
    for pid in server.pids:
        assert sorted(engine["restarts"] for engine in states(server, pid)) == [0, 1]
        assert server.engine(pid)["restarts"] == 1
        assert {server.speech(pid, frames(5)) for _ in range(2)} == {want}
    assert server.metric(first, "engine_prefills_total") > prefills  # counters never go back


def test_an_idle_model_unloads_each_engine_and_a_request_loads_all_of_them(tmp_path: Path) -> None:
    with serving(tmp_path, device=("cpu", "cpu"), idle_unload_seconds=SOON, warmup=False) as live:
        (host,) = live.server.hosts.all

        def phases() -> set[str]:
            return {engine.phase for engine in host.engines}

        for _ in range(3):
            assert until(lambda: phases() == {"unloaded"})
            assert live.http.get("/ready").status_code == 200
            loads = host.residency.loads
            assert live.speech(**ASK).status_code == 200
            assert until(lambda loads=loads: host.residency.loads >= loads + 2)
        assert host.restarts == 0


# -- adapters


SHORT: dict[str, Any] = {"max_new_tokens": 3, "extra_params": {"ignore_eos": True, "flow_steps": 2}}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(("one", "two")):
        adapters.make(folder / name, number)
    settings: dict[str, Any] = {
        "device": ("cpu", "cpu"),
        "max_loras": 2,
        "allowed_lora_path": str(folder),
        "api_key": ("secret",),
        "allow_runtime_lora_updating": True,
        "memory_gb": 0.02,
        "max_num_seqs": 2,
        "threads": 1,
        "warmup": False,
    }
    voices = tmp_path_factory.mktemp("voices")
    with serving(voices, start=configured, model=str(adapters.TINY), **settings) as live:
        (host,) = live.server.hosts.all
        assert until(lambda: len(host.pool.clients) == 2)
        yield live


def manage(live: Live, what: str, **body: Any) -> int:
    return live.http.post(f"/v1/{what}_lora_adapter", json=body).status_code


def spoken(live: Live, model: str | None = None) -> np.ndarray:
    body = {"input": "Hello there.", "seed": 3, "response_format": "pcm", **SHORT}
    answer = live.speech(**body, **({} if model is None else {"model": model}))
    assert answer.status_code == 200, answer.text
    return pcm(answer.content)


def loaded(live: Live) -> list[tuple[str, ...]]:
    """Adapters of each engine."""
    (host,) = live.server.hosts.all
    tts = [local_engine(host, at).tts for at in range(len(host.engines))]
    return [t.loras for t in tts if t is not None]


@contextmanager
def refusing(live: Live, at: int) -> Iterator[None]:
    """One engine takes no adapters."""
    (host,) = live.server.hosts.all
    tts = local_engine(host, at).tts
    assert tts is not None

    def load_lora(name: str, path: str) -> None:
        raise InvalidRequest("lora", "on purpose")

    tts.load_lora = load_lora  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del tts.load_lora


def test_an_adapter_is_loaded_on_each_engine_and_unloaded_from_each(adapted: Live) -> None:
    base = spoken(adapted)
    assert manage(adapted, "load", lora_name="one", lora_path="one") == 200
    assert loaded(adapted) == [("one",), ("one",)]
    each = [spoken(adapted, "one") for _ in range(4)]  # engines take turns
    assert all(np.array_equal(samples, each[0]) for samples in each)
    assert np.abs(each[0] - base).max() > 0.01
    assert manage(adapted, "unload", lora_name="one") == 200
    assert loaded(adapted) == [(), ()]
    assert manage(adapted, "unload", lora_name="one") == 404


def test_an_adapter_that_one_engine_refuses_is_on_none(adapted: Live) -> None:
    with refusing(adapted, 1):
        assert manage(adapted, "load", lora_name="two", lora_path="two") == 400
    assert loaded(adapted) == [(), ()]
    assert manage(adapted, "load", lora_name="two", lora_path="two") == 200
    assert manage(adapted, "unload", lora_name="two") == 200


def test_an_engine_that_starts_again_has_the_adapters_of_the_others(adapted: Live) -> None:
    """The last test of this server."""
    assert manage(adapted, "load", lora_name="two", lora_path="two") == 200
    want = spoken(adapted, "two")
    (host,) = adapted.server.hosts.all
    engine = host.engines[1]
    adapted.loop.call_soon_threadsafe(local_engine(host, 1).kill)
    assert until(lambda: engine.restarts == 1 and engine.phase == "ready")
    assert loaded(adapted) == [("two",), ("two",)]
    for _ in range(4):
        assert np.array_equal(spoken(adapted, "two"), want)


def test_names_of_engines_are_in_the_log_only_where_a_model_has_several() -> None:
    config = ServerConfig(("a", "b"), device=("cpu", "cuda:1"))
    host: Any = SimpleNamespace(name="b", config=config, engines=[])
    engine = ModelEngine(host, 1)
    host.engines.append(engine)
    assert engine.label == "b"
    config = ServerConfig(("b",), device=("cpu", "cuda:1"))
    host = SimpleNamespace(name="b", config=config, engines=[])
    host.engines += [ModelEngine(host, 0), ModelEngine(host, 1)]
    assert [e.label for e in host.engines] == ["b (engine 1, cpu)", "b (engine 2, cuda:1)"]
