"""Launch configs of kernels: block sizes, warps and pipeline stages. This module does not import
Triton.

Each function returns what was fastest on an H200. `benchmarks/` measures the choices.
"""

from __future__ import annotations

from typing import NamedTuple

LOCAL_TOKENS = 16
"""Most tokens of a sequence of `local_attention`: one block."""

FULL_GPU = 512
"""CTAs that fill the GPU in attention kernels."""

MAX_SPLIT_HEADS = 64
"""Query heads times splits of one history at most: the second kernel reads the result of every
split again."""

MIN_CONV_CTAS = 128
"""CTAs wanted of a convolution before its blocks may be larger."""


FIXED_ROWS = 16
FIXED_GEMM_ROWS = 64
FIXED_CONV_ROWS = 1 << 16
"""Rows by which configs are chosen where results must not depend on how many there are
(`switches.batch_invariant`)."""


class GemvConfig(NamedTuple):
    """`block_n` outputs of a CTA, `block_k` weights of each at a time (powers of two), and its
    warps.

    The weights are read once from memory, so a config decides how many bytes an SM keeps in flight.
    A gated layer computes `block_n` outputs of the gate and as many of the other half.
    """

    block_n: int
    block_k: int
    num_warps: int


def gemv_config(n: int, k: int, gate: bool) -> GemvConfig:
    """For one or two rows of k elements and n outputs (of each half, if there is a gate)."""
    if gate:
        return GemvConfig(1 if k % 1024 else 2, 512, 1)
    if k % 1024:
        if k > 4096:
            return GemvConfig(4, 2048, 4)
        if n > 4096:
            return GemvConfig(8, 256, 2)
        return GemvConfig(8, 1024, 2)
    if k <= 1024 and n >= 2048:
        return GemvConfig(8, 1024, 2)
    if k <= 2048:
        if n <= 2048:
            return GemvConfig(2, 2048, 4)
        return GemvConfig(8, 1024, 4)
    return GemvConfig(2, 1024, 2) if k == 4096 else GemvConfig(4, 2048, 4)


