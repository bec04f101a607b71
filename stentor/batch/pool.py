"""The interface of what speaks the items of a batch: a model, replicas, a server."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from stentor.batch.item import BatchItem, ItemOutcome


class Pool(Protocol):
    """Speakers that work side by side."""

    @property
    def options(self) -> frozenset[str]:
        """Names of the options that the model takes."""
        ...

    @property
    def at_once(self) -> int:
        """Items that should be with it at a time, so that nothing waits for the caller."""
        ...

    def check(self, defaults: Mapping[str, Any]) -> None:
        """InvalidRequest if the model does not take the defaults of a run."""
        ...

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        """Have an item spoken. The future raises what ends the run."""
        ...

    def close(self) -> None:
        """Stop the work."""
        ...
