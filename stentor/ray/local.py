"""`stentor serve --replicas N`: Ray on this machine, started and stopped with this process."""

from __future__ import annotations

import logging
import os
import sys
import time
import urllib.request
from dataclasses import replace

import ray

from stentor.host.local_ray import own_ray
from stentor.ray import environment
from stentor.server import logs
from stentor.server.config import ServerConfig
from stentor.server.stop_signals import CRASHED, StopSignals

log = logging.getLogger("stentor.server")

WATCH_S = 0.5


def serve(config: ServerConfig) -> int:
    """Serve until SIGTERM or SIGINT, then wait for running requests. Returns the exit code of the
    process."""
    if "RAY_ADDRESS" in os.environ:
        print(
            "stentor serve: --replicas starts a Ray of its own; on a cluster use `serve run`",
            file=sys.stderr,
        )
        return 2
    environment.prepare(config)
    try:
        environment.check(os.environ, config)
    except environment.WrongEnvironment as e:
        print(f"stentor serve: {e}", file=sys.stderr)
        return 2
    from ray import serve as ray_serve  # reads the environment when it is imported

    from stentor.ray.replica import application

    logs.configure(config.uvicorn_log_level, config.log_format)
    stop = StopSignals()
    ray.init(**own_ray(config.most_replicas), configure_logging=False)
    try:
        if config.gpus_per_replica is None:
            if config.uses_gpus:
                gpus = ray.cluster_resources().get("GPU", 0)
            else:
                gpus = 0
            config = replace(config, gpus_per_replica=1.0 if gpus else 0.0)
        stop.install()  # after `ray.init`, which has handlers of its own
        ray_serve.start(
            proxy_location="HeadOnly", http_options={"host": config.host, "port": config.port}
        )
        try:
            ray_serve.run(application(config), name="stentor", route_prefix="/")
        except RuntimeError as e:
            log.error("the replicas could not be started: %s", e)
            return CRASHED
        while not stop.requested and not _answers(config):
            time.sleep(WATCH_S)
        log.info("%s replicas on http://%s:%d", config.most_replicas, config.host, config.port)
        while not stop.requested:
            time.sleep(WATCH_S)
        log.info("stopping; waiting for running requests")
        return 0
    finally:
        ray_serve.shutdown()
        ray.shutdown()


def _answers(config: ServerConfig) -> bool:
    """Whether the proxy passes requests on. It is started beside the replicas, and again if it was
    too slow."""
    if config.host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    else:
        host = config.host
    try:
        with urllib.request.urlopen(f"http://{host}:{config.port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
