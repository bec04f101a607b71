"""Prompts of every mode, and limits from the length of the text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stentor.audio import Recording
from stentor.errors import InvalidRequest
from stentor.models.base import Voice
from stentor.models.cosyvoice3 import config
from stentor.models.cosyvoice3.builder import dummy_ids
from stentor.models.cosyvoice3.prompt import SYSTEM, PromptBuilder, Room, layout
from stentor.models.cosyvoice3.voice import StoredVoice
from stentor.models.info import ReferenceAudio, SpeechRequest
from tests.helpers.released import released

SOURCE = released("cosyvoice3", "cosyvoice3")
C = config.parse({}, SOURCE.json("CosyVoice-BlankEN/config.json")).language
TOKENS = dummy_ids(SOURCE.words)
END = "<|endofprompt|>"
RNG = np.random.default_rng(0)
FEATURES = {
    "codes": RNG.integers(0, C.codes, 30),
    "mel": RNG.random((60, 80), np.float32),
    "speaker": RNG.random(192, np.float32),
}
HEARD = Voice("heard", FEATURES)
VOICE = StoredVoice.of(HEARD, "what was said")
OPTIONS = {
    "temperature": 1.0,
    "top_p": 0.8,
    "top_k": 25,
    "min_frames": 0,
    "max_frames": None,
    "ignore_eos": False,
}
REQUEST = SpeechRequest("Three more words.", options=OPTIONS)
SOUND = Recording(np.zeros(24000, np.float32), 24000)


def build(request: SpeechRequest = REQUEST, voices=None, **options):
    builder = PromptBuilder(
        C, TOKENS, {"anna": VOICE} if voices is None else voices, Room(4096, 4096, 60)
    )
    return builder.build(replace(request, options={**OPTIONS, **options}), [HEARD])


def rows(before: str, text: str, codes=()) -> list[int]:
    """The layout of the specification: start, both texts, task, codes."""
    first = C.text_vocab
    tokens = TOKENS.encode(before) + TOKENS.encode(text)
    return [first + C.start, *tokens, first + C.task, *(first + int(c) for c in codes)]


def test_zero_shot_hears_the_transcript_and_the_codes():
    p = build()
    assert p.rows["token"].tolist() == rows(
        f"{SYSTEM}{END}what was said", "Three more words.", VOICE.codes
    )
    assert p.codec_prefix[:, 0].tolist() == VOICE.codes.tolist()


def test_a_voice_that_is_too_long_is_refused():
    long = StoredVoice(np.zeros(61, np.int64), np.zeros((122, 80), np.float32), VOICE.speaker)
    with pytest.raises(
        InvalidRequest,
        match=r"reference: has 2\.44 seconds, and at most 2\.4 fit",
    ):
        build(voices={"long": long})


def test_cross_lingual_hears_no_codes_but_the_flow_does():
    p = build(replace(REQUEST, reference=ReferenceAudio(SOUND, None)))
    assert p.rows["token"].tolist() == rows("", f"{SYSTEM}{END}Three more words.")
    assert len(p.codec_prefix) == 30
    assert p.max_frames == 20 * len(TOKENS.encode(f"{SYSTEM}{END}Three more words."))


def test_text_is_cleaned_where_it_stands_alone_and_not_behind_the_system_part():
    text = replace(REQUEST, text="今天 天气（很好）、")
    assert build(text).rows["token"].tolist() == rows(
        f"{SYSTEM}{END}what was said", "今天天气很好。", VOICE.codes
    )
    alone = build(replace(text, reference=ReferenceAudio(SOUND, None)))
    assert alone.rows["token"].tolist() == rows("", f"{SYSTEM}{END}今天 天气（很好）、")


def test_instructions_stand_in_the_place_of_transcript_and_codes():
    p = build(replace(REQUEST, instructions="Speak softly."))
    assert p.rows["token"].tolist() == rows(f"{SYSTEM} Speak softly.{END}", "Three more words.")
    assert len(p.codec_prefix) == 30


def test_a_speaker_embedding_alone_gives_the_flow_no_prompt():
    p = build(replace(REQUEST, speaker_embedding=np.ones(192, np.float32)))
    assert p.rows["token"].tolist() == rows("", f"{SYSTEM}{END}Three more words.")
    assert len(p.codec_prefix) == 0
    assert p.codec_conditions["speaker"].tolist() == [1.0] * 192


def test_the_codecs_conditions_are_the_voice():
    found = build().codec_conditions
    assert np.array_equal(found["prompt_codes"], VOICE.codes)
    assert np.array_equal(found["prompt_mel"], VOICE.mel)
    assert np.array_equal(found["speaker"], VOICE.speaker)
    assert int(found["prompt_count"]) == 30


@pytest.mark.parametrize(
    ("given", "before", "text"),
    [
        (("t", f"own{END}", None), f"own{END}", "t"),
        (("t", None, f"own{END}said"), f"own{END}said", "t"),
        ((f"own{END}t", None, None), "", f"own{END}t"),
    ],
)
def test_a_part_that_ends_its_own_system_part_is_taken_as_it_is(given, before, text):
    found = layout(*given)
    assert (found.before, found.text) == (before, text)


def test_limits_come_from_the_texts_tokens_without_the_transcript():
    words = len(TOKENS.encode("Three more words."))
    p = build()
    assert (p.max_frames, p.min_frames, p.columns["start_from"]) == (20 * words, 0, 2 * words)
    assert p.runaway_frames == 20 * words
    assert build(max_frames=7).max_frames == 7
    assert build(ignore_eos=True, max_frames=7).min_frames == 7
    assert build(temperature=0.0).runaway_frames is None


def test_without_any_voice_the_error_says_what_to_give():
    with pytest.raises(
        InvalidRequest, match="reference: this model speaks with the voice of a reference"
    ):
        build(voices={})


def test_a_text_that_does_not_fit_is_refused():
    with pytest.raises(InvalidRequest, match="text: is too long"):
        build(replace(REQUEST, text="word " * 2000))
