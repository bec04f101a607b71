"""Origins of web pages, as people write them and as browsers send them."""

from __future__ import annotations

from urllib.parse import urlsplit

from stentor.errors import InvalidRequest

DEFAULT_PORTS = {"http": 80, "https": 443}
ANY = "*"
OPAQUE = "null"  # a sandboxed page, or a file


def parse_origin(text: str) -> str:
    """Return an origin as browsers send it: lower case, without the default port and without a
    slash at the end.

    InvalidRequest for a text that no browser sends.
    """
    if text in (ANY, OPAQUE):
        return text
    refusal = InvalidRequest(
        "allowed_origins",
        f"must look like https://app.example or http://localhost:3000, got {text!r}",
    )
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").encode("idna").decode()
        port = parts.port
    except ValueError:
        raise refusal from None
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if not parts.scheme or not host or rest:
        raise refusal
    if ":" in host:
        host = f"[{host}]"
    if port is None or port == DEFAULT_PORTS.get(parts.scheme):
        return f"{parts.scheme}://{host}"
    return f"{parts.scheme}://{host}:{port}"
