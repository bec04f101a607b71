"""Options that Serve gets for replicas. Ray is imported and not started."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from stentor.server.config import ServerConfig
from stentor.server.speech.outcomes import Outcome, Outcomes

pytest.importorskip("ray", reason="ray is not installed: pip install 'stentor[ray]'")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own


def deployed(config: ServerConfig) -> Any:
    from stentor.ray.replica import application

    return application(config)._bound_deployment


def test_requests_that_are_too_many_reach_the_server_which_refuses_them() -> None:
    """Serve would answer in plain text."""
    config = ServerConfig(replicas=2, max_active_requests=7, ws_max_sessions=5)
    made = deployed(config)
    assert made.max_ongoing_requests > config.max_active_requests + config.ws_max_sessions
    assert made.max_queued_requests == -1
    assert made.num_replicas == 2
    # without one, Serve does not wait in `reconfigure` until a replica is ready
    assert made.user_config == {}


@pytest.mark.parametrize(("share", "budget"), [(None, ()), (1.0, ()), (0.5, (30.0,))])
def test_ray_gives_each_replica_its_gpus(share: float | None, budget: tuple[float, ...]) -> None:
    made = deployed(ServerConfig(replicas=2, gpus_per_replica=share, max_memory_gb=budget))
    assert made.ray_actor_options["num_gpus"] == (share or 0)


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ([], 2),  # nothing is known: as many as there are
        ([0.0, 0.0], 1),
        ([0.5, 0.2], 1),
        ([0.6, 0.2], 2),
        ([1.0, 1.0], 3),
        ([9.0, 9.0], 4),  # the most
    ],
)
def test_autoscaling_keeps_seven_of_ten_slots_busy(loads: list[float], wanted: int) -> None:
    from stentor.ray.replica import slot_policy

    context: Any = SimpleNamespace(
        aggregated_metrics={"slot_load": {str(i): load for i, load in enumerate(loads)}},
        current_num_replicas=2,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
    )
    assert slot_policy(context)[0] == wanted


class Store:
    """An actor of outcomes. Calls of its methods count, and are answered at once."""

    def __init__(self) -> None:
        self.kept, self.calls = Outcomes(), 0
        self.add, self.find = SimpleNamespace(remote=self._add), SimpleNamespace(remote=self._find)

    def _add(self, outcome: Outcome) -> None:
        self.calls += 1
        self.kept.add(outcome)

    async def _find(self, id: str) -> Outcome | None:
        return await self.kept.find(id)


def test_outcomes_are_divided_among_actors_by_their_id() -> None:
    from stentor.ray.outcomes import SharedOutcomes

    stores = [Store() for _ in range(4)]
    speaks, asked = SharedOutcomes(stores), SharedOutcomes(stores)
    outcomes = [Outcome(f"req-{i}", "model") for i in range(100)]
    for outcome in outcomes:
        speaks.note_end(outcome)
    assert [asyncio.run(asked.find(o.id)) for o in outcomes] == outcomes
    assert sum(store.calls for store in stores) == 100
    assert min(store.calls for store in stores) > 10


@pytest.mark.parametrize(("replicas", "actors"), [(1, 1), (8, 1), (9, 2), (1000, 125)])
def test_eight_replicas_share_an_actor_of_outcomes(
    replicas: int, actors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from stentor.ray.outcomes import shared_stores

    named: list[str] = []
    made = SimpleNamespace(
        options=lambda name, **lasting: (
            named.append(name) or SimpleNamespace(remote=lambda most: most)
        )
    )
    monkeypatch.setattr(ray, "remote", lambda **resources: lambda kind: made)
    assert len(shared_stores("app", replicas)) == len(set(named)) == actors
