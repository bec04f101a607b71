"""How long a test waits for what must happen. It ends a hang, and says nothing about speed."""

import time
from collections.abc import Callable

STUCK_S = 300.0  # real seconds: a machine on which twenty processes share a core is in time


def until(true: Callable[[], object], seconds: float = STUCK_S) -> bool:
    """Whether something becomes true within some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.02)
    return False
