"""dots.tts equals the official package on tiny checkpoints (tests/fixtures/dots_tts/README.md), in every mode.

DOTS_TTS_FIXTURE names another folder of the same form.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import TTS, CheckpointError, InvalidRequest, Reference, Speech
from stentor.audio import load
from stentor.config import Policy
from stentor.layers.fbank import speaker_fbank
from stentor.layers.quantized import dequantize, quantize
from stentor.layers.types import NO_END, CodecCall
from stentor.models.dots_tts.builder import read_stats
from stentor.models.dots_tts.config import MAX_STEPS, Quotas
from stentor.models.dots_tts.live_text import TOKEN_BITS, Arrivals
from stentor.models.dots_tts.reference import as_heard, speaker_window
from tests.fixtures.dots_tts import tiny_dots_tts as tiny
from tests.helpers import peft
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
LATENTS, AUDIO, PROBABILITY = 2e-5, 1e-3, 1e-4
HOP = 7680
SERVED = [
    label
    for label, case in tiny.CASES.items()
    if case["kind"] == "plain" and "schedule" not in case
]
LIVE = [
    label for label, case in tiny.CASES.items() if case["kind"] == "live" and not case["dropped"]
]
CLONES = [label for label in SERVED if "prompt_audio_path" in tiny.CASES[label]["args"]]
LANGUAGES = {"chinese": "chinese", "EN": "english"}
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)

Make = Callable[..., TTS]


def load_options(label: str) -> dict[str, Any]:
    """Load options that the case asks for."""
    case = tiny.CASES[label]
    options: dict[str, Any] = (
        {"flow_steps": case["num_steps"]} if case["variant"] in ("soar", "mf") else {}
    )
    if case["variant"] == "soar":
        options |= {"cfg": case["guidance_scale"], "ode_method": case["ode_method"]}
    return options


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in folders:
            folders[variant] = tiny.write(tmp_path_factory.mktemp("dots") / variant, variant)
        return folders[variant]

    return get


@pytest.fixture
def make(checkpoints: Callable[[str], Path]) -> Iterator[Make]:
    """An engine for a case, with the official noise."""
    loaded: list[TTS] = []

    def get(label: str, **options: Any) -> TTS:
        usual = {
            "dtype": "float32",
            "max_num_seqs": 4,
            "threads": 1,
            "memory_gb": 0.2,
            **load_options(label),
        }
        tts = TTS(checkpoints(tiny.CASES[label]["variant"]), device="cpu", **{**usual, **options})
        tiny.give_official_noise(tts, label)
        loaded.append(tts)
        return tts

    yield get
    for tts in loaded:
        tts.close()


def request(label: str, tts: TTS, **more: Any) -> Any:
    """The case as the public API takes it."""
    case, args = tiny.CASES[label], tiny.CASES[label]["args"]
    options: dict[str, Any] = {"seed": tiny.SEEDS[label], "max_frames": case["max_patches"]}
    text = args["text"]
    if "template_name" in args:
        tag, text = text.split("]", 1)
        options["instructions"] = tag[1:]
    if "prompt_audio_path" in args:
        options["reference"] = Reference(
            tiny.FIXTURE / args["prompt_audio_path"], args.get("prompt_text")
        )
    if "language" in args:
        options["language"] = LANGUAGES[args["language"]]
    if "speaker_scale" in args:
        options["speaker_scale"] = args["speaker_scale"]
    return tts.request(text, **{**options, **more})


def speech(label: str, tts: TTS, streaming: bool = True, **more: Any) -> Speech:
    stream = tts.submit(request(label, tts, **more), streaming)
    return tts.speech(list(stream), stream.seed)


def check(label: str, tts: TTS, got: Speech) -> None:
    patches, noisy = E[f"{label}/patches"], int(tiny.CASES[label]["dropped"])
    want, model = patches[noisy:], tts._model
    assert got.frames.shape == want.shape
    assert np.abs(got.frames - want).max() <= LATENTS * np.abs(want).max()
    raw = got.frames * model.codec.std.numpy() + model.codec.mean.numpy()
    latents = E[f"{label}/latents"]
    assert np.abs(raw - latents).max() <= LATENTS * np.abs(latents).max()
    assert len(got.samples) == HOP * len(want)
    if f"{label}/audio" in E:
        expected = E[f"{label}/audio"]
        assert (
            np.abs(got.samples[:: int(E["every"])] - expected).max()
            <= AUDIO * np.abs(expected).max()
        )


# -- every mode --


@pytest.mark.parametrize("label", SERVED)
def test_a_request_alone_equals_the_package(label: str, make: Make):
    tts, case = make(label), tiny.CASES[label]
    stops, fed = [], []
    net = tts._model.net
    hooks = [
        net.eos_proj.register_forward_hook(
            lambda m, i, out: stops.append(float(out.softmax(-1)[0, 1]))
        ),
        net.patch_encoder.register_forward_hook(lambda m, i, out: fed.append(out[-1].clone())),
    ]
    prompt = tts.prompt(request(label, tts))
    assert prompt.rows["token"][: len(case["prefix_ids"])].tolist() == case["prefix_ids"]
    stream = tts.submit(request(label, tts), True)
    parts = list(stream)
    for hook in hooks:
        hook.remove()
    check(label, tts, tts.speech(parts, stream.seed))
    assert parts[-1].finish == ("stop" if E[f"{label}/eos"][-1] > 0.8 else "length")
    probabilities = stops[case["dropped"] :]
    np.testing.assert_allclose(probabilities, E[f"{label}/eos"], atol=PROBABILITY)
    skipped = 1 if case["dropped"] else 0  # the encoding of a prompt's patches is one call
    want = E[f"{label}/fed"]
    np.testing.assert_allclose(
        torch.stack(fed[skipped:]).numpy(), want[: len(fed) - skipped], atol=PROBABILITY
    )


@pytest.mark.parametrize(
    "label", ["plain", "clone_text", "mf4", "mf4_clone_text", "onestep_clone", "scm_clone_text"]
)
def test_requests_beside_strangers_equal_the_package(label: str, make: Make):
    tts = make(label)
    strangers = [
        tts.submit(tts.request(f"A stranger, number {i}.", seed=i, max_frames=3 + i), True)
        for i in range(3)
    ]
    mine = [tts.submit(request(label, tts), streaming) for streaming in (True, False)]
    for stream in mine:
        check(label, tts, tts.speech(list(stream), stream.seed))
    for other in strangers:
        assert list(other)


@pytest.mark.parametrize("label", ["plain", "clone_text", "mf4", "scm_clone_text"])
def test_streamed_chunks_have_the_package_s_lengths(label: str, make: Make):
    tts = make(label, policy=Policy(ramp=(1,), chunk=1))
    stream = tts.submit(request(label, tts), True)
    parts = list(stream)
    lengths = [len(part.samples) for part in parts]
    assert lengths[0] == HOP // 2, "the first patch gives half of its audio"
    expected = tiny.CASES[label]["chunk_samples"]
    assert lengths == [*expected[:-2], expected[-2] + expected[-1]], "the last one brings the rest"
    check(label, tts, tts.speech(parts, stream.seed))


@pytest.mark.parametrize(
    ("label", "budget"),
    [
        ("clone_text", 7),
        ("scm_clone_text", 7),
        ("clone_text", 2048),
        ("mf4", 2048),
        ("mf4_clone_text", 2048),
    ],
)
def test_requests_that_lose_their_pages_equal_the_package(label: str, budget: int, make: Make):
    tts = make(
        label,
        page_size=4,
        policy=Policy(
            reserve_tokens=1, prefix_cache=False, max_prefill_tokens=budget, max_prefill_delay=0
        ),
    )
    frames = tts.engine.scheduler.tables.frames
    longest = len(tts.prompt(request(label, tts)).frames) + len(E[f"{label}/patches"]) + 1
    frames.allocate(frames.available - longest - 2)
    with read_at_once(tts):
        streams = [
            tts.submit(request(label, tts), streaming) for streaming in (True, False, True, False)
        ]
    for stream in streams:
        check(label, tts, tts.speech(list(stream), stream.seed))
    assert tts.engine.health().preemptions > 0


@pytest.mark.parametrize("label", ["plain", "clone_text", "mf4_clone_text"])
def test_a_prompt_that_is_found_in_pages_equals_the_package(label: str, make: Make):
    tts = make(label, page_size=4, policy=SHARED)
    for _ in range(2):
        check(label, tts, speech(label, tts))
    stats, prompt = tts.engine.health().stats, tts.prompt(request(label, tts))
    cached = (prompt.length - 1) // 4 * 4
    assert stats.cached_tokens == cached
    assert tts.engine.scheduler.tables.frames.kept >= len(
        [at for at in prompt.frame_at if at < cached]
    )


@pytest.mark.parametrize("label", ["clone_text", "mf4"])
def test_a_prompt_in_pieces_equals_the_package(label: str, make: Make):
    check(label, make(label), speech(label, make(label, policy=Policy(max_prefill_tokens=3))))


def test_two_runs_give_the_same_bytes(make: Make):
    tts = make("clone_text")
    first, second = (speech("clone_text", tts) for _ in range(2))
    assert first.samples.tobytes() == second.samples.tobytes()


# -- weights in 8 bits, adapters --


def test_int8_equals_weights_that_are_rounded(tmp_path: Path, checkpoints: Callable[[str], Path]):
    """In float64, where a CPU does not round activations."""
    rounded, options = (
        shutil.copytree(checkpoints("mf"), tmp_path / "rounded"),
        {"dtype": "float64", "threads": 1},
    )
    tensors = load_file(rounded / "model.safetensors")
    for name, weight in tensors.items():
        if name.startswith("llm.model.layers.") and weight.ndim == 2:
            tensors[name] = dequantize(*quantize(weight, torch.int8), torch.float64)
    save_file(tensors, rounded / "model.safetensors")
    asked: dict[str, Any] = {"seed": 1, "max_frames": 4, "ignore_eos": True, "retries": 1}
    frames = []
    for folder, more in (
        (rounded, {}),
        (checkpoints("mf"), {"quantization": "int8"}),
        (checkpoints("mf"), {}),
    ):
        with TTS(folder, device="cpu", max_num_seqs=1, **options, **more) as tts:
            frames.append(tts.generate("hello this world", **asked).frames)
    np.testing.assert_allclose(frames[1], frames[0], atol=1e-6)
    assert np.abs(frames[2] - frames[0]).max() > 1e-4, "rounding is heard"


def test_an_adapter_that_a_request_names_equals_one_that_is_merged(
    tmp_path: Path, checkpoints: Callable[[str], Path]
):
    path, targets = checkpoints("mf"), ("q_proj", "v_proj")
    tensors = peft.weights(path, targets, "llm.model.layers.", 2, 0)
    folder = peft.store(tmp_path / "one", tensors, r=2, lora_alpha=4, target_modules=list(targets))
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 4}
    asked: dict[str, Any] = {"seed": 1, "max_frames": 4, "ignore_eos": True}
    with TTS(path, lora=str(folder), **options) as tts:
        merged = tts.generate("hello this world", retries=1, **asked).frames
    with TTS(path, loras={"one": str(folder)}, **options) as tts:
        streams = [
            tts.submit(tts.request("hello this world", lora=name, **asked))
            for name in ("one", None, "one")
        ]
        adapted, plain, again = (tts.speech(list(stream), stream.seed).frames for stream in streams)
    np.testing.assert_allclose(adapted, merged, atol=1e-4)
    np.testing.assert_allclose(again, merged, atol=1e-4)
    assert np.abs(plain - merged).max() > 1e-3


# -- text that arrives --


def live_request(label: str, tts: TTS, known: int) -> Any:
    """The case, of whose text so many characters are known when it is asked for."""
    case, args = tiny.CASES[label], tiny.CASES[label]["args"]
    given: dict[str, Any] = {"eos_threshold": case["threshold"], "silent_frames": case["silent"]}
    if "prompt_audio_path" in args:
        given["reference"] = Reference(tiny.FIXTURE / args["prompt_audio_path"])
    options = {"seed": tiny.SEEDS[label], "max_frames": case["max_patches"], "live": True, **given}
    return tts.request(args["text"][:known], **options)


def live_speech(label: str, tts: TTS, cuts: list[int]) -> Speech:
    text = tiny.CASES[label]["args"]["text"]
    stream = tts.submit(live_request(label, tts, cuts[0]), True)
    for at, end in pairwise(cuts):
        stream.append(text[at:end])
    stream.append(text[cuts[-1] :], last=True)
    return tts.speech(list(stream), stream.seed)


def check_live(label: str, got: Speech) -> None:
    want = E[f"{label}/patches"].copy()
    if tiny.CASES[label]["silent"]:
        want[0] = E[f"{label}/silence"][0]
    assert got.frames.shape == want.shape
    assert np.abs(got.frames - want).max() <= LATENTS * np.abs(want).max()
    if f"{label}/audio" in E:
        expected = E[f"{label}/audio"]
        assert (
            np.abs(got.samples[:: int(E["every"])] - expected).max()
            <= AUDIO * np.abs(expected).max()
        )


@pytest.mark.parametrize("label", LIVE)
@pytest.mark.parametrize("cuts", [[1], [5, 9], [99]])
def test_text_that_arrives_equals_the_package_however_it_comes(
    label: str, cuts: list[int], make: Make
):
    check_live(label, live_speech(label, make(label), cuts))


@pytest.mark.parametrize("label", ["live", "live_clone"])
def test_live_requests_that_lose_their_pages_equal_the_package(label: str, make: Make):
    tts = make(
        label,
        page_size=4,
        policy=Policy(
            reserve_tokens=1, prefix_cache=False, max_prefill_tokens=5, max_prefill_delay=0
        ),
    )
    frames, text = tts.engine.scheduler.tables.frames, tiny.CASES[label]["args"]["text"]
    frames.allocate(frames.available - 25)
    with read_at_once(tts):
        streams = [tts.submit(live_request(label, tts, length), True) for length in (1, 5, 9)]
    for length, stream in zip((1, 5, 9), streams, strict=True):
        stream.append(text[length:], last=True)
    for stream in streams:
        check_live(label, tts.speech(list(stream), stream.seed))
    assert tts.engine.health().preemptions > 0


def test_tokens_go_before_each_patch_as_the_package_feeds_them(make: Make):
    """Steps that feed tokens make no patch but the last, and the patch's own hidden state makes none while text is
    open."""
    for label in LIVE:
        case = tiny.CASES[label]
        tts = make(label)
        arrivals = Arrivals(tts._model.prompts.encode, tts._model.config.quotas, -2)
        first = arrivals.first(case["args"]["text"] + " ")
        values = arrivals("", True)
        token, makes = (values & ((1 << TOKEN_BITS) - 1)) - 1, values >> TOKEN_BITS & 1
        groups, group = [case["prefix"] + first], []
        for t, m in zip(token.tolist(), makes.tolist(), strict=True):
            if t < 0:
                assert not group
                continue
            group.append(t)
            if m:
                groups.append(group)
                group = []
        end = tts._model.prompts.special["<|text_cond_end|>"]
        expected = [[t for t in chunk if t != end] for chunk in case["text_chunks"]]
        assert groups[: len(expected) - 1] == expected[:-1]


def test_text_that_arrives_is_refused_with_a_transcript_and_by_other_variants(make: Make):
    tts = make("live")
    recording = Reference(tiny.FIXTURE / "ref24k.wav", "hello this")
    with pytest.raises(InvalidRequest) as error:
        tts.prompt(tts.request("hello", live=True, reference=recording))
    assert error.value.param == "live"
    tts = make("mf4")
    with pytest.raises(InvalidRequest) as error:
        tts.request("hello", live=True)
    assert error.value.param == "live"


def test_a_text_that_is_known_is_spoken_by_the_streaming_variant_too(make: Make):
    """Its prompt is the plain one, and no patch is replaced by silence."""
    tts = make("live")
    ids = tts.prompt(tts.request("hello this")).rows["token"].tolist()
    assert ids[: len(tts._model.prompts.encode("[文本]"))] == tts._model.prompts.encode("[文本]")
    assert len(tts.generate("hello this", max_frames=3, ignore_eos=True, retries=1).frames) == 3


# -- traps of the page --


def test_the_patch_behind_a_recording_is_made_and_not_heard(make: Make):
    tts, label = make("clone_text"), "clone_text"
    num_patches, total = len(E[f"{label}/patches"]), tiny.CASES[label]["prompt_patches_total"]
    prompt = tts.prompt(request(label, tts))
    assert len(prompt.frame_at) == total, (
        "the last patch is not given, and a place before the first makes it"
    )
    assert prompt.max_frames == tiny.CASES[label]["max_patches"] + 1 == num_patches
    long = tts.prompt(request(label, tts, max_frames=500, ignore_eos=True))
    assert long.max_frames == 500 - total + 1


def test_a_recording_is_trimmed_before_it_is_resampled(make: Make):
    tts = make("clone")
    for label in CLONES:
        recording = load(
            Reference(tiny.FIXTURE / tiny.CASES[label]["args"]["prompt_audio_path"]),
            "reference",
            (0, 60),
        )
        trimmed = as_heard(recording, 48_000, HOP)
        assert (
            len(trimmed.samples)
            == -(-tiny.CASES[label]["samples_after_trim_and_resampling"] // HOP) * HOP
        )
        features = tts._model.encode(torch.from_numpy(trimmed.samples), "reference")
        want = E[f"{label}/xvector"]
        np.testing.assert_allclose(features["speaker"], want, atol=2e-5 * np.abs(want).max())
        if f"{label}/fbank" in E:
            low = tts._model.speaker.lowered(torch.from_numpy(trimmed.samples))
            bank = E[f"{label}/fbank"]
            np.testing.assert_allclose(
                speaker_fbank(low), bank, rtol=0, atol=2e-5 * np.abs(bank).max()
            )
            np.testing.assert_allclose(
                trimmed.samples[:: tiny.RESAMPLED_EVERY], E[f"{label}/resampled"], atol=2e-6
            )
            both = torch.cat((features["mean"], features["spread"]), dim=1).T
            np.testing.assert_allclose(
                both, E[f"{label}/vae"], atol=1e-5 * np.abs(E[f"{label}/vae"]).max()
            )


def test_the_speaker_window_of_a_long_recording_is_its_middle():
    wav = torch.arange(100.0)
    assert torch.equal(speaker_window(wav, 10), wav[45:55])
    assert torch.equal(speaker_window(wav, 100), wav)


def test_a_request_without_a_voice_has_a_condition_of_zeros(make: Make):
    net = make("mf4")._model.net
    voices = net.voice(torch.stack((torch.zeros(16), torch.ones(16))))
    assert torch.equal(voices[0], torch.zeros_like(voices[0]))
    assert voices[1].abs().max() > 0


def test_names_of_special_tokens_in_a_text_are_letters(make: Make):
    tts = make("mf4")
    ids = tts.prompt(tts.request("say <|audio_gen_span|> now")).rows["token"]
    special = tts._model.prompts.special
    assert special["<|audio_gen_span|>"] not in ids
    assert list(ids).count(special["<|audio_gen_start|>"]) == 1


def test_the_language_s_tag_is_not_doubled_and_stands_before_a_transcript(make: Make):
    tts = make("mf4")
    spoken = tts._model.prompts._spoken

    def said(text: str, **more: Any) -> str:
        return spoken(tts.request(text, **more), text)

    assert said("[EN]hello", language="english") == said("hello", language="english") == "[EN]hello"
    assert said("你好", language="cantonese") == "[口音:粤语]你好"
    recording = Reference(tiny.FIXTURE / "ref24k.wav", " hello this ")
    assert said("world", language="english", reference=recording) == "[EN]hello this\nworld"


@pytest.mark.parametrize("text", ["", "   ", "..."])
def test_a_text_without_anything_to_speak_is_refused(text: str, make: Make):
    tts = make("mf4")
    with pytest.raises(InvalidRequest) as error:
        tts.prompt(tts.request(text))
    assert error.value.param == "text"


def test_mean_flow_takes_four_steps_unless_told(checkpoints: Callable[[str], Path]):
    with TTS(checkpoints("mf"), device="cpu", threads=1, max_num_seqs=1) as tts:
        assert tts.spec.num_evals == 4
        assert tts.spec.frame_kv["flow"].layers == 3 * 4, "one branch: the guidance is in the model"
    with TTS(checkpoints("soar"), device="cpu", threads=1, max_num_seqs=1) as tts:
        assert tts.spec.num_evals == 10
        assert tts.spec.frame_kv["flow"].layers == 3 * 10 * 2


def test_a_guidance_of_zero_has_no_second_branch(make: Make):
    tts = make("plain", cfg=0)
    assert tts.spec.frame_kv["flow"].layers == 3 * 10
    assert "cfg" not in tts.spec.options


def test_guidance_of_one_half_lies_between(make: Make):
    """v + w (v - v_u): two branches with w 0 are one branch."""
    both, one = make("plain", cfg=1.0), make("plain", cfg=0)
    with_zero = speech("plain", both, cfg=0.0, max_frames=2)
    alone = speech("plain", one, max_frames=2)
    np.testing.assert_allclose(with_zero.frames, alone.frames, atol=1e-5)


def test_the_encoder_reads_raw_latents_and_the_last_frame_of_the_patch_before(make: Make):
    """Frame 3 of a patch is seen by the next one only."""
    tts = make("mf4")
    net, model = tts._model.net, tts._model
    inputs: list[torch.Tensor] = []
    hook = net.patch_encoder.register_forward_pre_hook(
        lambda m, args: inputs.append(args[0].clone())
    )
    got = speech("mf4", tts)
    hook.remove()
    raw = got.frames * model.codec.std.numpy() + model.codec.mean.numpy()
    np.testing.assert_allclose(inputs[0][0, 0], np.zeros(8), atol=0)
    for i, latents in enumerate(inputs[: len(raw)]):
        np.testing.assert_allclose(latents[0, 1:], raw[i, :3], atol=1e-5)
        if i:
            np.testing.assert_allclose(latents[0, 0], raw[i - 1, 3], atol=1e-5)


@pytest.mark.parametrize("sizes", [[1] * 5, [3, 2], [1, 4], [5]])
def test_the_codec_s_chunks_joined_equal_the_whole(sizes: list[int], make: Make):
    codec = make("mf4")._model.codec
    patches = torch.randn(2, 5, 4, 8, generator=torch.Generator().manual_seed(0))

    def run(sizes: list[int]) -> torch.Tensor:
        state = {name: c.rows(2) for name, c in codec.columns.items()}
        at, parts = 0, []
        for size in sizes:
            ends = at + size == 5
            start = torch.full((2,), at)
            end = torch.full((2,), 5 if ends else NO_END)
            call = CodecCall(start, start + size, end, size)
            samples, state = codec.decode(patches[:, at : at + size], state, call)
            first, last = codec.late * (at == 0), samples.shape[1] - codec.late * (not ends)
            parts.append(samples[:, first:last])
            at += size
        return torch.cat(parts, 1)

    at_once, joined = run([5]), run(sizes)
    assert joined.shape == (2, 5 * HOP)
    assert (joined - at_once).abs().max() <= 1e-5 * at_once.abs().max()


def test_rows_that_begin_go_on_and_end_share_a_call(make: Make):
    codec = make("mf4")._model.codec
    patches = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(1))
    fresh = {name: c.rows(1) for name, c in codec.columns.items()}

    def call(starts: list[int], ends: list[int]) -> CodecCall:
        start = torch.tensor(starts)
        return CodecCall(start, start + 1, torch.tensor(ends), 1)

    _, state = codec.decode(patches[:, :1], fresh, call([0], [NO_END]))
    alone = [
        codec.decode(patches[:, :1], fresh, call([0], [NO_END]))[0],
        codec.decode(patches[:, 1:2], state, call([1], [2]))[0],
    ]
    both = {name: torch.cat((fresh[name], state[name])) for name in fresh}
    together, _ = codec.decode(
        torch.cat((patches[:, :1], patches[:, 1:2])), both, call([0, 1], [NO_END, 2])
    )
    torch.testing.assert_close(
        together[0, codec.late : -codec.late], alone[0][0, codec.late : -codec.late]
    )
    torch.testing.assert_close(together[1], alone[1][0])


# -- loading --


def test_latent_stats_are_read_without_running_code(
    tmp_path: Path, checkpoints: Callable[[str], Path]
):
    good = checkpoints("soar") / "latent_stats.pt"
    mean, std = read_stats(good, 8)
    assert mean.shape == std.shape == (8,)

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    bad = tmp_path / "latent_stats.pt"
    torch.save({"mean": Evil(), "var": np.ones(8, np.float32)}, bad, pickle_module=pickle)
    with pytest.raises(CheckpointError, match=r"latent_stats\.pt"):
        read_stats(bad, 8)
    assert not (tmp_path / "ran").exists()
    torch.save({"mean": np.ones(3, np.float32), "var": np.ones(8, np.float32)}, bad)
    with pytest.raises(CheckpointError, match="8 numbers"):
        read_stats(bad, 8)


@pytest.mark.parametrize(
    ("variant", "options", "field"),
    [
        ("mf_1step", {"flow_steps": 4}, "flow_steps"),
        ("mf_2steps", {"cfg": 1.0}, "cfg"),
        ("soar", {"flow_steps": MAX_STEPS + 1}, "flow_steps"),
        ("soar", {"ode_method": "rk4"}, "ode_method"),
        ("mf", {"ode_method": "euler"}, "ode_method"),
        ("mf", {"cfg": 2}, "cfg"),
        ("soar", {"steps": 2}, "steps"),
    ],
)
def test_what_a_checkpoint_does_not_allow_is_refused(
    variant: str, options: dict[str, Any], field: str, checkpoints: Callable[[str], Path]
):
    with pytest.raises(InvalidRequest) as error:
        TTS(checkpoints(variant), device="cpu", threads=1, **options)
    assert error.value.param == field


@pytest.mark.parametrize("extra", ["llm.lm_head.weight", "llm.other.weight", None])
def test_the_tied_head_may_be_there_and_nothing_else(
    extra: str | None, tmp_path: Path, checkpoints: Callable[[str], Path]
):
    folder = shutil.copytree(checkpoints("soar"), tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    if extra is None:
        del tensors["hidden_proj.bias"]
    else:
        tensors[extra] = torch.zeros(2, 2)
    save_file(tensors, folder / "model.safetensors")
    if extra == "llm.lm_head.weight":
        TTS(folder, device="cpu", threads=1, max_num_seqs=1).close()
        return
    with pytest.raises(
        CheckpointError,
        match="hidden_proj.bias is missing" if extra is None else "llm.other.weight",
    ):
        TTS(folder, device="cpu", threads=1, max_num_seqs=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fm_sigma", 0.1),
        ("patch_size", 3),
        ("latent_dim", 9),
        ("DiT.qk_norm", False),
        ("vocoder.resblock", "2"),
    ],
)
def test_a_config_that_is_not_supported_names_the_key(
    key: str, value: object, tmp_path: Path, checkpoints: Callable[[str], Path]
):
    folder = shutil.copytree(checkpoints("soar"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    *sections, name = key.split(".")
    (config[sections[0]] if sections else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=name):
        TTS(folder, device="cpu", threads=1)


def test_quotas_of_text_that_arrives():
    buffered = Quotas(3, 1, 2)
    assert [buffered.of(i) for i in range(11)] == [3, 1, 1, 1, 2, 1, 1, 2, 1, 1, 2]
    assert {Quotas().of(i) for i in range(9)} == {1}
