"""VibeVoice Realtime equals the authors' code on a tiny checkpoint (tests/fixtures/vibevoice/README.md), in every mode.

VIBEVOICE_FIXTURE names another folder of the same form.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import TTS, CheckpointError, InvalidRequest, Speech
from stentor.config import Policy
from stentor.engine.scheduling.sequence import Sequence
from stentor.layers.types import NO_END, CodecCall
from stentor.models.base import Prompt
from stentor.models.vibevoice.realtime_voices import read_voice
from stentor.models.vibevoice.realtime_windows import (
    FEED,
    TOKEN_BITS,
    LiveFeed,
    plan_text,
    steps_until,
)
from stentor.models.vibevoice.solver import solver_table, timesteps
from tests.fixtures.vibevoice import tiny_vibevoice as tiny
from tests.helpers import peft
from tests.helpers.engines import Make, engines
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
LATENTS, AUDIO, STATE = 2e-5, 1e-3, 1e-4
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)
LIVE = [label for label, case in tiny.CASES.items() if not case["limited"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("vibevoice"))


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    """An engine with the official noise, made once for each set of options."""
    with engines(folder, tiny.give_official_noise, memory_gb=0.1) as make:
        yield make


def arguments(label: str) -> dict[str, Any]:
    """A case as the public API takes it."""
    case = tiny.CASES[label]
    limit = {"max_frames": case["heard"]} if case["limited"] else {}
    return {
        "voice": case["voice"].lower(),
        "cfg": case["cfg"],
        "flow_steps": case["steps"],
        "seed": tiny.SEEDS[label],
        **limit,
    }


def speak(tts: TTS, label: str, streaming: bool = True) -> Speech:
    request = tts.request(tiny.CASES[label]["text"], **arguments(label))
    stream = tts.submit(request, streaming)
    return tts.speech(list(stream), stream.seed)


def check(label: str, speech: Speech) -> None:
    latents = E[f"{label}/latents"][: tiny.CASES[label]["heard"]]
    assert speech.frames.shape == latents.shape
    assert np.abs(speech.frames - latents).max() <= LATENTS * np.abs(latents).max()
    audio = E[f"{label}/audio"]
    assert speech.samples.shape == audio.shape
    assert np.abs(speech.samples - audio.clip(-1, 1)).max() <= AUDIO * np.abs(audio).max()


# -- every mode --


@pytest.mark.parametrize("label", tiny.CASES)
def test_a_request_alone_equals_the_authors_code(label: str, make: Make):
    tts = make()
    probabilities: list[float] = []

    def note(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        probabilities.append(float(output[0]))

    hook = tts._model.stop.register_forward_hook(note)
    try:
        check(label, speak(tts, label))
    finally:
        hook.remove()
    # one for each step: those that feed a latent are the official ones, in order
    heard = min(tiny.CASES[label]["heard"], len(E[f"{label}/eos"]))
    official = iter(probabilities)
    for wanted in E[f"{label}/eos"][: heard - 1]:
        assert any(abs(p - wanted) <= STATE for p in official)


def test_hidden_states_of_both_sequences_equal_the_authors_code(make: Make):
    tts = make()
    states: list[torch.Tensor] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        states.append(inputs[0].clone())

    hook = tts._model.net.prediction_head.cond_proj.register_forward_pre_hook(note)
    try:
        speak(tts, "rt_plain")
    finally:
        hook.remove()
    hidden, negative = E["rt_plain/hidden"], E["rt_plain/negative"]
    made = iter(states)
    for n in range(tiny.CASES["rt_plain"]["heard"]):
        assert any(
            np.abs(both[0] - hidden[n]).max() <= STATE * np.abs(hidden).max()
            and np.abs(both[1] - negative[n]).max() <= STATE * np.abs(negative).max()
            for both in (pair.numpy() for pair in made)
        ), n


def test_requests_batched_with_strangers_equal_the_authors_code(make: Make):
    tts = make()
    others = [
        tts.submit(tts.request(f"A stranger speaks, number {i}.", seed=i, flow_steps=3 + i))
        for i in range(3)
    ]
    streams = {
        label: tts.submit(
            tts.request(tiny.CASES[label]["text"], **arguments(label)), streaming=i % 2 == 0
        )
        for i, label in enumerate(tiny.CASES)
    }
    for label, stream in streams.items():
        check(label, tts.speech(list(stream), stream.seed))
    for stream in others:
        assert list(stream)


def test_streamed_chunks_joined_equal_the_authors_code(make: Make):
    tts = make(policy=Policy(ramp=(1, 2), chunk=2))
    for label in ("rt_plain", "rt_long"):
        stream = tts.submit(tts.request(tiny.CASES[label]["text"], **arguments(label)))
        chunks = list(stream)
        assert len(chunks) > 5
        assert len(chunks[0].samples) == tts.spec.hop
        check(label, tts.speech(chunks, stream.seed))


def frames_of(tts: TTS, label: str) -> int:
    """Frames that a case takes in page sets: of its voice, its first window and its steps."""
    prompt = tts.prompt(tts.request(tiny.CASES[label]["text"], **arguments(label)))
    values = prompt.columns["feed"].tolist()
    steps = steps_until(values, tiny.CASES[label]["heard"]) + 1  # the last finds the end
    return prompt.num_given_frames + len(prompt.frames) + steps


def test_preempted_requests_equal_the_authors_code(make: Make):
    """Few pages of both kinds, and replays of a few steps, which begin inside windows of text."""
    tts = make(
        page_size=4,
        policy=Policy(
            reserve_tokens=1, prefix_cache=False, max_prefill_tokens=5, max_prefill_delay=0
        ),
    )
    labels = ["rt_plain", "rt_long", "rt_early"]
    frames = tts.engine.scheduler.tables.frames
    longest = max(frames_of(tts, label) for label in labels)
    frames.allocate(frames.available - longest - 4)  # for one request, and no two
    with read_at_once(tts):
        streams = {
            label: tts.submit(tts.request(tiny.CASES[label]["text"], **arguments(label)))
            for label in labels
        }
    for label, stream in streams.items():
        check(label, tts.speech(list(stream), stream.seed))
    assert tts.engine.health().preemptions > 0


def test_a_voice_in_pages_of_another_request_equals_the_authors_code(make: Make):
    tts = make(page_size=4, policy=SHARED)
    filled: list[int] = []
    runner = tts.engine.runner
    fill = runner.fill_pages

    def note(seq: Sequence, prompt: Prompt) -> None:
        filled.extend([] if seq.num_cached else [seq.id])
        fill(seq, prompt)

    runner.fill_pages = note  # type: ignore[method-assign]
    try:
        check("rt_plain", speak(tts, "rt_plain"))
        before = tts.engine.health().stats.cached_tokens
        check("rt_plain", speak(tts, "rt_plain"))
        check("rt_short", speak(tts, "rt_short"))  # the same voice, another text
        check("rt_long", speak(tts, "rt_long"))  # another voice
    finally:
        runner.fill_pages = fill  # type: ignore[method-assign]
    assert tts.engine.health().stats.cached_tokens > before
    assert len(filled) == 2, "each voice is written to pages once"


@pytest.mark.parametrize("label", ["rt_plain", "rt_early"])
def test_weights_in_8_bits_are_near_the_authors_code(label: str, make: Make):
    frames = speak(make(quantization="int8"), label).frames[:6]
    latents = E[f"{label}/latents"][:6]
    error = np.abs(frames - latents).max() / np.abs(latents).max()
    assert LATENTS < error < 0.2


# -- text that arrives --


@pytest.mark.parametrize("label", LIVE)
@pytest.mark.parametrize("cuts", [[1], [5, 9], [99]])
def test_text_that_arrives_equals_the_authors_code_however_it_comes(
    label: str, cuts: list[int], make: Make
):
    tts = make()
    text = tiny.CASES[label]["text"]
    stream = tts.submit(tts.request(text[: cuts[0]], **arguments(label), live=True), True)
    for start, end in pairwise(cuts):
        stream.append(text[start:end])
    stream.append(text[cuts[-1] :], last=True)
    # a word whose beginning is all that is known may have other tokens than the whole one
    if cuts == [1]:
        assert len(list(stream)) > 1
        return
    check(label, tts.speech(list(stream), stream.seed))


def test_live_values_do_not_depend_on_where_the_text_is_cut():
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    text = "one two three, four five six seven. Eight nine"
    ids = encode(text + "\n")
    whole = ids[:5] + plan_text(ids, 5)
    for cut in (4, 7, 9, 21, 30, len(text)):
        feed = LiveFeed(encode, text[:cut])
        values = [*feed("", False).tolist(), *feed(text[cut:], True).tolist()]
        assert len(values) == FEED
        # tokens of the first window stand in the prompt or in steps
        in_steps = 5 - len(feed.first)
        first = feed.first + [value % (1 << TOKEN_BITS) - 1 for value in values[:in_steps]]
        assert [*first, *values[in_steps:]][: len(whole)] == whole
        assert feed.opens == (in_steps == 0)


def test_a_text_that_is_too_long_for_one_request_is_refused(make: Make):
    tts = make()
    with pytest.raises(InvalidRequest) as error:
        tts.prompt(tts.request("a b c d e f g h i j k l m n o p. " * 300, voice="en-tiny_man"))
    assert error.value.param == "text"


# -- parts --


def test_steps_are_counted_from_latents():
    values = plan_text(list(range(12)), 5)
    assert [steps_until(values, n) for n in (1, 6, 7, 12, 13)] == [1, 6, 12, 17, 20]
    assert steps_until([], 9) == 9


def test_the_solver_takes_the_timesteps_of_the_original_and_ends_on_the_clean_latent():
    assert timesteps(5) == [999, 799, 599, 400, 200]
    assert timesteps(10) == [999, 899, 799, 699, 599, 500, 400, 300, 200, 100]
    alpha, sigma, keep, add, slope = solver_table(torch.device("cpu"))
    for steps in (1, 2, 5, 20):
        assert (keep[steps, steps - 1], add[steps, steps - 1]) == (0, 1)
        assert slope[steps, 0] == slope[steps, steps - 1] == 0
        assert (keep[steps, steps:] == 1).all()
        assert (add[steps, steps:] == 0).all()
        np.testing.assert_allclose(alpha[steps] ** 2 + sigma[steps] ** 2, 1, atol=1e-6)


def test_frames_decoded_in_any_chunks_are_the_same(make: Make):
    codec = make()._model.codec
    frames = torch.from_numpy(E["rt_long/latents"])[None]

    def decode(size: int) -> torch.Tensor:
        state = {name: column.rows(1) for name, column in codec.columns.items()}
        parts = []
        for part in frames.split(size, 1):
            at = torch.zeros(1, dtype=torch.int64)
            call = CodecCall(at, at + part.shape[1], torch.full_like(at, NO_END), part.shape[1])
            samples, state = codec.decode(part, state, call)
            parts.append(samples)
        return torch.cat(parts, 1)

    with torch.inference_mode():
        whole = decode(36)
        for size in (1, 2, 5):
            np.testing.assert_allclose(decode(size), whole, atol=1e-5 * float(whole.abs().max()))


def test_an_adapter_that_a_request_names_equals_one_that_is_merged(tmp_path: Path, folder: Path):
    targets = ("q_proj", "v_proj")
    layers = "model.tts_language_model.layers."
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in peft.weights(folder, targets, layers, 2, 0).items()
    }
    adapter = peft.store(tmp_path / "one", tensors, r=2, lora_alpha=4, target_modules=list(targets))
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4}
    asked: dict[str, Any] = {"seed": 1, "max_frames": 8, "ignore_eos": True, "voice": "en-tiny_man"}
    with TTS(folder, lora=str(adapter), **options) as tts:
        merged = tts.generate("hello this world", retries=1, **asked).frames
    with TTS(folder, loras={"one": str(adapter)}, **options) as tts:
        streams = [
            tts.submit(tts.request("hello this world", lora=name, **asked))
            for name in ("one", None, "one")
        ]
        named, plain, again = (tts.speech(list(stream), stream.seed).frames for stream in streams)
    np.testing.assert_allclose(named, merged, atol=1e-4)
    np.testing.assert_allclose(again, merged, atol=1e-4)
    assert np.abs(plain - merged).max() > 1e-3


# -- files --


def test_voices_are_read_without_the_classes_that_they_pickle(make: Make, folder: Path):
    c = make()._model.prompts.config
    voice = read_voice(folder / "voices" / "en-Tiny_man.pt", c)
    assert voice.features["upper"].shape[:2] == (c.upper.layers, 2)
    assert voice.features["negative"].shape[2] == 1
    assert voice.features["lower"].shape[2] < voice.features["upper"].shape[2]
    other = read_voice(folder / "voices" / "en-Small_woman.pt", c)
    np.testing.assert_array_equal(voice.features["negative"], other.features["negative"])


class Anything:
    """Pickles as a call."""

    def __reduce__(self) -> Any:
        return (Path, ("nowhere",))


def test_a_voice_that_names_anything_else_is_refused(make: Make, folder: Path, tmp_path: Path):
    c = make()._model.prompts.config
    for content, said in (
        ({"lm": Anything()}, "which no voice needs"),
        ({"lm": 1}, "is not a voice of this checkpoint"),
        ([], "it holds a list"),
    ):
        file = tmp_path / "x.pt"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x/data.pkl", pickle.dumps(content, 2))
        with pytest.raises(CheckpointError, match=said):
            read_voice(file, c)
    (tmp_path / "broken.pt").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="is not a voice"):
        read_voice(tmp_path / "broken.pt", c)


def test_a_checkpoint_without_voices_says_where_they_belong(folder: Path, tmp_path: Path):
    copy = tiny.write(tmp_path / "copy")
    for file in (copy / "voices").iterdir():
        file.unlink()
    with TTS(copy, device="cpu", threads=1, max_num_seqs=1) as tts:
        assert tts.voices == ()
        with pytest.raises(InvalidRequest, match="voices/"):
            tts.generate("hello")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "tts_backbone_num_hidden_layers", 4),
        ("diffusion_head_config", "prediction_type", "epsilon"),
        ("diffusion_head_config", "ddpm_beta_schedule", "linear"),
        ("acoustic_tokenizer_config", "mixer_layer", "conv"),
        ("acoustic_tokenizer_config", "encoder_depths", "2-x-1"),
        ("decoder_config", "use_sliding_window", True),
    ],
)
def test_a_checkpoint_of_another_network_is_refused_with_the_key(
    section: str, key: str, value: Any, tmp_path: Path
):
    copy = tiny.write(tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (config[section] if section else config)[key] = value
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=key):
        TTS(copy, device="cpu")


def test_a_tensor_that_is_missing_is_named_as_in_the_file(tmp_path: Path):
    copy = tiny.write(tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors")
    del tensors["model.acoustic_tokenizer.decoder.stages.1.0.mixer.conv.conv.conv.weight"]
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"stages\.1\.0\.mixer\.conv\.conv\.conv\.weight"):
        TTS(copy, device="cpu")


def test_random_weights_of_released_size_are_those_of_the_release():
    """1,017,626,724 parameters, of which 136,134,656 are a table that nothing reads."""
    from stentor.models.source import random_weights
    from stentor.models.vibevoice import builder
    from stentor.models.vibevoice.codec import Decoder
    from stentor.models.vibevoice.config import parse_realtime
    from stentor.models.vibevoice.realtime_network import RealtimeNet

    source = random_weights(Path(builder.__file__).parent, "vibevoice-realtime-0.5b")
    c = parse_realtime(source.config)
    with torch.device("meta"):
        parts = RealtimeNet(c), Decoder(c.decoder)
    count = sum(p.numel() for part in parts for p in part.parameters())
    assert count == 1_017_626_724 - 136_134_656
