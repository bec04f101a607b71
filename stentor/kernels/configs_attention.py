"""How attention is cut into programs. `benchmarks/kernels/attention.py` measures the choices; the
winners on an H200 stand here.

A decode step waits for keys and values from memory, so what counts is how many bytes are on their way at once: small
tiles and few warps let several programs share a multiprocessor.
"""

from __future__ import annotations

from typing import NamedTuple


class PagedTile(NamedTuple):
    """`keys` of a pass over the history, the warps of a program and how many passes are being loaded at a time.

    `splits`: programs that share one history, whose results a second launch joins.
    """

    keys: int
    warps: int
    stages: int
    splits: int = 1


class LocalTile(NamedTuple):
    """Query heads that a program serves with the keys and values it has read, and its warps."""

    heads: int
    warps: int


class DepthTile(NamedTuple):
    """Query heads that a program of a depth loop serves with the keys of one row and head, and its warps."""

    heads: int
    warps: int


FULL = 512
"""Programs that fill the chip."""

SPLITS = 64
"""Query heads times programs that share their history at most: all results are read again by the launch that joins
them."""


def paged_tile(programs: int, group: int, itemsize: int) -> PagedTile:
    """For `programs` pairs of a row and a head of keys, which `group` query heads share; elements of `itemsize`
    bytes."""
    splits = 1
    while splits < 16 and splits * group < SPLITS and programs * splits < FULL:
        splits *= 2
    return PagedTile(32, 4, 2 if itemsize > 2 else 3, splits=splits)


def depth_tile(programs: int, group: int) -> DepthTile:
    """For `programs` pairs of a row and a head of keys, each shared by `group` query heads."""
    if programs >= FULL // 2:
        return DepthTile(min(2, group & -group), 1)
    return DepthTile(1, 1 if programs > 32 else 4)


def local_tile(sequences: int, group: int) -> LocalTile:
    """For so many short sequences; `group` query heads share a head of keys."""
    wanted = 1 if sequences < 64 else 4
    heads = min(wanted, group & -group)  # a power of two that divides the group
    return LocalTile(heads, max(2, heads))
