"""Defaults of `stentor say`, in the section `[say]` of a TOML file of the user.

`$STENTOR_CONFIG` names the file, else it is `stentor.toml` in `$XDG_CONFIG_HOME` or `~/.config`.
Its keys are the names of flags. A flag on the command line wins.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from stentor.arguments import shown
from stentor.errors import InvalidRequest
from stentor.flags import LOADING

VARIABLE = "STENTOR_CONFIG"
SECTION = "say"
OF_ONE_COMMAND = frozenset(["help", "text", "file", "output", "format", "subtitles", "words"])
"""Flags that belong to one text and its file."""


def config_file() -> Path | None:
    """The user's configuration file, or None where there is none. InvalidRequest("config") if
    `$STENTOR_CONFIG` names none."""
    name = os.environ.get(VARIABLE)
    if name == "":
        return None
    if name is not None:
        file = Path(name).expanduser()
        if not file.is_file():
            raise InvalidRequest("config", f"{VARIABLE} names {name!r}, which does not exist")
        return file
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    file = Path(folder, "stentor.toml")
    return file if file.is_file() else None


def arguments(command: argparse.ArgumentParser, typed: Sequence[str]) -> list[str]:
    """Return the defaults in the user's file as flags of `say`. InvalidRequest("config") names the
    file and the key that is wrong.

    typed: the words of the command line. Flags that load a model are left out where a server
    speaks, which has its own.
    """
    file = config_file()
    if file is None:
        return []
    try:
        section = tomllib.loads(file.read_text(encoding="utf-8")).get(SECTION, {})
    except (OSError, ValueError) as e:
        raise InvalidRequest("config", f"cannot read {str(file)!r}: {e}") from None
    if not isinstance(section, Mapping):
        raise InvalidRequest("config", f"{str(file)!r}: {SECTION} must be a table, [{SECTION}]")
    actions = {
        action.dest: action for action in command._actions if action.dest not in OF_ONE_COMMAND
    }
    through_server = "server" in section or any(w.partition("=")[0] == "--server" for w in typed)
    words: list[str] = []
    for key, value in section.items():
        try:
            default = _words(key, value, actions)
        except ValueError as e:
            raise InvalidRequest("config", f"{str(file)!r}: {SECTION}.{key} {e}") from None
        if not (through_server and key.replace("-", "_") in LOADING and key != "model"):
            words += default
    return words


def _words(key: str, value: object, actions: Mapping[str, argparse.Action]) -> list[str]:
    """A key as a flag with its value. ValueError describes what is wrong with it."""
    name = key.replace("-", "_")
    if name in OF_ONE_COMMAND:
        raise ValueError("belongs to one command and has no default")
    if name not in actions:
        near = "".join(f"; did you mean {n}?" for n in get_close_matches(name, actions, 1))
        raise ValueError(f"is not known{near}")
    action = actions[name]
    flag = next(option for option in action.option_strings if option.startswith("--"))
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"must be true or false, got {shown(value)}")
        return [flag] if value else []
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be a text or a number, got {shown(value)}")
    _check_value(action, str(value))
    return [f"{flag}={value}"]


def _check_value(action: argparse.Action, value: str) -> None:
    """ValueError unless the flag takes a value."""
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"must be one of {', '.join(action.choices)}, got {shown(value)}")
    if callable(action.type):
        try:
            action.type(value)
        except argparse.ArgumentTypeError as e:
            raise ValueError(str(e)) from None
        except (TypeError, ValueError):
            raise ValueError(f"has no such value: {shown(value)}") from None
