"""Adapters over HTTP: their names as models, and loading and unloading at run time."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stentor.errors import EngineError, InvalidRequest
from stentor.server.cli import define
from stentor.server.config import ServerConfig
from stentor.server.engines.adapters import ModelAdapters
from stentor.server.engines.launch import EngineFactory
from stentor.server.engines.process import adapted, load_model, ready
from stentor.server.errors import ApiError
from stentor.server.lora_modules import LoraModule, lora_modules
from tests.helpers import adapters
from tests.helpers.local_engine import configured, factory_of, loaded
from tests.helpers.patience import until
from tests.helpers.server_live import Live, held, pcm, serving
from tests.helpers.ws_talk import talk

SHORT = {"ignore_eos": True, "flow_steps": 2}
ASK = {
    "input": "Hello there.",
    "seed": 3,
    "response_format": "pcm",
    "max_new_tokens": 3,
    "extra_params": SHORT,
}
KEY = {"api_key": ("secret",), "allow_runtime_lora_updating": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for i, name in enumerate(("one", "two", "outside")):
        adapters.make(root / ("in" if name != "outside" else "") / name, i)
    wrong = adapters.weights(1, 4)
    wrong["base_lm.layers.0.self_attn.q_proj.lora_A"] = torch.zeros(4, 5)
    adapters.store(root / "in" / "wrong", wrong)
    return root


@pytest.fixture(scope="module")
def live(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings: dict[str, Any] = {
        "served_model_name": ("base",),
        "lora_modules": (f"one={folder / 'in' / 'one'}",),
        "max_loras": 2,
        "allowed_lora_path": str(folder / "in"),
        **KEY,
    }
    settings |= {"memory_gb": 0.01, "max_num_seqs": 2, "threads": 1, "warmup": False}
    voices = tmp_path_factory.mktemp("voices")
    with serving(voices, start=configured, model=str(adapters.TINY), **settings) as running:
        yield running


def manage(live: Live, what: str, **body: Any) -> tuple[int, str]:
    answer = live.http.post(f"/v1/{what}_lora_adapter", json=body)
    return answer.status_code, answer.text


def test_the_name_of_an_adapter_is_a_model(live: Live) -> None:
    base, one = (pcm(live.speech(**ASK, model=name).content) for name in ("base", "one"))
    want = live.tts.generate(
        "Hello there.", seed=3, max_frames=3, lora="one", retries=1, **SHORT
    ).samples
    assert np.abs(one - want).max() < 2e-4
    assert np.abs(one - base).max() > 0.01
    models = {m["id"]: m for m in live.http.get("/v1/models").json()["data"]}
    assert (models["one"]["parent"], models["base"]["parent"]) == ("base", None)
    assert models["one"]["root"].endswith("/in/one")
    assert models["one"]["options"] == models["base"]["options"]
    assert live.http.get("/v1/models/one").json()["parent"] == "base"


def test_a_websocket_speaks_with_an_adapter(live: Live) -> None:
    more = {"max_new_tokens": 3, "extra_params": SHORT}
    headers = {"Authorization": "Bearer secret"}
    with talk(live, model="one", headers=headers, seed=3, **more) as session:
        events, audio = session.say("Hello there.")
    assert events[-1]["type"] == "session.done"
    spoken, want = pcm(audio), pcm(live.speech(**ASK, model="one").content)
    assert np.abs(spoken - want)[: len(want) // 2].max() < 2e-4  # a session's end fades out


def test_adapters_are_loaded_and_unloaded_at_run_time(live: Live, folder: Path) -> None:
    before = live.speech(**ASK, model="two")
    assert before.status_code == 404
    assert before.json()["error"]["message"] == "model: 'two' is not served here; served: base, one"
    answer = manage(live, "load", lora_name="two", lora_path=str(folder / "in" / "two"))
    assert answer == (200, "Success: LoRA adapter 'two' added successfully.")
    two = live.speech(**ASK, model="two")
    assert two.status_code == 200
    assert two.content != live.speech(**ASK, model="one").content
    assert "two" in live.http.get("/v1/models").text
    assert manage(live, "load", lora_name="two", lora_path="two")[0] == 400
    status, told_full = manage(live, "load", lora_name="three", lora_path="two")
    assert (status, "all 2 slots are taken" in told_full) == (400, True)
    assert manage(live, "unload", lora_name="two") == (
        200,
        "Success: LoRA adapter 'two' removed successfully.",
    )
    assert live.speech(**ASK, model="two").status_code == 404
    assert manage(live, "unload", lora_name="two")[0] == 404
    # from the folder that is allowed
    assert manage(live, "load", lora_name="again", lora_path="two")[0] == 200
    assert live.speech(**ASK, model="again").content == two.content
    assert manage(live, "unload", lora_name="again")[0] == 200


def test_a_field_that_adapters_do_not_have_is_named(live: Live) -> None:
    body = {"lora_name": "two", "lora_path": "two", "load_inplace": True}
    loaded = live.http.post("/v1/load_lora_adapter", json=body)
    assert (loaded.status_code, loaded.headers["x-ignored"]) == (200, "load_inplace")
    unloaded = live.http.post("/v1/unload_lora_adapter", json=body)
    assert unloaded.headers["x-ignored"] == "lora_path, load_inplace"


def test_a_session_whose_adapter_is_unloaded_ends_its_utterance_and_refuses_the_next(
    live: Live,
) -> None:
    more = {
        "max_new_tokens": 40,
        "extra_params": SHORT,
        "headers": {"Authorization": "Bearer secret"},
        "seed": 3,
    }
    assert manage(live, "load", lora_name="two", lora_path="two")[0] == 200
    with talk(live, model="two", **more) as session:
        adapted_audio = session.say("Hello there.")[1]
        with held(live, steps=[10]) as engine:
            session.send("input.text", text="Hello there.")
            session.send("input.done")
            engine.wait()
            assert manage(live, "unload", lora_name="two")[0] == 200
        events, audio = session.until("session.done", "error")
        assert (events[-1]["type"], audio) == ("session.done", adapted_audio)
        events, _ = session.say("Hello there.")
        assert (events[-1]["type"], events[-1]["code"], events[-1]["param"]) == (
            "error",
            "model_not_found",
            "model",
        )
        assert "'two' is not served here; served: base, one" in events[-1]["message"]
        assert session.until("session.done")[0][-1]["finish_reason"] == "error"
        # The engine lets go of the last utterance's slot after its audio was sent.
        assert until(lambda: manage(live, "load", lora_name="two", lora_path="one")[0] == 200)
        events, other = session.say("Hello there.")
        assert events[-1]["type"] == "session.done"
        assert len(other) > 0
        assert other != adapted_audio
    assert manage(live, "unload", lora_name="two")[0] == 200


@pytest.mark.parametrize(
    ("name", "path", "status", "words"),
    [
        ("a", "/etc", 403, "lora_path: lies outside of --allowed-lora-path"),
        ("a", "../outside", 403, "lora_path: lies outside"),
        ("a", "/nowhere/at/all", 403, "lora_path: lies outside"),
        ("a", "nowhere", 404, "there is no adapter at 'nowhere'"),
        ("a", "x" * 300, 404, "there is no adapter at 'xxx"),
        ("a", "no\0where", 400, "lora_path: holds a NUL character"),
        ("a", "wrong", 400, "base_lm.layers.0.self_attn.q_proj has lora_A [4, 5]"),
        ("base", "two", 400, "is the name of a model here"),
        ("tts-1", "two", 400, "is the name of a model here"),
        (
            "tts-1-1106",
            "two",
            400,
            "lora_name: 'tts-1-1106' is a name that clients send for whatever model is served",
        ),
        ("one", "two", 400, "has already been loaded"),
        ("", "two", 400, "lora_name"),
        ("a", None, 400, "lora_path: Field required"),
    ],
)
def test_what_may_not_be_loaded_is_refused(
    live: Live, name: str, path: str | None, status: int, words: str
) -> None:
    answer = live.http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), (
        answer.text
    )
    assert live.tts.loras == ("one",)


def test_nobody_loads_adapters_without_a_key_or_where_the_operator_does_not_allow_it(
    live: Live, tmp_path: Path
) -> None:
    body = {"lora_name": "a", "lora_path": "two"}
    headers = {"Authorization": "Bearer wrong"}
    assert live.http.post("/v1/load_lora_adapter", json=body, headers=headers).status_code == 401
    with serving(tmp_path) as plain:
        for what in ("load", "unload"):
            status, message = manage(plain, what, **body)
            assert (status, "--allow-runtime-lora-updating" in message) == (404, True)


def test_modules_are_pairs_or_json_objects_as_vllm_takes_them() -> None:
    values = ('{"name": "b", "path": "/b", "base_model_name": "m"}', "a=/x=y")
    assert lora_modules(values) == [LoraModule("b", "/b", "m"), LoraModule("a", "/x=y")]
    for wrong in (
        "a",
        "=x",
        "a=",
        '{"name": "a"}',
        '{"name": "a", "path": 3}',
        "{",
        '{"name":"a","path":"b","c":"d"}',
    ):
        with pytest.raises(InvalidRequest, match="lora_modules"):
            lora_modules((wrong,))
    with pytest.raises(InvalidRequest, match="'a' is given more than once"):
        lora_modules(("a=x", "a=y"))


def test_each_adapter_belongs_to_one_model() -> None:
    modules = ("a=/a", '{"name": "b", "path": "/b", "base_model_name": "second"}')
    config = ServerConfig(
        models=("x", "y"), served_model_name=("first", "second"), lora_modules=modules
    )
    assert (config.loras_of("first"), config.loras_of("second")) == ({"a": "/a"}, {"b": "/b"})
    with pytest.raises(InvalidRequest, match="'second' is no model of this server"):
        ServerConfig(models=("x",), lora_modules=modules)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("tts-1", {}),
        ("GPT-4o-mini-tts-2025-12-15", {"models": ("x", "y")}),
        ("kokoro", {"models": ("x",), "served_model_name": ("other",)}),
    ],
)
def test_an_adapter_does_not_take_a_name_that_clients_send_for_any_model(
    name: str, more: dict[str, Any]
) -> None:
    with pytest.raises(
        InvalidRequest,
        match=f"lora_modules: '{name}' is a name that clients send for whatever model",
    ):
        ServerConfig(lora_modules=(f"{name}=/a",), **more)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("x", {"models": ("x",)}),
        ("first", {"models": ("x",), "served_model_name": ("other", "first")}),
        ("stentor", {}),
    ],
)
def test_an_adapter_does_not_take_the_name_of_a_model(name: str, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"lora_modules: '{name}' is the name of a model here"):
        ServerConfig(lora_modules=(f"{name}=/a",), **more)


@pytest.mark.parametrize("more", [{"api_key": ()}, {"replicas": 2}])
def test_run_time_loading_needs_a_key_and_one_process(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="allow_runtime_lora_updating"):
        ServerConfig(**(KEY | more))


def test_the_flag_takes_several_modules() -> None:
    program = argparse.ArgumentParser("serve")
    define(program)
    args = program.parse_args(["m", "--lora-modules", "a=1", "b=2", "--lora-modules", "c=3"])
    assert (args.models, args.lora_modules) == (["m"], ("a=1", "b=2", "c=3"))


def test_a_model_that_is_loaded_again_has_the_adapters_of_that_moment(tmp_path: Path) -> None:
    folders = {
        name: str(adapters.make(tmp_path / name, i, rank=2 + i)) for i, name in enumerate("abc")
    }
    modules = tuple(f"{name}={path}" for name, path in folders.items())
    config = ServerConfig(
        (str(adapters.TINY),), memory_gb=0.01, max_num_seqs=1, threads=1, lora_modules=modules
    )
    factory = factory_of(config)
    first, lost = adapted(loaded(factory), folders, False)
    with first:
        assert (first.loras, lost) == (("a", "b", "c"), [])
        event = ready(first, lost)
    shutil.rmtree(folders["a"])
    names = {"b": folders["c"], "c": folders["c"], "d": folders["a"]}
    again, lost = adapted(loaded(factory, event), names, False)
    with again:
        assert (again.loras, lost) == (("b", "c"), ["d"])
        assert again.lora_options == event.lora_options
        b, c = (again.adapter(name) for name in "bc")
        assert b.identity == c.identity


def test_an_adapter_that_an_engine_has_lost_has_no_name(folder: Path, tmp_path: Path) -> None:
    path = adapters.make(tmp_path / "adapter", 1)
    settings: dict[str, Any] = {"allowed_lora_path": str(tmp_path), "max_loras": 1, **KEY}
    settings |= {
        "memory_gb": 0.01,
        "max_num_seqs": 1,
        "threads": 1,
        "warmup": False,
        "idle_unload_seconds": 0.05,
    }
    with serving(
        tmp_path / "voices", start=configured, model=str(adapters.TINY), **settings
    ) as live:
        host = live.server.hosts.all[0]
        assert manage(live, "load", lora_name="one", lora_path=str(path))[0] == 200
        assert until(lambda: host.phase == "unloaded")
        # it is loaded again with its model
        assert live.speech(**ASK, model="one").status_code == 200
        assert until(lambda: host.phase == "unloaded")
        shutil.rmtree(path)
        live.speech(**ASK, model="one")
        assert live.speech(**ASK, model="one").status_code == 404
        assert '"one"' not in live.http.get("/v1/models").text
        assert live.speech(**ASK).status_code == 200


def test_an_adapter_that_is_loaded_while_its_engine_is_lost_has_no_name() -> None:
    """The engine that takes its place lacks the adapter, and takes it."""

    class Engine:
        def __init__(self) -> None:
            self.loras: list[str] = []
            self.lost: EngineError | None = None

        async def load_lora(self, name: str, path: str) -> None:
            if self.lost is not None:
                raise self.lost
            self.loras.append(name)

        async def unload_lora(self, name: str) -> None:
            await self.load_lora(name, "")

    lost, other = Engine(), Engine()
    lost.lost = EngineError("gone")
    engines: list[Any] = [lost]
    model_adapters = ModelAdapters({}, lambda: engines)
    with pytest.raises(ApiError, match="has been started again") as refused:
        asyncio.run(model_adapters.load("one", "folder"))
    assert refused.value.status == 503
    assert model_adapters.paths == {}
    engines[:] = [other]
    asyncio.run(model_adapters.load("one", "folder"))
    assert (model_adapters.paths, other.loras) == ({"one": "folder"}, ["one"])
    engines[:] = [lost]
    with pytest.raises(ApiError, match="has been started again"):
        asyncio.run(model_adapters.unload("one"))
    assert "one" in model_adapters.paths


def odd_adapters(root: Path) -> None:
    """Folders and files that only look like adapters, in the folder that is allowed."""
    plain = adapters.weights(1, 4)
    name = next(iter(plain))
    odd: dict[str, Any] = {
        "meta": torch.empty(4, 8, device="meta"),
        "sparse": torch.eye(4).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "complex": torch.ones(4, 4, dtype=torch.complex64),
        "expanded": torch.ones(1).expand(1 << 12, 1 << 20),
        "a list": [1.0],
    }
    for kind, tensor in odd.items():
        (root / kind).mkdir()
        torch.save({"state_dict": {**plain, name: tensor}}, root / kind / "lora_weights.ckpt")
    texts = {
        "deep": "[" * 100_000,
        "flat": '{"a":' * 500 + "1" + "}" * 500,
        "long": '{"r": ' + "1" * 5000 + "}",
    }
    for kind, text in texts.items():
        adapters.store(root / kind, plain)
        (root / kind / "lora_config.json").write_text(text)
        (root / f"peft-{kind}").mkdir()
        (root / f"peft-{kind}" / "adapter_config.json").write_text(text)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "fifo")
    (root / "piped").mkdir()
    os.mkfifo(root / "piped" / "lora_weights.safetensors")
    os.mkfifo(root / "piped" / "lora_config.json")


@pytest.mark.filterwarnings("ignore::UserWarning")  # such tensors are prototypes in torch
def test_what_only_looks_like_an_adapter_is_a_4xx(live: Live, folder: Path) -> None:
    root = folder / "in" / "odd"
    root.mkdir()
    odd_adapters(root)
    for path in sorted(root.iterdir()):
        status, message = manage(live, "load", lora_name="odd", lora_path=f"odd/{path.name}")
        assert (status // 100, path.name) == (4, path.name), message
        assert "lora_path" in message
    for path in ("x" * 300, "odd/loop/x", "odd/" + "x/" * 2000):
        status, message = manage(live, "load", lora_name="odd", lora_path=path)
        assert status // 100 == 4, message


def test_a_model_that_takes_no_adapters_does_not_stop_one_that_does() -> None:
    """`--max-loras` is for all models. The only model of a server is refused."""
    options: dict[str, Any] = {"max_loras": 2, "threads": 1, "memory_gb": 0.01, "max_num_seqs": 1}
    alone = EngineFactory("toy", "dummy:toy", ServerConfig(("dummy:toy",), **options))
    assert (alone.options(None)["max_loras"], alone.if_taken(None)) == (2, {})
    both = ServerConfig(("dummy:toy", str(adapters.TINY)), ("toy", "tiny"), **options)
    loads = []
    for at, (name, model) in enumerate(zip(both.served_model_name, both.models, strict=True)):
        factory = EngineFactory(name, model, both, at)
        tts, lost = load_model(factory.load({}, None, False))
        loads.append((tts.lora_options.get("max_loras", 0), lost))
        tts.close()
    assert loads == [(0, []), (2, [])]
    with pytest.raises(InvalidRequest, match="max_loras"):
        load_model(alone.load({}, None, False))
