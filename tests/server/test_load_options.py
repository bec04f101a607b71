"""Options of a model's family, as a server is given them."""

from __future__ import annotations

import msgspec
import pytest

import stentor
from stentor import InvalidRequest
from stentor.server.config import ServerConfig, build
from stentor.server.engines.process import ready
from stentor.server.load_options import load_options
from tests.helpers.local_engine import factory_of, loaded


def test_values_are_numbers_truths_and_words() -> None:
    given = ("stream_window=20", "codec_dtype=float32", " a = 1.5", "b=true", "c=x=y")
    assert load_options(given) == {
        "stream_window": 20,
        "codec_dtype": "float32",
        "a": 1.5,
        "b": True,
        "c": "x=y",
    }


@pytest.mark.parametrize(
    "wrong",
    ["stream_window", "=3", "a=", "a=[1]", "a={", "device=cpu", "page_size=4", "max_loras=2"],
)
def test_what_is_no_option_of_a_family_is_refused_at_the_edge(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match="load_options"):
        ServerConfig(models=("dummy:toy",), load_options=(wrong,))


def test_an_option_comes_once() -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        load_options(("a=1", "a=2"))


def test_the_model_gets_them() -> None:
    config = build(
        {"models": ("x",), "load_options": ("stream_window=20", "codec_dtype=float16")}, env={}
    )
    options = factory_of(config).options(None)
    assert (options["stream_window"], options["codec_dtype"]) == (20, "float16")


def test_a_model_that_is_loaded_again_gets_the_layers_of_its_slots_once() -> None:
    given = {"lora_modules": ("a=/a",), "load_options": ("lora_targets=q_proj,v_proj",)}
    factory = factory_of(build({"models": ("x",), **given}, env={}))
    with stentor.TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        told = ready(tts, [])
    again = msgspec.structs.replace(told, lora_options={"lora_targets": ["v_proj"]})
    assert [factory.options(last)["lora_targets"] for last in (None, again)] == [
        "q_proj,v_proj",
        ["v_proj"],
    ]


def test_a_model_that_does_not_take_one_says_what_it_takes() -> None:
    config = build({"models": ("dummy:toy",), "load_options": ("stream_window=20",)}, env={})
    with pytest.raises(
        InvalidRequest, match="stream_window: is no engine option and no load option of this model"
    ):
        loaded(factory_of(config))
