"""Replicas of the server on Ray Serve. `import_path: stentor.ray:app`. Needs the extra
`stentor[ray]`.

A replica is one whole stentor server. Ray starts, places, watches, replaces and balances them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stentor.errors import InvalidRequest

if TYPE_CHECKING:
    from ray.serve import Application

    from stentor.server.config import ServerConfig

ANY = "0.0.0.0"  # where the proxy listens is not known here
OF_SERVE = ("host", "port")  # of the proxy, which all applications of a cluster share


def app(args: Mapping[str, Any]) -> Application:
    """The Serve application, for `serve run`, `serve deploy` and KubeRay.

    args: options of `stentor serve`, with - or _, as in a file for `--config`. InvalidRequest names
    what is wrong. WrongEnvironment: Ray was started without the variables that streams need.
    """
    config = configured(args)
    from stentor.ray.replica import (
        application,
    )  # imports Ray Serve, which reads the environment then

    return application(config)


def configured(args: Mapping[str, Any]) -> ServerConfig:
    """The configuration of each replica, from the arguments of `app`. Raises what `app` raises."""
    from stentor.ray import environment
    from stentor.server.config import build, typed

    options = typed(args)
    for name in OF_SERVE:
        if name in options:
            raise InvalidRequest(name, "belongs to Serve's own http_options, not to args")
    config = replace(build(options), host=ANY)
    if not config.scaled:
        config = replace(config, replicas=1)
    environment.check(os.environ, config)
    return config
