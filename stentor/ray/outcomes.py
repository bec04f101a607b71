"""Outcomes of requests that any replica can report: each sends an actor what has ended, and queries
it on a miss.

One actor would be the first limit of many replicas (docs/scaling_arithmetic.md), so there is one
for each `REPLICAS_OF_AN_ACTOR`. The id of a request selects it.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from stentor.server.limits import LIMITS
from stentor.server.speech.outcomes import Outcome, Outcomes

log = logging.getLogger("stentor.server")

ON_ITS_WAY_S = 0.2  # an outcome may be asked for before the actor has it
REPLICAS_OF_AN_ACTOR = 8
KEPT = REPLICAS_OF_AN_ACTOR * LIMITS.outcomes  # of each actor


def shared_stores(application: str, replicas: int) -> list[Any]:
    """The actors of an application, which the first replica starts. They outlive replicas, not the
    cluster."""
    actor = ray.remote(num_cpus=0, max_restarts=-1)(Outcomes)
    lasting = {"namespace": "stentor", "lifetime": "detached", "get_if_exists": True}
    names = [
        f"stentor-outcomes-{application}-{i}" for i in range(-(-replicas // REPLICAS_OF_AN_ACTOR))
    ]
    return [actor.options(name=name, **lasting).remote(KEPT) for name in names]


class SharedOutcomes(Outcomes):
    """Outcomes of this replica, and those of others that have ended. stores: the actors, each an
    `Outcomes`."""

    def __init__(self, stores: Sequence[Any]) -> None:
        super().__init__()
        self._stores = stores

    def note_end(self, outcome: Outcome) -> None:
        self._store(outcome.id).add.remote(outcome)

    async def find(self, id: str) -> Outcome | None:
        if (mine := await super().find(id)) is not None:
            return mine
        store = self._store(id)
        try:
            outcome: Outcome | None = await store.find.remote(id)
            if outcome is None:
                await asyncio.sleep(ON_ITS_WAY_S)
                outcome = await store.find.remote(id)
        except RayError as e:
            log.error("outcomes of other replicas cannot be read: %s", e)
            return None
        return outcome

    def _store(self, id: str) -> Any:
        # the same in every process
        return self._stores[zlib.crc32(id.encode()) % len(self._stores)]