class GemmConfig(NamedTuple):
    """`block_m` rows and `block_n` outputs of a CTA, `block_k` inputs at a time, its warps and
    pipeline stages."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @property
    def launch(self) -> dict[str, int]:
        """Constants and launch options of a kernel."""
        blocks = {"BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k}
        return {**blocks, "num_warps": self.num_warps, "num_stages": self.num_stages}

    def for_interpreter(self, n: int, k: int) -> GemmConfig:
        """Wide blocks: the interpreter runs CTAs one after the other, so it gets few of them."""
        return self._replace(
            block_n=min(512, 1 << (n - 1).bit_length()), block_k=min(512, 1 << (k - 1).bit_length())
        )


def gemm_config(rows: int, n: int, itemsize: int) -> GemmConfig:
    """For so many rows, n outputs and elements of `itemsize` bytes.

    Each output is one sum over the inputs in their order, 16 at a time, in every tile. On an H200
    all of them gave the same bits, so the number of rows may choose (`target.tile_rows`). Tiles of
    16 rows were not measured as they are.
    """
    if itemsize > 2:
        return GemmConfig(32, 32, 32, 4, 3)
    if rows > 256 or (rows > 64 and n > 4096):
        return GemmConfig(128, 128, 64, 8, 3)
    if rows > 64 or (rows > 32 and n > 4096):
        return GemmConfig(64, 64, 128, 4, 3)
    if rows > 16:
        return GemmConfig(64 if rows > 32 else 32, 32 if n <= 4096 else 64, 128, 4, 4)
    # The time is that of reading the weights: enough CTAs, each with many loads in flight.
    if n <= 2048:
        return GemmConfig(16, 16, 256, 4, 5)
    if n <= 8192:
        return GemmConfig(16, 32, 256, 4, 4)
    return GemmConfig(16, 64, 128, 4, 4)


class WindowConfig(NamedTuple):
    """`block_m` tokens of a CTA, `block_n` keys of an iteration over the window, and its warps."""

    block_m: int
    block_n: int
    num_warps: int


WINDOW = WindowConfig(16, 32, 4)
"""Block sizes of windowed attention. Chunks of a stream have 1 to 25 tokens, and windows 72 and
128."""


def quantized_gemm_config(rows: int, n: int) -> GemmConfig:
    """For up to 64 rows and n outputs. Not measured: chosen so that 2048 outputs make 128 CTAs with
    loads in flight."""
    if rows <= 16:
        block_m = 16
    elif rows <= 32:
        block_m = 32
    else:
        block_m = 64
    return GemmConfig(block_m, 16 if n <= 4096 else 64, 128, 4, 4 if block_m < 64 else 3)


def w8a8_config(rows: int, n: int) -> GemmConfig:
    """For more than 16 rows in 8 bits and n outputs, those of a gate and of the other half
    together.

    Fastest of three tiles for each number of rows on an H200 (benchmarks/kernels/eight_bits.py),
    with as many stages as a GPU with 99 KiB of shared memory has room for.
    """
    if rows <= 64:
        # The time is that of reading the weights: two CTAs for each SM.
        if n <= 4096:
            return GemmConfig(64, 16, 256, 4, 4)
        if n <= 8192:
            return GemmConfig(64, 32, 256, 4, 4)
        return GemmConfig(64, 64, 128, 4, 5)
    if rows <= 256:
        return GemmConfig(64, 64, 128, 4, 5)
    narrow = GemmConfig(128, 64, 128, 4, 4)
    one_wave = -(-rows // narrow.block_m) * -(-n // narrow.block_n) <= 128
    if one_wave:
        return narrow
    return GemmConfig(128, 128, 128, 8, 3)


def experts_config(pairs: int, experts: int, itemsize: int, grouped: bool) -> GemmConfig:
    """For so many pairs of a token and one of so many experts, and elements of `itemsize` bytes.

    grouped: outputs have several scales, which are loaded beside the weights and take shared
    memory. Not measured. Few pairs: the time is that of reading the weights, so many CTAs have few
    outputs each. Each output is one sum over the inputs in their order in every tile.
    """
    if itemsize > 2:
        return GemmConfig(16, 32, 32, 4, 2 if grouped else 3)
    if pairs > 32 * experts:
        return GemmConfig(64, 64, 64, 4, 2 if grouped else 3)
    return GemmConfig(16, 16 if pairs <= experts else 32, 128, 4, 2 if grouped else 4)


class PagedConfig(NamedTuple):
    """`block_n` keys of an iteration over the history, the warps of a CTA, and the iterations that
    load at a time.

    A decode step waits for keys and values from memory. With small blocks and few warps several
    CTAs share an SM, which puts more bytes in flight. `num_splits` CTAs share one history, and a
    second kernel combines their results.
    """

    block_n: int
    num_warps: int
    num_stages: int
    num_splits: int = 1


def paged_config(pairs: int, group: int, itemsize: int) -> PagedConfig:
    """For `pairs` of a row and a key head, which `group` query heads share, and elements of
    `itemsize` bytes."""
    splits = 1
    while splits < 16 and splits * group < MAX_SPLIT_HEADS and pairs * splits < FULL_GPU:
        splits *= 2
    return PagedConfig(32, 4, 2 if itemsize > 2 else 3, num_splits=splits)


class PrefillConfig(NamedTuple):
    """`block_m` queries (tokens times the query heads of a key head) of a CTA, `block_n` keys of an
    iteration over the history, the warps of a CTA, and the iterations that load at a time.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def prefill_config(group: int, itemsize: int, decodes: bool) -> PrefillConfig:
    """Where `group` query heads share a key head, with elements of `itemsize` bytes.

    The number of tokens has no part in it, so that a token's sums have one order in every batch.
    decodes: the kernel serves decode steps too, where a CTA has one token. Prompts then take up to
    twice as long.
    """
    if itemsize > 2:
        return PrefillConfig(max(16, group), 32, 4, 2)
    if decodes:
        return PrefillConfig(max(16, group), 128, 4, 2)
    return PrefillConfig(64, 64, 4, 3)


class HeadsConfig(NamedTuple):
    """Query heads that a CTA computes from the keys of one row and key head, and its warps."""

    block_h: int
    num_warps: int


def depth_config(pairs: int, group: int) -> HeadsConfig:
    """For `pairs` of a row and a key head, which `group` query heads share."""
    if pairs >= FULL_GPU // 2:
        return HeadsConfig(min(2, group & -group), 1)
    return HeadsConfig(1, 1 if pairs > 32 else 4)


def local_config(sequences: int, group: int) -> HeadsConfig:
    """For so many short sequences, where `group` query heads share a key head."""
    if sequences <= 16:
        num_warps = 1
    else:
        num_warps = 4
    block_h = min(num_warps, group & -group)  # a power of two that divides the group
    return HeadsConfig(block_h, max(2, block_h))


