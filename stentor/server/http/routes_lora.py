"""LoRA adapters at run time, with the paths and bodies of vLLM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from stentor.server.config import ServerConfig
from stentor.server.errors import ApiError, failures, invalid
from stentor.server.http.bodies import JsonRoute
from stentor.server.limits import LIMITS
from stentor.server.lora_modules import lora_modules
from stentor.server.schemas import Body, Ignored
from stentor.server.state import server
from stentor.speech.client_names import taken_by_model


def _permitted(request: Request) -> None:
    """ApiError 404 unless the operator allows to load adapters at run time."""
    if not server(request).config.allow_runtime_lora_updating:
        message = "loading adapters at run time is off; stentor serve --allow-runtime-lora-updating turns it on"
        raise ApiError(404, message, code="not_found")


router = APIRouter(route_class=JsonRoute, tags=["adapters"], dependencies=[Depends(_permitted)])
Name = Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]


class LoadLora(Body):
    """The adapter at `lora_path` gets the name `lora_name`, for the model `base_model_name` or else
    the first."""

    lora_name: Name
    lora_path: Annotated[str, Field(min_length=1, max_length=LIMITS.lora_path_chars)]
    base_model_name: str | None = None


class UnloadLora(Body):
    """The adapter to unload."""

    lora_name: Name


@router.post(
    "/v1/load_lora_adapter",
    responses=failures(400, 401, 403, 404, 413, 415, 429, 503),
    response_class=PlainTextResponse,
)
async def load(request: Request, body: LoadLora) -> Response:
    """Load an adapter. Its name is a `model` from then on. Running requests go on."""
    s = server(request)
    ignored = _ignored(s.config, body)
    host = s.hosts.named(body.base_model_name)
    if (why := taken_by_model(body.lora_name, dict(s.hosts.served()))) is not None:
        raise invalid("lora_name", why)
    path = _allowed(s.config, body.lora_path)
    async with host.in_use():
        await host.adapters.load(body.lora_name, path)
    message = f"Success: LoRA adapter '{body.lora_name}' added successfully."
    return PlainTextResponse(message, headers=ignored.header())


@router.post(
    "/v1/unload_lora_adapter",
    responses=failures(400, 401, 404, 413, 415, 429, 503),
    response_class=PlainTextResponse,
)
async def unload(request: Request, body: UnloadLora) -> Response:
    """Unload an adapter. Requests that have it keep it to their end, and new ones are refused."""
    s = server(request)
    ignored = _ignored(s.config, body)
    host = s.hosts.of_adapter(body.lora_name)
    if host is None:
        raise ApiError(
            404,
            f"the lora adapter {body.lora_name!r} cannot be found",
            param="lora_name",
            code="not_found",
        )
    async with host.in_use():
        await host.adapters.unload(body.lora_name)
    message = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
    return PlainTextResponse(message, headers=ignored.header())


def _ignored(config: ServerConfig, body: Body) -> Ignored:
    ignored = Ignored(config.strict)
    ignored.unknown(body.model_extra or ())
    return ignored


def _allowed(config: ServerConfig, path: str) -> str:
    """The path of an adapter, if the operator allows to load it at run time: it is one of
    --lora-modules, or lies in --allowed-lora-path. ApiError 403 for others, whether they exist or
    not, 404 for one that does not exist, and 400 for what is no path."""
    if "\0" in path:
        raise ApiError(400, "lora_path: holds a NUL character", param="lora_path")
    if path in {m.path for m in lora_modules(config.lora_modules)}:
        return path
    folder = config.allowed_lora_path
    # of a loop: a path with the loop
    real_path = Path(os.path.realpath(path if folder is None else Path(folder, path)))
    if folder is None or not real_path.is_relative_to(os.path.realpath(folder)):
        raise ApiError(403, "lora_path: lies outside of --allowed-lora-path", param="lora_path")
    if not os.path.exists(real_path):  # not an error where a name is too long
        raise ApiError(
            404, f"lora_path: there is no adapter at {path!r}", param="lora_path", code="not_found"
        )
    return str(real_path)
