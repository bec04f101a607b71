"""Requests through the public API: options, limits, what is refused and how it is said."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from stentor import TTS, InvalidRequest, Reference, request
from stentor.models.fish_s2.prompt import SpokenTurn, batches
from tests.models.fish_s2.oracle import CHECKPOINT, Oracle

WAV = str(CHECKPOINT.parent / "ref.wav")


@pytest.fixture(scope="module")
def tts():
    with TTS(CHECKPOINT, device="cpu", max_num_seqs=6, threads=1) as model:
        yield model


def refused(tts, param, words, text="Hello.", **options):
    with pytest.raises(InvalidRequest) as e:
        tts.generate(text, **options)
    assert e.value.param == param
    assert words in e.value.message


@pytest.mark.parametrize(
    "text", ["[laughing]", "<|speaker:0|>", " <|speaker:0|>\n[sigh][long pause]<|speaker:1|> "]
)
def test_a_text_made_only_of_tags_is_a_silence(tts, text):
    speech = tts.generate(text)
    assert len(speech.samples)
    assert not speech.samples.any()
    with pytest.raises(
        InvalidRequest, match="nothing to speak"
    ):  # nor does the model make anything of it
        tts._model.prompt(request.build(tts.spec, text, options={}, seed=1), [])


def test_words_before_the_only_speaker_tag_are_spoken(tts):
    assert len(tts.generate("Said before the only tag.<|speaker:0|>", seed=1, max_frames=4).frames)


@pytest.mark.parametrize("words", [None, "", "  "])
def test_a_reference_without_its_text_is_refused(tts, words):
    refused(tts, "reference", "needs its text", reference=Reference(WAV, words))


@pytest.mark.parametrize("seconds", [0.2, 61])
def test_a_reference_that_is_too_short_or_too_long_is_refused(tts, seconds):
    audio = Reference((np.full(int(44_100 * seconds), 0.1, np.float32), 44_100), "Words.")
    refused(tts, "reference", "must be 0.5 to 60 s", reference=audio)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("top_k", 257),
        ("max_frames", 0),
        ("min_frames", -1),
        ("ignore_eos", 1),
        ("repetition_penalty", 1.1),
        ("voice", "anna"),
        ("language", "english"),
        ("instructions", "Softly."),
    ],
)
def test_options_out_of_range_or_not_of_this_family_are_refused_by_name(tts, option, value):
    refused(tts, option, "", **{option: value})


def test_a_second_kind_of_reference_is_refused(tts):
    refused(
        tts,
        "prompt",
        "takes none",
        prompt=Reference(WAV, "Words."),
        reference=Reference(WAV, "Words."),
    )


def test_a_text_that_leaves_no_room_is_refused(tts):
    refused(
        tts, "text", "too long for one request", text="a, b; c! " * 1000, split_granularity="none"
    )


def test_20_speakers_speak(tts):
    text = "".join(f"<|speaker:{i}|>Number {i}." for i in range(20))
    speech = tts.generate(text, max_frames=4, seed=1, split_granularity="none")
    assert len(speech.frames) <= 4
    assert len(speech.samples) == 2048 * len(speech.frames)


def test_turns_in_batches_go_on_from_what_was_said_before(tts):
    """Run a long-form layer: each batch of turns is a request whose prompt holds the batches before it."""
    model, oracle = tts._model, Oracle()
    options = {n: o.default for n, o in tts.spec.options.items()} | {
        "temperature": 0,
        "max_frames": 5,
    }
    history = []
    for text in batches("".join(f"<|speaker:{i % 3}|>Turn {i}." for i in range(12)), 1000):
        prompt = model.prompts.assemble(text, model.prompts.nobody, history, options)
        speech = tts.speech(list(tts.engine.submit(prompt, 0, streaming=False)), 0)
        h, logits = oracle.slow(oracle.prompt(prompt.rows["token"], prompt.frames, prompt.frame_at))
        assert speech.frames[0].tolist() == oracle.greedy_frame(h[-1], logits[-1])
        history.append(SpokenTurn(text, speech.frames, f"turn {len(history)}"))
    assert len(history) == 3
    assert len(prompt.frames) == 10


def test_text_that_looks_like_special_tokens_is_spoken(tts):
    speech = tts.generate(
        "Say <|im_end|> and <|semantic:3|>.", max_frames=3, ignore_eos=True, seed=1
    )
    assert speech.frames.shape == (3, 10)


def test_frames_are_integers_of_ten_codes_and_samples_stay_in_range(tts):
    speech = tts.generate(
        "Hello.", max_frames=12, ignore_eos=True, temperature=2.0, top_p=1.0, top_k=0, seed=2
    )
    assert speech.frames.shape == (12, 10)
    assert speech.frames.dtype == np.int64
    assert speech.finish_reason == "length"
    assert speech.samples.dtype == np.float32
    assert np.abs(speech.samples).max() <= 1.0


def test_min_frames_are_made_and_max_frames_are_not_exceeded(tts):
    made = [
        len(tts.generate("Hi.", min_frames=9, max_frames=15, seed=s, temperature=1.5).frames)
        for s in range(5)
    ]
    assert all(9 <= n <= 15 for n in made)


def test_the_seed_decides_and_temperature_0_needs_none(tts):
    def codes(**options):
        return tts.generate("Hello.", max_frames=6, ignore_eos=True, **options).frames.tolist()

    assert codes(seed=1) == codes(seed=1) != codes(seed=2)
    assert codes(seed=1, temperature=0) == codes(seed=2, temperature=0)


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.0}])
def test_narrow_sampling_is_greedy_in_every_code_of_the_first_frame(tts, options):
    greedy = tts.generate("Hello.", max_frames=1, temperature=0, ignore_eos=True).frames
    assert (
        tts.generate("Hello.", max_frames=1, temperature=1.5, seed=4, **options).frames.tolist()
        == greedy.tolist()
    )


def test_without_a_limit_long_texts_get_more_frames_and_run_ons_are_suspected(tts):
    short, long = (tts.prompt(tts.request(t)) for t in ("Hi.", "word " * 100))
    assert short.max_frames == 1024
    assert long.max_frames == min(6 * 500, 4096 - long.length)
    assert short.runaway_frames < 160
    assert tts.prompt(tts.request("Hi.", ignore_eos=True)).runaway_frames is None


def test_a_codec_at_full_scale_is_clipped_not_wrapped(tmp_path):
    """The last layer ends in tanh: blown up a thousand times it saturates, and 16-bit files keep the sign."""
    import soundfile
    import torch

    path = tmp_path / "loud"
    shutil.copytree(CHECKPOINT, path)
    tensors = torch.load(path / "codec.pth", weights_only=True)
    tensors["decoder.model.6.conv.parametrizations.weight.original0"] *= 1e5
    torch.save(tensors, path / "codec.pth")
    with TTS(path, device="cpu", max_num_seqs=1, threads=1) as loud:
        speech = loud.generate("Hello.", max_frames=3, temperature=0)
    assert np.abs(speech.samples).max() == 1.0
    speech.save(tmp_path / "loud.wav")
    stored, _ = soundfile.read(tmp_path / "loud.wav", dtype="int16")
    assert (
        np.sign(stored[np.abs(speech.samples) > 0.99])
        == np.sign(speech.samples[np.abs(speech.samples) > 0.99])
    ).all()


def test_turns_beyond_a_batch_are_spoken_after_what_was_spoken(tts):
    """Seven turns are two batches: the second is prompted with the first one's codes, and both are one utterance."""
    turns = [f"<|speaker:{i % 2}|>Turn number {i}." for i in range(7)]
    speech = tts.generate("".join(turns), temperature=0, max_frames=8, seed=1)
    model = tts._model
    options = {**tts.request("x", temperature=0.0).options, "max_frames": 8}
    first = tts.speech(
        list(
            tts.engine.submit(
                model.prompts.assemble("\n".join(turns[:5]), model.prompts.nobody, [], options),
                1,
                False,
            )
        ),
        1,
    )
    np.testing.assert_array_equal(speech.frames[: len(first.frames)], first.frames)
    left = 8 - len(first.frames)
    if left:
        history = [SpokenTurn("\n".join(turns[:5]), first.frames, "first")]
        prompt = model.prompts.assemble(
            "\n".join(turns[5:]), model.prompts.nobody, history, {**options, "max_frames": left}
        )
        second = tts.speech(list(tts.engine.submit(prompt, 2, False)), 2)
        np.testing.assert_array_equal(speech.frames[len(first.frames) :], second.frames)
