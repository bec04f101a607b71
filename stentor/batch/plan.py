"""Plan of a run from the flags of `stentor batch`, checked before anything is loaded or written."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.arguments import shown
from stentor.arguments.untrusted import MIB, Missing, Unreadable, read_json
from stentor.batch import disk
from stentor.batch.catalogue import Catalogue
from stentor.batch.files import OutputFiles, Shards, pack_tar
from stentor.batch.item import Run, checked, said
from stentor.batch.reader import opened, records
from stentor.batch.verify import Checks
from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.flags import (
    INPUT_FORMATS,
    SHARD_ITEMS,
    check_files,
    check_speed,
    request_options,
    taken,
)
from stentor.host.installed import pip_install
from stentor.say.target import WRITTEN, available, marks

SETTINGS = "run.json"  # the settings of a run, which a resumed run must share
SHOWN = 5  # wrong lines and failed items that are told on standard error


@dataclass(frozen=True)
class Plan:
    """A checked command line. shard: items of a shard, 0 for one file per item. replicas: processes
    that speak, None for this one. verify: what is measured of each item.
    server: the address of the one that speaks."""

    run: Run
    input: Path
    input_format: str
    folder: Path
    shard: int
    parquet: bool
    replicas: int | None
    verify: Checks | None
    server: str | None

    @property
    def work(self) -> Path:
        """The folder for audio on its way."""
        return self.folder / ".work"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a resumed run must share."""
        run = self.run
        load = run.load
        if self.parquet:
            kept_as = "parquet"
        else:
            kept_as = "tar" if self.shard else "files"
        return {
            "format": run.format,
            "kept_as": kept_as,
            "seed": run.seed,
            # None is what runs have that began before there was the flag.
            **{
                name: load.get(name)
                for name in ("model", "dtype", "lora", "loras", "lexicon", "aligner")
            },
            "quantization": None if load["quantization"] == "auto" else load["quantization"],
            "runtime": None if load["runtime"] == "auto" else load["runtime"],
            "deterministic": load["deterministic"] or None,
            "provenance": run.provenance or None,
            "watermark": run.watermark,
            **(self.verify.settings if self.verify else {}),
            **run.defaults,
        }

    def output(self) -> OutputFiles:
        """Where audio goes."""
        if not self.shard:
            return OutputFiles(self.folder)
        suffix = ".tar"
        pack = pack_tar
        if self.parquet:
            from stentor.batch import parquet

            suffix = ".parquet"
            pack = parquet.pack
        return Shards(self.folder, self.work, self.shard, self.run.format, suffix, pack)

    def catalogue(self, strict: bool) -> Catalogue:
        """All items of the input. Wrong lines are reported on standard error. InvalidRequest if the
        input is wrong as a whole: nothing in it can be spoken, an id is there twice, or it is
        `strict` and any line is wrong."""
        catalogue = Catalogue()
        with opened(self.input) as file:
            for record in records(file, self.input_format):
                catalogue.add(checked(record, self.run))
        self._check_lines(catalogue, strict)
        return catalogue

    def _check_lines(self, catalogue: Catalogue, strict: bool) -> None:
        wrong = catalogue.wrong()
        items = catalogue.count()
        if not items:
            raise InvalidRequest("input", f"{str(self.input)!r} holds no items")
        messages = [
            f"line {item.line}: {said(*item.error)}"
            for item in catalogue.first_wrong(SHOWN)
            if item.error
        ]
        if wrong and (strict or wrong == items):
            if wrong > 1:
                more = f" (and {wrong - 1} more lines are wrong)"
            else:
                more = ""
            raise InvalidRequest("input", messages[0] + more)
        for line in messages:
            print(f"stentor: warning: {line}", file=sys.stderr)
        if wrong > len(messages):
            print(
                f"stentor: warning: {wrong - len(messages)} more of {items} lines are wrong",
                file=sys.stderr,
            )


