"""Which graphs an engine captures before it is ready: few, but whatever is launched fits into one. No torch.

A step, a prefill or a codec call that finds no graph of its own size takes a larger one. So the largest of each kind
are enough, and a few smaller ones let short prompts and few streams be as fast as ever. The others are captured while
nobody asks for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Key = tuple[int, ...]

READY_ROWS = (64, 16, 1)
"""Rows of steps, frames 0 and codec calls, besides the most. A stream that is alone pays for nobody's padding. One more
graph of VoxCPM2's steps lengthens a start by 0.15 to 0.2 s."""
READY_TOKENS = (2048, 512, 64)
"""Tokens of prefills, besides the most: of several prompts, of a voice, and of a short text."""
READY_LENGTH = 3
"""Utterances that one codec call holds are padded to about so many times their length at most."""

Keys = tuple[list[Key], list[Key]]
"""What is captured before the engine is ready, and what later. Each in the order given."""


def divide(keys: Iterable[Key], ready: Callable[[Key], bool]) -> Keys:
    """Keys by whether they are captured before the engine is ready."""
    every = list(keys)
    return [k for k in every if ready(k)], [k for k in every if not ready(k)]


def steps(keys: Iterable[Key], num_evals: int) -> Keys:
    """(rows, pages, num_evals) of steps or frames 0. num_evals: the loop length of most requests.

    A row may be launched with a longer loop than it needs. So the longest is captured once, for the most rows. Of the
    others the usual loop comes first.
    """
    every = sorted(keys, key=lambda key: key[2] != num_evals)
    rows, pages, evals = (max((k[i] for k in every), default=0) for i in range(3))

    def ready(key: Key) -> bool:
        usual = key[1:] == (pages, num_evals) and key[0] in (rows, *READY_ROWS)
        return usual or key == (rows, pages, evals)

    return divide(every, ready)


def short(keys: list[Key]) -> list[Key]:
    """(rows, pages, num_evals) of steps with the kernels of these, for what is only compiled.

    Loops are short, but for the fewest rows, as a kernel's shape may depend on the length of its loop.
    """
    fewest = min((key[0] for key in keys), default=0)
    return sorted({(rows, pages, evals if rows == fewest else min(evals, 2)) for rows, pages, evals in keys})


def prefills(keys: Iterable[Key]) -> Keys:
    """(tokens, given frames, replayed frames)."""
    every = list(keys)
    tokens = max((k[0] for k in every), default=0)
    return divide(every, lambda key: key[0] in (tokens, *READY_TOKENS))


def codec_calls(keys: Iterable[Key]) -> Keys:
    """(rows, frames) of chunks, which have few lengths."""
    every = list(keys)
    most = {n: max(b for b, m in every if m == n) for _, n in every}
    return divide(every, lambda key: key[0] in (most[key[1]], *READY_ROWS))


def whole_calls(keys: Iterable[Key]) -> Keys:
    """(rows, frames) of utterances, which have many lengths: the longest, and others that are a third of the next."""
    every = list(keys)
    lengths: list[int] = []
    for frames in sorted({n for _, n in every}, reverse=True):
        if not lengths or frames * READY_LENGTH <= lengths[-1]:
            lengths.append(frames)
    few = codec_calls(k for k in every if k[1] in lengths)[0]
    return divide(every, lambda key: key in few)
