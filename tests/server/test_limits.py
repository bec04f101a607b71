"""The table of limits in docs/serving.md is what the code has."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from stentor.server.config import ServerConfig, default
from stentor.server.limits import LIMITS, table

DOC = Path(__file__).parents[2] / "docs" / "serving.md"
START, END = "<!-- limits: stentor/server/limits.py -->\n", "<!-- end of limits -->\n"


def documented() -> str:
    return DOC.read_text().partition(START)[2].partition(END)[0]


def test_the_table_of_limits_in_the_docs_is_current() -> None:
    """After a change of a limit: python -m tests.server.test_limits"""
    assert documented() == table()


def test_flags_of_limits_have_their_defaults_from_the_table() -> None:
    options = {f.name: default(f) for f in fields(ServerConfig)}
    flags = [f.name for f in fields(LIMITS) if f.metadata["flag"]]
    assert flags
    assert {name: options[name] for name in flags} == {name: getattr(LIMITS, name) for name in flags}
    assert not {f.name for f in fields(LIMITS) if not f.metadata["flag"]} & set(options)


if __name__ == "__main__":
    before, _, rest = DOC.read_text().partition(START)
    DOC.write_text(before + START + table() + END + rest.partition(END)[2])
