"""What Ray Serve needs in the environment of every process, before it is imported. Imports nothing of Ray.

Source: Ray Serve's documentation of HAProxy mode, and measurements in docs/log.md ("replicas on Ray Serve").
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from stentor.errors import StentorError
from stentor.server.config import ServerConfig

HARD_STOP_MARGIN_S = 30  # HAProxy ends what an old worker of it holds so long after a request may take
PROXY_START_S = 60  # in which a proxy has to start. Ray's 5 s are too few on a machine that is busy
REQUIRED = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",  # bytes go to a replica's own port, not through an actor
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # else nothing stops a stream whose client does not read
}


class WrongEnvironment(StentorError):
    """Ray runs with settings under which streams would be wrong or slow."""


def wanted(config: ServerConfig) -> dict[str, str]:
    """Variables for a Ray that we start."""
    variables = {
        **REQUIRED,
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(int(config.request_timeout) + HARD_STOP_MARGIN_S),
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(PROXY_START_S),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    if config.session_header is not None:
        variables["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] = f"hdr({config.session_header})"
    return variables


def prepare(config: ServerConfig) -> None:
    """Set what we need in this process, whose children inherit it. What a user has set stays."""
    for name, value in wanted(config).items():
        os.environ.setdefault(name, value)


def check(environment: Mapping[str, str]) -> None:
    """WrongEnvironment if a Ray that others have started lacks what streams need."""
    wrong = [f"{name}={value}" for name, value in REQUIRED.items() if environment.get(name) != value]
    if wrong:
        raise WrongEnvironment(f"start Ray on every node with {' '.join(wrong)} in its environment")
