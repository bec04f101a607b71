"""The command line: `stentor say, voices, batch, serve, bench, doctor, completion`. Flags become calls of the API."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import stentor
from stentor import model_names
from stentor.batch.flags import add_batch
from stentor.config import EngineConfig, check_device, check_dtype, check_quantization, path_of
from stentor.errors import InvalidRequest, ModelNotFound, StentorError
from stentor.say import flags

_EPILOG = """examples:
  stentor say "Hello there." -o hello.wav
  stentor serve

`stentor COMMAND --help` lists the flags of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 if it is done, 1 with a message if it failed, 2 for wrong usage (also a model that does
    not exist), 3 if `say` or `batch` wrote speech that was cut, 4 if items of a batch failed, 130 if interrupted."""
    top = parser()
    if "_ARGCOMPLETE" in os.environ:
        from stentor import completion

        completion.complete(top)
    words = sys.argv[1:] if argv is None else argv
    if not words:
        top.print_help()
        return 0
    _check_command(top, words[0])
    args, unknown = top.parse_known_args(words)
    if unknown:  # with the usage of the command, not that of all
        meant = " ".join(f"(did you mean {flag}?)" for flag in _meant(args.usage_of, unknown))
        args.usage_of.error(f"unrecognized arguments: {' '.join(unknown)} {meant}".rstrip())
    try:
        code: int = args.func(args)
    except StentorError as e:
        print(f"stentor: {e}", file=sys.stderr)
        return 2 if isinstance(e, InvalidRequest | ModelNotFound) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, and Python would report it once more at exit
        return 1
    return code


def _check_command(top: argparse.ArgumentParser, word: str) -> None:
    """Exit with code 2 if a word is no command, with the one that was meant."""
    commands = next(list(a.choices) for a in top._actions if isinstance(a, argparse._SubParsersAction))
    if not word.startswith("-") and word not in commands:
        meant = [f"did you mean {near}?" for near in get_close_matches(word, commands, 1)]
        top.error(" ".join([f"no command {word!r};", *meant, f"commands: {', '.join(commands)}"]))


def _meant(command: argparse.ArgumentParser, unknown: Sequence[str]) -> Iterator[str]:
    """The flags of a command that are nearest to unknown ones."""
    for word in unknown:
        if word.startswith("--"):
            yield from get_close_matches(word.split("=")[0], command._option_string_actions, 1)


def parser() -> argparse.ArgumentParser:
    from stentor.bench.cli import add_parser as add_bench
    from stentor.server.cli import add_parser as add_serve

    top = argparse.ArgumentParser(
        prog="stentor",
        usage="stentor COMMAND [--flag VALUE ...]",
        description="Turn text into speech, on this machine.",
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16),
    )
    top.add_argument("--version", action="version", version=f"stentor {stentor.__version__}")
    commands = top.add_subparsers(required=True, title="commands", metavar="COMMAND", prog="stentor")
    flags.add_say(commands, _say)
    flags.add_voices(commands, _voices)
    add_batch(commands, _batch)
    add_serve(commands)
    add_bench(commands)
    doctor = commands.add_parser("doctor", help="show what runs on this machine and how fast")
    doctor.add_argument("--model", help="model to test: directory, Hub id or dummy:NAME (default: the built-in voice)")
    doctor.set_defaults(func=_doctor)
    family = commands.add_parser("new-family", help="write a package with a model family of its own, to be changed")
    family.add_argument("name", metavar="NAME", help="of the family, such as my_model")
    family.add_argument("folder", metavar="DIR", help="a new or an empty folder")
    family.set_defaults(func=_new_family)
    completion = commands.add_parser("completion", help="print a script that completes commands and flags in a shell")
    shells = ("bash", "zsh", "fish", "tcsh", "powershell")
    completion.add_argument("shell", choices=shells, help='bash: eval "$(stentor completion bash)"')
    completion.set_defaults(func=_completion)
    for command in commands.choices.values():
        command.set_defaults(usage_of=command)
    return top


def _check_model(args: argparse.Namespace) -> None:
    """InvalidRequest or ModelNotFound for flags that are wrong on every machine, before torch is imported."""
    model_names.check(args.model)
    check_device(args.device)
    check_dtype(args.dtype)
    check_quantization(args.quantization)


def _say(args: argparse.Namespace) -> int:
    _check_model(args)
    EngineConfig(threads=args.threads)
    from stentor.say import command

    return command.run(args)


def _batch(args: argparse.Namespace) -> int:
    _check_model(args)
    EngineConfig(threads=args.threads, max_num_seqs=args.max_num_seqs)
    from stentor.batch import command

    return command.run(args)


def _voices(args: argparse.Namespace) -> int:
    _check_model(args)
    from stentor.say import voices

    return voices.run(args)


def _doctor(args: argparse.Namespace) -> int:
    from stentor import doctor

    return doctor.run(args.model)


def _new_family(args: argparse.Namespace) -> int:
    from stentor import new_family

    for file in new_family.write(args.name, path_of("DIR", args.folder)):
        print(file)
    print(
        f"\nIt speaks and passes its tests:\npip install -e '{args.folder}[test]'\npython -m pytest {args.folder}/tests"
    )
    return 0


def _completion(args: argparse.Namespace) -> int:
    from stentor import completion

    print(completion.script(args.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
