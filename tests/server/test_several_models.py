"""Several models in one process: each answers as it does alone, and one that is lost leaves the others serving."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import stentor
from stentor.config import EngineConfig
from stentor.server.config import ServerConfig, build, typed
from stentor.server.engines.launch import cpu_share
from stentor.server.limits import LIMITS
from stentor.server.state import Server
from tests.helpers.local_engine import LocalEngine, factory_of, local_engine
from tests.helpers.patience import until
from tests.helpers.server_live import Live, count, pcm, serving
from tests.helpers.tiny import FIXTURES

FISH, VOX = str(FIXTURES / "fish_s2" / "checkpoint"), str(FIXTURES / "voxcpm2")
MODELS = ("dummy:toy", FISH, VOX)
NAMES = ("toy", "fish", "vox")
DEVICES = ("cuda:0", "cuda:1", "cuda")  # the first GPU has two names
BODY = {"seed": 5, "response_format": "pcm", "max_frames": 3, "guard": False}
TEXTS = ("Hello there.", "One two three.")


def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
    return lambda: stentor.TTS(
        model, name=name, memory_gb=0.02, max_num_seqs=4, threads=1, dtype="float32"
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("voices")
    with serving(folder, load=load, model=MODELS, served_model_name=NAMES, warmup=False) as live:
        yield live


def alone(model: str) -> list[np.ndarray]:
    with load("alone", model)() as tts:
        return [s.samples for s in tts.generate(TEXTS, seed=5, max_frames=3, retries=1)]


def test_three_models_answer_mixed_requests_as_each_does_alone(three: Live) -> None:
    expected = {
        (n, t): s
        for n, m in zip(NAMES, MODELS, strict=True)
        for t, s in zip(TEXTS, alone(m), strict=True)
    }
    asked = [(NAMES[i % 3], TEXTS[(i // 3) % 2]) for i in range(30)]
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda a: three.speech(model=a[0], input=a[1], **BODY), asked))
    for key, answer in zip(asked, answers, strict=True):
        assert answer.status_code == 200, answer.text
        assert np.abs(pcm(answer.content) - np.clip(expected[key], -1, 1)).max() < 2e-3, key
    assert {
        m["id"]: m["resident"] for m in three.http.get("/v1/models").json()["data"]
    } == dict.fromkeys(NAMES, True)


def test_an_engine_whose_device_raises_leaves_the_others_serving(
    three: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test of this server."""
    hosts = {h.name: h for h in three.server.hosts.all}
    given_up: list[int] = []
    for host in hosts.values():
        monkeypatch.setattr(host, "give_up", given_up.append)

    def fault(*_: object) -> None:
        raise RuntimeError("the device is gone")

    def broken(*_: object) -> LocalEngine:
        raise stentor.EngineError("it does not start again")

    engine = local_engine(hosts["fish"])
    assert engine.tts is not None
    monkeypatch.setattr(hosts["fish"].engines[0], "_start", broken)
    monkeypatch.setattr(engine.tts.engine.scheduler, "plan", fault)
    assert three.speech(model="fish", input=TEXTS[0], **BODY).status_code in (500, 503)
    assert until(
        lambda: hosts["fish"].phase == "failed" and hosts["fish"].restarts == LIMITS.restarts + 1
    )
    for name in ("toy", "vox"):
        assert three.speech(model=name, input=TEXTS[0], **BODY).status_code == 200
    refused = three.speech(model="fish", input=TEXTS[0], **BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    ready = three.http.get("/ready")
    assert (ready.status_code, ready.json()["without"]) == (200, {"fish": "failed"})
    assert three.http.get("/health").status_code == 503
    assert count(three, 'engine_up{model_name="toy"}') == 1
    assert given_up == []


def test_each_model_has_its_budget_and_its_share_of_the_rest() -> None:
    given = {"max_memory_gb": (8.0, 6.0, 4.0), "quantization": ("auto", "int8", "fp8")}
    config = build({"models": MODELS, "deterministic": True, **given}, env={})
    made = [factory_of(config, name).options(None) for name in MODELS]
    assert all(o["deterministic"] for o in made)
    assert [o["max_memory_gb"] for o in made] == [8, 6, 4]
    assert [o["quantization"] for o in made] == ["auto", "int8", "fp8"]
    free = 1.0
    for options in made:  # of what those before have left
        taken = free * options["gpu_memory_utilization"]
        assert 0.3 - 0.05 < taken < 0.3 + 0.05
        free -= taken
    assert {o["max_threads"] for o in made} == {cpu_share(3)}


def test_each_model_has_its_device_and_shares_its_memory_with_those_on_it_alone() -> None:
    config = build({"models": MODELS, "device": DEVICES}, env={})
    options = [factory_of(config, name).options(None) for name in MODELS]
    assert [o["device"] for o in options] == list(DEVICES)
    shares = [o["gpu_memory_utilization"] for o in options]
    assert shares == pytest.approx([0.45, 0.9, 0.9])  # the last of what the first has left


def test_models_of_one_device_load_one_after_another_and_those_of_two_at_once() -> None:
    started: list[str] = []

    def start(name: str, model: str | None) -> Callable[..., Any]:
        def load(*_: object) -> Any:
            started.append(name)
            return Loading()

        return load

    async def loads() -> None:
        config = build({"models": MODELS, "served_model_name": NAMES, "device": DEVICES}, env={})
        server = Server(config, start=start)
        for host in server.hosts.all:
            host.start()
        await asyncio.sleep(0)
        assert started == ["toy", "fish"]

        for host in server.hosts.all[:2]:
            await host.close()
        await asyncio.sleep(0)
        assert started == list(NAMES)
        await server.close()

    asyncio.run(loads())


class Loading:
    """An engine that is being loaded, for ever."""

    def __init__(self) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client = SimpleNamespace(health=None, ready=ready)

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (("cuda:0", "cuda:1"), "give one value, or one per model \\(3\\)"),
        (("cuda:0", "cuda:1", "tpu"), "must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        ((), "must be auto, cpu, cuda or cuda:N, got nothing"),
    ],
)
def test_devices_that_fit_no_model_are_named(device: tuple[str, ...], message: str) -> None:
    with pytest.raises(stentor.InvalidRequest, match=f"device: {message}"):
        ServerConfig(models=MODELS, device=device)


