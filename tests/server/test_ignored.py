"""Naming of fields and pieces of text that an answer did not use."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.schemas import HEADER, Ignored


def test_everything_is_named_once_and_in_order():
    ignored = Ignored()
    ignored.field("instructions", "not taken")
    ignored.piece("…")
    ignored.field("instructions", "not taken")
    assert ignored.header() == {HEADER: 'instructions, input="%E2%80%A6"'}
    assert ignored.as_json() == {
        "ignored": [{"param": "instructions"}, {"param": "input", "text": "…"}]
    }
    assert Ignored().header() == Ignored().as_json() == {}


@pytest.mark.parametrize(
    "name", ["a,b", "x\r\nSet-Cookie: y", '"', "\ud800", "字", "references[0]", "n" * 10_000, ""]
)
def test_a_name_or_a_piece_of_any_characters_is_safe_in_a_header(name):
    ignored = Ignored()
    ignored.field(name, "unknown")
    ignored.piece(name)
    value = ignored.header()[HEADER]
    assert value.isascii()
    assert value.isprintable()
    assert len(value) <= LIMITS.ignored_bytes
    assert len(value.split(", ")) == 2
    if name.isprintable() and len(name) < 40:
        assert unquote(value.split(", ")[0]) == name


@pytest.mark.parametrize("text", ["piece {}", "😀" * 30 + "{}"])
def test_what_is_too_much_for_a_header_is_counted(text):
    ignored = Ignored()
    for i in range(1000):
        ignored.piece(text.format(i)[-30:])
    named = ignored.header()[HEADER].split(", ")
    assert len(", ".join(named)) <= LIMITS.ignored_bytes + len(named[-1]) + 2
    assert int(named.pop()) + len(named) == 1000
    assert len(ignored.as_json()["ignored"]) == LIMITS.ignored_items


def test_a_strict_server_refuses_a_field_but_not_a_piece():
    ignored = Ignored(strict=True)
    ignored.piece("—")
    with pytest.raises(ApiError, match="language: is detected") as refused:
        ignored.field("language", "is detected")
    assert (refused.value.status, refused.value.param) == (400, "language")
