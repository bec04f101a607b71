"""JSON texts: bounded in their number of values, and parsed in a thread when they are large.

A parser holds the interpreter for as long as it takes: 28 MB of empty lists take seconds, as much base64 0.15 s.
The number of values is therefore bounded before anything is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import numpy as np
import orjson
from starlette.exceptions import HTTPException

from stentor.server.limits import LIMITS

loads: Callable[[bytes], Any] = orjson.loads


async def parse(body: bytes, pool: Executor) -> Any:
    """The value of a JSON text. HTTPException 400: it has too many values. json.JSONDecodeError: it is not valid."""
    if len(body) <= LIMITS.inline_json_kib << 10:
        return _bounded(body)
    return await asyncio.get_running_loop().run_in_executor(pool, _bounded, body)


def _bounded(body: bytes) -> Any:
    letters = np.frombuffer(body, np.uint8)  # three times as fast as to count in bytes, and without the interpreter
    if sum(int(np.count_nonzero(letters == sign)) for sign in b",[{") > LIMITS.json_values:
        raise HTTPException(400, f"the body has more than {LIMITS.json_values} JSON values")
    return loads(body)