@pytest.mark.parametrize("given", [(8.0, 6.0), (1.0, 2.0, -3.0)])
def test_budgets_that_fit_no_model_are_named(given: tuple[float, ...]) -> None:
    with pytest.raises(stentor.InvalidRequest, match="max_memory_gb"):
        ServerConfig(models=MODELS, max_memory_gb=given)


def test_an_engine_beside_others_takes_its_share_of_the_threads() -> None:
    seen = []

    def threads(tts: stentor.TTS) -> int:
        plan = tts.engine.scheduler.plan

        def seeing(*given: Any) -> Any:
            seen.append(torch.get_num_threads())
            return plan(*given)

        tts.engine.scheduler.plan = seeing  # type: ignore[method-assign]
        tts.generate("Hello.", max_frames=2, retries=1)
        return seen[-1]

    with stentor.TTS("dummy:toy", memory_gb=0.01, max_threads=3) as tts:
        assert threads(tts) == 3
    with stentor.TTS("dummy:toy", memory_gb=0.01, max_threads=3, threads=2) as tts:
        assert threads(tts) == 2
    assert (cpu_share(1), EngineConfig().max_threads) == (None, None)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("int8", "fp8"), r"give one value, or one per model \(3\)"),
        (("int4",), "must be one of auto, int8, fp8, got 'int4'"),
    ],
)
def test_quantisations_that_fit_no_model_are_named(given: tuple[str, ...], why: str) -> None:
    with pytest.raises(stentor.InvalidRequest, match=f"quantization: {why}"):
        ServerConfig(models=MODELS, quantization=given)


@pytest.mark.parametrize(
    ("value", "want"), [("int8", ("int8",)), ("auto, fp8", ("auto", "fp8")), (["int8"], ("int8",))]
)
def test_quantisations_of_a_file_stand_in_a_list_or_between_commas(
    value: Any, want: tuple[str, ...]
) -> None:
    assert typed({"quantization": value}) == {"quantization": want}
