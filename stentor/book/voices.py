"""The voices of a book: one narrator, or a file with voices of chapters and of marked speakers.

    narrator: {voice: heart}
    chapters:
      3-5: {voice: eric}
    speakers:
      Alice: {reference: alice.wav, reference_text: The words in it.}

In the text `[voice: Alice]` begins the words of a speaker, up to the next such mark or the end
of the chapter. `[voice: narrator]` goes back to the narrator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stentor.arguments import shown
from stentor.arguments.untrusted import MIB, Unreadable, read_bytes
from stentor.arguments.untrusted_yaml import parse_yaml
from stentor.batch.fields import merged
from stentor.errors import InvalidRequest
from stentor.speech.script import marked

Fields = Mapping[str, Any]

NARRATOR = "narrator"
SECTIONS = (NARRATOR, "chapters", "speakers")
AUDIO = ("reference", "prompt")
"""Fields that name files, from the folder of the file of voices."""
NOT_OF_A_VOICE = ("id", "text", "text_file", "cleanup", "split_granularity", "word_timestamps")
_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")
MARK = "[voice:"


@dataclass(frozen=True)
class Cast:
    """Voices by chapter and by speaker: fields of items of a batch, which replace those of the
    run."""

    narrator: Fields = field(default_factory=dict)
    chapters: tuple[tuple[range, Fields], ...] = ()
    speakers: Mapping[str, Fields] = field(default_factory=dict)

    def fields(self, chapter: int, speaker: str | None) -> Fields:
        """The fields for the words of a speaker in a chapter. None: the narrator. A speaker that
        the file does not name is a voice of the model."""
        if speaker is not None:
            return self.speakers.get(speaker.casefold(), {"voice": speaker})
        for numbers, fields in self.chapters:
            if chapter in numbers:
                return fields
        return self.narrator

    def turns(self, text: str, speaker: str | None) -> Iterator[tuple[str | None, str]]:
        """The words of each speaker in a paragraph that begins with this one."""
        if MARK not in text.lower() or not any(sign.isalnum() for sign in text):
            yield speaker, text
            return
        for turn in marked(text):
            if turn.voice is not None:
                speaker = turn.voice
            if speaker is not None and speaker.casefold() == NARRATOR:
                speaker = None
            yield speaker, turn.text.strip()


def read(path: Path | None) -> Cast:
    """Read a file of voices. None: one narrator. InvalidRequest("voices") names what is wrong."""
    if path is None:
        return Cast()
    try:
        content = parse_yaml(read_bytes(path, MIB), yaml.SafeLoader)
    except Unreadable as e:
        raise InvalidRequest("voices", f"{str(path)!r} {e}") from None
    sections = _mapping(content, str(path))
    for name in sections:
        if name not in SECTIONS:
            raise InvalidRequest("voices", f"{name!r} is not known; use {', '.join(SECTIONS)}")
    folder = path.resolve().parent
    chapters = _mapping(sections.get("chapters", {}), "chapters")
    speakers = _mapping(sections.get("speakers", {}), "speakers")
    return Cast(
        _voice(sections.get(NARRATOR, {}), NARRATOR, folder),
        tuple(
            (_numbers(name), _voice(value, f"chapters.{name}", folder))
            for name, value in chapters.items()
        ),
        {
            name.casefold(): _voice(value, f"speakers.{name}", folder)
            for name, value in speakers.items()
        },
    )


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest("voices", f"{where} must be a mapping, got {type(value).__name__}")
    return {str(name): item for name, item in value.items()}


def _numbers(name: str) -> range:
    m = _RANGE.fullmatch(name)
    if m is None:
        raise InvalidRequest("voices", f"chapters must be numbers such as 3-5, got {shown(name)}")
    first = int(m[1])
    return range(first, int(m[2] or first) + 1)


def _voice(value: object, where: str, folder: Path) -> Fields:
    """The checked fields of a voice, with absolute paths."""
    fields = _mapping(value, where)
    for name in NOT_OF_A_VOICE:
        if name in fields:
            raise InvalidRequest("voices", f"{where}.{name} is not of a voice")
    for name in AUDIO:
        if isinstance(fields.get(name), str):
            fields[name] = str(folder / fields[name])
            if not Path(fields[name]).is_file():
                raise InvalidRequest("voices", f"{where}.{name}: no file {fields[name]!r}")
    try:
        checked = merged({"text": "Hello.", **fields}, {})
    except InvalidRequest as e:
        raise InvalidRequest("voices", f"{where}.{e.param}: {e.message}") from None
    return {name: field for name, field in checked.items() if name != "text"}
