"""The command line: `stentor say, voices, batch, serve, bench, doctor, completion`. Flags become calls of the API."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import stentor
from stentor import model_names
from stentor.batch.flags import add_batch
from stentor.config import EngineConfig, check_device, check_dtype, check_quantization
from stentor.errors import InvalidRequest, ModelNotFound, StentorError
from stentor.say import flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0 if it is done, 1 with a message if it failed, 2 for wrong usage (also a model that does
    not exist), 3 if `say` or `batch` wrote speech that was cut, 4 if items of a batch failed, 130 if interrupted."""
    args, unknown = parser().parse_known_args(argv)
    if unknown:  # with the usage of the command, not that of all
        args.usage_of.error(f"unrecognized arguments: {' '.join(unknown)}")
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


def parser() -> argparse.ArgumentParser:
    from stentor.bench.cli import add_parser as add_bench
    from stentor.server.cli import add_parser as add_serve

    top = argparse.ArgumentParser(prog="stentor", description=stentor.__doc__)
    top.add_argument("--version", action="version", version=f"stentor {stentor.__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    flags.add_say(commands, _say)
    flags.add_voices(commands, _voices)
    add_batch(commands, _batch)
    add_serve(commands)
    add_bench(commands)
    doctor = commands.add_parser("doctor", help="show what runs on this machine and how fast")
    doctor.add_argument("--model", help="model to test: directory, Hub id or dummy:NAME (default: the embedded voice)")
    doctor.set_defaults(func=_doctor)
    completion = commands.add_parser("completion", help="print a script that completes commands and flags in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help='bash: eval "$(stentor completion bash)"')
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


def _completion(args: argparse.Namespace) -> int:
    from stentor import completion

    print(completion.script(parser(), args.shell))
    return 0


if __name__ == "__main__":
    sys.exit(main())
