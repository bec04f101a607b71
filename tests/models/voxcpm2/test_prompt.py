"""Prompts from requests: the sequence of each mode, its limits, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stentor.audio import Recording
from stentor.errors import InvalidRequest
from stentor.models.base import Prompt, Voice
from stentor.models.info import ReferenceAudio, SpeechRequest
from stentor.models.voxcpm2.prompt import PromptBuilder
from stentor.text import plain
from stentor.text.front_end import Check, FrontEnd, proceed
from stentor.text.trace import Trace

PATCH, FEAT, ROOM = 4, 2, 64
OPTIONS = {
    "cfg": 2.0,
    "flow_steps": 10,
    "temperature": 1.0,
    "min_frames": 3,
    "max_frames": 4096,
    "ignore_eos": False,
}
LETTERS = 200  # token id of "a" minus ord("a"), to keep them apart from the special tokens


def builder(front_end: FrontEnd = plain) -> PromptBuilder:
    return PromptBuilder(
        lambda text: [LETTERS + ord(c) for c in text], front_end, PATCH, FEAT, ROOM
    )


def named_builder() -> PromptBuilder:
    """With two voices of one patch each, whose values are 5 and 6."""
    voices = {
        name: Voice(name, {"patches": np.full((1, PATCH, FEAT), value, np.float32)})
        for name, value in (("ann", 5), ("ben", 6))
    }
    return PromptBuilder(tokens, plain, PATCH, FEAT, ROOM, voices=voices)


def heard(made: PromptBuilder, request: SpeechRequest) -> Prompt:
    """The prompt with one patch per sample, holding the sample's value; prompts are negative to tell them apart."""
    voices = []
    for source in made.references(request):
        patches = np.tile(source.recording.samples[:, None, None], (1, PATCH, FEAT))
        voices.append(
            Voice(source.role, {"patches": -patches if source.role == "prompt" else patches})
        )
    return made.build(request, voices)


def audio(count: int, text: str | None = None) -> ReferenceAudio:
    return ReferenceAudio(Recording(np.arange(1, count + 1, dtype=np.float32), 16_000), text)


def build(text: str = "ab", front_end: FrontEnd = plain, **named: Any) -> Prompt:
    options = {**OPTIONS, **{k: named.pop(k) for k in list(named) if k in OPTIONS}}
    return heard(builder(front_end), SpeechRequest(text=text, options=options, **named))


def tokens(text: str) -> list[int]:
    return [LETTERS + ord(c) for c in text]


def values(patches: np.ndarray) -> list[float]:
    return [float(p[0, 0]) for p in patches]


def test_a_text_of_which_the_front_end_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="text: has nothing"):
        build("🙂", front_end=lambda text, check: Trace.of(""))


def test_zero_shot_is_the_text_and_the_audio_start() -> None:
    p = build()
    assert p.rows["token"].tolist() == [*tokens("ab"), 101]
    assert len(p.frames) == len(p.frame_at) == len(p.codec_prefix) == 0
    assert "prev" not in p.columns
    assert p.num_evals == 9


def test_a_reference_stands_isolated_before_the_text_and_is_not_heard_by_the_codec() -> None:
    p = build(reference=audio(2))
    assert p.rows["token"].tolist() == [103, 0, 0, 104, *tokens("ab"), 101]
    assert p.frame_at.tolist() == [1, 2]
    assert values(p.frames) == [1, 2]
    assert len(p.codec_prefix) == 0
    assert "prev" not in p.columns


@pytest.mark.parametrize("as_prompt", [False, True])
def test_a_continuation_puts_both_texts_before_the_audio_and_primes_flow_and_codec(
    as_prompt: bool,
) -> None:
    given = audio(5, "xy")
    p = build(prompt=given) if as_prompt else build(reference=given)
    assert p.rows["token"].tolist() == [*tokens("xyab"), 101, 0, 0, 0, 0, 0]
    assert p.frame_at.tolist() == [5, 6, 7, 8, 9]
    assert values(p.codec_prefix) == [-3, -4, -5]
    assert float(p.columns["prev"][0, 0]) == -5


@pytest.mark.parametrize(("voice", "value"), [(None, 5.0), ("ben", 6.0)])
def test_a_named_voice_is_a_reference_and_the_first_is_the_default(
    voice: str | None, value: float
) -> None:
    request = SpeechRequest(text="ab", options=OPTIONS, voice=voice)
    p = heard(named_builder(), request)
    assert p.rows["token"].tolist() == [103, 0, 104, *tokens("ab"), 101]
    assert values(p.frames) == [value]
    assert p.frame_at.tolist() == [1]


