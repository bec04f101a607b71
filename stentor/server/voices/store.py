"""Uploaded voices: one safetensors file each, in a directory that several server processes can share.

A voice is written to a temporary file and linked into place, so a crash cannot leave a partial voice. Only descriptions
are held in memory, and each is checked against the file's identity.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import logging
import os
import re
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.voices.references import Audio
from stentor.server.voices.voice import Voice, described

log = logging.getLogger("stentor.server")

SUFFIX, PARTIAL = ".safetensors", ".partial"
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
NAME = re.compile(r"[^\W_][\w.-]{0,63}")
PLACEHOLDERS = ("default", "auto")
DEFAULT_DIR = Path("~/.cache/stentor/voices")


class VoiceStore:
    """The directory. Methods block on the disk: call them in a thread. Thread-safe, process-safe."""

    def __init__(self, folder: Path, max_voices: int, overwrite: bool) -> None:
        self.folder = folder.expanduser()
        self.max_voices, self.overwrite = max_voices, overwrite
        self._known: dict[str, tuple[tuple[int, int, int], Voice]] = {}  # by file name
        self._lock = threading.Lock()  # guards _known, and is never held while the disk is read
        self._placing = threading.Lock()
        self._sweep()

    def names(self) -> list[str]:
        return [v.name for v in self.list()]

    def some_names(self, most: int) -> tuple[Sequence[str], int]:
        """The first names in order, and how many files there are. No file is opened."""
        files = self._files()
        return [f.removesuffix(SUFFIX) for f in heapq.nsmallest(most, files)], len(files)

    def list(self) -> list[Voice]:
        """All voices by name. Files that cannot be read are left out."""
        files = self._files()
        found = [self._describe(self.folder / f) for f in sorted(files)]
        with self._lock:
            for gone in self._known.keys() - files:
                del self._known[gone]
        return [v for v in found if v is not None]

    def get(self, name: str) -> Voice | None:
        path = self._path(name)
        return None if path is None else self._describe(path)

    def audio(self, name: str) -> Audio | None:
        """Samples and rate of a voice. None: there is no such voice, or it is an embedding."""
        held = self._tensor(name, "samples")
        try:
            return None if held is None else (held[0], int(held[1]["rate"]))
        except (KeyError, ValueError):
            return None

    def audio_of(self, voice: Voice) -> Audio | None:
        """Samples and rate of a voice. None: it has been deleted, or replaced by one of other audio and text."""
        found, now = self.audio(voice.name), self.get(voice.name)  # in this order: what was read is not newer
        return found if now is not None and now.identity == voice.identity else None

    def embedding(self, name: str) -> np.ndarray | None:
        """The speaker embedding [d] of a voice. None: there is no such voice, or it is audio."""
        held = self._tensor(name, "embedding")
        return None if held is None else held[0]

    def _tensor(self, name: str, kind: str) -> tuple[np.ndarray, dict[str, str]] | None:
        path = self._path(name)
        if path is None:
            return None
        try:
            with safetensors.safe_open(path, framework="np") as f:
                if kind not in f.keys():  # noqa: SIM118 (not a mapping)
                    return None
                return f.get_tensor(kind), f.metadata() or {}
        except (OSError, safetensors.SafetensorError):
            return None

    def add(
        self,
        name: str,
        consent: str,
        *,
        audio: Audio | None = None,
        embedding: np.ndarray | None = None,
        text: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        reserved: Iterable[str] = (),
    ) -> Voice:
        """Store a voice, from audio (samples [n], rate) or a speaker embedding [d]. ApiError says why not."""
        path = self._new_path(name, reserved)
        tensors: dict[str, np.ndarray] = {}
        facts = {
            "format": "stentor.voice/1",
            "name": path.stem,
            "consent": consent,
            "created_at": str(int(time.time())),
        }
        facts |= {k: v for k, v in (("text", text), ("description", description), ("mime_type", mime_type)) if v}
        if audio is not None:
            tensors["samples"] = audio[0].astype(np.float32)
            facts["rate"] = str(audio[1])
            facts["seconds"] = f"{len(audio[0]) / audio[1]:.3f}"
        if embedding is not None:
            tensors["embedding"] = embedding.astype(np.float32)
            facts["dim"] = str(len(embedding))
        data = safetensors.numpy.save(tensors, facts)
        try:
            self._write(path, data)
        except OSError as e:
            raise _refusal(e, "speaker_embedding" if audio is None else "audio_sample") from e
        return described(path.stem, facts, "embedding" if audio is None else "audio", len(data), _identity(path))

    def delete(self, name: str) -> bool:
        path = self._path(name)
        if path is None:
            return False
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as e:
            raise _refusal(e, "name") from e
        return True

    # -- files --

    def _path(self, name: str) -> Path | None:
        """The file of a voice, or None if the name is not valid. A name has no slash and begins with a letter or digit,
        so no path leaves the directory."""
        name = normal(name)
        return self.folder / (name + SUFFIX) if NAME.fullmatch(name) and len(name.encode()) <= 200 else None

    def _new_path(self, name: str, reserved: Iterable[str]) -> Path:
        path = self._path(name)
        if path is None:
            raise ApiError(
                400,
                "name: must be 1 to 64 letters, digits, '_', '-' or '.', and begin with a letter or digit",
                param="name",
            )
        if path.stem in {*PLACEHOLDERS, *(r.lower() for r in reserved)}:
            raise ApiError(409, f"name: {path.stem!r} is taken by a built-in voice", param="name", code="voice_exists")
        self._check_room(path)
        return path

    def _files(self) -> set[str]:
        """Names of the files that may be voices. There are none while the directory cannot be read."""
        try:
            return {f for f in os.listdir(self.folder) if f.endswith(SUFFIX) and f != SUFFIX}
        except OSError:
            return set()

    def _check_room(self, path: Path) -> None:
        files = self._files()
        if path.name in files:
            if not self.overwrite:
                raise _taken(path)
        elif len(files) >= self.max_voices:
            raise ApiError(409, f"there are {self.max_voices} voices already; delete one first", code="too_many_voices")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One upload at a time, of all servers on the directory. Where the file system has no locks: of this server."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            with self._placing:
                with contextlib.suppress(OSError):
                    fcntl.flock(folder, fcntl.LOCK_EX)
                yield
        finally:
            os.close(folder)

    def _write(self, path: Path, data: bytes) -> None:
        """OSError: the directory is full, or cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, partial = tempfile.mkstemp(PARTIAL, ".upload-", self.folder)
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(data)
                f.flush()
                os.fsync(f.fileno())
            with self._alone():
                self._check_room(path)
                self._place(partial, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _place(self, partial: str, path: Path) -> None:
        if self.overwrite:
            os.replace(partial, path)
            return
        try:
            if not _linked(partial, path):
                path.touch(0o600, exist_ok=False)  # claims the name: an empty file is no voice yet
                os.replace(partial, path)
        except FileExistsError:  # another server was first, on a file system without locks
            raise _taken(path) from None

    def _describe(self, path: Path) -> Voice | None:
        identity = _identity(path)
        if identity is None:
            return None
        with self._lock:
            known = self._known.get(path.name)
        if known is not None and known[0] == identity:
            return known[1]
        try:
            with safetensors.safe_open(path, framework="np") as f:
                facts = f.metadata() or {}
                kind = "audio" if "samples" in f.keys() else "embedding"  # noqa: SIM118 (not a mapping)
            voice = described(path.stem, facts, kind, identity[1], identity)
        except (OSError, safetensors.SafetensorError, KeyError, ValueError):
            return None
        with self._lock:
            self._known[path.name] = (identity, voice)
        return voice

    def _sweep(self) -> None:
        """Remove the files of uploads that were killed. Fresh files may belong to another server and stay."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(".upload-*" + PARTIAL):
                if time.time() - path.stat().st_mtime > LIMITS.stale_seconds:
                    path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        s = path.stat()
    except (OSError, ValueError):
        return None
    return s.st_mtime_ns, s.st_size, s.st_ino


def _linked(partial: str, path: Path) -> bool:
    """Link the voice into place. False where the file system has no hard links. FileExistsError if there is a voice."""
    try:
        os.link(partial, path)
    except OSError as e:
        if e.errno not in NO_HARD_LINKS:
            raise
        return False
    return True


def _taken(path: Path) -> ApiError:
    return ApiError(409, f"name: a voice {path.stem!r} exists; delete it first", param="name", code="voice_exists")


def _refusal(error: OSError, param: str) -> ApiError:
    """What a client is told when the disk is full or cannot be written. `param` is the field that was not stored."""
    log.error("voices cannot be changed: %s", error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiError(507, f"{param}: the server has no room for it", param=param, code="voices_full")
    message = f"{param}: the server cannot change its voices now"
    return ApiError(503, message, param=param, code="voices_not_writable", retry_after=60)


def normal(name: str) -> str:
    """A name as files have it."""
    return unicodedata.normalize("NFC", name).strip().lower()
