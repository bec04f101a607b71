"""Text that arrives while it is spoken: what each step feeds, and which of them make a patch.

While text is open, a fixed number of tokens go before each patch, one in each step, and then the
patch itself. Only the step that feeds the last of these tokens makes a patch, so the others hide
what they make: the last patch again. When the text has ended, its rest and a mark are fed in the
same way, and from then on every step feeds a patch and makes the next one. What is fed depends on
the tokens alone, not on when they came.

A value of the column `feed` encodes a step: the token it feeds, whether it makes a patch, whether
all text has arrived, and how many patches come before its own, or before the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stentor.errors import InvalidRequest
from stentor.layers.types import Column
from stentor.models.base import Rows
from stentor.models.byte_bpe import WithheldText
from stentor.models.dots_tts.config import Quotas

FEED = 2048
"""Steps of a request at most."""
AUDIO = -1
"""In place of a token: the last patch."""
TOKEN_BITS = 24
NOTHING_OPEN = 3
"""Opening of a request whose whole text is known: its first step makes a patch, and all text has
come."""
COLUMNS = {
    "feed": Column((FEED,), torch.int64),
    "opening": Column(dtype=torch.int64, fill=NOTHING_OPEN),
}


def value(token: int, makes: bool, ended: bool, patch: int) -> int:
    """One value of `feed`."""
    return ((patch * 2 + ended) * 2 + makes) << TOKEN_BITS | (token + 1)


class StepActions(NamedTuple):
    """Actions of a step [B]: the token that it feeds or AUDIO, whether it makes a patch, whether
    all text has come, and how many patches come before that one."""

    token: Tensor
    makes: Tensor
    ended: Tensor
    patch: Tensor


def turn_of(rows: Rows, live: bool) -> StepActions:
    """live: whether the checkpoint takes text that arrives. Else every step feeds a patch and makes
    one."""
    step = rows["step"]
    if not live:
        yes = torch.ones_like(step, dtype=torch.bool)
        return StepActions(torch.full_like(step, AUDIO), yes, yes, step)
    actions = rows.lookup("feed", (step - 1).clamp(0, FEED - 1))
    plain = rows["opening"] == NOTHING_OPEN
    usual = ((step * 4) + 3) << TOKEN_BITS
    actions = torch.where(
        plain, usual, torch.where(step == 0, rows["opening"] << TOKEN_BITS, actions)
    )
    flags = actions >> TOKEN_BITS
    return StepActions(
        (actions & ((1 << TOKEN_BITS) - 1)) - 1, flags & 1 == 1, flags & 2 == 2, flags >> 2
    )


class Arrivals:
    """Live text of one prompt, as values of `feed` (models.base.LiveText.more)."""

    def __init__(self, encode: Callable[[str], list[int]], quotas: Quotas, end: int) -> None:
        self._encode = encode
        self._quotas = quotas
        self._end = end
        self._text = WithheldText(encode)
        self._buffer = list[int]()
        self._patch = 0
        self._free = FEED
        self._ended = False
        self.tokens = 0

    def first(self, text: str) -> list[int]:
        """Tokens of the first quota, if the beginning of the text has as many. None of them are fed
        by steps."""
        self._take(text, False)
        quota = self._quotas.of(0)
        if len(self._buffer) < quota:
            return []
        first = self._buffer[:quota]
        self._buffer = self._buffer[quota:]
        self._patch = 1
        return first

    def __call__(self, text: str, last: bool) -> np.ndarray:
        if self._ended:
            raise InvalidRequest("text", "nothing may follow the last text")
        self._take(text, last)
        values = self._ready()
        if last:
            self._ended = True
            values += self._step([*self._buffer, self._end], ended=True)
            values += [
                value(AUDIO, True, True, self._patch + i) for i in range(self._free - len(values))
            ]
        if len(values) > self._free:
            raise InvalidRequest("text", "is too long for one request; go on in another")
        self._free -= len(values)
        return np.array(values, np.int64)

    def _take(self, text: str, last: bool) -> None:
        if last:
            ids = self._encode(self._text.rest(text))
        else:
            ids = self._text.more(text)
        self.tokens = self.tokens + len(ids)
        self._buffer += ids

    def _ready(self) -> list[int]:
        """Values of the quotas that are full."""
        values: list[int] = []
        while len(self._buffer) >= (quota := self._quotas.of(self._patch)):
            tokens = self._buffer[:quota]
            self._buffer = self._buffer[quota:]
            values += self._step(tokens, ended=False)
        return values

    def _step(self, tokens: list[int], ended: bool) -> list[int]:
        """Values that feed the patch before, then tokens, of which the last makes a patch."""
        if self._patch:
            before = [value(AUDIO, False, False, self._patch)]
        else:
            before = []
        fed = [value(token, False, False, self._patch) for token in tokens[:-1]]
        self._patch += 1
        return [*before, *fed, value(tokens[-1], True, ended, self._patch - 1)]
