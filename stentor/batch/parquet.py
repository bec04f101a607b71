"""Where audio goes: Parquet files, whose column `audio` has `bytes` and `path`, as Hugging Face reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from stentor.batch import disk
from stentor.batch.item import Row
from stentor.batch.samples import Sample, read
from stentor.batch.shards import Shards

GROUP_BYTES = 64 * 2**20  # of audio in a row group, which is in memory at once

_SEGMENT = pa.struct(
    {
        "index": pa.int32(),
        "text": pa.string(),
        "start": pa.float64(),
        "end": pa.float64(),
        "start_char": pa.int64(),
        "end_char": pa.int64(),
    }
)
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "audio": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "text": pa.string(),
        "seconds": pa.float64(),
        "sample_rate": pa.int32(),
        "finish_reason": pa.string(),
        "seed": pa.int64(),
        "sha256": pa.string(),
        "segments": pa.list_(_SEGMENT),
        "line": pa.int64(),
    }
)


class ParquetShards(Shards):
    """shards/000000.parquet in a folder. A shard is a tar while it is being filled, so that a crash loses nothing."""

    suffix = ".parquet"

    def _put(self, full: Path) -> None:
        aside = full.with_suffix(".parquet")
        convert(full, aside)
        disk.move(aside, self._folder / aside.name)

    def _placed(self, number: int) -> list[Row]:
        """The rows of a shard whose tar is still there, as it is until they are listed."""
        return [sample.row for sample in read(self._work / f"{number:06}.tar")]


def convert(samples: Path, target: Path) -> None:
    """Write the samples of a tar as Parquet, in row groups of at most `GROUP_BYTES` of audio. It lasts when this
    returns."""
    with target.open("wb") as file, ParquetWriter(file, SCHEMA) as writer:
        group: list[Sample] = []
        held = 0
        for sample in read(samples):
            group.append(sample)
            held += len(sample.audio)
            if held >= GROUP_BYTES:
                writer.write_table(_table(group))
                group, held = [], 0
        if group:
            writer.write_table(_table(group))
        writer.close()
        file.flush()
        os.fsync(file.fileno())


def _table(group: list[Sample]) -> Any:
    return pa.Table.from_pylist([_record(sample) for sample in group], SCHEMA)


def _record(sample: Sample) -> dict[str, Any]:
    row = sample.row
    named = {name: row[name] for name in SCHEMA.names if name in row}
    return {**named, "audio": {"bytes": sample.audio, "path": row["member"]}, "text": sample.text}
