"""Special tokens have the released ids and match before anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stentor.errors import CheckpointError
from stentor.models.cosyvoice3.builder import FIRST_SPECIAL, dummy_ids
from stentor.models.cosyvoice3.tokenizer import read_tokens, special_tokens
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny
from tests.helpers.released import released

# of the release: no run of the reference script has others
NAMES = Path(tiny.__file__).parent / "special_tokens.json"
RELEASED = json.loads(NAMES.read_text(encoding="utf-8"))


def test_the_names_are_the_released_ones_in_their_order():
    assert special_tokens() == RELEASED[FIRST_SPECIAL - 151643 :]


@pytest.mark.parametrize(
    ("name", "token"),
    [("<|endofprompt|>", 151646), ("[breath]", 151647), ("[mn]", 151662), ("[AA]", 151664), ("[ZH]", 151747), ("[a]", 151748), ("[j]", 151797), ("[ǐ]", 151913), ("[ǜ]", 151923)],
)  # fmt: skip
def test_ids_that_the_official_tokenizer_gives(name, token):
    assert dummy_ids(released("cosyvoice3", "cosyvoice3").words).encode(name) == [token]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokens")
    tiny.write_tokenizer(path / "CosyVoice-BlankEN", 300, {})
    return path


def test_special_tokens_match_wherever_they_stand(folder):
    tokens = read_tokens(folder, 320)
    assert tokens.end_of_prompt == 300
    assert tokens.encode(f"{tiny.spelling(7)}[breath]{tiny.spelling(9)}<|endofprompt|>") == [
        7,
        301,
        9,
        300,
    ]


def test_tokens_that_the_model_has_no_row_for_stay_text(folder):
    assert 302 not in read_tokens(folder, 302).encode("Ab<strong>")


def test_a_vocabulary_larger_than_the_model_is_refused(folder):
    with pytest.raises(CheckpointError, match="300 ids"):
        read_tokens(folder, 300)
