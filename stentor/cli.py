"""The command line: `stentor say, voices, models, batch, book, serve, bench, doctor` and more.

Flags become calls of the API.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from importlib import import_module
from typing import NamedTuple

import stentor
from stentor import flags
from stentor.config import path_of
from stentor.errors import InvalidRequest, ModelNotFound, StentorError
from stentor.host.environment import ensure_home, open_standard_streams
from stentor.say.signals import Terminated

_EPILOG = """examples:
  stentor say "Hello there." -o hello.wav
  stentor serve

`stentor COMMAND --help` lists the flags of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 if it is done, 1 with a message if it failed, 2 for wrong usage
    (also a model that does not exist), 3 if `say` or `batch` wrote speech that was cut, 4 if items
    of a batch failed, 130 if interrupted, 129 or 143 if ended by SIGHUP or SIGTERM."""
    open_standard_streams()
    ensure_home()
    if "_ARGCOMPLETE" in os.environ:
        from stentor.say import completion

        completion.complete(parser())
    words = sys.argv[1:] if argv is None else argv
    top = parser(words[:1])
    if not words:
        top.print_help()
        return 0
    _check_command(top, words[0])
    try:
        args = _parsed(top, words)
        code: int = args.func(args)
    except StentorError as e:
        print(f"stentor: {e}", file=sys.stderr)
        if isinstance(e, InvalidRequest | ModelNotFound):
            return 2
        return 1
    except Terminated as e:
        return e.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, and Python would report it once more at exit
        return 1
    return code


def _parsed(top: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The flags of a command, those of `say` over the user's defaults. It exits with code 2 if one
    is wrong, with the usage of the command, not that of all."""
    if words[0] == "say" and not {"-h", "--help"} & set(words):
        from stentor.say import defaults

        words = ["say", *defaults.arguments(_commands(top)["say"], words[1:]), *words[1:]]
    args, unknown = top.parse_known_args(words)
    if unknown:
        meant = " ".join(f"(did you mean {flag}?)" for flag in _meant(args.usage_of, unknown))
        args.usage_of.error(f"unrecognized arguments: {' '.join(unknown)} {meant}".rstrip())
    return args


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    return next(dict(a.choices) for a in top._actions if isinstance(a, argparse._SubParsersAction))


def _check_command(top: argparse.ArgumentParser, word: str) -> None:
    """Exit with code 2 if a word is no command, with the one that was meant."""
    if not word.startswith("-") and word not in COMMANDS:
        from difflib import get_close_matches

        meant = [f"did you mean {near}?" for near in get_close_matches(word, COMMANDS, 1)]
        top.error(" ".join([f"no command {word!r};", *meant, f"commands: {', '.join(COMMANDS)}"]))


def _meant(command: argparse.ArgumentParser, unknown: Sequence[str]) -> Iterator[str]:
    """The flags of a command that are nearest to unknown ones."""
    from difflib import get_close_matches

    for word in unknown:
        if word.startswith("--"):
            yield from get_close_matches(word.split("=")[0], command._option_string_actions, 1)


class Command(NamedTuple):
    """A command's line of help, and the function that adds its flags to its parser."""

    help: str
    define: Callable[[argparse.ArgumentParser], None]


def parser(defined: Container[str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. defined: the commands that get their flags, None for all. Flags
    of the others take longer than a short sentence: the server's alone are a hundred."""
    top = argparse.ArgumentParser(
        prog="stentor",
        usage="stentor COMMAND [--flag VALUE ...]",
        description="Turn text into speech, on this machine.",
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=16
        ),
    )
    top.add_argument("--version", action="version", version=f"stentor {stentor.__version__}")
    commands = top.add_subparsers(
        required=True, title="commands", metavar="COMMAND", prog="stentor"
    )
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.help)
        if defined is None or name in defined:
            command.define(subparser)
        subparser.set_defaults(usage_of=subparser)
    return top


def _define_say(say: argparse.ArgumentParser) -> None:
    say.usage = "stentor say [TEXT] [--flag VALUE ...]"
    flags.add_say(say)
    say.set_defaults(func=_say)


