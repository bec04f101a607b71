"""A backtracking matcher that counts its steps, for tests of how a pattern's work grows with a text's length."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

Node = tuple[Any, Any]
Continue = Callable[[int], bool]
SINGLE = frozenset({sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN, sre.RANGE, sre.CATEGORY})
WORD = {sre.CATEGORY_WORD: True, sre.CATEGORY_NOT_WORD: False}
DIGIT = {sre.CATEGORY_DIGIT: True, sre.CATEGORY_NOT_DIGIT: False}
SPACE = {sre.CATEGORY_SPACE: True, sre.CATEGORY_NOT_SPACE: False}


def is_word(sign: str) -> bool:
    return sign.isalnum() or sign == "_"


class StepCounter:
    """Matches `pattern` as `re` does, without its shortcuts. `steps` counts nodes that were tried.

    longest: bound of counted repetitions ("{1,400}"), so that short texts show how the work grows.
    """

    def __init__(self, pattern: re.Pattern[str], longest: int | None = None) -> None:
        self.steps = 0
        self.longest = longest
        self.flags = pattern.flags
        self.nodes: list[Node] = list(parser.parse(pattern.pattern, pattern.flags))
        self.groups: dict[int, tuple[int, int]] = {}

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Spans of all matches, as of `finditer`."""
        self.text = text
        spans = list(self._all())
        return spans

    def _all(self) -> Iterator[tuple[int, int]]:
        at = 0
        last_empty = -1
        while at <= len(self.text):
            end = self._at(at, last_empty)
            if end is None:
                at += 1
                continue
            yield at, end
            if end == at:
                last_empty = at
            at = end if end > at else at + 1

    def _at(self, start: int, barred: int) -> int | None:
        ends: list[int] = []

        def accept(end: int) -> bool:
            ends.append(end)
            return True

        self.groups = {}
        if self._sequence(self.nodes, 0, start, accept, self.flags):
            return ends[0]
        return None

    def _sequence(self, nodes: list[Node], index: int, at: int, then: Continue, flags: int) -> bool:
        if index == len(nodes):
            return then(at)
        self.steps += 1
        kind, value = nodes[index]
        if kind in SINGLE:
            return (
                at < len(self.text)
                and self._is(kind, value, self.text[at], flags)
                and self._sequence(nodes, index + 1, at + 1, then, flags)
            )

        def rest(end: int) -> bool:
            return self._sequence(nodes, index + 1, end, then, flags)

        return bool(self._node(kind, value, at, rest, flags))

    def _node(self, kind: Any, value: Any, at: int, then: Continue, flags: int) -> bool:
        if kind is sre.AT:
            return self._anchored(value, at, flags) and then(at)
        if kind is sre.BRANCH:
            return any(self._sequence(list(option), 0, at, then, flags) for option in value[1])
        if kind is sre.SUBPATTERN:
            return self._group(value, at, then, flags)
        if kind is sre.GROUPREF:
            start, end = self.groups.get(value, (0, -1))
            part = self.text[start : max(start, end)]
            return end >= 0 and self.text.startswith(part, at) and then(at + len(part))
        if kind is sre.ATOMIC_GROUP:
            end = self._end(list(value), at, flags)
            return end is not None and then(end)
        if kind in (sre.ASSERT, sre.ASSERT_NOT):
            return self._looks(value, at, flags) == (kind is sre.ASSERT) and then(at)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            return self._repeat(kind, value, at, then, flags)
        if kind is sre.FAILURE:
            return False
        raise NotImplementedError(str(kind))

    def _group(self, value: Any, at: int, then: Continue, flags: int) -> bool:
        number, added, removed, inside = value

        def closed(end: int) -> bool:
            before = self.groups.get(number)
            if number is not None:
                self.groups[number] = at, end
            if then(end):
                return True
            if before is None:
                self.groups.pop(number, None)
            else:
                self.groups[number] = before
            return False

        return self._sequence(list(inside), 0, at, closed, (flags | added) & ~removed)

    def _end(self, nodes: list[Node], at: int, flags: int) -> int | None:
        ends: list[int] = []

        def accept(end: int) -> bool:
            ends.append(end)
            return True

        if self._sequence(nodes, 0, at, accept, flags):
            return ends[0]
        return None

    def _looks(self, value: Any, at: int, flags: int) -> bool:
        direction, inside = value
        if direction > 0:
            return self._end(list(inside), at, flags) is not None
        width = inside.getwidth()[0]
        return at >= width and self._end(list(inside), at - width, flags) is not None

    def _repeat(self, kind: Any, value: Any, at: int, then: Continue, flags: int) -> bool:
        low, high, item = value
        if high is sre.MAXREPEAT:
            high = len(self.text) + 1
        if self.longest is not None:
            low = min(low, self.longest)
            high = high if value[1] is sre.MAXREPEAT else min(high, self.longest)
        nodes = list(item)
        if len(nodes) == 1 and nodes[0][0] in SINGLE:
            return self._repeat_sign(kind, low, high, nodes[0], at, then, flags)
        if kind is sre.POSSESSIVE_REPEAT:
            return self._repeat_atomic(low, high, nodes, at, then, flags)
        return self._repeat_group(kind, low, high, nodes, at, then, flags)

    def _repeat_sign(
        self, kind: Any, low: int, high: int, node: Node, at: int, then: Continue, flags: int
    ) -> bool:
        most = 0
        if kind is sre.MIN_REPEAT:
            while most < low and self._sign(node, at + most, flags):
                most += 1
            if most < low:
                return False
            while not then(at + most):
                if most >= high or not self._sign(node, at + most, flags):
                    return False
                most += 1
            return True
        while most < high and self._sign(node, at + most, flags):
            most += 1
        if kind is sre.POSSESSIVE_REPEAT:
            return most >= low and then(at + most)
        return any(then(at + size) for size in range(most, low - 1, -1))

    def _sign(self, node: Node, at: int, flags: int) -> bool:
        self.steps += 1
        return at < len(self.text) and self._is(*node, self.text[at], flags)

    def _repeat_atomic(
        self, low: int, high: int, nodes: list[Node], at: int, then: Continue, flags: int
    ) -> bool:
        count = 0
        while count < high:
            end = self._end(nodes, at, flags)
            if end is None or (end == at and count >= low):
                break
            at = end
            count += 1
        return count >= low and then(at)

    def _repeat_group(
        self, kind: Any, low: int, high: int, nodes: list[Node], at: int, then: Continue, flags: int
    ) -> bool:
        def again(count: int, here: int) -> bool:
            def more(end: int) -> bool:
                return (end > here or count < low) and again(count + 1, end)

            if count < low:
                return self._sequence(nodes, 0, here, more, flags)
            if kind is sre.MIN_REPEAT and then(here):
                return True
            if count < high and self._sequence(nodes, 0, here, more, flags):
                return True
            return kind is not sre.MIN_REPEAT and then(here)

        return again(0, at)

    def _anchored(self, value: Any, at: int, flags: int) -> bool:
        text = self.text
        before = at > 0 and is_word(text[at - 1])
        after = at < len(text) and is_word(text[at])
        if value in (sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY):
            return (before != after) == (value is sre.AT_BOUNDARY)
        if value is sre.AT_BEGINNING:
            return at == 0 or bool(flags & re.MULTILINE and text[at - 1] == "\n")
        if value is sre.AT_BEGINNING_STRING:
            return at == 0
        if value is sre.AT_END_STRING:
            return at == len(text)
        line_end = bool(flags & re.MULTILINE) and text[at : at + 1] == "\n"
        return at == len(text) or line_end or text[at:] == "\n"

    def _is(self, kind: Any, value: Any, sign: str, flags: int) -> bool:
        if flags & re.IGNORECASE:
            return self._matches(kind, value, sign.lower()[:1]) or self._matches(
                kind, value, sign.upper()[:1]
            )
        return self._matches(kind, value, sign)

    def _matches(self, kind: Any, value: Any, sign: str) -> bool:
        if kind is sre.LITERAL:
            return ord(sign) == value
        if kind is sre.NOT_LITERAL:
            return ord(sign) != value
        if kind is sre.ANY:
            return sign != "\n" or bool(self.flags & re.DOTALL)
        if kind is sre.RANGE:
            return bool(value[0] <= ord(sign) <= value[1])
        if kind is sre.CATEGORY:
            return _in_category(value, sign)
        negated = value[0][0] is sre.NEGATE
        some = value[1:] if negated else value
        return any(self._matches(*node, sign) for node in some) != negated


