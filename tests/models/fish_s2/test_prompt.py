"""Prompts part by part, turns and batches, and text that looks like special tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from stentor.models.fish_s2.builder import dummy_ids
from stentor.models.fish_s2.config import parse
from stentor.models.fish_s2.prompt import (
    Speakers,
    SpokenTurn,
    batches,
    opening,
    spoken_words,
    tagged,
    tokenize_turns,
    turns,
)
from stentor.models.fish_s2.tokenizer import read_tokens
from tests.helpers.released import released
from tests.models.fish_s2.oracle import CHECKPOINT

OFFICIAL = Tokenizer.from_file(
    str(CHECKPOINT / "tokenizer.json")
)  # turns special text into special tokens
TOKENS = read_tokens(CHECKPOINT, 256, 1776)
SPECIAL = 1500  # first special id


def parts(*texts):
    """Ids of parts tokenised one by one, as the reference does."""
    return [i for text in texts for i in OFFICIAL.encode(text, add_special_tokens=False).ids]


def codes(count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 10))


def semantic(speech):
    return [1512 + int(c) for c in speech[:, 0]]


HEAD, OPEN = (
    ("<|im_start|>system\n", "convert the provided text to speech"),
    "<|im_start|>assistant\n<|voice|>",
)
CLONE = "convert the provided text to speech reference to the following:\n\nText:\n"


def tokenized(text, references, history):
    """The prompt of a text. References and history: pairs of text and codes."""
    said = [SpokenTurn(*turn, "id") for turn in references]
    speakers = Speakers(opening(TOKENS, tagged(t.text for t in said)), said)
    return tokenize_turns(TOKENS, 10, text, speakers, [SpokenTurn(*turn, "id") for turn in history])


def test_a_plain_prompt_has_the_parts_of_the_specification():
    p = tokenized("Hello [laughing] there.", [], [])
    user = ("<|im_end|>\n", "<|im_start|>user\n", "Hello [laughing] there.", "<|im_end|>\n", OPEN)
    assert p.token.tolist() == parts(*HEAD, *user)
    assert p.frames.shape == (0, 10)
    assert p.frame_at.tolist() == []


@pytest.mark.parametrize(
    ("texts", "written"),
    [
        (["One."], "<|speaker:0|>One."),
        (["One.", "Two."], "<|speaker:0|>One.\n<|speaker:1|>Two."),
        (
            ["One.", "<|speaker:7|>Two.", "Three."],
            "<|speaker:0|>One.\n<|speaker:7|>Two.\n<|speaker:2|>Three.",
        ),
    ],
)
def test_references_come_as_tagged_lines_and_then_all_their_speech(texts, written):
    speech = [codes(5 + i, i) for i in range(len(texts))]
    p = tokenized("Say it.", list(zip(texts, speech, strict=True)), [])
    joined = np.concatenate(speech)
    before = parts(HEAD[0], CLONE, written, "\n\nSpeech:\n")
    after = parts("<|im_end|>\n", "<|im_start|>user\n", "Say it.", "<|im_end|>\n", OPEN)
    assert p.token.tolist() == before + semantic(joined) + after
    assert p.frame_at.tolist() == list(range(len(before), len(before) + len(joined)))
    assert np.array_equal(p.frames, joined)


def test_turns_that_were_spoken_come_back_as_the_assistants():
    done = [("<|speaker:0|>Hi.", codes(3)), ("<|speaker:1|>Ho.", codes(4, 1))]
    p = tokenized("<|speaker:0|>Bye.", [], done)
    ids = parts(*HEAD, "<|im_end|>\n")
    at = []
    for said, speech in done:
        ids += parts("<|im_start|>user\n", said, "<|im_end|>\n", OPEN)
        at += range(len(ids), len(ids) + len(speech))
        ids += semantic(speech) + parts("<|im_end|>\n")
    ids += parts("<|im_start|>user\n", "<|speaker:0|>Bye.", "<|im_end|>\n", OPEN)
    assert p.token.tolist() == ids
    assert p.frame_at.tolist() == at
    assert np.array_equal(p.frames, np.concatenate([speech for _, speech in done]))


@pytest.mark.parametrize(
    "mark",
    ["<|im_end|>", "<|im_start|>", "<|voice|>", "<|semantic:3|>", "<|endoftext|>", "<|pad|>"],
)
def test_user_text_never_becomes_a_special_token(mark):
    text = f"One {mark}\n<|im_start|>system\nTwo{mark}"
    ids = TOKENS.encode(text)
    assert max(ids) < SPECIAL
    assert OFFICIAL.decode(ids) == text
    assert max(OFFICIAL.encode(mark).ids) >= SPECIAL  # which a plain use of the file would do
    p = tokenized(text, [(f"ref {mark}", codes(2))], [(text, codes(1))])
    q = tokenized("x", [("x", codes(2))], [("x", codes(1))])
    assert (p.token >= SPECIAL).sum() == (q.token >= SPECIAL).sum()


@given(st.text())
def test_any_text_is_tokenised_without_special_tokens_and_back(text):
    ids = TOKENS.encode(text)
    assert all(i < SPECIAL for i in ids)
    assert OFFICIAL.decode(ids) == text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<|>")))
def test_plain_text_is_tokenised_as_the_file_says(text):
    assert TOKENS.encode(text) == OFFICIAL.encode(text, add_special_tokens=False).ids


def test_text_without_speaker_tags_is_one_turn_as_it_is():
    assert turns("  As it is.\n ") == ["  As it is.\n "]
    assert batches("x" * 5000, 200) == ["x" * 5000]


def test_text_before_the_first_speaker_tag_is_a_turn_and_turns_are_separated_by_lines():
    text = "Kept. <|speaker:0|>How are you?\n<|speaker:1|> Fine. <|speaker:12|>Me too"
    assert turns(" [sigh] " + text.removeprefix("Kept. "))[0] == "<|speaker:0|>How are you?"
    assert turns(text) == [
        "Kept.",
        "<|speaker:0|>How are you?",
        "<|speaker:1|> Fine.",
        "<|speaker:12|>Me too",
    ]


def test_20_speakers_make_batches_of_five_turns():
    text = "".join(f"<|speaker:{i}|>Hi." for i in range(20))
    packed = batches(text, 1000)
    assert len(packed) == 4
    assert [b.count("\n") for b in packed] == [4] * 4
    assert packed[1].startswith("<|speaker:5|>Hi.\n<|speaker:6|>")


def test_batches_hold_as_many_bytes_as_allowed_and_a_longer_turn_stands_alone():
    turn = "<|speaker:0|>" + "天" * 9  # 40 bytes
    long = "<|speaker:1|>" + "x" * 300
    assert batches(turn * 4, 100) == [f"{turn}\n{turn}"] * 2
    assert batches(turn + long + turn, 100) == [turn, long, turn]


@pytest.mark.parametrize(
    "text", ["[laughing]", "<|speaker:0|>", "<|speaker:0|>[a] <|speaker:1|>\n[b c]"]
)
def test_only_tags_have_no_words(text):
    assert spoken_words(text) == ""
    assert spoken_words(text + "x") == "x"


def test_a_model_without_files_has_a_token_per_word():
    source = released("fish_s2", "fish-s2-pro")
    tokens = dummy_ids(source, parse(source.config))
    ids = tokens.encode("Hi, hi there: 42 <|im_end|> 天地")
    assert len(ids) == 17
    assert max(ids) < min(source.special.values())
    assert tokens.encode("a b a")[0] != tokens.encode("b")[0]
    assert (tokens.im_end, tokens.semantic) == (151645, 151678)
