"""Text as people paste it, cleaned before anything else reads it, for every family.

Each step is a function from a draft to a draft and has a name, by which requests and servers choose
steps. What a step leaves out is never spoken by people who read such a text aloud. Every character
of the result keeps its place in the original text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from stentor.errors import InvalidRequest
from stentor.text.cleanup import blocks, formulas, languages, layout, lines, pages, papers
from stentor.text.draft import Draft

STEPS: dict[str, Callable[[Draft], Draft]] = {
    "html": pages.without_html,
    "characters": papers.plain_characters,
    "layout": layout.without_layout,
    "formulas": formulas.plain_formulas,
    "notes": papers.without_notes,
    "markdown": pages.without_markdown,
    "lines": lines.whole_lines,
}
"""In the order in which they run."""
SKIPS: dict[str, Callable[[Draft], Draft]] = {
    "skip-code": blocks.without_code,
    "skip-tables": blocks.without_tables,
}
"""Steps that are not part of ALL. They run first, where they are asked for by name."""
ALL = "all"
NONE = "none"
NOTATIONS = "notations"
"""NOTATIONS runs last, and only where it is asked for by name. `notations:de` says the language."""
_NAMES = ", ".join([*STEPS, *SKIPS, NOTATIONS])
HELP = f"text clean-up steps: {ALL}, {NONE}, or a comma-separated list of {_NAMES}"


@lru_cache
def steps(wanted: str, language: str | None = None, param: str = "cleanup") -> tuple[str, ...]:
    """The steps that `wanted` names. InvalidRequest(param) names one that is not known.

    language: of the text, for notations. Without one they are checked and left out.
    """
    names = [name.strip() for name in wanted.split(",")]
    allowed = (*STEPS, *SKIPS, ALL, NONE)
    for name in names:
        if name not in allowed and name.partition(":")[0] != NOTATIONS:
            raise InvalidRequest(
                param,
                f"must be {ALL}, {NONE} or some of {_NAMES}; got {name[:40]!r}",
            )
    skips = tuple(name for name in SKIPS if name in names)
    chosen = tuple(name for name in STEPS if name in names or ALL in names)
    return (
        skips
        + chosen
        + tuple(
            _notations(name, language)
            for name in names
            if name.startswith(NOTATIONS) and (language or ":" in name)
        )
    )


def _notations(name: str, language: str | None) -> str:
    """The step with the code of its language. InvalidRequest("cleanup") where there is none."""
    code = name.partition(":")[2] or languages.CODES.get(language or "", language or "")
    languages.check(code)
    return f"{NOTATIONS}:{code}"


def cleaned(text: str, wanted: tuple[str, ...] = tuple(STEPS)) -> Draft:
    """A text without what is not meant to be spoken. A text of which nothing would be left stays as
    it is."""
    draft = unread = Draft.of(text)
    for name in wanted:
        step = STEPS.get(name) or SKIPS.get(name) or languages.step(name.partition(":")[2])
        draft = step(draft)
    if any(c.isalnum() for c in draft.text):
        return draft
    return unread
