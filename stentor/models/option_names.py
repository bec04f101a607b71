"""Check of load options: a model takes those of its family."""

from __future__ import annotations

from collections.abc import Iterable

from stentor.errors import InvalidRequest


def check_load_options(options: Iterable[str], known: Iterable[str]) -> None:
    """InvalidRequest names the first option that is not among `known`."""
    allowed = tuple(known)
    for name in options:
        if name not in allowed:
            takes = ", ".join(allowed) or "none"
            raise InvalidRequest(
                name, f"is no engine option and no load option of this model, which takes {takes}"
            )
