"""`--replicas`: speakers in processes of their own, on this machine or a cluster. Ray starts,
places, replaces them.

They are actors, each of which speaks many items at a time. Only lines and rows travel: audio goes
to files in the folder of the run, which all machines must share. A map over batches of items (Ray
Data) would wait for the longest of each batch, with an engine that empties.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from stentor.batch.item import BatchItem, ItemOutcome, Run
from stentor.batch.speaker import Speaker
from stentor.errors import EngineError, InvalidRequest, StentorError
from stentor.host.local_ray import own_ray

THREADS = 256  # of an actor that is not told how many texts its engine speaks at once
RESTARTS = 4  # of one actor. What it was speaking is spoken again
CRASHED = 70  # exit code of an actor whose engine has stopped


class BatchReplica:
    """An actor: a speaker that ends its process when its engine stops, so that Ray starts
    another."""

    def __init__(self, run: Run, work: Path) -> None:
        self._speaker = Speaker(run, work)

    def ready(self, defaults: Mapping[str, Any]) -> tuple[int, frozenset[str]]:
        """Items that should be with it at a time, and options of its model. InvalidRequest if it
        does not take the defaults of the run."""
        self._speaker.check(defaults)
        return self._speaker.at_once, self._speaker.options

    def speak(self, item: BatchItem) -> ItemOutcome:
        """Speak an item as `Speaker.speak`."""
        try:
            return self._speaker.speak(item)
        except EngineError:
            os._exit(CRASHED)


@dataclass
class _Actor:
    handle: Any
    running: int = 0  # items. Counted under the pool's lock


class RayPool:
    """`replicas` speakers. A Ray that RAY_ADDRESS names is used, else one is started on this
    machine."""

    def __init__(self, run: Run, work: Path, replicas: int) -> None:
        _start(replicas)
        actor = ray.remote(BatchReplica).options(
            num_cpus=1,
            num_gpus=_gpus(run, replicas),
            max_concurrency=2 * run.load["max_num_seqs"] if "max_num_seqs" in run.load else THREADS,
            max_restarts=RESTARTS,
            max_task_retries=-1,
            scheduling_strategy="SPREAD",
        )
        run = replace(run, load={**run.load, "model": _anywhere(run.load.get("model"))})
        self._actors = [_Actor(actor.remote(run, work)) for _ in range(replicas)]
        self.options: frozenset[str] = frozenset()
        self.at_once = 0
        self._lock = threading.Lock()  # Ray calls back in a thread of its own

    def check(self, defaults: Mapping[str, Any]) -> None:
        """Wait until every speaker is ready. InvalidRequest if the model does not take the defaults
        of the run."""
        try:
            ready = ray.get([actor.handle.ready.remote(dict(defaults)) for actor in self._actors])
        except ray.exceptions.RayError as e:
            raise _cause(e) from e
        self.options = ready[0][1]
        self.at_once = sum(count for count, _ in ready)

    def submit(self, item: BatchItem) -> Future[ItemOutcome]:
        with self._lock:
            actor = min(self._actors, key=lambda each: each.running)
            actor.running += 1
        outcome: Future[ItemOutcome] = Future()

        def ended(spoken: Future[ItemOutcome]) -> None:
            with self._lock:
                actor.running -= 1
            error = spoken.exception()
            if error is None:
                outcome.set_result(spoken.result())
            else:
                outcome.set_exception(_cause(error))

        actor.handle.speak.remote(item).future().add_done_callback(ended)
        return outcome

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor.handle)
        ray.shutdown()


def _start(replicas: int) -> None:
    """Join the Ray that RAY_ADDRESS names, or start one. Raises EngineError."""
    try:
        ray.init(
            **({} if "RAY_ADDRESS" in os.environ else own_ray(replicas)),
            configure_logging=False,
            log_to_driver=False,
        )
    except Exception as e:  # Ray has no class for this
        raise EngineError(f"Ray could not be started: {e}") from e


def _gpus(run: Run, replicas: int) -> int:
    """GPUs of each speaker. InvalidRequest if there are some, but not enough."""
    if run.load.get("device") == "cpu":
        there = 0
    else:
        there = int(ray.cluster_resources().get("GPU", 0))
    if 0 < there < replicas:
        ray.shutdown()
        raise InvalidRequest("replicas", f"each takes a GPU, and there are {there}")
    if there:
        return 1
    return 0


def _anywhere(model: str | None) -> str | None:
    """The name of a model where the current folder is another."""
    if model is not None and Path(model).expanduser().exists():
        return str(Path(model).expanduser().resolve())
    return model


def _cause(error: BaseException) -> BaseException:
    """Find what an actor raised, or why there is no actor."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
    else:
        cause = error
    if isinstance(cause, StentorError | OSError):
        return cause
    return EngineError(
        f"a replica failed, and --resume continues: {str(cause).strip().splitlines()[-1]}"
    )
