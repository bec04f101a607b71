"""VibeVoice 1.5B equals transformers and the authors' first code on a tiny checkpoint, in every mode.

See tests/fixtures/vibevoice/README.md. VIBEVOICE_FIXTURE names another folder of the same form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from stentor import TTS, CheckpointError, InvalidRequest, Speech
from stentor.audio import Recording
from stentor.config import Policy
from stentor.layers.conv import StreamingState
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.vibevoice.prompt import turns_of
from tests.fixtures.vibevoice import tiny_vibevoice as tiny
from tests.helpers import peft
from tests.helpers.engines import Make, engines
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
LATENTS, AUDIO, STATE, VOICE = 2e-5, 1e-3, 1e-4, 2e-5
PLAIN = [label for label, case in tiny.DIALOGUES.items() if not case["voices"]]
CLONES = [label for label, case in tiny.DIALOGUES.items() if case["voices"]]
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_dialogue(tmp_path_factory.mktemp("vibevoice"))


@pytest.fixture(scope="module")
def make(folder: Path) -> Iterator[Make]:
    """An engine with the official noise, made once for each set of options."""
    with engines(folder, tiny.give_official_noise_of_dialogues, memory_gb=0.1) as make:
        yield make


def script(label: str) -> str:
    return "\n".join(f"Speaker {n}: {words}" for n, words in tiny.DIALOGUES[label]["lines"])


def request(label: str, tts: TTS) -> SpeechRequest:
    """A case. Its recordings are shorter than a request may bring."""
    case = tiny.DIALOGUES[label]
    limit = {"max_frames": case["limit"]} if case["want"] == "limit" else {}
    plain = tts.request(
        script(label), cfg=case["cfg"], flow_steps=case["steps"], seed=tiny.SEEDS[label], **limit
    )
    if not case["voices"]:
        return plain
    tiny.use_recordings(tts, label)
    first, *others = (
        ReferenceAudio(
            Recording(soundfile.read(tiny.FIXTURE / name, dtype="float32")[0], 24_000), None
        )
        for name in case["voices"]
    )
    return replace(plain, reference=first, more_references=tuple(others))


def speak(tts: TTS, label: str, streaming: bool = True) -> Speech:
    stream = tts.submit(request(label, tts), streaming)
    return tts.speech(list(stream), stream.seed)


def check(label: str, speech: Speech) -> None:
    latents = E[f"{label}/latents"]
    made = speech.frames[:, : latents.shape[1]]
    assert made.shape == latents.shape
    assert np.abs(made - latents).max() <= LATENTS * np.abs(latents).max()
    audio = E[f"{label}/audio"]
    assert speech.samples.shape == audio.shape
    assert np.abs(speech.samples - audio.clip(-1, 1)).max() <= AUDIO * np.abs(audio).max()


# -- every mode --


@pytest.mark.parametrize("label", PLAIN)
def test_a_request_alone_equals_transformers(label: str, make: Make):
    tts = make()
    assert tts.prompt(request(label, tts)).rows["token"].tolist() == tiny.DIALOGUES[label]["prompt"]
    check(label, speak(tts, label))


@pytest.mark.parametrize("label", CLONES)
def test_a_cloned_voice_equals_transformers(label: str, folder: Path):
    with TTS(
        folder, device="cpu", dtype="float32", max_num_seqs=2, threads=1, memory_gb=0.1
    ) as tts:
        tiny.give_official_noise_of_dialogues(tts)
        prompt = tts.prompt(request(label, tts))
        assert prompt.rows["token"].tolist() == tiny.DIALOGUES[label]["prompt"]
        check(label, speak(tts, label))


@pytest.mark.parametrize("label", CLONES)
def test_a_recording_becomes_the_latents_of_transformers(label: str, make: Make):
    case = tiny.DIALOGUES[label]
    for number, name in enumerate(case["voices"]):
        samples = torch.from_numpy(soundfile.read(tiny.FIXTURE / name, dtype="float32")[0])
        with torch.inference_mode():
            mean = make()._model.encode(samples, "reference")["mean"].numpy()
        wanted = E[f"{label}/voice_mean"][number][: case["voice_frames"][number]]
        assert mean.shape == wanted.shape
        assert np.abs(mean - wanted).max() <= VOICE * np.abs(wanted).max()


def test_the_choices_have_the_logits_of_transformers(make: Make):
    tts = make()
    net = tts._model.net
    states: list[torch.Tensor] = []
    chosen = net.chosen
    net.chosen = lambda h: (states.append(h.clone()), chosen(h))[1]  # type: ignore[method-assign]
    try:
        speak(tts, "plain")
    finally:
        net.chosen = chosen  # type: ignore[method-assign]
    wanted = E["plain/logits"]  # begin, finish, audio, end
    made = torch.cat(states)[: len(wanted)] @ net.choices.T
    order = [1, 2, 0, 3]  # audio stands first here
    np.testing.assert_allclose(made[:, order], wanted, atol=STATE * np.abs(wanted).max())


def test_requests_batched_with_strangers_equal_transformers(make: Make):
    tts = make()
    others = [
        tts.submit(tts.request(f"A stranger speaks, number {i}.", seed=i, flow_steps=3 + i))
        for i in range(3)
    ]
    streams = {
        label: tts.submit(request(label, tts), streaming=i % 2 == 0)
        for i, label in enumerate(PLAIN)
    }
    for label, stream in streams.items():
        check(label, tts.speech(list(stream), stream.seed))
    for stream in others:
        assert list(stream)


def test_streamed_chunks_joined_equal_transformers(make: Make):
    tts = make(policy=Policy(ramp=(1, 2), chunk=2))
    stream = tts.submit(request("long", tts))
    chunks = list(stream)
    assert len(chunks) > 5
    assert len(chunks[0].samples) == tts.spec.hop
    check("long", tts.speech(chunks, stream.seed))


def test_preempted_requests_equal_transformers(make: Make):
    policy = Policy(reserve_tokens=1, prefix_cache=False, max_prefill_delay=0)
    tts = make(page_size=4, policy=policy)
    frames = tts.engine.scheduler.tables.frames
    frames.allocate(frames.available - 50)
    labels = ["long", "steps10", "long"]
    with read_at_once(tts):
        streams = [(label, tts.submit(request(label, tts))) for label in labels]
    for label, stream in streams:
        check(label, tts.speech(list(stream), stream.seed))
    assert tts.engine.health().preemptions > 0


def test_a_prompt_in_pages_of_another_request_equals_transformers(make: Make):
    tts = make(page_size=4, policy=SHARED)
    check("steps10", speak(tts, "steps10"))
    before = tts.engine.health().stats.cached_tokens
    check("steps10", speak(tts, "steps10"))
    check("long", speak(tts, "long"))
    assert tts.engine.health().stats.cached_tokens > before


def test_weights_in_8_bits_are_near_transformers(make: Make):
    latents = E["steps20/latents"][:3]
    frames = speak(make(quantization="int8"), "steps20").frames[:3, : latents.shape[1]]
    error = np.abs(frames - latents).max() / np.abs(latents).max()
    assert LATENTS < error < 0.2


def test_the_layout_of_the_release_holds_the_same_model(tmp_path: Path):
    path = tiny.write_dialogue(tmp_path / "original", "tts_original")
    with TTS(path, device="cpu", dtype="float32", max_num_seqs=1, threads=1) as tts:
        tiny.give_official_noise_of_dialogues(tts)
        for label in ("plain", "long"):
            check(label, speak(tts, label))


def test_an_output_layer_of_its_own_is_read(tmp_path: Path):
    """7B has one. Where it is the negative of the embeddings, another token is chosen."""
    path = tiny.write_dialogue(tmp_path / "large")
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = False
    (path / "config.json").write_text(json.dumps(config))
    options = {"device": "cpu", "dtype": "float32", "max_num_seqs": 1, "threads": 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        TTS(path, **options)
    tensors = load_file(path / "model.safetensors")
    table = tensors["model.language_model.embed_tokens.weight"]
    for sign, label in ((1, "plain"), (-1, "")):
        save_file({**tensors, "lm_head.weight": sign * table}, path / "model.safetensors")
        with TTS(path, **options) as tts:
            tiny.give_official_noise_of_dialogues(tts)
            if label:
                check(label, speak(tts, label))
            else:
                assert not len(speak(tts, "steps20").frames)


def test_the_semantic_encoder_hears_audio_in_any_chunks(make: Make):
    model = make()._model
    decoded = torch.from_numpy(E["codec/latents"])[None]  # as the decoder's first layer takes them
    latents = (decoded + model.codec.bias) * model.codec.scale
    wanted = E["codec/semantic"]
    for size in (1, 2, latents.shape[1]):
        decoder = {name: column.rows(1) for name, column in model.codec.columns.items()}
        encoder = {name: column.rows(1) for name, column in model.semantic.columns.items()}
        parts = []
        with torch.inference_mode():
            for part in latents.split(size, 1):
                spoken, heard = StreamingState(decoder), StreamingState(encoder)
                samples = model.codec.samples(part, spoken)
                parts.append(model.semantic.run(samples[:, None], heard)[0].T)
                decoder, encoder = spoken.new, heard.new
        np.testing.assert_allclose(torch.cat(parts), wanted, atol=1e-5 * np.abs(wanted).max())


def test_an_adapter_that_a_request_names_equals_one_that_is_merged(tmp_path: Path):
    path = tiny.write_dialogue(tmp_path / "model", "tts_original")
    targets = ("q_proj", "v_proj")
    tensors = peft.weights(path, targets, "model.language_model.layers.", 2, 0)
    adapter = peft.store(tmp_path / "one", tensors, r=2, lora_alpha=4, target_modules=list(targets))
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4}
    asked: dict[str, Any] = {"seed": 1, "max_frames": 5, "ignore_eos": True}
    with TTS(path, lora=str(adapter), **options) as tts:
        merged = tts.generate("hello this world", retries=1, **asked).frames
    with TTS(path, loras={"one": str(adapter)}, **options) as tts:
        streams = [
            tts.submit(tts.request("hello this world", lora=name, **asked))
            for name in ("one", None, "one")
        ]
        named, plain, again = (tts.speech(list(stream), stream.seed).frames for stream in streams)
    np.testing.assert_allclose(named, merged, atol=1e-4)
    np.testing.assert_allclose(again, merged, atol=1e-4)
    assert np.abs(plain - merged).max() > 1e-3


# -- scripts --


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("Hello there.", [(0, "Hello there.")]),
        ("Speaker 0: Hi.\nSpeaker 1: Hello.", [(0, "Hi."), (1, "Hello.")]),
        ("speaker 1: Hi.\nSPEAKER 2 : Hello.\n", [(0, "Hi."), (1, "Hello.")]),
        ("Speaker 2: Alone.", [(1, "Alone.")]),
        ("Speaker 0: One\nand its second line.", [(0, "One\nand its second line.")]),
        ("Opening.\nSpeaker 1: Then.", [(0, "Opening."), (0, "Then.")]),
        ("The speaker 1: said so.", [(0, "The speaker 1: said so.")]),
    ],
)
def test_a_script_becomes_turns(text: str, turns: list[tuple[int, str]]):
    assert turns_of(text) == turns


def test_more_recordings_than_speakers_are_refused(make: Make):
    tts = make()
    case = request("two_voices", tts)
    with pytest.raises(InvalidRequest) as error:
        tts.prompt(replace(case, text="Only one speaks."))
    assert error.value.param == "references"


def test_names_of_special_tokens_in_a_text_are_letters(make: Make):
    tts = make()
    prompt = tts.prompt(tts.request("A <|vision_pad|> stays <|endoftext|> text."))
    tokens = tts._model.prompts.tokens
    ids = prompt.rows["token"].tolist()
    assert ids.count(tokens.audio) == ids.count(tokens.end) == 0
    assert ids.count(tokens.begin) == 1


@pytest.mark.parametrize(
    ("name", "count"), [("vibevoice-1.5b", 2_704_021_987), ("vibevoice-7b", 9_343_355_363)]
)
def test_random_weights_of_released_size_are_those_of_the_release(name: str, count: int):
    from stentor.models.source import random_weights
    from stentor.models.vibevoice import builder
    from stentor.models.vibevoice.codec import Decoder, Encoder
    from stentor.models.vibevoice.config import parse_dialogue
    from stentor.models.vibevoice.network import DialogueNet

    c = parse_dialogue(random_weights(Path(builder.__file__).parent, name).config)
    with torch.device("meta"):
        parts = DialogueNet(c), Decoder(c.decoder), Encoder(c.acoustic), Encoder(c.semantic)
    assert sum(p.numel() for part in parts for p in part.parameters()) == count
