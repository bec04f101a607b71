"""How many requests to an engine are open in each API process."""

from __future__ import annotations

from collections.abc import MutableSequence


class OpenRequests:
    """Open requests to one engine, from all API processes. Each process writes a cell of its own,
    without a lock: two that choose an engine at once may both choose this one."""

    def __init__(
        self, cells: MutableSequence[int] | memoryview | None = None, api: int = 0
    ) -> None:
        """cells: a count for each API process, in memory that they share. api: the number of this
        process."""
        self._cells = [0] if cells is None else cells
        self._api = api

    @property
    def total(self) -> int:
        """Requests of all API processes."""
        return sum(self._cells)

    def note(self, count: int) -> None:
        """Replace the number of this process's requests."""
        self._cells[self._api] = count
