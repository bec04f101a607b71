"""The byte-level tokenizer: files that are no tokenizer are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stentor.errors import CheckpointError
from stentor.models.byte_bpe import ByteBPE

FILES = {
    "vocab.json": json.dumps({"a": 0, "b": 1, "ab": 2}).encode(),
    "merges.txt": b"a b\n",
    "tokenizer_config.json": json.dumps(
        {"added_tokens_decoder": {"3": {"content": "<x>"}}}
    ).encode(),
}


def written(folder: Path, **changed: bytes) -> Path:
    for name, data in FILES.items():
        (folder / name).write_bytes(changed.get(name.partition(".")[0], data))
    return folder


def test_text_and_added_tokens_become_ids(tmp_path: Path) -> None:
    assert ByteBPE(written(tmp_path)).encode("ab<x>b") == [2, 3, 1]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"merges": b"a \xad\n"}, r"merges\.txt is not UTF-8: byte 2 is 0xad"),
        ({"merges": b"a\n"}, "every line must hold two tokens"),
        (
            {"tokenizer_config": b'{"added_tokens_decoder": {"3": 7}}'},
            "added token '3' is not an id with a content",
        ),
        (
            {"tokenizer_config": b'{"added_tokens_decoder": {"3": {"content": 7}}}'},
            "added token '3' is not",
        ),
        (
            {"tokenizer_config": b'{"added_tokens_decoder": {"x": {"content": "<x>"}}}'},
            "added token 'x' is not",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named(
    tmp_path: Path, changed: dict[str, bytes], says: str
) -> None:
    with pytest.raises(CheckpointError, match=says):
        ByteBPE(written(tmp_path, **changed))


@pytest.mark.parametrize("name", FILES)
def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path, name: str) -> None:
    (written(tmp_path) / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(CheckpointError, match=f"{name} cannot be read"):
        ByteBPE(tmp_path)
