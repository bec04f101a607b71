"""`stentor completion`: a script that lets a shell complete commands, flags, their choices and file names. By shtab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import shtab

from stentor.say.flags import path

FILES = frozenset(
    {
        "input",
        "output",
        "model",
        "model_flag",
        "models",
        "config",
        "lora",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
    }
)
"""Arguments that may be files although their type does not say so."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser for `shell`, one of shtab.SUPPORTED_SHELLS."""
    for action in _actions(parser):
        if action.type in (Path, path) or action.dest in FILES:
            vars(action)["complete"] = shtab.FILE  # an attribute that only shtab knows
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
