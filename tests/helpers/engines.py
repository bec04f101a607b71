"""Engines with one checkpoint, made once for each set of options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stentor import TTS

Make = Callable[..., TTS]


@contextmanager
def engines(folder: Path, prepare: Callable[[TTS], None], **usual: Any) -> Iterator[Make]:
    """Yield what makes an engine in float32 on a CPU, with other options than `usual` where a test wants them.

    prepare: what is done once with each, such as giving it the original's noise.
    """
    loaded: dict[str, TTS] = {}
    with ExitStack() as stack:

        def make(**options: Any) -> TTS:
            key = str(options)
            if key not in loaded:
                values = {"dtype": "float32", "max_num_seqs": 4, "threads": 1, **usual, **options}
                loaded[key] = stack.enter_context(TTS(folder, device="cpu", **values))
                prepare(loaded[key])
            return loaded[key]

        yield make
