"""`stentor serve` and `stentor compile`: from flags to a ServerConfig. What they run is imported
only then."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from stentor.errors import InvalidRequest, ModelNotFound, StentorError
from stentor.host import local_ray
from stentor.host.installed import pip_install
from stentor.models import model_names
from stentor.models.hub import check_exists
from stentor.server.config import GROUPS, ServerConfig, build, default, items, kind, names, numbers
from stentor.server.stop_signals import StopSignals

NO_OPS = {  # accepted flags: two of vLLM, and two of ours from when they were not the default
    "--omni": "has no effect here",
    "--trust-remote-code": "has no effect here",
    "--capture-all": "is what every start does",
    "--ignore-unknown-fields": "is the default (--strict is the opposite)",
}

NO_WINDOWS = "needs Linux or macOS. On Windows, run it in WSL or in Docker"


class _OneLineEach(argparse.HelpFormatter):
    """Help with a line for each flag, which a terminal wraps where it is narrow."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=240)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        flag = action.option_strings[0]
        if isinstance(action, argparse.BooleanOptionalAction):
            return flag.replace("--", "--[no-]", 1)
        if action.choices is not None:
            return f"{flag} {'|'.join(map(str, action.choices))}"
        if action.nargs == 0:
            return ", ".join(action.option_strings)
        value = action.dest.rpartition("_")[2].upper()
        return f"{flag} {value}"

    def add_usage(self, *args: object, **more: object) -> None:
        """Leave the usage to the description, which has it in one line."""


class _Extend(argparse.Action):
    """Collects the items of a repeatable flag. A JSON list counts as several."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        space: argparse.Namespace,
        value: Any,
        flag: str | None = None,
    ) -> None:
        del flag
        try:
            for text in [value] if isinstance(value, str) else value:
                setattr(space, self.dest, (*getattr(space, self.dest, ()), *items(text)))
        except InvalidRequest as e:
            parser.error(f"{self.option_strings[0]}: {e.message}")


def define(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve` and `compile`, which take the same. The command is in the parser's
    name."""
    name = parser.prog.split()[-1]
    parser.usage = f"stentor {name} [MODEL ...] [--flag VALUE ...]"
    parser.formatter_class = _OneLineEach
    parser.description = f"usage: {parser.usage}"
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="folder, Hub id or dummy:NAME (default: the built-in voice)",
    )
    parser.add_argument("--model", dest="model_flag", help=argparse.SUPPRESS)  # vLLM's
    parser.add_argument("--config", help="YAML file with the same options; flags override it")
    group = parser.add_argument_group(GROUPS["models"])
    for f in fields(ServerConfig):
        if f.name != "models":
            if f.name in GROUPS:
                group = parser.add_argument_group(GROUPS[f.name])
            _add(group, f)
    parser.add_argument(
        "--skip-server-warmup", action="store_false", dest="warmup", help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--disable-log-requests", action="store_false", dest="log_requests", help=argparse.SUPPRESS
    )
    for flag, effect in NO_OPS.items():
        parser.add_argument(
            flag,
            action="append_const",
            dest="no_ops",
            const=(flag, effect),
            help=argparse.SUPPRESS,
        )
    parser.add_argument(
        "--no-ignore-unknown-fields",
        action="store_true",
        dest="strict",
        help=argparse.SUPPRESS,
    )
    parser.set_defaults(func={"serve": run, "compile": compile}[name])


def _add(parser: argparse._ArgumentGroup, f: Any) -> None:
    flags = ("--" + f.name.replace("_", "-"), *f.metadata.get("names", ()))
    value = default(f)
    help = f.metadata["help"].replace("%", "%%") + (
        "" if value in (None, ()) else f" (default: {value})"
    )
    if kind(f) == "bool":
        parser.add_argument(*flags, dest=f.name, action=argparse.BooleanOptionalAction, help=help)
    elif kind(f) == "list":
        parser.add_argument(
            *flags, dest=f.name, action=_Extend, nargs=f.metadata.get("nargs"), help=help
        )
    else:
        kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
        make = {**kinds, "numbers": numbers, "names": names}[kind(f)]
        parser.add_argument(
            *flags, dest=f.name, type=make, choices=f.metadata.get("choices"), help=help
        )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes. Returns the exit code: 0 after a signal, 1 if the Hub cannot be
    reached for a model, 2 for wrong options and models that do not exist, 70 if an engine crashed
    for good."""
    if sys.platform == "win32":  # an engine's process has a socket as its standard input
        print(f"stentor serve: {NO_WINDOWS}", file=sys.stderr)
        return 2
    if (config := _config(args, "serve")) is None:
        return 2
    try:
        if config.scaled:
            return _serve_replicas(config)
        for model in config.models:
            check_exists(model)
        return _serve(config)
    except StentorError as e:
        print(f"stentor serve: {e}", file=sys.stderr)
        return 2 if isinstance(e, InvalidRequest | ModelNotFound) else 1
    except ImportError as e:
        extra = "ray" if config.scaled else "server"
        print(
            f"stentor serve: {e}; install what it needs: {pip_install(extra)}",
            file=sys.stderr,
        )
        return 2


def _serve_replicas(config: ServerConfig) -> int:
    local_ray.prepare()
    from stentor.ray.local import serve

    return serve(config)


def _serve(config: ServerConfig) -> int:
    stop = StopSignals()
    stop.install()  # before the imports, which take a second
    from stentor.server.main import serve

    return serve(config, stop)


def compile(args: argparse.Namespace) -> int:
    """Compile the kernels that a server with these flags launches. Returns the exit code as `run`
    does."""
    if (config := _config(args, "compile")) is None:
        return 2
    try:
        from stentor.server.compile import compile_kernels
    except ImportError as e:
        extra = "cuda" if e.name in ("torch", "triton") else "server"
        print(f"stentor compile: {e}; install what it needs: {pip_install(extra)}", file=sys.stderr)
        return 2
    compile_kernels(config)
    return 0


def _config(args: argparse.Namespace, command: str) -> ServerConfig | None:
    """The settings from the flags. None after saying what is wrong with them."""
    options = {k: v for k, v in vars(args).items() if k in ServerConfig.__dataclass_fields__}
    models = tuple(options.pop("models", ())) + tuple(
        m for m in [vars(args).get("model_flag")] if m
    )
    if models:
        options["models"] = models
    for flag, effect in vars(args).get("no_ops", ()):
        print(f"stentor {command}: {flag} {effect}", file=sys.stderr)
    try:
        config = build(options, vars(args).get("config"))
        for model in config.models:
            model_names.check(model)
        return config
    except InvalidRequest as e:
        print(f"stentor {command}: --{e.param.replace('_', '-')} {e.message}", file=sys.stderr)
    except ModelNotFound as e:
        print(f"stentor {command}: {e}", file=sys.stderr)
    return None
