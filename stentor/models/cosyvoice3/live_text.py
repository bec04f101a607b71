"""Text that comes while the model speaks (bi-streaming): what is fed when, and when codes are
drawn.

Five tokens of text go before fifteen codes each. As long as the voice has codes, those follow. Then
the model makes codes and requests text by the code `fill`, at the latest after fifteen. The rest of
the text, and the code `task`, come last. Arrivals alone decide what is fed, so the codes do not
depend on when it was.

What a step feeds follows from the frame before: a code, or MARK + n for value n of the column
`feed`. Such frames have no audio, and neither have codes before they are drawn. A value is 4 times
a row of the model's table, plus a kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stentor import kernels
from stentor.errors import InvalidRequest
from stentor.layers.types import Column
from stentor.models.base import Emit, Rows
from stentor.models.byte_bpe import settled
from stentor.models.cosyvoice3.config import FEED, MARK, MAX_SILENT, MIX, LanguageConfig
from stentor.models.cosyvoice3.language_model import mask_early
from stentor.models.cosyvoice3.tokenizer import MARKS

NEXT, DRAW, LAST = range(3)
"""Kinds of what follows a value: another one, a code, or the codes to the end."""
AGAIN = -1
"""In place of a row: what was fed when the model asked for text is fed again, as the original
does."""
TEXT, CODES = MIX
COLUMNS = {
    "feed": Column((FEED,), torch.int64),
    **{name: Column(dtype=torch.int64) for name in ("taken", "made_count", "next_fill", "asks")},
}
Value = tuple[int, int]


def encoded(fed: list[Value]) -> np.ndarray:
    """Values of the column `feed`."""
    return np.array([4 * row + kind for row, kind in fed], np.int64)


class Mixing:
    """From tokens, one by one, to what is fed: (row, kind) of each. Both lists are rows of the
    table."""

    def __init__(self, buffer: list[int], codes: list[int]) -> None:
        self._buffer = buffer
        self._codes = codes
        self._begun = False

    def before(self) -> list[int]:
        """Rows that are fed whatever text comes."""
        rows: list[int] = []
        while len(self._codes) > CODES and len(self._buffer) >= TEXT:
            rows += self._block_and_codes()
        return rows

    def add(self, token: int) -> list[Value]:
        self._buffer.append(token)
        fed: list[Value] = []
        while self._codes and len(self._buffer) >= TEXT:
            fed += [(row, NEXT) for row in self._block_and_codes()]
        if self._codes:
            return fed
        if self._begun and len(self._buffer) >= TEXT:
            fed += [(row, NEXT) for row in self._block()]
        elif self._begun:
            return fed
        self._begun = True
        return [*fed[:-1], (fed[-1][0], DRAW)]

    def end(self, task: int) -> list[Value]:
        if self._begun:
            again = [AGAIN]
        else:
            again = []
        return [*((row, NEXT) for row in again + self._buffer), (task, LAST)]

    def _block_and_codes(self) -> list[int]:
        codes = self._codes[:CODES]
        self._codes = self._codes[CODES:]
        return self._block() + codes

    def _block(self) -> list[int]:
        block = self._buffer[:TEXT]
        self._buffer = self._buffer[TEXT:]
        return block


class Arrivals:
    """Live text of one prompt, as values of `feed` (models.base.LiveText.more)."""

    def __init__(self, encode: Callable[[str], list[int]], mixing: Mixing, task: int) -> None:
        self._encode = encode
        self._mixing = mixing
        self._task = task
        self._held = ""
        self._free = FEED
        self._ended = False
        self.tokens = 0

    def __call__(self, text: str, last: bool) -> np.ndarray:
        values = encoded(self.take(text, last))
        if len(values) > self._free:
            raise InvalidRequest("text", "is too long for one request; go on in another")
        self._free -= len(values)
        return values

    def take(self, text: str, last: bool) -> list[Value]:
        """Values for more text. What could still change with the next letter is held back."""
        if self._ended:
            raise InvalidRequest("text", "nothing may follow the last text")
        buffered = self._held + text
        if last:
            cut = len(buffered)
        else:
            cut = settled(buffered)
        if not last and (open := re.search(MARKS.unfinished, buffered[:cut])):
            cut = open.start()
        ids = self._encode(buffered[:cut])
        self._held = buffered[cut:]
        self._ended = last
        self.tokens = self.tokens + len(ids)
        fed = [value for token in ids for value in self._mixing.add(token)]
        if last:
            return fed + self._mixing.end(self._task)
        return fed


class Turn(NamedTuple):
    """Actions of a step on its codes, [B] each. live: the model may request text. forced: it
    does."""

    draws: Tensor
    live: Tensor
    forced: Tensor
    num_tokens: Tensor


def turn_of(rows: Rows) -> Turn:
    step = rows["step"]
    before = rows["prev"][:, 0]
    marked = (before >= MARK) & (step > 0)
    kind = torch.where(marked, rows.lookup("feed", (before - MARK).clamp(0, FEED - 1)) & 3, DRAW)
    live = rows["asks"] == 1
    # the first step of a text that goes on is fed value 0 next
    draws = (kind != NEXT) & ~(live & (step == 0))
    asks = live & ~(marked & (kind == LAST))
    forced = asks & draws & (rows["made_count"] == rows["next_fill"])
    return Turn(draws, asks, forced, torch.where(marked, before - MARK + 1, rows["taken"]))


def fed_rows(rows: Rows, c: LanguageConfig) -> Tensor:
    """The row [B] of the table that a step feeds."""
    if kernels.slot_kernels_enabled(rows["step"].device):
        from stentor.models.cosyvoice3.live_text_kernels import fed_rows as fused

        return fused(rows["prev"], rows["step"], rows.column("feed"), rows.history(), c.text_vocab)
    before = rows.recent(2)[0][:, 1, 0]
    prev = _row_of(rows, rows["prev"][:, 0], c)
    return torch.where(prev < 0, _row_of(rows, before, c), prev)


def _row_of(rows: Rows, frame: Tensor, c: LanguageConfig) -> Tensor:
    at = (frame - MARK).clamp(0, FEED - 1)
    return torch.where(frame >= MARK, rows.lookup("feed", at) >> 2, frame + c.text_vocab)


def silent_run(code: Tensor, silent: Tensor, silence: Tensor) -> Tensor:
    """Silent codes in a row, up to code [B], which follows `silent` [B] of them. silence: the codes
    of it."""
    return torch.where((code[:, None] == silence).any(-1), silent + 1, 0)


class LiveStep:
    """Actions of a step on its codes. Of most rows all text is there, and each of their turns
    draws."""

    def __init__(self, rows: Rows, silence: Tensor, c: LanguageConfig) -> None:
        self._rows = rows
        self._silence = silence
        self._config = c
        self._turn = turn_of(rows)

    def masked(self, logits: Tensor) -> Tensor:
        """Logits [B, V] float32, in which what must not be drawn is -inf."""
        return mask_early(logits, self._rows, self._turn.live, self._config)

    def emitted(self, code: Tensor) -> Emit:
        """Return what each row makes of a sampled code [B]."""
        rows = self._rows
        turn = self._turn
        fill = self._config.fill
        recent = self._rows["made"]
        code = torch.where(turn.forced, fill, code)
        special = (code >= self._config.codes) & turn.draws
        asks = special & turn.live
        stop = special & ~turn.live
        speaks = turn.draws & ~special
        silent = torch.where(
            speaks, silent_run(code, rows["silent"], self._silence), rows["silent"]
        )
        latest = torch.where(asks, fill, code)[:, None]
        columns = {
            "silent": silent,
            "taken": turn.num_tokens,
            "asks": turn.live.long(),
            "made": torch.where(
                turn.draws[:, None], torch.cat((latest, recent[:, :-1]), dim=1), recent
            ),
            "made_count": rows["made_count"] + turn.draws,
            "next_fill": torch.where(asks, rows["made_count"] + CODES + 1, rows["next_fill"]),
        }
        frame = torch.where(speaks, code, torch.where(stop, 0, MARK + turn.num_tokens))
        frame = torch.where(turn.draws & (code < 0), code, frame)
        return Emit(frame[:, None], stop, columns, speaks & (silent <= MAX_SILENT))
