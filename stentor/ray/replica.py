"""A replica: one whole stentor server in a process that Ray Serve starts, feeds and replaces."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.ray import environment
from stentor.ray.outcomes import SharedOutcomes, shared_stores
from stentor.server import logs
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.engines import mps
from stentor.server.state import Server

log = logging.getLogger("stentor.server")

TARGET_LOAD = 0.7  # of all slots: what autoscaling keeps
OTHER_CONNECTIONS = 64  # lists, probes and metrics beside requests and sessions
POLL_S = 0.05
HEALTH_CHECK_S = 2


@serve.ingress()  # the app is made in the replica, by __serve_build_asgi_app__
class Replica:
    """One server. config: as of `stentor serve`."""

    server: Server

    def __init__(self, config: ServerConfig) -> None:
        environment.check(os.environ, config)
        environment.check_gpus(config, environment.visible_gpus())
        logs.configure(config.uvicorn_log_level, config.log_format)
        self.config = config

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Called by Ray after __init__. A lost model ends the process: Ray starts another in its
        place."""
        context = serve.get_replica_context()
        self.gpu_sharing = mps.begin(self.config)  # its daemon ends with this process
        self.server = Server(
            self.config,
            give_up=os._exit,
            outcomes=SharedOutcomes(shared_stores(context.app_name, self.config.most_replicas)),
            labels={"replica": context.replica_id.unique_id},
            gpus=self.gpu_sharing.engines,
        )
        app = create_app(self.config, self.server)
        app.add_middleware(WithoutRequestId)
        return app

    async def reconfigure(self, user_config: Any) -> None:
        """Called by Ray before a new replica gets requests: wait until every model has spoken."""
        while any(h.phase == "loading" for h in self.server.hosts.all):
            await asyncio.sleep(POLL_S)
        await self.check_health()

    async def check_health(self) -> None:
        """RuntimeError if a model is lost: Ray then starts another replica."""
        for host in self.server.hosts.all:
            if host.phase == "failed":
                raise RuntimeError(f"{host.name}: {host.reason}")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """slot_load: requests that run or wait, per slot."""
        healths = [h.health for h in self.server.hosts.all if h.health is not None]
        slots = sum(h.running + h.free_slots for h in healths)
        return {"slot_load": sum(h.running + h.queued for h in healths) / max(1, slots)}


class WithoutRequestId:
    """Removes our X-Request-Id from answers where Serve adds an equal one.

    Serve adds what the client has sent. Where that is no id (`RequestIds`), ours stays, and stands
    first.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_without(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("X-Request-Id") == Headers(scope=scope).get("X-Request-Id"):
                    del headers["X-Request-Id"]
            await send(message)

        await self.app(scope, receive, send_without)


def slot_policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """How many replicas keep `TARGET_LOAD` of all slots busy, within the limits. Serve calls it."""
    loads = list(((context.aggregated_metrics or {}).get("slot_load") or {}).values())
    if not loads:
        return context.current_num_replicas, {}
    replicas = -int(-sum(loads) / TARGET_LOAD // 1)
    low = context.capacity_adjusted_min_replicas
    high = context.capacity_adjusted_max_replicas
    return min(max(replicas, low, 1), high), {}


def application(config: ServerConfig, replica: type[Any] = Replica) -> serve.Application:
    """The Serve application of a configuration. Requests that are too many are refused by the
    server, not by Serve.

    replica: a class of replicas made from a configuration.
    """
    options: dict[str, Any] = {
        "name": "stentor",
        "user_config": {},  # so that Serve calls `reconfigure` before it sends requests
        "max_ongoing_requests": config.max_active_requests
        + config.ws_max_sessions
        + OTHER_CONNECTIONS,
        "max_queued_requests": -1,
        "graceful_shutdown_timeout_s": config.drain_seconds,
        "health_check_period_s": HEALTH_CHECK_S,
        "logging_config": {"enable_access_log": False},  # the server has its own
        "ray_actor_options": {"num_cpus": 1, "num_gpus": config.gpus_per_replica or 0},
    }
    if config.max_replicas is None:
        options["num_replicas"] = config.most_replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=config.min_replicas or 1,
            max_replicas=config.max_replicas,
            metrics_interval_s=1,
            look_back_period_s=5,
            upscale_delay_s=2,
            downscale_delay_s=120,
            policy={"policy_function": "stentor.ray.replica:slot_policy"},
        )
    return serve.deployment(replica).options(**options).bind(config)
