"""The items of a Realtime conversation: text that clients write, and what was spoken."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, ValidationError

from stentor.server.doors.realtime.settings import unsupported
from stentor.server.errors import ApiError, from_pydantic, invalid
from stentor.server.limits import LIMITS
from stentor.server.schemas import Body, Text

TEXTS = ("input_text", "output_text", "text")
Name = Annotated[str, Field(min_length=1, max_length=LIMITS.name_chars)]


class Spoken(Protocol):
    """The response that made an item."""

    @property
    def sent_ms(self) -> float:
        """How much audio there is so far."""
        ...

    async def truncate(self, ms: int) -> None:
        """Keep of the item's text what was heard within so many milliseconds of the audio."""
        ...


def new_id(kind: str) -> str:
    """An id such as item_0123456789abcdef."""
    return f"{kind}_{secrets.token_hex(8)}"


class Part(Body):
    """One part of a message. Only text is taken."""

    type: str
    text: Text | None = None


class GivenItem(Body):
    """An item that a client writes, or names by its id."""

    id: Name | None = None
    type: str = "message"
    role: Literal["user", "assistant", "system"] = "user"
    content: list[Part] = Field(default_factory=list, max_length=LIMITS.conversation_items)


@dataclass(eq=False)
class Item:
    """A message. spoken: whether it has been, or is what was spoken. response: that made it, if one did."""

    id: str
    role: str
    text: str
    spoken: bool = False
    status: str = "completed"
    response: Spoken | None = field(default=None, repr=False)

    def as_dict(self, beta: bool) -> dict[str, Any]:
        """The item as a client reads it. Audio is not kept."""
        if self.response is not None:
            content = [{"type": "audio" if beta else "output_audio", "transcript": self.text}]
        else:
            kind = "input_text" if self.role == "user" else "text" if beta else "output_text"
            content = [{"type": kind, "text": self.text}]
        shared = {"id": self.id, "object": "realtime.item", "type": "message", "status": self.status}
        return {**shared, "role": self.role, "content": content if self.text else []}


def parsed(value: Any, param: str = "item") -> Item:
    """A message that a client writes. ApiError for what is not text to speak."""
    if not isinstance(value, Mapping):
        raise invalid(param, "must be an object")
    try:
        given = GivenItem.model_validate(value)
    except ValidationError as e:
        raise from_pydantic(e) from None
    if given.type != "message":
        raise unsupported(f"items of type {given.type[:80]!r}", f"{param}.type")
    if given.role == "system":
        raise unsupported("messages of the system (instructions of the session say how to speak)", f"{param}.role")
    for part in given.content:
        if part.type not in TEXTS:
            raise unsupported(f"content of type {part.type[:80]!r}", f"{param}.content")
    return Item(given.id or new_id("item"), given.role, "".join(part.text or "" for part in given.content))


class Conversation:
    """Items in their order. The oldest are forgotten."""

    def __init__(self) -> None:
        self.id = new_id("conv")
        self.items: list[Item] = []

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item, at the end if no other is named. Returns the id of the one before it."""
        if any(known.id == item.id for known in self.items):
            raise invalid("item.id", f"there is an item {item.id!r} already", "item_exists")
        at = len(self.items) if after is None else 0 if after == "root" else self.items.index(self.find(after)) + 1
        self.items.insert(at, item)
        before = self.items[at - 1].id if at else None
        if len(self.items) > LIMITS.conversation_items:
            del self.items[0]
        return before

    def find(self, id: Any, param: str = "item_id") -> Item:
        """The item of an id. ApiError 404 if there is none."""
        found = next((item for item in self.items if item.id == id), None)
        if found is None:
            raise ApiError(404, f"{param}: there is no item {str(id)[:80]!r}", param=param, code="item_not_found")
        return found

    def take_unspoken(self) -> str:
        """The text of the messages that have not been spoken, which counts as spoken from now on."""
        waiting = [item for item in self.items if not item.spoken]
        for item in waiting:
            item.spoken = True
        return "\n".join(item.text for item in waiting)
