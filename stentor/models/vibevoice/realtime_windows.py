"""Schedule of the steps of a request: five tokens of text, then six latents, and so on until the
text has ended.

A window's last token makes its first latent. The step that feeds its sixth latent, with text to
come, makes none. From the last window on each step feeds a latent and makes the next one.

A value of the column `feed` is one step: the token that it feeds or none, whether it makes a
latent, and how many latents were fed before it. What is fed depends on the tokens alone, not on
when they came. A step whose value is 0 stands behind the column's end and feeds a latent.
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

WINDOW_TOKENS = 5
WINDOW_LATENTS = 6
FEED = 4096
"""Steps that the column has."""
NO_TOKEN = -1
"""In place of a token: the step feeds the last latent."""
TOKEN_BITS = 24
COLUMNS = {
    "feed": Column((FEED,), torch.int64),
    "opens": Column(dtype=torch.int64, fill=1),
    "streamed": Column(dtype=torch.int64),
}
"""opens: whether step 0 makes a latent. streamed: tokens that steps feed, where the column ends
with the last of them."""


def encode_step(token: int, makes: bool, latents: int) -> int:
    """A value of `feed`. latents: fed before it."""
    return (latents * 2 + makes) << TOKEN_BITS | (token + 1)


class Feed(NamedTuple):
    """Steps [B]: whether each feeds a token, the token, whether it makes a latent, and how many
    latents were fed before it."""

    is_text: Tensor
    token: Tensor
    makes: Tensor
    latents: Tensor


def read_feed(rows: Rows) -> Feed:
    """Decode the values of the present steps. Step 0 is the prompt's last token."""
    step = rows["step"]
    value = rows.lookup("feed", (step - 1).clamp(0, FEED - 1))
    behind = (value == 0) | (step > FEED)
    first = step == 0
    token = (value & ((1 << TOKEN_BITS) - 1)) - 1
    flags = value >> TOKEN_BITS
    is_text = (token >= 0) & ~behind | first
    makes = torch.where(first, rows["opens"] == 1, behind | (flags & 1 == 1))
    latents = torch.where(behind, step - 1 - rows["streamed"], flags >> 1).clamp_min(0)
    return Feed(is_text, token.clamp_min(0), makes, torch.where(first, 0, latents))


class WindowPlan:
    """Values of `feed` of one request, window by window.

    in_prompt: tokens of the first window that the prompt feeds.
    """

    def __init__(self, in_prompt: int) -> None:
        self._in_prompt = in_prompt
        self._latents = 0

    @property
    def wanted(self) -> int:
        """Tokens of the next full window that steps feed."""
        return WINDOW_TOKENS - self._in_prompt

    def window(self, tokens: list[int]) -> list[int]:
        """Values of the next window, whose tokens these are."""
        values = []
        if self._latents:
            values.append(self._feed_latent(makes=False))
        values += [encode_step(token, False, self._latents) for token in tokens[:-1]]
        values += [encode_step(token, True, self._latents) for token in tokens[-1:]]
        self._in_prompt = 0
        return values + self.latents(WINDOW_LATENTS - 1)

    def latents(self, count: int) -> list[int]:
        """Values of `count` steps that feed a latent and make the next one."""
        return [self._feed_latent(makes=True) for _ in range(count)]

    def _feed_latent(self, makes: bool) -> int:
        value = encode_step(NO_TOKEN, makes, self._latents)
        self._latents += 1
        return value


def plan_text(ids: list[int], in_prompt: int) -> list[int]:
    """Return the values of `feed` for a complete text, up to the step that feeds its last token.

    in_prompt: tokens of its first window, which the prompt feeds.
    """
    plan = WindowPlan(in_prompt)
    values = plan.window([])
    for start in range(in_prompt, len(ids), WINDOW_TOKENS):
        values += plan.window(ids[start : start + WINDOW_TOKENS])
    return values[: len(values) - (WINDOW_LATENTS - 1)]


def steps_until(values: list[int], latents: int) -> int:
    """Steps until `latents` latents have been made, with these values and step 0 before them."""
    makes = np.array([1, *((value >> TOKEN_BITS) & 1 for value in values)])
    planned = int(makes.sum())
    if latents > planned:
        return len(makes) + latents - planned
    return int(np.searchsorted(np.cumsum(makes), latents)) + 1


class LiveFeed:
    """Text of one prompt that arrives, as values of `feed` (models.base.LiveText.more).

    first: tokens that the prompt feeds. opens: whether these are the first window.
    """

    def __init__(self, encode: Callable[[str], list[int]], text: str) -> None:
        """text: its beginning, of which `first` is in the prompt."""
        self._encode = encode
        self._text = WithheldText(encode)
        self._tokens = list[int]()
        self._free = FEED
        self._ended = False
        self._take(text.lstrip(), False)
        if not self._tokens:
            # nothing of it is sure yet, and a prompt needs a token
            self._tokens = encode(self._text.rest())
        self.first = self._tokens[:WINDOW_TOKENS]
        self._tokens = self._tokens[WINDOW_TOKENS:]
        self._plan = WindowPlan(len(self.first))
        self.opens = len(self.first) == WINDOW_TOKENS
        self._latents_due = self.opens

    def __call__(self, text: str, last: bool) -> np.ndarray:
        if self._ended:
            raise InvalidRequest("text", "nothing may follow the last text")
        self._take(text, last)
        values = self._ready()
        if last:
            self._ended = True
            if self._tokens:
                values += self._plan.window(self._tokens)
            values += self._plan.latents(self._free - len(values))
        if len(values) > self._free:
            raise InvalidRequest("text", "is too long for one request; go on in another")
        self._free -= len(values)
        return np.array(values, np.int64)

    def _take(self, text: str, last: bool) -> None:
        if last:
            rest = self._text.rest(text)
            self._tokens += self._encode(rest.rstrip() + "\n")
        else:
            self._tokens += self._text.more(text)

    def _ready(self) -> list[int]:
        """Values of the windows that are full."""
        values: list[int] = []
        if self._latents_due:
            values += self._plan.window([])
            self._latents_due = False
        while len(self._tokens) >= (size := self._plan.wanted):
            values += self._plan.window(self._tokens[:size])
            self._tokens = self._tokens[size:]
        return values
