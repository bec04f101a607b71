"""Shared parts of the drivers of interrupted turns: a long answer, and whether the server has freed its places."""

import asyncio
import re
import urllib.request

SENTENCES = (
    "This is a long sentence that goes on. ",
    "And here is another one that is long. ",
) * 12
PATIENCE = 60.0  # seconds


def aborted(url: str) -> int:
    """Speech requests of the server that were cancelled."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        page = answer.read().decode()
    counts = re.findall(
        r'^stentor:speech_stream_aborted_total\{.*"cancelled".*\} (\S+)', page, re.M
    )
    return int(sum(map(float, counts)))


async def freed(url: str, before: int) -> bool:
    """Whether one more request has been cancelled since there were `before`."""
    end = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < end:
        if await asyncio.to_thread(aborted, url) > before:
            return True
        await asyncio.sleep(0.02)
    return False
