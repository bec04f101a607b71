"""A device that is busy for a fixed time per step, so that two cores can show how replicas scale, and that can be lost.

Run: STENTOR_STEP_MS=20 python benchmarks/replicas/device.py serve dummy:toy      the plain server on such a device
Needs: the packages of `stentor[server]`.

`import_path: benchmarks.replicas.device:app` is a replica on it. STENTOR_LOSE names a file. The first device that finds
it removes it and fails like a CUDA device. The file beside it with the ending .lost then has the time and the number of
streams that it was speaking.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2])
)  # this tree, also where none is installed
from stentor.engine.running.model_runner import ModelRunner

if TYPE_CHECKING:
    from ray.serve import Application

    from stentor.engine.running.model_runner import InFlightStep
    from stentor.engine.scheduling.sequence import Sequence

STEP, LOSE = "STENTOR_STEP_MS", "STENTOR_LOSE"


def install() -> None:
    """Make every decode step of this process take so long as the environment says."""
    step, plain = float(os.environ.get(STEP, "0")) / 1e3, ModelRunner.decode

    def decode(self: ModelRunner, sequences: list[Sequence]) -> InFlightStep:
        if lose := os.environ.get(LOSE):
            _fail_if_asked(Path(lose), len(sequences))
        time.sleep(step)
        return plain(self, sequences)

    ModelRunner.decode = decode  # type: ignore[method-assign]


def _fail_if_asked(asked: Path, streams: int) -> None:
    try:
        asked.unlink()
    except FileNotFoundError:
        return
    asked.with_suffix(".lost").write_text(
        json.dumps({"at": time.monotonic(), "streams": streams}), encoding="utf-8"
    )
    raise torch.AcceleratorError("planted: the device is gone")


def app(args: Mapping[str, Any]) -> Application:
    """Build `stentor.ray:app` with replicas on this device. The environment of the cluster has the time of a step."""
    from benchmarks.replicas.replica import SlowReplica
    from stentor.ray import configured
    from stentor.ray.replica import application

    return application(configured(args), SlowReplica)


if __name__ == "__main__":
    from stentor.cli import main

    install()
    sys.exit(main())
