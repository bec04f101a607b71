"""Models, health, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.responses import Response

import stentor
from stentor.models import families
from stentor.server.config import FORMATS
from stentor.server.engines.model_engine import ModelEngine
from stentor.server.errors import failures
from stentor.server.model_hosts import ModelHost
from stentor.server.state import server
from stentor.server.wire_json import json_response


class SomePath(PathConvertor):
    """A path with slashes that is not empty, so that `/v1/models/` is `/v1/models`, as with other
    paths."""

    regex = ".+"


register_url_convertor("some_path", SomePath())
router = APIRouter()


def _model(name: str, host: ModelHost) -> dict[str, Any]:
    """OpenAI's Model object, and what our page and other clients need to know. `root` is the
    model's first name. Of an adapter it is its path, and `parent` is the model, as in vLLM."""
    base = {
        "id": name,
        "object": "model",
        "created": host.created,
        "owned_by": "stentor",
        "name": name,
    }
    path = host.adapters.paths.get(name)
    base |= {"root": path or host.name, "parent": host.name if path else None}
    base |= {"phase": host.phase, "resident": host.resident}
    if not host.serves and host.phase != "restarting":
        return base
    spec = host.spec
    family = families.named(spec.family)
    return {
        **base,
        "family": spec.family,
        "origin": None if family is None else family.origin,
        "sample_rate": spec.sample_rate,
        "voices": list(spec.voices),
        "voice_descriptions": dict(spec.voice_descriptions),
        "languages": list(spec.languages),
        "takes": {
            "instructions": spec.takes_instructions,
            "reference": spec.takes_reference,
            "prompt": spec.takes_prompt,
        },
        "speaker_size": spec.speaker_size,
        "word_timestamps": host.aligners.missing(spec, None, "") is None,
        "reference_seconds": list(spec.reference_seconds),
        "options": {
            name: {
                "default": o.default,
                "low": o.low,
                "high": o.high,
                "type": o.kind.__name__,
                "help": o.help,
            }
            for name, o in spec.options.items()
        },
        "response_formats": list(FORMATS),
        "max_input_chars": host.config.max_input_chars,
    }


@router.get("/v1/models", responses=failures(401), tags=["models"])
async def models(request: Request) -> dict[str, Any]:
    """The models served, under each of their names, with their voices, languages and options."""
    return {"object": "list", "data": _models(request)}


@router.get("/v1/models/{name:some_path}", responses=failures(401, 404), tags=["models"])
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model, by any of its names."""
    hosts = server(request).hosts
    if f"/{name}" in dict(hosts.served()):  # a directory's name. Slashes in a row have become one
        name = f"/{name}"
    return _model(name, hosts.named(name))


@router.get("/v1/audio/models", responses=failures(401), tags=["models"])
async def audio_models(request: Request) -> dict[str, Any]:
    """List the models in Open WebUI's shape."""
    models = _models(request)
    return {"object": "list", "models": models, "data": models}


def _models(request: Request) -> list[dict[str, Any]]:
    return [_model(name, host) for name, host in server(request).hosts.listed()]


@router.get("/health", tags=["state"], responses={503: {"description": "An engine is down"}})
async def health(request: Request) -> Response:
    """200 while every model that has been loaded has an engine that is alive, 503 with the reason
    otherwise. `engines` has the state of each engine of a model."""
    hosts = await server(request).hosts.refreshed()
    states = {h.name: _state(h) for h in hosts}
    bad = any(
        h.phase in ("failed", "restarting") or (h.health is not None and not h.health.ready)
        for h in hosts
    )
    body = {"status": "unhealthy" if bad else "ok", "models": states}
    return json_response(body, 503 if bad else 200)


def _state(host: ModelHost) -> dict[str, Any]:
    state: dict[str, Any] = {"phase": host.phase, "reason": host.reason, "restarts": host.restarts}
    state |= {"resident": host.resident, "waiting_for_load": host.residency.waiting}
    h = host.health
    if h is not None:
        state |= {
            "alive": h.alive,
            "ready": h.ready,
            "error": None if h.error is None else "the engine has stopped",
            "running": h.running,
            "queued": h.queued,
            "free_slots": h.free_slots,
            "free_pages": h.free_pages,
            "pages": h.pages,
        }
    state["engines"] = [_engine_state(host, engine) for engine in host.engines]
    return state


def _engine_state(host: ModelHost, engine: ModelEngine) -> dict[str, Any]:
    state: dict[str, Any] = {
        "device": host.config.engines[engine.number].device,
        "phase": engine.phase,
        "reason": engine.reason,
        "restarts": engine.restarts,
    }
    health = engine.health
    if health is not None:
        state |= {"running": health.running, "queued": health.queued}
    return state


@router.get(
    "/ready",
    tags=["state"],
    responses={503: {"description": "Not yet, or not any more. The phase says why"}},
)
async def ready(request: Request) -> Response:
    """200 once every model has spoken, 503 with the phase until then. An idle model that was
    unloaded is ready: a request has it loaded. Once all models were ready, it is 200 as long as one
    of them is."""
    hosts = await server(request).hosts.refreshed()
    waiting = [h for h in hosts if not h.serves or (h.health and not h.health.ready)]
    if not waiting:
        return json_response(
            {"ready": True, "phase": next((h.phase for h in hosts if h.phase != "ready"), "ready")}
        )
    if len(waiting) < len(hosts) and all(h.known for h in waiting):  # the others go on
        lost = {h.name: h.phase for h in waiting}
        return json_response({"ready": True, "phase": "ready", "without": lost})
    host = waiting[0]
    failing = host.phase == "ready" and host.health is not None and host.health.alive
    reason = "the last requests have all failed" if failing else host.reason
    body = {"ready": False, "phase": host.phase, "model": host.name, "reason": reason}
    return json_response(body, 503, {"Retry-After": "2"})


@router.get("/version", tags=["state"])
async def version() -> dict[str, str]:
    return {"version": stentor.__version__}


@router.get(
    "/metrics",
    response_class=Response,
    tags=["state"],
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    await server(request).hosts.refreshed()
    return Response(await server(request).others.metrics(), media_type=CONTENT_TYPE_LATEST)
