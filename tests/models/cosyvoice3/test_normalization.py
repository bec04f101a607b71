"""Text is cleaned as by the original without WeText (tests/fixtures/cosyvoice3/texts.json), but for numbers."""

from __future__ import annotations

import json

import pytest

from stentor.models.cosyvoice3.prompt import normalized
from tests.fixtures.cosyvoice3 import tiny_cosyvoice3 as tiny

OFFICIAL = [
    (t, "".join(pieces))
    for t, pieces in json.loads((tiny.FIXTURE / "texts.json").read_text())
    if t.strip()
]
CHINESE = [(t, want) for t, want in OFFICIAL if any("\u4e00" <= c <= "\u9fff" for c in t)]


def closed(text: str) -> str:
    """Where pieces are cut the original ends the last one, and drops one that is only punctuation."""
    return text.rstrip("。？！") + "。"


@pytest.mark.parametrize(("text", "want"), CHINESE)
def test_chinese_text_is_that_of_the_original(text: str, want: str):
    assert closed(normalized(text)) == closed(want).replace("3。5", "3.5")


@pytest.mark.parametrize(
    "text", ["Call 911 now! It's 42.", "3,5 Euro", "<|en|>3 things 好.", "", " a "]
)
def test_other_text_and_text_with_marks_stay(text: str):
    """The original would spell the digits of German text in English."""
    assert normalized(text) == text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("价格3.5元.", "价格3.5元。"),
        ("第1.第2.", "第1。第2。"),
        ("好 的 a b 好", "好的a b好"),
        ("他说 - 好", "他说-好"),
        ("面积5m²", "面积5m平方"),
        ("好——吧、，", "好 吧。"),
        ("一\n二", "一二"),
    ],
)
def test_rules_one_by_one(text: str, want: str):
    """A dash between spaces loses them first, as in the original, so it does not become a comma."""
    assert normalized(text) == want
