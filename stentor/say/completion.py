"""`stentor completion`: commands, flags, choices, files and voices of the command line, completed
in a shell."""

from __future__ import annotations

import argparse
import json
from typing import Any

import argcomplete
from argcomplete.completers import BaseCompleter, FilesCompleter
from argcomplete.shell_integration import shellcode

from stentor.flags import number
from stentor.models.model_names import CONFIG, DEFAULT_VOICE


def script(shell: str) -> str:
    """The script with which a shell completes stentor's commands."""
    code: str = shellcode(["stentor"], shell=shell)
    return code


def complete(parser: argparse.ArgumentParser) -> None:
    """Print what may come next and exit, if it is a shell that has called."""
    argcomplete.autocomplete(parser, always_complete_options="long", default_completer=Completer())


class Completer(BaseCompleter):
    """Completer of arguments: voices for `--voice`, nothing for numbers, else files."""

    def __call__(
        self,
        *,
        prefix: str,
        action: argparse.Action,
        parser: argparse.ArgumentParser,
        parsed_args: argparse.Namespace,
    ) -> Any:
        if action.dest == "voice":
            if vars(parsed_args).get("model") is None:
                return voices()
            return {}
        if action.type in (int, float, number):
            return ()
        return FilesCompleter()(prefix)


def voices() -> dict[str, str]:
    """The built-in voice's voices and what they sound like. Other models are not opened for
    this."""
    config = DEFAULT_VOICE / CONFIG
    if not config.is_file():
        return {}
    settings = json.loads(config.read_text(encoding="utf-8"))["stentor"]
    return {name: settings["voice_descriptions"].get(name, "") for name in settings["voices"]}
