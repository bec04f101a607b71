"""Pocket-TTS equals the official package on tiny checkpoints (tests/fixtures/pocket_tts/README.md), in every mode."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stentor import TTS, CheckpointError, InvalidRequest, Reference, Speech
from stentor.audio import load
from stentor.config import Policy
from stentor.layers.attention import causal
from stentor.layers.conv import StreamingState
from stentor.layers.packed import PackedLinear, packs
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.base import PromptRows
from stentor.models.calm_text import chunks, prepare
from stentor.models.pocket_tts.voice import ending_on_pause, read_voice
from tests.fixtures.pocket_tts import tiny_pocket_tts as tiny
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
LATENTS, AUDIO, LOGITS, KV = 2e-5, 1e-3, 1e-4, 1e-5
IN_PLACE = [label for label, case in tiny.CASES.items() if not case["copy_state"]]
NO_TAIL = [label for label, case in tiny.CASES.items() if case["frames_after_eos"] == 0]
SERVED = [label for label in tiny.CASES if label not in (*IN_PLACE, *NO_TAIL)]
RECORDING = Reference(tiny.FIXTURE / "audio" / "mono24.wav")
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)

Make = Callable[..., TTS]


def of(model: str) -> list[str]:
    return [label for label in SERVED if tiny.CASES[label]["model"] == model]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """An engine with a tiny model and the official noise, made once for each set of options."""
    loaded: dict[str, TTS] = {}

    def get(model: str, **options: Any) -> TTS:
        key = f"{model} {options}"
        if key not in loaded:
            folder = tiny.write(tmp_path_factory.mktemp("pocket") / model, model)
            loaded[key] = TTS(
                folder,
                device="cpu",
                **{"dtype": "float32", "max_num_seqs": 4, "threads": 1, **options},
            )
            tiny.give_official_noise(loaded[key])
        return loaded[key]

    yield get
    for tts in loaded.values():
        tts.close()


def arguments(label: str, tts: TTS) -> dict[str, Any]:
    """The public API's arguments for a case of the fixture."""
    case = tiny.CASES[label]
    same = {
        name: case[name]
        for name in ("temperature", "eos_threshold", "max_tokens", "frames_after_eos")
    }
    steps = {"flow_steps": case["steps"]} if "flow_steps" in tts.spec.options else {}
    return {"seed": tiny.SEEDS[label], "voice": case["audio"], **same, **steps}


def generate(tts: TTS, label: str, **more: Any) -> Speech:
    """The case as one utterance: the official package takes a text as it is, and cuts it itself."""
    options = {
        "cleanup": "none",
        "split_granularity": "none",
        "retries": 1,
        **arguments(label, tts),
        **more,
    }
    return tts.generate(tiny.CASES[label]["text"], **options)


def check(label: str, speech: Speech, latents: float = LATENTS, audio: float = AUDIO) -> None:
    parts = tiny.CASES[label]["chunks"]
    want = np.concatenate(
        [E[f"{label}/{i}/latents"][: part["frames"]] for i, part in enumerate(parts)]
    )
    assert speech.frames.shape == want.shape
    assert np.abs(speech.frames - want).max() <= latents * np.abs(want).max()
    assert len(speech.samples) == 1920 * len(want)
    expected, peak = E[f"{label}/audio"], np.abs(E[f"{label}/audio"]).max()
    head = speech.samples[:: tiny.EVERY][: len(expected)]
    assert np.abs(head - expected).max() <= audio * peak
    if f"{label}/tail" in E:
        tail = E[f"{label}/tail"]
        assert np.abs(speech.samples[-1920:][:: tiny.EVERY] - tail).max() <= audio * peak


# -- every mode --


