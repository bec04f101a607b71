"""Read YAML that others wrote within limits, as `untrusted` reads JSON: an alias may stand for
billions of values."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser

from stentor.arguments.untrusted import MAX_DEPTH, MAX_DIGITS, TOO_DEEP, Unreadable, decoded

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def parse_yaml(text: str | bytes, loader: type[Any]) -> Any:
    """The value of a YAML text. loader: yaml.SafeLoader, yaml.BaseLoader, or a class of these.

    Aliases are not taken: nine lines of them stand for billions of values.
    """
    if isinstance(text, bytes):
        text = decoded(text)
    try:
        return yaml.load(text, type("Limited", (_Limits, loader), {}))
    except yaml.YAMLError as e:
        raise Unreadable(f"is not YAML: {' '.join(str(e).split())}") from None
    except ValueError as e:  # a date that is none
        raise Unreadable(f"is not YAML: {e}") from None


class _Limits(Parser, Composer):
    """Refuses nodes that are too deep, aliases and long numbers before anything is made of them."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        parser: Any = self  # its methods have no types
        if parser.check_event(yaml.AliasEvent):
            raise Unreadable(f"has an alias on line {parser.peek_event().start_mark.line + 1}")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(TOO_DEEP)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise Unreadable(
                f"has a number of {len(node.value)} digits, at most {MAX_DIGITS} are allowed"
            )
        return node
