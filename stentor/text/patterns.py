"""Regular expressions that are compiled when they are first used: a plain sentence needs few of
them, and to compile all takes longer than to make its first audio."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, cast


class LazyPattern:
    """A pattern whose methods are those of `compiled`."""

    def __init__(self, pattern: str, flags: re.RegexFlag) -> None:
        self._pattern = pattern
        self._flags = flags

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern as `re` has it."""
        return re.compile(self._pattern, self._flags)

    def __getattr__(self, name: str) -> Any:
        """Take a method of the compiled pattern. The next time it is an attribute."""
        method = getattr(self.compiled, name)
        setattr(self, name, method)
        return method


def lazy(pattern: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """A regular expression that is compiled when one of its methods is first called. The functions
    of `re` do not take it."""
    return cast(re.Pattern[str], LazyPattern(pattern, flags))
