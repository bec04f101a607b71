"""Marks of footnotes and sources: they lead to another place and are not read aloud."""

from __future__ import annotations

import re

from stentor.text.cleanup.draft import Draft

_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_UNITS = r"(?<![\d\s][kcmd]m)(?<!\b[kcmd]m)(?<!\bft)(?<!\bin)(?<!\byd)(?<!\bmi)(?<!\bsin)(?<!\bcos)(?<!\btan)"
_SOURCES = r"\[\d{1,3}(?:\s?[,–-]\s?\d{1,3}){0,5}\]"
_MARKS = (
    re.compile(r"^[ \t]*\[\^[^\]\s]{1,40}\]:[ \t]*", re.MULTILINE),  # the note itself
    re.compile(r"[ \t]?\[\^[^\]\s]{1,40}\]"),
    re.compile(
        rf"(?:(?<=[^\W\d_]{{2}}|['’][^\W\d_]){_UNITS}|(?<=[.,;:!?”\"’»)])(?<![\w]\)))[{_RAISED}]{{1,3}}(?![\w^])"
    ),
    re.compile(
        rf"(?<=[^\W\d_]{{2}})(?:{_SOURCES}){{1,6}}(?!\()|(?<=[.,;:!?”\"’)])(?:{_SOURCES}|\[[a-z]\]){{1,6}}(?=\s|$)"
    ),
    re.compile(
        r"(?:(?<=[a-z]{4}[.!?])|(?<=[a-z]{3}[.!?][”\"’]))\d{1,3}(?=\s+[A-Z“\"]|\s*$)"
    ),  # behind a scanned sentence
    re.compile(r"(?<=[\w.,;:!?”\"’)])[†‡]+|[†‡]+(?=\w)"),
    re.compile(r"[ \t]?\[(?:citation needed|clarification needed|better source needed|note \d{1,3})\]", re.IGNORECASE),
)


def cleaned(draft: Draft) -> Draft:
    """Without marks of notes: [^1], a raised number behind a word, [12] behind a word or a stop, and daggers."""
    for pattern in _MARKS:
        draft = draft.sub(pattern, "")
    return draft
