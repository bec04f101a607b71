"""The flags of `stentor batch`. Nothing heavy is imported."""

from __future__ import annotations

from typing import Any

from stentor.say.flags import FORMATS, Run, add_model, add_request, path
from stentor.text.sentences import GRANULARITIES

SHARD_ITEMS = 1000

_EPILOG = """exit codes: 0 all items were spoken, 3 max_frames cut some of them, 4 some failed (the manifest says why),
2 wrong usage or input, 1 the run stopped, 130 it was interrupted. After 1 and 130 --resume goes on."""


def add_batch(commands: Any, run: Run) -> None:
    """Add `batch` to a program's commands."""
    batch = commands.add_parser("batch", help="speak every line of a file, resumable", epilog=_EPILOG)
    batch.add_argument("input", type=path, help="JSON lines or CSV: one item per line, or - for standard input")
    batch.add_argument("output", type=path, help="folder for the audio and its manifest")
    batch.add_argument("--resume", action="store_true", help="go on with what an earlier run has left")
    batch.add_argument("--retry-failed", action="store_true", help="with --resume: speak failed items again")
    batch.add_argument("--strict", action="store_true", help="speak nothing if any line is wrong")
    batch.add_argument("--input-format", choices=("jsonl", "csv"), help="default: csv for .csv, else jsonl")
    batch.add_argument("--format", choices=FORMATS, default="wav", help="format of the audio (default wav)")
    batch.add_argument("--shards", type=int, metavar="N", help="tar files of N items (WebDataset), no file per item")
    batch.add_argument("--parquet", action="store_true", help=f"Parquet shards (of {SHARD_ITEMS} items by default)")
    batch.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="speak in N processes, one GPU each where there are any (needs stentor[ray])",
    )
    batch.add_argument("--max-num-seqs", type=int, metavar="N", help="texts that the engine speaks at once")
    add_model(batch)
    batch.add_argument("--threads", type=int, help="CPU threads")
    batch.add_argument("--deterministic", action="store_true", help="on CUDA, the same bytes in every run; slower")
    batch.add_argument("--lora", type=path, help="LoRA weights to merge at load")
    batch.add_argument(
        "--loras", metavar="NAME=PATH", action="append", default=[], help="LoRA adapter that lines may name; repeatable"
    )
    batch.add_argument("--lexicon", type=path, help="YAML file of words and how they are said")
    given = batch.add_argument_group("for lines that do not say it themselves")
    add_request(given, seed="seed of the run, from which each item's own is made with its id (default 0)")
    given.add_argument("--speed", type=float, help="0.25 to 4; pitch is kept (default 1)")
    given.add_argument("--split", choices=GRANULARITIES, default="auto", help="where long text is cut (default auto)")
    batch.set_defaults(func=run)