def plan(args: argparse.Namespace, load: dict[str, Any]) -> Plan:
    """Check the flags. load: their arguments of `TTS`. InvalidRequest names a wrong flag."""
    _check_flags(args)
    if args.loras:
        load = {**load, "loras": dict(map(_adapter, args.loras))}
    if args.provenance or args.watermark is not None:
        marks(args.provenance, args.watermark, args.model, args.format)
    suffix = args.input.suffix.lower().removeprefix(".")
    shard = args.shards or (SHARD_ITEMS if args.parquet else 0)
    run = taken(
        Run,
        args,
        inputs=Path.cwd() if args.input == Path("-") else args.input.resolve().parent,
        defaults=_defaults(args),
        seed=args.seed or 0,
        dots=not shard,
        load={name: _absolute(value) for name, value in load.items()},
        format=available(args.format, WRITTEN),
    )
    input_format = args.input_format or (suffix if suffix in INPUT_FORMATS else "jsonl")
    language = args.language
    if language == "auto" and args.model is None:
        language = "english"  # the built-in voice reads no other
    return taken(
        Plan,
        args,
        run=run,
        input_format=input_format,
        folder=args.output.resolve(),
        shard=shard,
        verify=Checks.of(args.verify, args.retry_above, args.recogniser, language, run.format),
    )


def _check_flags(args: argparse.Namespace) -> None:
    if args.speed is not None:
        check_speed(args.speed)
    for name in ("shards", "replicas"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise InvalidRequest(name, f"must be at least 1, got {getattr(args, name)}")
    if args.replicas is not None and args.server is not None:
        raise InvalidRequest("replicas", "has no effect with --server: give it to `stentor serve`")
    if args.replicas is not None and importlib.util.find_spec("ray") is None:
        raise InvalidRequest("replicas", f"needs Ray: {pip_install('ray')}")
    if args.parquet and importlib.util.find_spec("pyarrow") is None:
        raise InvalidRequest("parquet", f"needs pyarrow: {pip_install('parquet')}")
    if args.retry_failed and not args.resume:
        raise InvalidRequest("retry_failed", "needs --resume")
    # not an error where a name is too long
    if os.path.exists(args.output) and not os.path.isdir(args.output):
        raise InvalidRequest("output", f"{str(args.output)!r} is a file; name a folder")
    check_files(args)


def _defaults(args: argparse.Namespace) -> dict[str, Any]:
    """Return defaults for fields that a line leaves out. --seed is the run's."""
    audio = ("reference", "reference_text", "prompt", "prompt_text", "speed")
    values = {name: _absolute(vars(args)[name]) for name in audio} | {
        "word_timestamps": args.words or None
    }
    return request_options(args) | {
        name: value for name, value in values.items() if value is not None
    }


def _adapter(argument: str) -> tuple[str, str]:
    """The name and the path of NAME=PATH."""
    name, _, path = argument.partition("=")
    if not name or not path or not path_of("loras", path).exists():
        raise InvalidRequest("loras", f"must be NAME=PATH, where the path exists, got {argument!r}")
    return name, str(path_of("loras", path).resolve())


def _absolute(value: Any) -> Any:
    """A path as a string that means the same in another folder, and anything else as it is."""
    if isinstance(value, Path):
        return str(value.resolve())
    return value


def check_settings(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """InvalidRequest if the folder holds another run, or this one with other settings. Nothing is
    written."""
    stored = _settings_of(folder)
    if stored is None:
        return
    if not resume:
        raise InvalidRequest(
            "output", f"{str(folder)!r} holds a run already; --resume continues it"
        )
    for name in sorted(stored.keys() | settings.keys()):
        before = stored.get(name)
        now = settings.get(name)
        if before != now:
            message = (
                f"was {shown(before)} when the run began, and is {shown(now)}; use another folder"
            )
            raise InvalidRequest(name, message)


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings of a run."""
    with disk.replaced(folder / SETTINGS) as handle:
        disk.write_all(handle, (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode())


def _settings_of(folder: Path) -> dict[str, Any] | None:
    path = folder / SETTINGS
    try:
        stored = read_json(path, MIB)
    except Missing:
        return None
    except Unreadable as e:
        raise InvalidRequest("output", f"{str(path)!r} {e}") from None
    if not isinstance(stored, dict):
        raise InvalidRequest("output", f"{str(path)!r} holds no settings")
    return stored
