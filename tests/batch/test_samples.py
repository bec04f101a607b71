"""A shard that is filled item by item, cut anywhere, and the catalogue that holds the items of a run."""

from __future__ import annotations

import hashlib
import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from stentor.batch import reader
from stentor.batch.catalogue import WINDOW, Catalogue
from stentor.batch.files import Shards, pack_tar
from stentor.batch.item import BatchItem, ItemOutcome, Run, checked
from stentor.batch.manifest import rows
from stentor.batch.reader import records
from stentor.errors import EngineError, InvalidRequest


def shards(folder: Path, size: int = 100) -> Shards:
    (folder / ".work").mkdir(exist_ok=True)
    return Shards(folder, folder / ".work", size, "wav", ".tar", pack_tar)


def spoken(folder: Path, id: str, audio: bytes) -> ItemOutcome:
    """An item whose audio is on its way."""
    path = folder / ".work" / f"{id}.wav"
    path.write_bytes(audio)
    row = {"id": id, "line": 1, "status": "ok", "finish_reason": "stop", "input": "x"}
    return ItemOutcome(
        {**row, "sha256": hashlib.sha256(audio).hexdigest()}, 1, f"text of {id}", path
    )


def place(output: Shards, *outcomes: ItemOutcome) -> list[str]:
    """The ids that are listed."""
    return [row["id"] for rows in output.place(outcomes) for row in rows]


def filled(folder: Path) -> Path:
    """The list of an open shard with three items."""
    output = shards(folder)
    assert place(output, *(spoken(folder, f"s{n}", bytes([n]) * (300 * n)) for n in range(3))) == []
    return folder / ".work/000000/rows.jsonl"