def _in_category(value: Any, sign: str) -> bool:
    if value in WORD:
        return is_word(sign) == WORD[value]
    if value in DIGIT:
        return sign.isdecimal() == DIGIT[value]
    return sign.isspace() == SPACE[value]


def steps(pattern: re.Pattern[str], text: str, longest: int | None = None) -> int:
    """Number of steps to find every match of a pattern in a text."""
    counter = StepCounter(pattern, longest)
    counter.spans(text)
    return counter.steps


def repeated(pattern: re.Pattern[str], signs: str) -> list[str]:
    """One sign for each set of the pattern's unbounded repetitions that take the same: of `signs`,
    or one that a repetition names."""
    counter = StepCounter(pattern)
    items = [node for node, bounds in _loops(counter.nodes) if bounds[1] is sre.MAXREPEAT]
    chosen: dict[tuple[bool, ...], str] = {}
    for sign in (*signs, *_named(items)):
        takes = tuple(counter._is(*node, sign, counter.flags) for node in items)
        if any(takes):
            chosen.setdefault(takes, sign)
    return list(chosen.values())


def _named(items: Iterable[Node]) -> Iterator[str]:
    """Signs that are written in a pattern, and the first one of each range."""
    for kind, value in items:
        if kind is sre.LITERAL:
            yield chr(value)
        elif kind is sre.RANGE:
            yield chr(value[0])
        elif kind is sre.IN:
            yield from _named(value)


