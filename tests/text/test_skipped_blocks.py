"""Code blocks and tables, which a reader may leave out."""

from __future__ import annotations

import pytest

from stentor import InvalidRequest
from stentor.text.cleanup import cleaned, steps

PAGE = """\
---
title: Nightly build
---
Run this first:

```bash
rm -rf build | tee log
```

| step | time |
|------|------|
| link | 3 s  |

Then `make` is quick.
"""


def read(text: str, wanted: str) -> str:
    return " ".join(cleaned(text, steps(wanted)).text.split())


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("all,skip-code,skip-tables", "Run this first: Then make is quick."),
        ("all,skip-code", "Run this first: step, time. link, 3 s. Then make is quick."),
        ("skip-tables,all", "Run this first: rm -rf build | tee log. Then make is quick."),
    ],
)
def test_blocks_are_left_out_where_a_request_names_them(wanted: str, expected: str):
    assert read(PAGE, wanted) == expected


def test_all_keeps_code_and_tables():
    assert "rm -rf build" in read(PAGE, "all")
    assert "link, 3 s" in read(PAGE, "all")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One.<pre class=x>a = 1</pre>Two.", "One. Two."),
        ("One.<TABLE><tr><td>a</td></tr></TABLE>Two.", "One. Two."),
        ("A <preface> is no tag, nor is a | b.", "A <preface> is no tag, nor is a | b."),
        ("One.\n\n~~~\nnever closed", "One."),
        ("- Item:\n  ```\n  code\n  ```\n- Next", "Item: Next."),
    ],
)
def test_tags_and_nested_blocks_are_left_out_too(text: str, expected: str):
    assert read(text, "all,skip-code,skip-tables") == read(expected, "all")


def test_places_stay_those_of_the_original_text():
    draft = cleaned(PAGE, steps("all,skip-code,skip-tables"))
    at = draft.text.index("quick")
    start, end = draft.source(at, at + 5)
    assert PAGE[start:end] == "quick"


def test_a_text_of_nothing_but_code_is_spoken():
    assert "code" in read("```\ncode\n```", "all,skip-code")


def test_an_unknown_step_is_refused_with_all_names():
    with pytest.raises(InvalidRequest, match="skip-code, skip-tables, notations; got 'code'"):
        steps("all,code")