class ConvConfig(NamedTuple):
    """`block_n` + `extra_n` outputs (powers of two, or 0) of `block_m` rows, `block_k` channels at
    a time. A thread has at most `max_registers`."""

    block_m: int
    block_n: int
    extra_n: int
    block_k: int
    num_warps: int
    num_stages: int = 3
    max_registers: int | None = None

    def num_ctas(self, rows: int, outputs: int) -> int:
        return -(-rows // self.block_m) * -(-outputs // (self.block_n + self.extra_n))


def conv_config(rows: int, outputs: int, channels: int, one_order: bool = False) -> ConvConfig:
    """The largest blocks that waste little and still make enough CTAs.

    If no blocks make enough CTAs, the time is that of reading the weights. Then the smallest blocks
    are best, since most weights are in flight at once. `one_order`: `block_k`, which decides the
    order of the sums, follows from the channels alone. On an H200 all blocks then gave the same
    bits.
    """
    if channels % 64 == 0:
        block_k = 64
    elif channels > 16:
        block_k = 32
    else:
        block_k = 16
    if outputs > 32:
        middle = [ConvConfig(128, 64, 0, block_k, 4), ConvConfig(64, 64, 0, block_k, 4)]
    else:
        middle = []
    small = [ConvConfig(64, 32, 0, block_k, 4), ConvConfig(16, 32, 0, block_k, 4)]
    fitting = [*_wide_conv_configs(outputs, block_k), *middle, *small]
    enough = [c for c in fitting if c.num_ctas(rows, outputs) >= MIN_CONV_CTAS]
    if enough:
        return enough[0]
    return ConvConfig(
        16, 16, 0, 128 if channels % 128 == 0 and not one_order else block_k, 4, num_stages=5
    )


def _wide_conv_configs(outputs: int, block_k: int) -> list[ConvConfig]:
    """Blocks of 128 rows for outputs that fill them.

    128 rows by 128 outputs read 64 bytes from the L2 cache for each clock of the tensor cores,
    about twice what it delivers. Wider blocks read less, and two CTAs on an SM hide each other's
    beginning and end.
    """
    beyond = outputs % 128
    if outputs <= 64 or 0 < beyond <= 64:
        if outputs % 192 == 0:
            return [ConvConfig(128, 128, 64, block_k, 8)]
        return []
    if outputs % 96 == 0 and beyond:
        return [ConvConfig(128, 64, 32, block_k, 8, num_stages=4)]
    return [ConvConfig(128, 128, 0, block_k, 8, max_registers=128)]


LORA_ROWS = 32
"""Most rows of a tile of low-rank products. Tensor cores take no fewer than 16."""
LORA_FEW_ROWS = 256
"""Rows up to which those with the same adapter share a tile, wherever they stand. Of more,
neighbours share one."""
LORA_TILE_ROWS = 16
"""Rows of such a tile at most."""


class LoraConfig(NamedTuple):
    """`block_r` ranks (a power of two, all of them).

    The first product takes `block_k` inputs at a time, with four warps and pipelines of `stages`.
    The second takes `block_n` outputs, with `expand_warps`.
    """

    block_r: int
    block_k: int
    block_n: int
    stages: int
    expand_warps: int


def _block(count: int) -> int:
    """The power of two that holds so many, as tensor cores take them: 16 at least."""
    return max(16, 1 << (count - 1).bit_length())


def lora_config(rank: int, itemsize: int, sequences: bool) -> LoraConfig:
    """For low-rank weights of so many ranks, in bytes of each. sequences: a tile has the tokens of
    a sequence.

    Measured with a rank of 32, others are chosen by their size in shared memory.
    """
    block_r = _block(rank)
    if block_r > 32:
        return LoraConfig(block_r, 128 if block_r <= 64 else 32, 128 if block_r <= 64 else 64, 3, 4)
    block_n, expand_warps = (128, 2) if sequences else (256, 4)
    return LoraConfig(block_r, 128, block_n, 4 if itemsize == 2 else 3, expand_warps)


def lora_splits(k: int) -> tuple[int, int]:
    """(CTAs that share k inputs, inputs of each). The number of rows has no part in it, so that a
    row's sums have one order."""
    if k < 1024:
        splits = 1
    elif k < 4096:
        splits = 2
    else:
        splits = 4
    return splits, -(-k // (splits * 128)) * 128


class LoraTile(NamedTuple):
    """`rows` of a tile, in blocks of `block_m`, of `tiles` tiles in all.

    one_adapter: all rows of a tile have the same adapter. They are those of one sequence, which has
    `chunks` tiles, or with by_adapter those of a table. Without one_adapter neighbours share a
    tile.
    """

    rows: int
    block_m: int
    tiles: int
    chunks: int
    one_adapter: bool
    by_adapter: bool = False

    @property
    def sequences(self) -> bool:
        """Whether a tile holds several tokens of one sequence."""
        return self.one_adapter and self.block_m == LORA_ROWS


def lora_tile(rows: int, per_row: int, sequences: int, by_adapter: bool = False) -> LoraTile:
    """For so many rows: `per_row` consecutive ones of a sequence, and more of it after those of all
    `sequences`.

    Prompts have many tokens with the same adapter side by side. by_adapter: there is a table of
    rows by adapter.
    """
    if by_adapter and rows == sequences:
        return LoraTile(
            LORA_TILE_ROWS, LORA_TILE_ROWS, sequences, 1, one_adapter=True, by_adapter=True
        )
    if per_row == 1 and rows > LORA_FEW_ROWS:
        return LoraTile(LORA_ROWS, LORA_ROWS, -(-rows // LORA_ROWS), 1, one_adapter=False)
    rows_each = rows // sequences
    tile = min(rows_each, LORA_ROWS)
    chunks = -(-rows_each // tile)
    return LoraTile(
        tile, 16 if tile <= 16 else LORA_ROWS, sequences * chunks, chunks, one_adapter=True
    )
