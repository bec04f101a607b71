"""Shards as Parquet files, whose column `audio` has `bytes` and `path`, as Hugging Face reads
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from stentor.batch.files import Sample

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


def pack(samples: Iterator[Sample], handle: int) -> None:
    """Write samples into an open file, in row groups of at most `GROUP_BYTES` of audio."""
    with os.fdopen(handle, "wb", closefd=False) as file, ParquetWriter(file, SCHEMA) as writer:
        group: list[Sample] = []
        group_bytes = 0
        for sample in samples:
            group.append(sample)
            group_bytes += len(sample.audio)
            if group_bytes >= GROUP_BYTES:
                writer.write_table(_table(group))
                group = []
                group_bytes = 0
        if group:
            writer.write_table(_table(group))


def _table(group: list[Sample]) -> Any:
    return pa.Table.from_pylist([_record(sample) for sample in group], SCHEMA)


def _record(sample: Sample) -> dict[str, Any]:
    row = sample.row
    columns = {name: row[name] for name in SCHEMA.names if name in row}
    return {**columns, "audio": {"bytes": sample.audio, "path": row["member"]}, "text": sample.text}
