"""Files, JSON and YAML of others: whatever they hold, there is a value or one error, soon and in little memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stentor.arguments.untrusted import (
    MAX_DEPTH,
    MAX_DIGITS,
    MIB,
    Missing,
    Unreadable,
    parse_json,
    read_bytes,
)
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.errors import CheckpointError, InvalidRequest
from stentor.models.config_files import read_config
from stentor.models.config_reader import ConfigReader
from stentor.text.lexicon import Lexicon

BOMB = "\n".join(
    ["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 21))]
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("parse", [parse_json, lambda text: parse_yaml(text, yaml.SafeLoader)])
def test_what_is_nested_is_taken_up_to_a_depth(parse: Callable[[str], Any]) -> None:
    assert parse(nested(MAX_DEPTH)) is not None
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(Unreadable, match=f"more than {MAX_DEPTH} deep"):
            parse(nested(depth))


@pytest.mark.parametrize("parse", [parse_json, lambda text: parse_yaml(text, yaml.SafeLoader)])
def test_numbers_have_a_number_of_digits_at_most(parse: Callable[[str], Any]) -> None:
    assert parse("[" + "7" * MAX_DIGITS + "]") == [int("7" * MAX_DIGITS)]
    with pytest.raises(Unreadable, match="a number of 5000 digits"):
        parse("[" + "7" * 5000 + "]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "has an alias on line 2"),
        ("a: &a [*a]", "has an alias on line 1"),
        ("when: 2001-99-99", "is not YAML"),
        ("a: [", "is not YAML"),
        (b"\xff", "is not UTF-8: byte 0 is 0xff"),
    ],
)
def test_yaml_that_cannot_be_taken_says_why(text: str | bytes, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        parse_yaml(text, yaml.SafeLoader)


def odd_files(folder: Path) -> dict[str, Path]:
    """Names of a file system under which no document can be read."""
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "folder").mkdir()
    with (folder / "hole").open("wb") as f:
        f.truncate(64 << 30)
    return {
        "is not a regular file": folder / "fifo",
        "Too many levels of symbolic links": folder / "loop",
        "Is a directory": folder / "folder",
        "is larger than 1 MiB": folder / "hole",
        "not a regular": Path("/dev/zero"),
        "File name too long": folder / ("x" * 300),
        "does not exist": folder / "nothing",
    }


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    for says, path in odd_files(tmp_path).items():
        with pytest.raises(Unreadable, match=says):
            read_bytes(path, MIB)
    with pytest.raises(Missing):
        read_bytes(tmp_path / "nothing", MIB)


def test_a_lexicon_that_is_no_mapping_of_words_is_refused(tmp_path: Path) -> None:
    for path in odd_files(tmp_path).values():
        with pytest.raises(InvalidRequest, match=r"^lexicon: "):
            Lexicon.read(path)
    for text in (nested(20_000), BOMB, "? [a]\n: b", "a" * 100_000):
        (tmp_path / "l.yaml").write_text(text)
        with pytest.raises(InvalidRequest, match=r"^lexicon: "):
            Lexicon.read(tmp_path / "l.yaml")


@pytest.mark.parametrize(
    "text",
    [nested(100_000), '{"n": ' + "1" * 5000 + "}", "\ud800", '{"a":' * 900 + "1" + "}" * 900],
)
def test_config_json_is_read_within_limits(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=r"config\.json "):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("read", "most"),
    [
        (lambda c: c.count("n"), 1024),
        (lambda c: c.integer("n"), 2**20),
        (lambda c: c.integers("ns"), 2**20),
    ],
)
def test_sizes_in_a_config_are_bounded(read: Callable[[ConfigReader], object], most: int) -> None:
    assert read(ConfigReader({"n": most, "ns": [most]}))
    for wrong in (most + 1, 2**31, 10**399):
        with pytest.raises(CheckpointError, match=f"at most {most}|to {most}"):
            read(ConfigReader({"n": wrong, "ns": [wrong]}))
    with pytest.raises(CheckpointError, match="must be a list of integers"):
        ConfigReader({"ns": [1] * 100_000}).integers("ns")
