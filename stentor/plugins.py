"""Functions of other packages that a user names: `package.module:function`."""

from __future__ import annotations

import pkgutil
from typing import Any

from stentor.arguments import shown
from stentor.errors import InvalidRequest


def function_of(param: str, given: object) -> Any:
    """A function, or what `package.module:function` names. InvalidRequest(param) if it is none."""
    found = given
    if isinstance(given, str):
        if not all(given.partition(":")):
            raise InvalidRequest(param, f"must be package:function, got {shown(given)}")
        try:
            found = pkgutil.resolve_name(given)
        except Exception as e:  # whatever the package raises
            raise InvalidRequest(param, f"{shown(given)} cannot be imported: {type(e).__name__}: {e}") from e
    if not callable(found):
        raise InvalidRequest(param, f"must be package:function, or a function, got {shown(given)}")
    return found
