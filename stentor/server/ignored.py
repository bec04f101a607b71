"""Parts of a request that are not used: fields that the model has no use for, pieces of text that it cannot speak, and
reference audio that is hardly heard.

The answer names it in the header X-Ignored, events and JSON under `ignored`. `serve --strict` refuses the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from stentor.server.errors import clipped, invalid
from stentor.server.limits import LIMITS

HEADER = "X-Ignored"


class Item(NamedTuple):
    """A field by its name, or a piece of the text of field `param`."""

    param: str
    text: str | None = None

    @property
    def encoded(self) -> str:
        """Printable ASCII without commas: `name`, or `name="piece"`. Both are percent-encoded."""
        name = quote(self.param, safe="[]")
        return name if self.text is None else f'{name}="{quote(self.text, safe="")}"'

    def as_dict(self) -> dict[str, str]:
        return {"param": self.param} if self.text is None else {"param": self.param, "text": self.text}


class Ignored:
    """Parts of one request that are not used, in the order found, each once."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self._items: dict[Item, None] = {}
        self._more = 0  # beyond LIMITS.ignored_items

    def field(self, name: str, why: str) -> None:
        """Note a field that is not used, and why. ApiError 400 in a strict server."""
        if self.strict:
            raise invalid(name, why)
        self._add(Item(clipped(name, LIMITS.param_chars)))

    def piece(self, text: str, param: str = "input") -> None:
        """Note a piece of text that cannot be spoken. A short silence stands for it, in a strict server too."""
        self._add(Item(param, clipped(text, LIMITS.piece_chars)))

    def quiet(self, param: str) -> None:
        """Note that the audio of field `param` is so quiet that what is spoken with it can hardly be heard."""
        self._add(Item(param, "quiet"))

    def _add(self, item: Item) -> None:
        if item in self._items:
            return
        if len(self._items) < LIMITS.ignored_items:
            self._items[item] = None
        else:
            self._more += 1

    def copy(self) -> Ignored:
        """One that goes on by itself."""
        same = Ignored(self.strict)
        same._items, same._more = dict(self._items), self._more
        return same

    def extend(self, others: Ignored) -> None:
        """Note those of another too."""
        for item in others._items:
            self._add(item)
        self._more += others._more

    def renamed(self, names: Mapping[str, str]) -> Ignored:
        """Return them with other names of fields."""
        same = Ignored(self.strict)
        same._items = {item._replace(param=names.get(item.param, item.param)): None for item in self._items}
        same._more = self._more
        return same

    def header(self) -> dict[str, str]:
        """The header of an answer. Without one if everything is used. `+3` at its end: three more are not named."""
        named: list[str] = []
        size = 0
        for item in self._items:
            size += len(item.encoded) + 2
            if size > LIMITS.ignored_bytes:
                break
            named.append(item.encoded)
        more = len(self._items) - len(named) + self._more
        named += [f"+{more}"] if more else []
        return {HEADER: ", ".join(named)} if named else {}

    def as_json(self) -> dict[str, list[dict[str, Any]]]:
        """Member of an event or a JSON answer: `{"ignored": [{"param", "text"?}, ...]}`, or nothing."""
        return {"ignored": [item.as_dict() for item in self._items]} if self._items else {}