def heads(pattern: re.Pattern[str]) -> set[str]:
    """Return beginnings of matches: the plainest text for each place in a pattern."""
    reached: set[str] = set()
    _sample(StepCounter(pattern).nodes, "", reached)
    return reached


def has_possessive_group(pattern: re.Pattern[str]) -> bool:
    """Whether a group, not a single sign, is matched possessively or atomically."""
    return _commits(StepCounter(pattern).nodes)


def _commits(nodes: Iterable[Node]) -> bool:
    for kind, value in nodes:
        if kind is sre.ATOMIC_GROUP:
            return True
        if kind is sre.POSSESSIVE_REPEAT and [k for k, _ in value[2] if k not in SINGLE]:
            return True
        if _commits(_inside(kind, value)):
            return True
    return False


def _loops(nodes: Iterable[Node]) -> Iterator[tuple[Node, tuple[Any, Any]]]:
    """Single signs inside of a repetition, with its bounds."""
    for kind, value in nodes:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            yield from ((node, value[:2]) for node in _leaves(value[2]))
        yield from _loops(_inside(kind, value))


def _leaves(nodes: Iterable[Node]) -> Iterator[Node]:
    for kind, value in nodes:
        if kind in SINGLE:
            yield kind, value
        yield from _leaves(_inside(kind, value))


def _inside(kind: Any, value: Any) -> list[Node]:
    """Nodes one level below a node."""
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return list(value[2])
    if kind is sre.BRANCH:
        return [node for option in value[1] for node in option]
    if kind is sre.SUBPATTERN:
        return list(value[3])
    if kind is sre.ATOMIC_GROUP:
        return list(value)
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return list(value[1])
    return []


def _sample(nodes: Iterable[Node], text: str, reached: set[str]) -> str:
    """`text` with the plainest match of the nodes behind it. Every step on the way goes to `reached`."""
    for kind, value in nodes:
        reached.add(text)
        if kind in SINGLE:
            text += next((c for c in PLAIN if StepCounter._matches(PLAINEST, kind, value, c)), "?")
        elif kind is sre.BRANCH:
            samples = [_sample(option, text, reached) for option in value[1]]
            text = samples[0]
        elif kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            once = _sample(value[2], text, reached)
            text += once[len(text) :] * min(value[0], 2)
        elif kind in (sre.SUBPATTERN, sre.ATOMIC_GROUP):
            text = _sample(_inside(kind, value), text, reached)
    reached.add(text)
    return text


PLAIN = [*"aA1 ", *map(chr, range(32, 127)), "\n", *map(chr, range(160, 0x2FFF))]
PLAINEST = StepCounter(re.compile(""))
