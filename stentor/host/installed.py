"""Where this stentor was installed from, and the command that adds one of its extras."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def pip_install(extra: str) -> str:
    """Return the command that installs an extra of this stentor."""
    return " ".join(["pip", "install", *map(_quoted, _source(f"[{extra}]"))])


def _quoted(word: str) -> str:
    return word if word.startswith("-") else shlex.quote(word)


def _source(extra: str) -> list[str]:
    """Words of pip for stentor with an extra, by how it was installed (PEP 610)."""
    from importlib import metadata
    from urllib.parse import urlparse
    from urllib.request import url2pathname

    try:
        record = metadata.distribution(PACKAGE.name).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # a clone on the search path
        return ["-e", f"{PACKAGE.parent}{extra}"]
    if record is None:  # an index
        return [f"stentor{extra}"]
    origin = json.loads(record)
    if "dir_info" in origin:
        folder = url2pathname(urlparse(origin["url"]).path)
        editable = ["-e"] if origin["dir_info"].get("editable") else []
        return [*editable, f"{folder}{extra}"]
    url = origin["url"]
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return [f"stentor{extra} @ {url}"]