def names(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_a_list_that_breaks_off_anywhere_goes_on_behind_its_last_whole_item(tmp_path: Path) -> None:
    whole = filled(tmp_path).read_bytes()
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    assert ends[-1] == len(whole)
    for cut in [*range(0, len(whole), 97), *ends, *(e - 1 for e in ends)]:
        filled(tmp_path).write_bytes(whole[:cut])
        output, complete = shards(tmp_path), sum(e <= cut for e in ends)
        assert [[row["id"] for row in rows] for rows in output.recover()] == [
            [],
            [f"s{n}" for n in range(complete)],
        ]
        place(output, spoken(tmp_path, "next", b"audio"))
        assert len(*output.finish()) == complete + 1
        assert names(tmp_path / "shards/000000.tar")[-3:] == ["next.wav", "next.txt", "next.json"]
        assert len(names(tmp_path / "shards/000000.tar")) == 3 * (complete + 1)
        assert list((tmp_path / ".work").iterdir()) == []
        (tmp_path / "shards/000000.tar").unlink()


@pytest.mark.parametrize(("spoilt", "left"), [("s1.wav", ["s0", "s2"]), ("rows.jsonl", ["s0"])])
def test_what_a_lost_block_has_spoilt_does_not_count(
    spoilt: str, left: list[str], tmp_path: Path
) -> None:
    listed = filled(tmp_path)
    whole = bytearray((listed.parent / spoilt).read_bytes())
    start = whole.index(b"\n") + 1 if spoilt == "rows.jsonl" else 100
    whole[start : start + 100] = bytes(100)
    (listed.parent / spoilt).write_bytes(whole)
    assert [row["id"] for row in shards(tmp_path).recover()[1]] == left


def test_a_shard_at_its_place_is_listed_once_more_after_a_crash_and_not_packed_again(
    tmp_path: Path,
) -> None:
    filled(tmp_path)
    output = shards(tmp_path, 3)
    output.recover()
    placing = output.place([spoken(tmp_path, "next", b"audio")])
    assert next(placing) == []
    assert [row["id"] for row in next(placing)] == ["s0", "s1", "s2"]
    placing.close()  # as a crash before the manifest has them
    before = (tmp_path / "shards/000000.tar").read_bytes()
    output = shards(tmp_path, 3)
    placed, kept = output.recover()
    assert [row["id"] for row in placed] == ["s0", "s1", "s2"]
    assert kept == []
    place(output, spoken(tmp_path, "next", b"audio"))
    assert [[row["path"] for row in rows] for rows in output.finish()] == [["shards/000001.tar"]]
    assert (tmp_path / "shards/000000.tar").read_bytes() == before
    assert list((tmp_path / ".work").iterdir()) == []


@pytest.mark.parametrize("id", ["s" * 128, "plain"])
def test_names_of_any_length_fit(id: str, tmp_path: Path) -> None:
    output = shards(tmp_path)
    place(output, spoken(tmp_path, id, b"audio"))
    list(output.finish())
    with tarfile.open(tmp_path / "shards/000000.tar") as tar:
        assert tar.getnames()[0] == f"{id}.wav"
        assert tar.extractfile(f"{id}.txt").read().decode() == f"text of {id}"


def test_only_the_last_line_of_a_manifest_may_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "manifest.jsonl"
    row = b'{"id": "a", "line": 1, "status": "ok", "finish_reason": "stop", "input": "x"}\n'
    for torn in (b"", row[:20], row[:-1], bytes(300)):
        path.write_bytes(row + torn)
        assert [r["id"] for r in rows(path)] == ["a"]
    path.write_bytes(row[:20] + b"\n" + row)
    with pytest.raises(InvalidRequest, match=r"line 1 of .* is not a row of a manifest"):
        list(rows(path))


def test_memory_does_not_grow_with_the_input_and_the_longest_of_a_window_is_first(
    tmp_path: Path,
) -> None:
    count = 3 * WINDOW
    with (tmp_path / "in.jsonl").open("w") as file:
        for n in range(count):
            file.write('{"text": "%s"}\n' % ("x" * (1 + n * 7919 % 8000)))
    tracemalloc.start()
    catalogue, seen, before = Catalogue(), 0, (-1, 0)
    with (tmp_path / "in.jsonl").open("rb") as file:
        for record in records(file, "jsonl"):
            catalogue.add(checked(record, Run(tmp_path)))
    filled = tracemalloc.get_traced_memory()[1]
    for item in catalogue.todo():
        at = (item.line // WINDOW, -item.chars)
        assert at >= before
        before, seen = at, seen + 1
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == count
    assert filled < 2**20  # of 12 MiB
    assert held < 12 * 2**20  # a window has 4 MiB, twice while it is read


def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path) -> None:
    catalogue = Catalogue()
    catalogue._db.execute("PRAGMA max_page_count = 8")
    items = (
        checked(record, Run(tmp_path))
        for record in records(io.BytesIO(b'{"text": "x"}\n' * 999), "jsonl")
    )
    with pytest.raises(
        EngineError,
        match=r"line \d+ of the input does not fit .*TMPDIR.*: database or disk is full",
    ):
        list(map(catalogue.add, items))


def test_a_full_disk_of_temporary_files_is_named_where_items_end_too(tmp_path: Path) -> None:
    """Notes about an item that has ended make its row longer."""
    catalogue = Catalogue()
    lines = records(io.BytesIO(b'{"text": "x"}\n' * 999), "jsonl")
    items = [checked(record, Run(tmp_path)) for record in lines]
    for item in items:
        catalogue.add(item)

    def listed(item: BatchItem) -> None:
        catalogue.listed({"line": item.line, "status": "ok", "finish_reason": "stop"}, 2**40, 2**20)

    catalogue._db.execute(f"PRAGMA max_page_count = {catalogue._scalar('PRAGMA page_count')}")
    with pytest.raises(
        EngineError,
        match=r"line \d+ of the input does not fit .*TMPDIR.*: database or disk is full",
    ):
        list(map(listed, items))


def test_a_line_without_an_end_is_wrong_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES", 2**20)
    data = (
        b'{"text": "' + b"x" * 2**21 + b'"}\n{"text": "next"}\n' + b"[" * 50_000 + b'\n\xff\n"x"\n'
    )
    found = list(records(io.BytesIO(data), "jsonl"))
    assert [r.line for r in found] == [1, 2, 3, 4, 5]
    assert found[1].fields == {"text": "next"}
    whys = [r.error[1] for r in found if r.error]
    assert whys[0] == "has more than 1 MiB"
    assert whys[1] == "has lists or objects more than 64 deep"
    assert whys[2] == "is not UTF-8: byte 0 is 0xff"
    assert whys[3] == "must be a JSON object, got str"


class Endless(io.RawIOBase):
    """A file of one line without an end, and how much of it was read."""

    def __init__(self, start: bytes) -> None:
        self.start, self.read_bytes = start, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        data = (self.start if not self.read_bytes else b"x" * len(buffer))[: len(buffer)]
        buffer[: len(data)] = data
        self.read_bytes += len(data)
        return len(data)


@pytest.mark.parametrize("start", [b"text\n", b'text\n"', b"te", b'text,id\n"a\nb\n'])
def test_a_csv_record_without_an_end_is_refused_while_it_is_read(
    start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES", 2**16)
    endless = Endless(start)
    with pytest.raises(InvalidRequest, match=r"input: line \d: its record has more than"):
        list(records(io.BufferedReader(endless), "csv"))
    assert endless.read_bytes < 2**17


def test_csv_records_of_many_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LINE_BYTES", 2**10)
    rows = b"text\n" + b'"one\r\ntwo\rthree"\n' * 1000
    assert {r.fields["text"] for r in records(io.BytesIO(rows), "csv")} == {"one\r\ntwo\rthree"}