def _define_voices(voices: argparse.ArgumentParser) -> None:
    flags.add(voices, {**flags.SAMPLES, **flags.SERVER_LISTED, **flags.MODEL})
    voices.set_defaults(func=_voices)


def _define_models(models: argparse.ArgumentParser) -> None:
    models.add_argument("--json", action="store_true", help="print JSON")
    models.set_defaults(func=_models)


def _define_batch(batch: argparse.ArgumentParser) -> None:
    batch.usage = "stentor batch INPUT OUTPUT [--flag VALUE ...]"
    batch.epilog = flags.BATCH_EPILOG
    flags.add_batch(batch)
    batch.set_defaults(func=_batch)


def _define_by(module: str) -> Callable[[argparse.ArgumentParser], None]:
    """The function of a command whose flags are in a module of its own, which is imported then."""

    def define(parser: argparse.ArgumentParser) -> None:
        import_module(module).define(parser)

    return define


def _define_doctor(doctor: argparse.ArgumentParser) -> None:
    flags.add(doctor, {"model": flags.MODEL["model"]})
    doctor.set_defaults(func=_doctor)


def _define_new_family(family: argparse.ArgumentParser) -> None:
    family.add_argument("name", metavar="NAME", help="name of the family, such as my_model")
    family.add_argument("folder", metavar="DIR", help="new or empty folder")
    family.set_defaults(func=_new_family)


def _define_completion(completion: argparse.ArgumentParser) -> None:
    shells = ("bash", "zsh", "fish", "tcsh", "powershell")
    completion.add_argument("shell", choices=shells, help='bash: eval "$(stentor completion bash)"')
    completion.set_defaults(func=_completion)


COMMANDS = {
    "say": Command("speak text to a file, a pipe or the loudspeaker", _define_say),
    "voices": Command("list a model's voices, languages and inputs", _define_voices),
    "models": Command("list models and what this machine can run", _define_models),
    "batch": Command("speak every line of a file; resumable", _define_batch),
    "book": Command(
        "turn an EPUB, HTML, Markdown, text, DOCX or PDF file into an audiobook; resumable",
        _define_by("stentor.book.cli"),
    ),
    "serve": Command(
        "serve speech over HTTP and WebSocket, with a web page", _define_by("stentor.server.cli")
    ),
    "compile": Command(
        "compile GPU kernels in advance for a server with these flags",
        _define_by("stentor.server.cli"),
    ),
    "bench": Command(
        "benchmark a speech server, or the engine in this process", _define_by("stentor.bench.cli")
    ),
    "doctor": Command("check what this machine can run, and how fast", _define_doctor),
    "new-family": Command("create a package for a new model family", _define_new_family),
    "completion": Command("print a shell completion script", _define_completion),
}
"""In the order of `stentor --help`."""


def _say(args: argparse.Namespace) -> int:
    if args.server is None:
        load = flags.load_options(args)
    else:
        flags.check_no_load_options(args)
        load = {}
    from stentor.say import command

    return command.run(args, load)


def _batch(args: argparse.Namespace) -> int:
    load = flags.run_options(args)
    from stentor.batch import command

    return command.run(args, load)


def _voices(args: argparse.Namespace) -> int:
    if args.server is None:
        load = flags.load_options(args)
    else:
        flags.check_no_load_options(args)
        load = {}
    from stentor.say import voices

    if args.server is None:
        return voices.run(load, args.sample)
    return voices.run_on_server(args.server, args.model, args.sample)


def _models(args: argparse.Namespace) -> int:
    from stentor.say import models

    return models.run(args.json)


def _doctor(args: argparse.Namespace) -> int:
    from stentor import doctor

    return doctor.run(args.model)


def _new_family(args: argparse.Namespace) -> int:
    from stentor.models import new_family

    for file in new_family.write(args.name, path_of("DIR", args.folder)):
        print(file)
    print(
        f"\nIt speaks and passes its tests:\npip install -e '{args.folder}[test]'\npython -m pytest {args.folder}/tests"
    )
    return 0


def _completion(args: argparse.Namespace) -> int:
    from stentor.say import completion

    print(completion.script(args.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
