"""A tar file that is filled sample by sample, and read back up to the last complete one after a crash.

A sample is three members, as WebDataset reads them: ID.FORMAT (audio), ID.txt (its text) and ID.json (its row). The row
comes last and has the SHA-256 of the audio, so a sample whose row is there and right is complete.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stentor.batch import disk
from stentor.batch.item import Row
from stentor.batch.manifest import encoded, parse_row
from stentor.untrusted import Unreadable

BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Sample:
    """One item of a shard."""

    row: Row
    text: str
    audio: bytes
    end: int = 0  # bytes of the file up to the end of the sample


class SampleFile:
    """A tar that grows. What stands behind its last complete sample is cut off when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        end = 0
        for sample in read(path):
            self.rows.append(sample.row)
            end = sample.end
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self._handle, end)
        os.lseek(self._handle, end, os.SEEK_SET)

    def add(self, sample: Sample) -> None:
        """Append a sample. Its row names the audio's member."""
        members = {
            sample.row["member"]: sample.audio,
            f"{sample.row['id']}.txt": sample.text.encode(),
            f"{sample.row['id']}.json": encoded(sample.row),
        }
        disk.write_all(self._handle, b"".join(_member(name, data) for name, data in members.items()))
        self.rows.append(sample.row)

    def finish(self) -> None:
        """Complete the tar. It lasts when this returns."""
        disk.write_all(self._handle, bytes(2 * BLOCK))
        os.fsync(self._handle)
        os.close(self._handle)

    def close(self) -> None:
        """Leave it as it is, to be opened again."""
        os.close(self._handle)


def _member(name: str, data: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info.tobuf() + data + bytes(-len(data) % BLOCK)


def read(path: Path) -> Iterator[Sample]:
    """The complete samples of a tar, which may break off anywhere. None where there is no file."""
    size = path.stat().st_size if path.exists() else 0
    if size < BLOCK:
        return
    found: list[bytes] = []
    with path.open("rb") as file:
        for member in _members(path):
            end = member.offset_data + member.size + -member.size % BLOCK
            if end > size:
                return
            file.seek(member.offset_data)
            found.append(file.read(member.size))
            if len(found) < 3:
                continue
            audio, text, row = found
            sample = _sample(audio, text, row, end)
            if sample is None:
                return
            yield sample
            found = []


def _members(path: Path) -> Iterator[tarfile.TarInfo]:
    """The headers of a tar, up to the first that is not complete."""
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                yield member
    except tarfile.TarError:
        return


def _sample(audio: bytes, text: bytes, row: bytes, end: int) -> Sample | None:
    try:
        known = parse_row(row)
        whole = hashlib.sha256(audio).hexdigest() == known["sha256"]
        return Sample(known, text.decode(), audio, end) if whole and isinstance(known["member"], str) else None
    except (Unreadable, ValueError, KeyError):  # what a lost block of the disk leaves
        return None
