"""Recordings in which people agree to the use of their voice, as OpenAI's API keeps them: two files
each in a folder beside the uploaded voices, one with the facts and one with the recording as it
came."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stentor.arguments.untrusted import Missing, Unreadable, read_json
from stentor.server.errors import ApiError

ID = re.compile(r"cons_[0-9a-f]{24}")
FACTS = ".json"
RECORDING = ".recording"


@dataclass(frozen=True)
class Consent:
    """Facts about a recording. created_at: seconds since 1970. language: a BCP 47 tag."""

    id: str
    name: str
    language: str
    created_at: int

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's VoiceConsent object."""
        return {**asdict(self), "object": "audio.voice_consent"}


class ConsentStore:
    """The folder. Methods block on the disk: call them in a thread. Processes may share it."""

    def __init__(self, folder: Path, max_consents: int) -> None:
        self.folder = folder.expanduser() / "consents"
        self.max_consents = max_consents

    def add(self, name: str, language: str, recording: bytes) -> Consent:
        """Keep a recording. ApiError 409 if there are too many, 507 if it cannot be written."""
        if len(self._ids()) >= self.max_consents:
            raise ApiError(
                409, f"there are {self.max_consents} consents already", code="too_many_consents"
            )
        consent = Consent(f"cons_{secrets.token_hex(12)}", name, language, int(time.time()))
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(consent.id + RECORDING, recording)
            self._describe(consent)
        except OSError as e:
            self.delete(consent.id)
            raise ApiError(507, f"the consent cannot be stored: {e.strerror}") from None
        return consent

    def newest(self) -> Sequence[Consent]:
        """All of them, the newest first."""
        consents = [consent for id in self._ids() if (consent := self.get(id)) is not None]
        return sorted(consents, key=lambda c: (-c.created_at, c.id))

    def get(self, id: str) -> Consent | None:
        """The consent of an id. None: there is none, or its file has been damaged."""
        if ID.fullmatch(id) is None:
            return None
        try:
            facts = read_json(self.folder / (id + FACTS))
            return Consent(id, str(facts["name"]), str(facts["language"]), int(facts["created_at"]))
        except (Missing, Unreadable, KeyError, TypeError, ValueError):
            return None

    def rename(self, id: str, name: str) -> Consent | None:
        """Rename a consent. None: there is none."""
        consent = self.get(id)
        if consent is None:
            return None
        renamed = replace(consent, name=name)
        self._describe(renamed)
        return renamed

    def delete(self, id: str) -> bool:
        """Delete a consent. Returns whether there was one."""
        if ID.fullmatch(id) is None:
            return False
        was_there = (self.folder / (id + FACTS)).is_file()
        for suffix in (FACTS, RECORDING):
            (self.folder / (id + suffix)).unlink(missing_ok=True)
        return was_there

    def _ids(self) -> list[str]:
        names = [p.stem for p in self.folder.glob("cons_*" + FACTS)]
        return [name for name in names if ID.fullmatch(name)]

    def _describe(self, consent: Consent) -> None:
        self._write(consent.id + FACTS, json.dumps(asdict(consent)).encode())

    def _write(self, name: str, data: bytes) -> None:
        handle, partial = tempfile.mkstemp(dir=self.folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.folder / name)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
