"""Messages between an engine's process and an API process, as they arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stentor.server.engines import messages as m


def transmitted(
    messages: Sequence[m.Command] | Sequence[m.Event], arrays: Sequence[np.ndarray]
) -> tuple[memoryview, memoryview]:
    """Return messages and the bytes of their arrays, as `m.commands` and `m.events` take them."""
    (parts,) = m.Unpacker().feed(m.pack(m.encode(messages, arrays)))
    return parts
