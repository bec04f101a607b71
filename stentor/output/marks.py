"""Marks by which programs know that audio is made by a machine: a line for metadata and headers,
and a watermark."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from stentor.output.watermark import Make, load
from stentor.version import __version__

SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's name for media that a model has made
(https://cv.iptc.org/newscodes/digitalsourcetype/)."""


@dataclass(frozen=True)
class Marks:
    """Marks of audio. comment: the line for metadata. watermark: makes what changes the samples.
    None: without."""

    comment: str | None = None
    watermark: Make | None = None

    @classmethod
    def of(cls, provenance: bool, watermark: str | Make | None, model: str | Path | None) -> Marks:
        """Marks from flags. Raises InvalidRequest if the watermark cannot be used."""
        if provenance:
            line = comment(model)
        else:
            line = None
        return cls(line, None if watermark is None else load(watermark))

    def as_json(self) -> dict[str, str]:
        """The line, for events and answers."""
        if self.comment is None:
            return {}
        return {"provenance": self.comment}


NO_MARKS = Marks()


def comment(model: str | Path | None) -> str:
    """The line that marks audio of a model, in ASCII. None: the built-in voice. Of a directory it
    has only the name: what stands before that may name its owner."""
    if model is None:
        name = "stentor"
    else:
        name = str(model)
    if os.path.exists(os.path.expanduser(name)):
        name = Path(name).expanduser().resolve().name
    name = re.sub(r"[^\w./:@+-]+", "_", name, flags=re.ASCII)
    return f"AI-generated; digitalSourceType={SOURCE_TYPE}; software=stentor {__version__}; model={name}"
