"""Tests that no pattern of stentor.text backtracks: its work grows with a text as the text does. Steps are counted."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import stentor.text
from stentor.text.cleanup import languages
from stentor.text.patterns import LazyPattern
from stentor.text.trace import WORD
from tests.helpers.pattern_steps import (
    StepCounter,
    has_possessive_group,
    heads,
    repeated,
    steps,
)

SIGNS = "a1A .,-—'\"()[]{}<>&#*_~`|/\\:;!?%$€+=@^\n\té。…’\u200b¬İ"
SHORT = 40
TAILS = ("", "\x01")
LINEAR = 6  # times the steps for four times the text; a quadratic pattern takes 10 to 16
BOUND = 8  # of counted repetitions: "{1,400}" is a constant
MOST_HEADS = 16
CALLS = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub")


def _modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(stentor.text.__path__, "stentor.text."):
        yield importlib.import_module(info.name)


def _compiled(value: Any, depth: int = 0) -> Iterator[re.Pattern[str]]:
    """Patterns in a value: itself, in a collection, or compiled at first use: by `lazy`, as an attribute `pattern`, or
    by a cached function."""
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, LazyPattern):
        yield value.compiled
    elif inspect.isroutine(getattr(value, "cache_clear", None)):
        signature = inspect.signature(value)
        if not signature.parameters and signature.return_annotation == "re.Pattern[str]":
            yield value()
    elif isinstance(value, dict):
        yield from _compiled(list(value.values()), depth)
    elif isinstance(value, tuple | list) and depth < 3:
        for item in value:
            yield from _compiled(item, depth + 1)
    elif isinstance(getattr(value, "pattern", None), re.Pattern):
        yield value.pattern


def _written(module: ModuleType) -> Iterator[re.Pattern[str]]:
    """Patterns that are written where they are used: `re.search("a+", text)`."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func) not in [f"re.{name}" for name in CALLS]:
            continue
        names = {n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)}
        if names <= vars(module).keys():
            written = eval(ast.unparse(node.args[0]), vars(module))
            yield re.compile(written)


def _patterns() -> dict[str, re.Pattern[str]]:
    patterns = {}
    for module in _modules():
        for pattern in (*_compiled(list(vars(module).values())), *_written(module)):
            patterns[f"{pattern.flags} {pattern.pattern}"] = pattern
    for code in languages.CODES.values():
        for rule in languages.rules(code):
            patterns[f"{rule.pattern.flags} {rule.pattern.pattern}"] = rule.pattern
    return {key: p for key, p in patterns.items() if repeated(p, SIGNS)}


PATTERNS = _patterns()


def runs(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield the beginning of a match, and the unit that is repeated behind it."""
    signs = repeated(pattern, SIGNS)
    beginnings = sorted(heads(pattern), key=lambda head: (len(head), head))
    for head in beginnings[:: max(1, len(beginnings) // MOST_HEADS)]:
        yield from ((head, sign) for sign in signs)
        if len(head) > 1:
            yield "", head
    yield from (("", "".join(pair)) for pair in itertools.permutations(signs, 2))


def worst_growth(pattern: re.Pattern[str]) -> tuple[float, str]:
    """How many times the steps a run takes when it is four times as long, and the run that takes most."""
    growth = (0.0, "")
    for head, unit in runs(pattern):
        times = SHORT // min(len(unit), 8)
        for tail in TAILS if len(unit) == 1 and not head else TAILS[1:]:
            short = steps(pattern, head + unit * times + tail, BOUND)
            long = steps(pattern, head + unit * 4 * times + tail, BOUND)
            growth = max(growth, (long / short, f"{head!r} + {unit!r} * n + {tail!r}"))
    return growth


@pytest.fixture(autouse=True)
def deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def test_the_package_has_patterns_to_look_at() -> None:
    assert len(PATTERNS) > 150
    assert any(pattern is WORD for pattern in PATTERNS.values())


@pytest.mark.parametrize("part", range(8))
def test_a_run_of_any_sign_is_read_in_proportion_to_its_length(part: int) -> None:
    slow = {}
    for key, pattern in list(PATTERNS.items())[part::8]:
        growth, run = worst_growth(pattern)
        if growth > LINEAR:
            slow[key[:200]] = f"{growth:.1f} times the steps: {run}"
    assert slow == {}


@pytest.mark.parametrize(
    "expression",
    [
        r"\s+x",
        r"\d+%",
        r"\[pause\s*[:=]?\s*\]",
        r"\S+?(?:—+(?=\w)|(?<=\w)--+(?=\w)|(?!\S))",
        r"\w+ [\w ]+@",
        r"<!--.*-->",
    ],
)
def test_patterns_that_backtrack_are_noticed(expression: str) -> None:
    assert worst_growth(re.compile(expression))[0] > LINEAR


def test_no_group_is_possessive() -> None:
    """Early releases of Python 3.11 match such groups wrongly: on 3.11.2, of Debian 12, one never ended."""
    assert has_possessive_group(re.compile(r"a(?:b|c+(?!d))*+"))
    assert has_possessive_group(re.compile(r"a(?>b+c|b)"))
    assert not has_possessive_group(re.compile(r"(?:a++[bc]{2,}+)*\s?+"))
    assert [key for key, pattern in PATTERNS.items() if has_possessive_group(pattern)] == []


@pytest.mark.parametrize(
    "text", ["A b-- c—d 12,345.6% <a b='c'>[x](/y/)", "a.b@c.de  --x\n\n1) I. ii"]
)
def test_steps_are_counted_on_the_way_to_what_re_finds(text: str) -> None:
    for pattern in PATTERNS.values():
        spans = [m.span() for m in pattern.finditer(text)]
        assert StepCounter(pattern).spans(text) == spans, pattern.pattern
