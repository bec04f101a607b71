"""Replicas of the server on Ray Serve. `import_path: stentor.ray:app`. Needs the extra `stentor[ray]`.

A replica is one whole stentor server. Ray starts, places, watches, replaces and balances them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: Mapping[str, Any]) -> Application:
    """The Serve application, for `serve run`, `serve deploy` and KubeRay.

    args: options of `stentor serve`, with - or _, as in a file for `--config`. InvalidRequest names what is wrong.
    """
    from stentor.ray.replica import application
    from stentor.server.config import build, typed

    return application(build(typed(args)))
