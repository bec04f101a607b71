"""Outcomes of requests that any replica can tell: each tells one actor what has ended, and asks it on a miss."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError

from stentor.server.limits import LIMITS
from stentor.server.speech.outcomes import Outcome, Outcomes

log = logging.getLogger("stentor.server")

ON_ITS_WAY_S = 0.2  # an outcome may be asked for before the actor has it
KEPT = 8 * LIMITS.outcomes  # of all replicas together


def shared_store(application: str) -> Any:
    """The actor of an application, which the first replica starts. It outlives replicas, not the cluster."""
    actor = ray.remote(num_cpus=0, max_restarts=-1)(Outcomes)
    name = f"stentor-outcomes-{application}"
    return actor.options(name=name, namespace="stentor", lifetime="detached", get_if_exists=True).remote(KEPT)


class SharedOutcomes(Outcomes):
    """Outcomes of this replica, and those of the others once they have ended. store: the actor, an `Outcomes` too."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self._store = store

    def note_end(self, outcome: Outcome) -> None:
        self._store.add.remote(outcome)

    async def find(self, id: str) -> Outcome | None:
        if (mine := await super().find(id)) is not None:
            return mine
        try:
            found: Outcome | None = await self._store.find.remote(id)
            if found is None:
                await asyncio.sleep(ON_ITS_WAY_S)
                found = await self._store.find.remote(id)
        except RayError as e:
            log.error("outcomes of other replicas cannot be read: %s", e)
            return None
        return found
