"""`stentor batch` on the toy model, and what its folder holds."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stentor.cli import main

TOY = ("--model", "dummy:toy", "--min-frames", "2", "--max-frames", "3", "--max-num-seqs", "1")
CUT, SOME_FAILED, INTERRUPTED = 3, 4, 130


def lines(*items: dict[str, Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def command(
    folder: Path, items: str | Sequence[dict[str, Any]], *flags: str, toy: Sequence[str] = TOY
) -> list[str]:
    """The command's words for items in folder/in.jsonl, which is written. Its output goes to folder/out."""
    text = items if isinstance(items, str) else lines(*items)
    source = folder / "in.jsonl"
    source.write_text(text, encoding="utf-8")
    return ["batch", str(source), str(folder / "out"), *toy, *flags]


def speak(
    folder: Path, items: str | Sequence[dict[str, Any]], *flags: str, toy: Sequence[str] = TOY
) -> int:
    """Run the command in this process. Its exit code."""
    return main(command(folder, items, *flags, toy=toy))


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (folder / "manifest.jsonl").read_text("utf-8").splitlines()
    ]


def audio(folder: Path) -> dict[str, bytes]:
    """The audio of each id, from files, tar or Parquet. Fails if an id is there twice."""
    found: list[tuple[str, bytes]] = [(p.stem, p.read_bytes()) for p in folder.glob("audio/*")]
    for shard in sorted(folder.glob("shards/*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                if member.name.endswith(".wav"):
                    found.append((member.name.split(".")[0], tar.extractfile(member).read()))
    for shard in sorted(folder.glob("shards/*.parquet")):
        found += [
            (row["id"], row["audio"]["bytes"])
            for row in pq.read_table(io.BytesIO(shard.read_bytes())).to_pylist()
        ]
    assert len(dict(found)) == len(found)
    return dict(found)


def check(folder: Path) -> list[str]:
    """The ids that the manifest lists as spoken. Fails unless each is listed once and its audio is whole and in place."""
    rows = manifest(folder)
    ids = [row["id"] for row in rows]
    assert len(set(ids)) == len(ids)
    spoken = {row["id"]: row for row in rows if row["status"] == "ok"}
    held = audio(folder)
    for id, row in spoken.items():
        assert hashlib.sha256(held[id]).hexdigest() == row["sha256"]
        assert (folder / row["path"]).is_file()
    return list(spoken)
