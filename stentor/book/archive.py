"""Zip files of strangers, such as an EPUB: members are read within limits, and never unpacked."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote

from stentor.arguments.untrusted import MIB, Unreadable, open_regular
from stentor.errors import InvalidRequest

MAX_MEMBERS = 20_000
MEMBER_BYTES = 32 * MIB
"""Most bytes of one member."""
TOTAL_BYTES = 512 * MIB
"""Most bytes that are read of one archive, however small it is as a file."""
ENCRYPTED = 0x1  # bit of a member's flags


class Archive:
    """A zip file, open for reading. Use `with`. InvalidRequest("input") names what is wrong."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._room = TOTAL_BYTES
        try:
            self._file = open_regular(path)
        except Unreadable as e:
            raise InvalidRequest("input", f"{str(path)!r} {e}") from None
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._members = {info.filename: info for info in self._zip.infolist()}
            self._check()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as e:
            self._file.close()
            if isinstance(e, InvalidRequest):
                raise
            raise self.wrong(f"is damaged: {e}") from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def read(self, name: str) -> bytes:
        """Read a member. InvalidRequest where it is missing, damaged, encrypted or too large."""
        info = self._members.get(name)
        if info is None:
            raise self.wrong(f"is damaged: it has no {name[:200]!r}")
        if info.flag_bits & ENCRYPTED:
            raise self.wrong(f"is encrypted: {name[:200]!r} needs a password")
        limit = min(MEMBER_BYTES, self._room)
        try:
            with self._zip.open(info) as member:
                data = member.read(limit + 1)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, OSError) as e:
            raise self.wrong(f"is damaged: {name[:200]!r} cannot be read: {e}") from None
        if len(data) > limit:
            raise self.wrong(
                f"is refused: {name[:200]!r} unpacks to more than {limit // MIB} MiB (a zip bomb?)"
            )
        self._room -= len(data)
        return data

    def wrong(self, why: str) -> InvalidRequest:
        """The error for this file."""
        return InvalidRequest("input", f"{self._name!r} {why}")

    def _check(self) -> None:
        if len(self._members) > MAX_MEMBERS:
            raise self.wrong(f"is refused: it has more than {MAX_MEMBERS} members")
        for name in self._members:
            if is_outside(name):
                raise self.wrong(f"is refused: {name[:200]!r} names a place outside the file")


def is_outside(name: str) -> bool:
    """Whether the name of a member leads out of its archive, on any system."""
    parts = name.replace("\\", "/").split("/")
    return name.startswith(("/", "\\")) or ".." in parts or "\0" in name or ":" in parts[0]


def resolved(base: str, href: str) -> tuple[str, str]:
    """The member and the fragment that a link of the member `base` names. The member is "" for a
    link out of the archive."""
    path, _, fragment = href.partition("#")
    if "://" in path or path.startswith(("data:", "mailto:")):
        return "", ""
    if not path:
        return base, unquote(fragment)
    name = posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(path)))
    if is_outside(name):
        return "", ""
    return name, unquote(fragment)
