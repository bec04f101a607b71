"""Audio files that are being decoded, read within a limit of CPU time."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

HEAD_BYTES = 4096  # of a wav, in which its audio begins
CHUNK_HEADER = 8  # bytes: name and length
UNKNOWN = b"\xff\xff\xff\xff"  # as a length; libsndfile and FFmpeg read to the end of the file


class InputFile:
    """An open audio file for libsndfile and FFmpeg, which see neither its name nor a choice.

    cpu_seconds: of this thread, after which the file ends: a decoder that loops then stops. The
    missing length of a wav that was written to a pipe is filled in.
    """

    def __init__(self, content: bytes | Path, cpu_seconds: float) -> None:
        if isinstance(content, bytes):
            self._file: BinaryIO = io.BytesIO(content)
        else:
            self._file = content.open("rb")
        self._size = self._file.seek(0, os.SEEK_END)
        self._file.seek(0)
        self._end = time.thread_time() + cpu_seconds
        self._length_at = self._missing_length()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def out_of_time(self) -> bool:
        return time.thread_time() > self._end

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes. The file ends where the time does."""
        if self.out_of_time:
            return b""
        position = self._file.tell()
        data = self._file.read(size)
        if self._length_at is None or not position <= self._length_at < position + len(data):
            return data
        offset = self._length_at - position
        return (data[:offset] + UNKNOWN + data[offset + 4 :])[: len(data)]

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer, for libsndfile."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move as far as the file allows. A broken file may name places before its beginning."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._size}[whence]
        target = start + offset
        if target >= 0:
            self._file.seek(target)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def _missing_length(self) -> int | None:
        """Where the length of a wav's audio stands, if it is 0 and there is audio."""
        head = self._file.read(HEAD_BYTES)
        self._file.seek(0)
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            return None
        at = 12
        while at + CHUNK_HEADER <= len(head):
            length = int.from_bytes(head[at + 4 : at + CHUNK_HEADER], "little")
            if head[at : at + 4] != b"data":
                at += CHUNK_HEADER + length + length % 2
                continue
            behind = head[at + CHUNK_HEADER : at + 2 * CHUNK_HEADER]
            if length == 0 and behind and not _is_chunk(behind, self._size - at - CHUNK_HEADER):
                return at + 4
            return None
        return None


def _is_chunk(head: bytes, remaining: int) -> bool:
    """Whether `head` begins another chunk of a wav with `remaining` bytes."""
    length = int.from_bytes(head[4:], "little")
    return head[:4].isalnum() and length <= remaining - CHUNK_HEADER
