"""Typed access to config.json. All families read their sizes through it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from sys import float_info
from typing import Any

from stentor.arguments import shown
from stentor.errors import CheckpointError

LARGEST = 2**20
MOST = 1024
"""A size, and a number of modules. Released checkpoints have at most 262,144 (positions) and 64
(layers)."""


class ConfigReader:
    """One JSON object, read key by key. Every CheckpointError names the file, the section and the
    key.

    A key whose value is null counts as left out: the read returns its default, or fails if it has
    none. What else is allowed is stated by each read. Booleans, NaN and infinity are never numbers.
    """

    def __init__(self, data: object, file: str = "config.json", section: str = "") -> None:
        if not isinstance(data, Mapping):
            raise CheckpointError(
                f"{file}: {section or 'it'} must be an object, got {type(data).__name__}"
            )
        self.data = data
        self.file = file
        self._section = section

    def error(self, key: str, problem: str) -> CheckpointError:
        """An error about `key`, for a check that the caller makes."""
        return CheckpointError(f"{self.file}: {self._name(key)} {problem}")

    def integer(
        self, key: str, default: int | None = None, *, low: int = 1, high: int = LARGEST
    ) -> int:
        """A whole number from `low` to `high`. Most are sizes of what is built next, which must fit
        a machine."""
        value = self._get(key, default)
        if not _is_integer(value) or not low <= value <= high:
            if low == 1:
                expected = "a positive integer"
            else:
                expected = f"an integer of at least {low}"
            if _is_integer(value) and value > high:
                upper_limit = f", at most {high}"
            else:
                upper_limit = ""
            raise self.error(key, f"must be {expected}{upper_limit}, got {shown(value)}")
        return int(value)

    def count(self, key: str, default: int | None = None) -> int:
        """How many modules or tables there are, such as layers."""
        return self.integer(key, default, high=MOST)

    def number(self, key: str, default: float | None = None, *, above: float = -inf) -> float:
        """A number greater than `above`."""
        value = self._get(key, default)
        if not _is_number(value) or value <= above:
            if above == -inf:
                expected = "a number"
            else:
                expected = f"a number above {above:g}"
            raise self.error(key, f"must be {expected}, got {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, got {shown(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, got {shown(value)}")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """One of some strings."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.error(key, f"must be one of {', '.join(allowed)}, got {value!r}")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """A list of strings."""
        values = self._get(key, default)
        if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
            raise self.error(key, f"must be a list of strings, got {shown(values)}")
        return tuple(values)

    def words(self, key: str) -> dict[str, str]:
        """Strings by name. Empty where the key is missing."""
        values = self._get(key, {})
        if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
            raise self.error(key, f"must be strings by name, got {values!r}")
        return dict(values)

    def integers(
        self, key: str, default: tuple[int, ...] | None = None, *, low: int = 1
    ) -> tuple[int, ...]:
        """A list of one to `MOST` whole numbers, each from `low` to `LARGEST`."""
        values = self._get(key, default)
        listed = isinstance(values, list | tuple) and 1 <= len(values) <= MOST
        if not listed or not all(_is_integer(v) and low <= v <= LARGEST for v in values):
            raise self.error(
                key, f"must be a list of integers from {low} to {LARGEST}, got {shown(values)}"
            )
        return tuple(values)

    def numbers(self, key: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        values = self._get(key, default)
        if not isinstance(values, list | tuple) or not all(_is_number(v) for v in values):
            raise self.error(key, f"must be a list of numbers, got {shown(values)}")
        return tuple(float(v) for v in values)

    def table(self, key: str, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """An object whose keys are names, such as speakers."""
        return dict(self.section(key, default).data)

    def section(self, key: str, default: Mapping[str, Any] | None = None) -> ConfigReader:
        return ConfigReader(self._get(key, default), self.file, self._name(key))

    def _get(self, key: str, default: object) -> Any:
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing")
        return value

    def _name(self, key: str) -> str:
        if self._section:
            return f"{self._section}.{key}"
        return key


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= float_info.max
    )
