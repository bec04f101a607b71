"""Environment that Ray Serve needs in every process, before it is imported. Imports nothing of Ray.

Source: Ray Serve's documentation of HAProxy mode, and measurements in docs/log/2026-11.md
("replicas on Ray Serve").
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stentor.errors import InvalidRequest, StentorError
from stentor.host.local_ray import VARIABLES
from stentor.server.config import ServerConfig

# HAProxy ends what an old worker of it holds so long after a request may take
HARD_STOP_MARGIN_S = 30
PROXY_START_S = 60  # in which a proxy has to start. Ray's 5 s are too few on a machine that is busy
REQUIRED = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # bytes go to a replica's own port, not through an actor
    # else nothing stops a stream whose client does not read
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
HARD_STOP_DEFAULT = "120"
# how long HAProxy keeps a client that neither sends nor takes anything
SILENT = "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"
BALANCE = "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"


class WrongEnvironment(StentorError):
    """Ray runs with settings under which streams would be wrong or slow."""


def wanted(config: ServerConfig) -> dict[str, str]:
    """Variables for a Ray that we start."""
    variables = {
        **REQUIRED,
        HARD_STOP: str(int(config.request_timeout) + HARD_STOP_MARGIN_S),
        SILENT: str(int(max(config.request_timeout, config.ws_idle_seconds)) + HARD_STOP_MARGIN_S),
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PROXY_START_S),
        **VARIABLES,
    }
    if config.session_header is not None:
        variables[BALANCE] = _by_header(config.session_header)
    return variables


def prepare(config: ServerConfig) -> None:
    """Set what we need in this process, whose children inherit it. What a user has set stays."""
    for name, value in wanted(config).items():
        os.environ.setdefault(name, value)


def check(environment: Mapping[str, str], config: ServerConfig) -> None:
    """WrongEnvironment if a Ray that others have started lacks what streams of this configuration
    need."""
    needed = dict(REQUIRED)
    if config.session_header is not None:
        needed[BALANCE] = _by_header(config.session_header)
    wrong = [f"{name}={value}" for name, value in needed.items() if environment.get(name) != value]
    if float(environment.get(HARD_STOP, HARD_STOP_DEFAULT)) < config.request_timeout:
        wrong.append(f"{HARD_STOP}={wanted(config)[HARD_STOP]}")
    if wrong:
        raise WrongEnvironment(f"start Ray on every node with {' '.join(wrong)} in its environment")


def visible_gpus() -> bool:
    """Whether this process may use a GPU of NVIDIA. It does not initialise CUDA, which would take
    GPU memory."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(Path("/dev").glob("nvidia[0-9]*"))


def check_gpus(config: ServerConfig, visible_gpus: bool) -> None:
    """InvalidRequest if replicas have no GPUs of Ray's, but see some: each would take the first
    one."""
    if visible_gpus and not config.gpus_per_replica and config.uses_gpus:
        raise InvalidRequest(
            "gpus_per_replica",
            "must be above 0 where there are GPUs. To use none, set device to cpu",
        )


def _by_header(name: str) -> str:
    return f"hdr({name})"
