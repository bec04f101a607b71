"""The web page at `/` and the API's at `/docs`: static files that load nothing from elsewhere,
without a build step."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from stentor.server.errors import ApiError

router = APIRouter(include_in_schema=False)

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # no script or file of another site runs, and no other site may embed the page, which can use
    # the microphone
    "Content-Security-Policy": "default-src 'self'; media-src 'self' blob:; img-src 'self' data:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # cached, but checked by ETag each time, so that a new version is used at once
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Asset:
    data: bytes
    media_type: str
    etag: str


SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")  # from the package fastapi-offline


@cache
def assets() -> dict[str, Asset]:
    """The files of both pages by name."""
    by_name = {}
    swagger = (files("fastapi_offline").joinpath("static", name) for name in SWAGGER)
    for f in (*files("stentor.server").joinpath("web").iterdir(), *swagger):
        kind = TYPES.get("." + f.name.rpartition(".")[2])
        if kind is not None:
            data = f.read_bytes()
            by_name[f.name] = Asset(data, kind, f'"{hashlib.sha256(data).hexdigest()[:16]}"')
    return by_name


@router.api_route("/", methods=["GET", "HEAD"])
async def page(request: Request) -> Response:
    return _respond(request, assets()["index.html"])


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    return _respond(request, assets()["docs.html"])


@router.api_route("/web/{name}", methods=["GET", "HEAD"])
async def asset(request: Request, name: str) -> Response:
    file = assets().get(name)
    if file is None:
        raise ApiError(404, "no such file")
    return _respond(request, file)


def _respond(request: Request, asset: Asset) -> Response:
    headers = {**HEADERS, "ETag": asset.etag}
    if request.headers.get("If-None-Match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.data, media_type=asset.media_type, headers=headers)
