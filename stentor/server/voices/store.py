"""Uploaded voices: one safetensors file each, in a directory that several server processes can
share.

A voice is written to a temporary file and linked into place, so a crash cannot leave a partial
voice. Only descriptions are held in memory, and each is checked against the file's identity.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import heapq
import logging
import os
import re
import stat
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from stentor.arguments.untrusted import Unreadable, open_regular
from stentor.server.errors import ApiError, clipped, invalid
from stentor.server.limits import LIMITS
from stentor.server.voices.voice import PLACEHOLDERS, Audio, Voice, check_tensor, described

log = logging.getLogger("stentor.server")

SUFFIX = ".safetensors"
PARTIAL = ".partial"
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
NO_VOICE = (OSError, safetensors.SafetensorError, KeyError, ValueError)
NAME = re.compile(r"[^\W_][\w.-]{0,63}")
DEFAULT_DIR = Path("~/.cache/stentor/voices")


class VoiceStore:
    """The directory. Methods block on the disk: call them in a thread. Thread-safe,
    process-safe."""

    def __init__(self, folder: Path, max_voices: int, overwrite: bool) -> None:
        self.folder = folder.expanduser()
        self.max_voices = max_voices
        self.overwrite = overwrite
        # by file name. None: it is no voice
        self._known: dict[str, tuple[tuple[int, int, int] | None, Voice | None]] = {}
        self._lock = threading.Lock()  # guards _known, and is never held while the disk is read
        self._placing = threading.Lock()
        self._sweep()

    def some_names(self, most: int) -> tuple[Sequence[str], int]:
        """The first names in order, and how many files there are. No file is opened."""
        files = self._files()
        return [f.removesuffix(SUFFIX) for f in heapq.nsmallest(most, files)], len(files)

    def list(self) -> list[Voice]:
        """All voices by name. What is no voice is left out, with a line in the log for each such
        file."""
        files = self._files()
        voices = [self._describe(self.folder / f) for f in sorted(files)]
        with self._lock:
            for name in self._known.keys() - files:
                del self._known[name]
        return [v for v in voices if v is not None]

    def get(self, name: str) -> Voice | None:
        path = self._path(name)
        if path is None:
            return None
        return self._describe(path)

    def audio(self, name: str) -> Audio | None:
        """Samples and rate of a voice. None: there is no such voice, or it is an embedding."""
        tensor = self._tensor(name, "samples")
        if tensor is None:
            return None
        return (tensor[0], int(tensor[1]["rate"]))

    def audio_of(self, voice: Voice) -> Audio | None:
        """Samples and rate of a voice. None: it has been deleted, or replaced by one of other audio
        and text."""
        audio = self.audio(voice.name)  # in this order: what was read is not newer
        now = self.get(voice.name)
        if now is not None and now.identity == voice.identity:
            return audio
        return None

    def embedding(self, name: str) -> np.ndarray | None:
        """The speaker embedding [d] of a voice. None: there is no such voice, or it is audio."""
        tensor = self._tensor(name, "embedding")
        if tensor is None:
            return None
        return tensor[0]

    def _tensor(self, name: str, tensor: str) -> tuple[np.ndarray, dict[str, str]] | None:
        path = self._path(name)
        if path is None or _identity(path) is None:
            return None
        try:
            with safetensors.safe_open(path, framework="np") as f:
                if _checked(f) != tensor:
                    return None
                return f.get_tensor(tensor).astype(np.float32, copy=False), f.metadata() or {}
        except NO_VOICE:
            return None

    def check_name(self, name: str, reserved: Iterable[str]) -> None:
        """Raises ApiError if a voice cannot have this name."""
        self._new_path(name, reserved)

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
        """Store a voice, from audio (samples [n], rate) or a speaker embedding [d]. Raises ApiError
        if it cannot be stored."""
        path = self._new_path(name, reserved)
        tensors: dict[str, np.ndarray] = {}
        facts = {
            "format": "stentor.voice/1",
            "name": path.stem,
            "consent": consent,
            "created_at": str(int(time.time())),
        }
        facts |= {
            k: v
            for k, v in (("text", text), ("description", description), ("mime_type", mime_type))
            if v
        }
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
        return described(
            path.stem, facts, "embedding" if audio is None else "audio", len(data), _identity(path)
        )

    def delete(self, name: str) -> bool:
        path = self._path(name)
        if path is None:
            return False
        try:
            path.unlink()
        except (FileNotFoundError, IsADirectoryError):
            return False
        except OSError as e:
            raise _refusal(e, "name") from e
        return True

    # -- files --

    def _path(self, name: str) -> Path | None:
        """The file of a voice, or None if the name is not valid. A name has no slash and begins
        with a letter or digit, so no path leaves the directory."""
        name = normal(name)
        if NAME.fullmatch(name) and len(name.encode()) <= 200:
            return self.folder / (name + SUFFIX)
        return None

    def _new_path(self, name: str, reserved: Iterable[str]) -> Path:
        path = self._path(name)
        if path is None:
            raise invalid(
                "name",
                "must be 1 to 64 letters, digits, '_', '-' or '.', and begin with a letter or digit",
            )
        if path.stem in {*PLACEHOLDERS, *(r.lower() for r in reserved)}:
            raise ApiError(
                409,
                f"name: {path.stem!r} is taken by a built-in voice",
                param="name",
                code="voice_exists",
            )
        self._check_room(path)
        return path

    def _files(self) -> set[str]:
        """Names of the files that may be voices. There are none while the directory cannot be
        read."""
        try:
            return {
                f
                for f in os.listdir(self.folder)
                if f.endswith(SUFFIX) and self._is_name(f.removesuffix(SUFFIX))
            }
        except OSError:
            return set()

    def _is_name(self, stem: str) -> bool:
        path = self._path(stem)
        return path is not None and path.stem == stem

    def _check_room(self, path: Path) -> None:
        files = self._files()
        if path.name in files:
            if not self.overwrite:
                raise _taken(path)
        elif len(files) >= self.max_voices:
            raise ApiError(
                409,
                f"there are {self.max_voices} voices already; delete one first",
                code="too_many_voices",
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One upload at a time, of all servers on the directory. Where the file system has no
        locks: of this server."""
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
                with contextlib.suppress(OSError):  # of a file system without locks
                    # until it is in place: `_sweep` looks for it
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            try:
                os.replace(partial, path)
            except IsADirectoryError:
                raise _taken(path) from None
            return
        try:
            try:
                os.link(partial, path)
            except OSError as e:
                if e.errno not in NO_HARD_LINKS:
                    raise
                path.touch(0o600, exist_ok=False)  # claims the name: an empty file is no voice yet
                os.replace(partial, path)
        except FileExistsError:  # another server was first, on a file system without locks
            raise _taken(path) from None

    def _describe(self, path: Path) -> Voice | None:
        identity = _identity(path)
        with self._lock:
            cached = self._known.get(path.name)
        if cached is not None and cached[0] == identity:
            return cached[1]
        if identity is None:
            if not os.path.lexists(path):
                return None
            log.warning("%s is not a voice: it is not a regular file", path)
        if identity is None:
            voice = None
        else:
            voice = _read(path, identity)
        with self._lock:
            self._known[path.name] = (identity, voice)
        return voice

    def _sweep(self) -> None:
        """Remove the files of uploads that were killed.

        A file that another server of this machine writes is locked, so a clock that was set does no
        harm. Fresh files stay too: they may belong to a server of another machine, whose locks are
        not always seen.
        """
        with contextlib.suppress(OSError):
            for path in self.folder.glob(".upload-*" + PARTIAL):
                if time.time() - path.stat().st_mtime > LIMITS.stale_seconds and _is_left(path):
                    path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file. None: there is no regular file. Others must not be opened: a FIFO
    would wait for ever."""
    try:
        s = path.stat()
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(s.st_mode):
        return (s.st_mtime_ns, s.st_size, s.st_ino)
    return None


def _is_left(path: Path) -> bool:
    """Whether no process writes the file of an upload any more. Where the file system has no locks,
    that is not known, and True."""
    try:
        with open_regular(path) as file:
            # NFS wants a file that may be written for the other kind
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, Unreadable):
        return False
    except OSError:
        return True
    return True


def _read(path: Path, identity: tuple[int, int, int]) -> Voice | None:
    """Read the description of a voice from its file. None, with a line in the log: it is no
    voice."""
    try:
        with safetensors.safe_open(path, framework="np") as f:
            if _checked(f) == "samples":
                kind = "audio"
            else:
                kind = "embedding"
            return described(path.stem, f.metadata() or {}, kind, identity[1], identity)
    except NO_VOICE as e:
        if identity[1]:  # an empty file is a name that a server is about to take
            why = clipped(f"{type(e).__name__}: {e}", LIMITS.error_chars)
            log.warning("%s is not a voice: %s", path, why)
        return None


def _checked(f: Any) -> str:
    """The tensor of an open file of a voice. KeyError or ValueError: there is none that can be
    spoken with."""
    facts = f.metadata() or {}
    names = set(f.keys())
    if "samples" in names:
        name = "samples"
    else:
        name = "embedding"
    if name not in names:
        raise ValueError("it has neither samples nor embedding")
    part = f.get_slice(name)
    check_tensor("audio" if name == "samples" else name, facts, part.get_dtype(), part.get_shape())
    return name


def _taken(path: Path) -> ApiError:
    return ApiError(
        409,
        f"name: a voice {path.stem!r} exists; delete it first",
        param="name",
        code="voice_exists",
    )


def _refusal(error: OSError, param: str) -> ApiError:
    """Error for a client when the disk is full or cannot be written. `param` is the field that was
    not stored."""
    log.error("voices cannot be changed: %s", error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApiError(
            507, f"{param}: the server has no room for it", param=param, code="voices_full"
        )
    message = f"{param}: the server cannot change its voices now"
    return ApiError(503, message, param=param, code="voices_not_writable", retry_after=60)


def normal(name: str) -> str:
    """A name as files have it."""
    return unicodedata.normalize("NFC", name).strip().lower()
