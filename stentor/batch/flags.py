"""The flags of `stentor batch`. Nothing heavy is imported."""

from __future__ import annotations

from typing import Any

from stentor.say.flags import FORMATS, Run, add_cleanup, add_marks, add_model, add_request, path
from stentor.text.sentences import GRANULARITIES

SHARD_ITEMS = 1000
INPUT_FORMATS = ("jsonl", "csv", "txt")

_EPILOG = """exit codes: 0 all items were spoken, 3 max_frames cut some of them, 4 some failed (the manifest says why),
2 wrong usage or input, 1 the run stopped, 130 it was interrupted. After 1 and 130 --resume goes on."""


def add_batch(commands: Any, run: Run) -> None:
    """Add `batch` to a program's commands."""
    batch = commands.add_parser(
        "batch",
        help="speak every line of a file, resumable",
        usage="stentor batch INPUT OUTPUT [--flag VALUE ...]",
        epilog=_EPILOG,
    )
    batch.add_argument(
        "input",
        type=path,
        metavar="INPUT",
        help="JSON lines, CSV or plain text, one item per line; - for standard input",
    )
    batch.add_argument("output", type=path, metavar="OUTPUT", help="folder for the audio and its manifest")
    items = batch.add_argument_group("items")
    items.add_argument("--resume", action="store_true", help="go on where an earlier run stopped")
    items.add_argument("--retry-failed", action="store_true", help="with --resume: speak failed items again")
    items.add_argument("--strict", action="store_true", help="speak nothing if any line is wrong")
    items.add_argument("--input-format", choices=INPUT_FORMATS, help="default: csv for .csv, txt for .txt, else jsonl")
    audio = batch.add_argument_group("audio")
    audio.add_argument("--format", choices=FORMATS, default="wav", help="format of the audio (default wav)")
    audio.add_argument("--shards", type=int, metavar="N", help="tar files of N items (WebDataset), no file per item")
    audio.add_argument("--parquet", action="store_true", help=f"Parquet shards (of {SHARD_ITEMS} items by default)")
    model = batch.add_argument_group("model")
    add_model(model)
    model.add_argument("--threads", type=int, help="CPU threads")
    model.add_argument("--max-num-seqs", type=int, metavar="N", help="texts that the engine speaks at once")
    model.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="speak in N processes, one GPU each where there are any (needs stentor[ray])",
    )
    model.add_argument("--deterministic", action="store_true", help="on CUDA, the same bytes in every run; slower")
    model.add_argument("--lora", type=path, help="LoRA weights to merge at load")
    model.add_argument(
        "--loras", metavar="NAME=PATH", action="append", default=[], help="LoRA adapter that lines may name; repeatable"
    )
    model.add_argument("--lexicon", type=path, help="YAML file of words and how they are said")
    add_marks(batch.add_argument_group("marks of a machine"))
    given = batch.add_argument_group("defaults of lines")
    add_request(given, seed="seed of the run, from which each item's own is made with its id (default 0)")
    given.add_argument("--speed", type=float, help="0.25 to 4; pitch is kept (default 1)")
    add_cleanup(given)
    given.add_argument("--split", choices=GRANULARITIES, default="auto", help="where long text is cut (default auto)")
    batch.set_defaults(func=run)
