"""Functions of other packages that a user names: `package.module:function`."""

from __future__ import annotations

import pkgutil
from typing import Any

from stentor.arguments import shown
from stentor.errors import InvalidRequest


def function_named(param: str, name: str) -> Any:
    """Import what `package.module:function` names. InvalidRequest(param) if it cannot be."""
    package, _, function = name.partition(":")
    if not package or not function:
        raise InvalidRequest(param, f"must be package:function, got {shown(name)}")
    try:
        return pkgutil.resolve_name(name)
    except Exception as e:  # whatever the package raises
        raise InvalidRequest(param, f"{shown(name)} cannot be imported: {type(e).__name__}: {e}") from e