@pytest.mark.parametrize("given", [{"reference": audio(2)}, {"prompt": audio(2, "x")}])
def test_given_audio_takes_the_place_of_a_named_voice(given: dict[str, Any]) -> None:
    p = heard(named_builder(), SpeechRequest(text="ab", options=OPTIONS, **given))
    assert [abs(v) for v in values(p.frames)] == [1.0, 2.0]


def test_ultimate_cloning_has_both_and_a_short_prompt_is_primed_with_the_reference_too() -> None:
    p = build(reference=audio(2), prompt=audio(1, "x"))
    assert p.rows["token"].tolist() == [103, 0, 0, 104, *tokens("xab"), 101, 0]
    assert p.frame_at.tolist() == [1, 2, 8]
    assert values(p.codec_prefix) == [1, 2, -1]


def test_instructions_become_a_half_width_parenthesis_and_count_as_text() -> None:
    p = build(instructions=" calm ")
    assert p.rows["token"].tolist() == [*tokens("(calm)ab"), 101]
    assert p.runaway_frames == 6 * 8


def test_white_space_is_collapsed_in_the_text_but_not_in_the_prompts_transcript() -> None:
    assert build(" a\n\n b\t").rows["token"].tolist() == [*tokens(" a b "), 101]
    assert build("a", prompt=audio(1, "x  y")).rows["token"].tolist() == [*tokens("x  ya"), 101, 0]


def test_a_front_end_rewrites_what_is_spoken_and_what_was_said() -> None:
    p = build("ab", front_end=lambda text, check: Trace.of(text.upper()), reference=audio(1, "xy"))
    assert p.rows["token"].tolist() == [*tokens("XYAB"), 101, 0]


def test_the_front_end_is_given_the_requests_check_for_the_text_and_the_transcript() -> None:
    seen: list[Check] = []

    def front_end(text: str, check: Check = proceed) -> Trace:
        seen.append(check)
        return Trace.of(text)

    def check() -> None:
        pass

    build("ab", front_end=front_end, reference=audio(1, "xy"), check=check)
    assert seen == [check, check]


def test_the_limit_is_six_per_token_and_ten_or_what_was_asked_or_what_fits() -> None:
    assert build("ab").max_frames == 22
    assert build("ab", max_frames=5).max_frames == 5
    assert build("a" * 50).max_frames == ROOM - 51


def test_a_result_of_six_frames_per_token_is_suspect_unless_it_was_asked_for() -> None:
    assert build("ab").runaway_frames == 12
    forced = build("ab", ignore_eos=True)
    assert forced.runaway_frames is None
    assert forced.min_frames == forced.max_frames == 22


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"prompt": audio(1)}, "prompt: needs the text"),
        ({"prompt": audio(1, "x"), "instructions": "calm"}, "instructions: cannot be combined"),
        ({"reference": audio(1, "x"), "instructions": "calm"}, "instructions: cannot be combined"),
        (
            {"text": "a" * 64},
            "text: is too long for one request: it has 64 characters, and about 62 fit",
        ),
        ({"reference": audio(70)}, "it has 2 characters, and about 0 fit"),
    ],
)
def test_what_the_model_cannot_do_is_refused(named: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        build(**named)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, 0),
        ({"reference": audio(3)}, 5),
        ({"reference": audio(3, "xyz")}, 3),
        ({"prompt": audio(2, "xy")}, 2),
    ],
)
def test_words_stand_in_the_text_behind_what_is_given(given: dict[str, Any], start: int) -> None:
    made = PromptBuilder(
        lambda text: [LETTERS + ord(c) for c in text], plain, PATCH, FEAT, ROOM, aligned=True
    )
    p = heard(made, SpeechRequest(text="ab, c  —  d", options=OPTIONS, **given))
    assert (p.columns["text_start"], p.columns["text_end"]) == (start, start + len("ab, c — d"))
    said = [LETTERS + ord(c) for c in "ab, c — d"]
    assert p.rows["token"][start : p.columns["text_end"]].tolist() == said
    assert p.words == (range(2), range(4, 5), range(0), range(8, 9))
    assert build("ab").words == ()