@pytest.mark.parametrize("label", SERVED)
def test_a_request_alone_equals_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"])
    conditions: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []

    def note(module: torch.nn.Module, given: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        conditions.append(given[0][0].clone())
        logits.append(out[0].clone())

    hook = tts._model.net.out_eos.register_forward_hook(note)
    try:
        check(label, generate(tts, label))
    finally:
        hook.remove()
    parts = tiny.CASES[label]["chunks"]
    want = np.concatenate([E[f"{label}/{i}/eos"][: part["frames"]] for i, part in enumerate(parts)])
    np.testing.assert_allclose(torch.cat(logits).numpy(), want, atol=LOGITS)
    first = E[f"{label}/0/hidden"][: parts[0]["frames"]]
    np.testing.assert_allclose(torch.stack(conditions[: len(first)]).numpy(), first, atol=LOGITS)


@pytest.mark.parametrize("model", tiny.MODELS)
def test_requests_batched_with_strangers_equal_the_package(model: str, make: Make):
    tts = make(model)
    strangers = [
        tts.request(f"A stranger speaks, number {i}.", voice="mono24", seed=i) for i in range(3)
    ]
    others = [tts.submit(r) for r in strangers]
    options = {label: arguments(label, tts) for label in of(model)}
    streams = {
        label: tts.submit(tts.request(tiny.CASES[label]["text"], **a), streaming=i % 2 == 0)
        for i, (label, a) in enumerate(options.items())
    }
    for label, stream in streams.items():
        check(label, tts.speech(list(stream), stream.seed))
    for stream in others:
        assert list(stream)


@pytest.mark.parametrize("label", ["plain", "long", "steps4", "small", "drift", "old"])
def test_streamed_chunks_joined_equal_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"])
    stream = tts.submit(tts.request(tiny.CASES[label]["text"], **arguments(label, tts)))
    parts = list(stream)
    assert len(parts) > 2
    assert len(parts[0].samples) == 1920
    check(label, tts.speech(parts, stream.seed))


def positions(label: str) -> tuple[int, int]:
    """Positions that the first chunk of a case takes in the cache: its prompt, and all."""
    part = tiny.CASES[label]["chunks"][0]
    prompt = part["position"] + len(part["ids"]) + 1
    return prompt, prompt + part["frames"]


@pytest.mark.parametrize(
    ("model", "labels"), [("lsd", ["plain", "hot", "no_end", "clone"]), ("small", ["small"] * 4)]
)
def test_preempted_requests_equal_the_package(model: str, labels: list[str], make: Make):
    kv = make(model).spec.kv
    page = 4 * 2 * kv.layers * kv.heads * kv.dim * 4  # tokens, keys and values, bytes
    shortest, longest = zip(*map(positions, labels), strict=True)
    # for the longest alone, or for two prompts and few frames
    pages = max(2 * max(shortest), *longest) // 4 + 2
    poor = make(
        model,
        page_size=4,
        memory_gb=(pages + 0.5) * page / 2**30,
        policy=Policy(reserve_tokens=0, prefix_cache=False, max_prefill_delay=0),
    )
    before = poor.engine.health().preemptions
    with read_at_once(poor):
        streams = [
            poor.submit(poor.request(tiny.CASES[n]["text"], **arguments(n, poor))) for n in labels
        ]
    for label, stream in zip(labels, streams, strict=True):
        check(label, poor.speech(list(stream), stream.seed))
    assert poor.engine.health().preemptions > before


def test_a_voice_in_pages_of_another_request_equals_the_package(make: Make):
    tts = make("lsd", page_size=4, policy=SHARED)
    check("plain", generate(tts, "plain"))
    filled = tts.engine.health().stats.cached_tokens
    copied: list[int] = []
    fill = tts.engine.runner.fill_pages
    tts.engine.runner.fill_pages = lambda seq, prompt: (
        copied.append(seq.num_cached),
        fill(seq, prompt),
    )[1]  # type: ignore[method-assign]
    try:
        check("plain", generate(tts, "plain"))  # its text is in pages too
        tts.generate("It begins in another way.", voice="mono24", max_frames=2)
    finally:
        tts.engine.runner.fill_pages = fill  # type: ignore[method-assign]
    length = tiny.CASES["plain"]["chunks"][0]["position"]
    assert tts.engine.health().stats.cached_tokens - filled >= 2 * length
    assert copied == [length // 4 * 4]  # what is beyond the last full page that the texts share


def test_two_voices_do_not_share_pages(make: Make):
    tts = make("lsd", page_size=4, policy=SHARED)
    both = [
        tts.submit(tts.request("The same words.", voice=v, seed=9)) for v in ("mono24", "stereo16")
    ]
    one, other = (np.concatenate([c.frames for c in s])[:6] for s in both)
    assert np.abs(one - other).max() > 1e-3
    alone = make("lsd").generate("The same words.", voice="stereo16", seed=9, retries=1).frames[:6]
    np.testing.assert_allclose(other, alone, atol=LATENTS)


@pytest.mark.skipif(
    not packs(torch.device("cpu"), torch.float32), reason="this CPU or torch packs no weights"
)
@pytest.mark.parametrize("label", ["plain", "steps4", "old", "drift", "small"])
def test_weights_in_16_bits_which_a_cpu_holds_by_default_equal_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"], dtype="auto")
    wide = tiny.FIXTURE != tiny.OWN and tiny.CASES[label]["model"] in (
        "drift",
        "small",
    )  # files in float32
    assert isinstance(tts._model.net.input_linear, PackedLinear) != wide
    check(label, generate(tts, label))


@pytest.mark.parametrize("label", ["plain", "old", "drift", "small"])
def test_weights_in_8_bits_are_near_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"], quantization="int8")
    frames, want = generate(tts, label).frames[:6], E[f"{label}/0/latents"][:6]
    error = np.abs(frames - want).max() / np.abs(want).max()
    assert LATENTS < error < 0.1


# -- voices --


@pytest.mark.parametrize("model", tiny.MODELS)
def test_a_recording_becomes_the_latents_of_the_package(model: str, make: Make):
    tts = make(model)
    recording = ending_on_pause(load(RECORDING, "reference", (0.1, 60)))
    np.testing.assert_allclose(
        recording.samples[:: tiny.EVERY], E["audio/mono24/paused"], atol=1e-6
    )
    with torch.inference_mode():
        latents = tts._model.encode(torch.from_numpy(recording.samples), "reference")[
            "voice"
        ].numpy()
    want = E[f"{model}/mono24/latents"]
    assert latents.shape == want.shape
    assert np.abs(latents - want).max() < 1e-5 * np.abs(want).max()


def test_a_recording_longer_than_a_window_is_encoded_as_a_whole(make: Make):
    encoder = make("lsd")._model.encoder
    wav = (
        torch.from_numpy(np.random.default_rng(3).standard_normal(40 * 1920).astype(np.float32))
        * 0.1
    )
    with torch.inference_mode():
        pieces = encoder(wav)  # 256 columns and 384 more
        state = StreamingState({name: c.rows(1) for name, c in encoder.windows.columns.items()})
        at_once = encoder.downsample.whole(
            encoder._window(wav[None, None], state, torch.tensor(0))
        )[0].T
    assert len(pieces) == 40
    np.testing.assert_allclose(pieces.numpy(), at_once.numpy(), atol=1e-5)


@pytest.mark.parametrize("label", ["plain", "old", "drift", "small"])
def test_a_cloned_voice_equals_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"])
    check(label, generate(tts, label, voice=None, reference=RECORDING))


@pytest.mark.parametrize("model", tiny.MODELS)
def test_a_cloned_voice_has_the_keys_and_values_of_the_voice_file(model: str, make: Make):
    model_of = make(model)._model
    stored = read_voice(
        tiny.FIXTURE / model / "mono24.safetensors", model_of.prompts.config.backbone
    ).features["given"]
    prompt = make(model).prompt(make(model).request("Hello there.", reference=RECORDING))
    length = stored.shape[2]
    rows = {name: torch.from_numpy(values[:length]) for name, values in prompt.rows.items()}
    keys_values: list[torch.Tensor] = []

    def attend(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, norm_rope: NormRope
    ) -> torch.Tensor:
        keys_values.append(torch.stack((norm_rope.apply(q, k)[1], v)))
        return causal(layer, q[None], k[None], v[None], norm_rope)[0]

    with torch.inference_mode():
        prompt_rows = PromptRows(
            rows, torch.from_numpy(prompt.frames), torch.from_numpy(prompt.frame_at)
        )
        model_of.net.run(
            model_of.embed_prompt(prompt_rows, None)[0], attend, model_of.rope, torch.arange(length)
        )
    np.testing.assert_allclose(
        torch.stack(keys_values).numpy(), stored, atol=KV * np.abs(stored).max()
    )
    for layer, name in ((0, "kv_first"), (-1, "kv_last")):
        np.testing.assert_allclose(
            stored[layer], E[f"{model}/mono24/{name}"], atol=KV * np.abs(stored).max()
        )


def test_a_voice_file_of_the_older_format_is_the_same_voice(make: Make):
    config = make("lsd")._model.prompts.config.backbone
    new, old = (
        read_voice(tiny.FIXTURE / "lsd" / f"{n}.safetensors", config)
        for n in ("mono24", "older_voice")
    )
    assert np.array_equal(new.features["given"], old.features["given"])


def test_slots_of_a_voice_file_that_are_not_filled_may_hold_nan(tmp_path: Path, make: Make):
    file, config = tmp_path / "padded.safetensors", make("lsd")._model.prompts.config.backbone
    tensors = load_file(tiny.FIXTURE / "lsd" / "mono24.safetensors")
    padded = {
        name: torch.cat((t, torch.full_like(t[:, :, :3], float("nan"))), 2)
        if name.endswith("cache")
        else t
        for name, t in tensors.items()
    }
    save_file(padded, file)
    assert np.array_equal(
        read_voice(file, config).features["given"],
        read_voice(tiny.FIXTURE / "lsd/mono24.safetensors", config).features["given"],
    )


def test_a_voice_of_another_checkpoint_is_refused(make: Make):
    config = make("lsd")._model.prompts.config.backbone
    with pytest.raises(CheckpointError, match=r"small/mono24\.safetensors"):
        read_voice(tiny.FIXTURE / "small" / "mono24.safetensors", config)


def test_a_request_without_a_voice_has_the_usual_one_and_two_voices_are_refused(
    tmp_path: Path, make: Make
):
    tts = make("lsd")
    assert tts.spec.default_voice == "mono24"
    assert tts.request("Hello.").voice == "mono24"
    assert tts.request("Hello.", reference=RECORDING).voice is None
    with pytest.raises(InvalidRequest, match="voice: stands for a reference"):
        tts.generate("Hello.", voice="stereo16", reference=RECORDING)
    folder = tiny.write(tmp_path / "lsd", "lsd")
    shutil.rmtree(folder / "embeddings")
    with (
        TTS(folder, device="cpu", max_num_seqs=1) as mute,
        pytest.raises(InvalidRequest, match="reference: is needed"),
    ):
        mute.generate("Hello.")


def test_weights_without_cloning_take_no_recording(tmp_path: Path):
    folder = tiny.write(tmp_path / "without-voice-cloning" / "lsd", "lsd")
    with TTS(folder, device="cpu", max_num_seqs=1) as tts:
        assert not tts.spec.takes_reference
        with pytest.raises(InvalidRequest, match="reference"):
            tts.generate("Hello.", reference=RECORDING)


# -- text --


@pytest.mark.parametrize("model", tiny.MODELS)
def test_texts_are_prepared_and_cut_as_by_the_package(model: str, make: Make):
    prompts = make(model)._model.prompts
    c, tokens = prompts.config.text, prompts.tokens
    mine = [case for case in tiny.DATA["texts"] if case["model"] == model]
    assert len(mine) > 15
    for case in mine:
        prepared = prepare(case["text"], c)
        if case["prepared"] is None:
            assert prepared.text == ""
            continue
        assert [prepared.text, prepared.tail - 2] == case["prepared"]
        assert chunks(case["text"], c, tokens, 20) == case["chunks"]


@pytest.mark.parametrize("label", SERVED)
def test_prompts_have_the_ids_and_positions_of_the_package(label: str, make: Make):
    tts = make(tiny.CASES[label]["model"])
    prompt = tts.prompt(tts.request(tiny.CASES[label]["text"], **arguments(label, tts)))
    for part in tiny.CASES[label]["chunks"]:
        assert prompt is not None
        assert prompt.rows["token"][part["position"] : -1].tolist() == part["ids"]
        prompt = prompt.continuation(np.zeros(0)) if prompt.continuation else None
    assert prompt is None


def test_a_comma_at_the_end_of_a_chunk_becomes_a_full_stop_and_a_new_chunk_has_a_capital(
    make: Make,
):
    prompts = make("lsd")._model.prompts
    c, tokens = prompts.config.text, prompts.tokens
    parts = chunks("one two, three four, five six", c, tokens, 8)
    assert len(parts) > 1
    assert [prepare(p, c).text[-1] for p in parts] == ["."] * len(parts)
    assert all(prepare(p, c).text[0].isupper() for p in parts)


def test_words_are_counted_before_the_end_of_a_text_is_mended(make: Make):
    c = make("lsd")._model.prompts.config.text
    assert prepare("one two three four", c).tail == 5
    assert prepare("one two three four -", c) == ("One two three four.", 3)


def test_spaces_before_a_short_text_reach_the_model_of_2026_01(make: Make):
    tts = make("old")
    short = tts.prompt(tts.request("hello; you", voice="mono24")).rows["token"]
    assert [token for token in short.tolist() if token].count(
        tiny.CASES["old_short"]["chunks"][0]["ids"][0]
    ) >= 8


# -- frames --


def test_speech_does_not_end_before_frame_six_and_its_last_frames_are_heard(make: Make):
    tts = make("lsd")
    for tail in (1, 2, 7):
        speech = generate(tts, "cold", frames_after_eos=tail)
        assert len(speech.frames) == 6 + tail
    assert len(generate(tts, "short").frames) == 6 + 5  # at most four words


@pytest.mark.parametrize("label", NO_TAIL)
def test_a_tail_without_the_frame_that_ends_is_refused(label: str, make: Make):
    with pytest.raises(InvalidRequest, match="frames_after_eos: must be from 1"):
        generate(make("lsd"), label)


def test_the_noise_has_the_variance_of_the_temperature_and_is_cut_off_not_clipped(make: Make):
    model = make("lsd")._model
    u = torch.rand(1, 200_000, generator=torch.Generator().manual_seed(1))
    for clamp in (None, 0.3):
        prompt = make("lsd").prompt(
            make("lsd").request("Hello.", voice="mono24", temperature=0.49, noise_clamp=clamp)
        )
        rows = {
            name: torch.tensor([prompt.columns[name]]) for name in ("noise_scale", "noise_below")
        }
        rows |= {"seed": torch.zeros(1), "step": torch.zeros(1)}
        noise = model.normals(rows, u) * rows["noise_scale"]
        if clamp is None:
            assert float(noise.var()) == pytest.approx(0.49, rel=0.02)
        else:
            assert float(noise.abs().max()) <= clamp + 1e-5
            assert float((noise.abs() > clamp - 1e-3).float().mean()) < 0.01
            assert float(noise.std()) == pytest.approx(
                0.169, abs=0.003
            )  # of a normal of 0.7 between -0.3 and 0.3


def test_the_norm_of_a_time_embedding_does_not_centre(make: Make):
    from stentor.models.calm_flow import Alpha

    norm = Alpha(3)
    norm.alpha.data.fill_(2.0)
    h = torch.tensor([1.0, 2.0, 4.0])
    expected = 2 * h / np.sqrt(7 / 3 + 1e-5)  # variance 7 / 3, of n - 1
    np.testing.assert_allclose(norm(h).detach().numpy(), expected.numpy(), rtol=1e-6)


# -- codec --


@pytest.mark.parametrize("model", ["lsd", "drift"])
@pytest.mark.parametrize("sizes", [[14], [1] * 14, [4, 1, 9]])
def test_the_codec_in_pieces_equals_the_package(model: str, sizes: list[int], make: Make):
    codec = make(model)._model.codec
    state = {name: column.rows(1) for name, column in codec.columns.items()}
    z = (torch.from_numpy(E[f"{model}/codec_in"])[None] - codec.emb_mean) / codec.emb_std
    parts, at = [], 0
    with torch.inference_mode():
        for size in sizes:
            samples, state = codec.decode(z[:, at : at + size], state)
            parts.append(samples[0])
            at += size
    made, want = torch.cat(parts).numpy()[:: tiny.EVERY], E[f"{model}/codec_out"]
    fade_end = -(-120 // tiny.EVERY)  # the package fades in later
    assert np.abs(made - want)[fade_end:].max() < 1e-5 * np.abs(want).max()
    np.testing.assert_allclose(made[0], 0.0, atol=1e-9)


def test_every_chunk_of_text_is_faded_in(make: Make):
    tts = make("lsd")
    samples = generate(tts, "long").samples
    starts = np.cumsum([0] + [1920 * part["frames"] for part in tiny.CASES["long"]["chunks"]])[:-1]
    assert all(samples[at] == 0 and abs(samples[at + 1 : at + 4]).max() < 0.05 for at in starts)


# -- layouts --


def test_a_description_that_is_not_supported_is_named(tmp_path: Path):
    folder = tiny.write(tmp_path / "lsd", "lsd")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").write_text(text.replace("max_period: 10000", "max_period: 500"))
    with pytest.raises(CheckpointError, match=r"flow_lm\.transformer\.max_period must be 10000"):
        TTS(folder, device="cpu")


def test_a_folder_without_a_description_needs_a_released_name(tmp_path: Path):
    folder = tiny.write(tmp_path / "klingon", "lsd")
    (folder / "config.yaml").unlink()
    with pytest.raises(CheckpointError, match="its name is none of dutch, dutch_24l, english"):
        TTS(folder, device="cpu")
    shutil.move(folder, tmp_path / "french")
    with pytest.raises(
        CheckpointError, match="tensor"
    ):  # of other sizes than the released French has
        TTS(tmp_path / "french", device="cpu")
