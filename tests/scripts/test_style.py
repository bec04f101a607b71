"""scripts/style.py counts what a reader stumbles over, and its list of exceptions only shrinks."""

from __future__ import annotations

import pytest

from scripts import style

GOOD = '''"""Pages of a cache."""


def free_pages(pages, capacity):
    """Return the number of pages that nobody uses."""
    low, high = high_water(pages), high_water(capacity)
    low, high = high, low
    return capacity - len(pages)
'''


def counted(measure: str, text: str) -> list[int]:
    source = style.Source("stentor/room/file.py", text)
    return [place.line for place in style.MEASURES[measure](source)]


@pytest.mark.parametrize("measure", style.MEASURES)
def test_plain_code_meets_every_measure(measure):
    assert counted(measure, GOOD) == []


@pytest.mark.parametrize(
    ("measure", "text", "lines"),
    [
        ("tokens", "a = [f(b[c], d[e]) + g(h) for i, j in k(l)]\n", [1]),
        ("tuples", "a = 1\nb, c = d.e, f(g)\n", [2]),
        ("tuples", "self.a, b = (), x\n", [1]),
        ("nested", "a = b if c else (d if e else f)\n", [1]),
        ("nested", "a = [b if c else d for e in (f if g else h)]\n", []),
        ("fillers", "for own in pages:\n    found = own\n", [1, 2]),
        ("fillers", "founder = found\n", []),
        ("columns", f"# {'a ' * 50}\n", [1]),
        ("columns", f"a = 1  # fmt: skip {'a' * 90}\n", []),
        ("columns", f"call(\n    {'a, ' * 40}\n)\ncall()  # fmt: skip\n", [2]),
        ("columns", f"call(\n    {'a, ' * 40}\n)  # fmt: skip\n", []),
        ("columns", f"def call(\n    {'a, ' * 40}\n):  # fmt: skip\n    return 1\n", []),
        ("columns", f"words = '{'a ' * 50}'\n", []),
        ("columns", f'"""Pages.\n\n{"a " * 60}\n"""\n', [3]),
        ("verbs", 'def a():\n    """Tell the engine what a client says."""\n', [2, 2]),
        ("verbs", 'def a():\n    """Parse the flags of `stentor say`."""\n', []),
        ("verbs", 'def a():\n    """Return 1."""\n    return "tell"\n', []),
    ],
)
def test_a_measure_counts_its_places_and_no_others(measure, text, lines):
    assert counted(measure, text) == lines


def test_figures_of_many_files_are_per_line_name_and_word():
    text = '"""Pages that it tells of."""\n\nfound = 1\npages = found if found else 2\n'
    figures = style.totals([style.Source("stentor/a.py", text)])
    assert figures == {
        "tokens": pytest.approx(10 / 2),
        "tuples": 0,
        "conditionals": 500,
        "fillers": 50,
        "verbs": 200,
    }


def test_the_package_itself_misses_what_its_files_miss_together():
    sources = [style.Source(f"stentor/{n}.py", "pages = 1\n") for n in range(style.ROOT_FILES + 1)]
    assert style.missed(sources) == {"stentor/": ["root"]}
    crowded = [style.Source("stentor/room/a.py", "found = 1\n"), *sources[1:]]
    assert style.missed(crowded) == {
        "stentor/": ["fillers"],
        "stentor/room/a.py": ["fillers"],
    }


def test_a_file_outside_the_package_does_not_count_for_it():
    assert style.missed([style.Source("scripts/a.py", "found = 1\n")]) == {
        "scripts/a.py": ["fillers"]
    }


def test_a_new_miss_and_an_entry_that_is_not_needed_are_both_reported():
    now = {"stentor/a.py": ["tokens", "verbs"]}
    listed = {"stentor/a.py": ["tokens"], "stentor/b.py": ["fillers"]}
    problems = style.differences(now, listed)
    assert len(problems) == 2
    assert problems[0].startswith("stentor/a.py: misses verbs")
    assert problems[1].startswith("stentor/b.py: meets fillers")
    assert style.differences(now, now) == []


def test_the_list_only_shrinks():
    now = {"stentor/a.py": ["tokens", "verbs"], "stentor/new.py": ["verbs"]}
    listed = {"stentor/a.py": ["columns", "tokens"], "stentor/b.py": ["fillers"]}
    assert style.still_needed(listed, now) == {"stentor/a.py": ["tokens"]}


@pytest.mark.parametrize(
    ("subject", "wrong"),
    [
        ("engines: inject the exit callback into the command reader", 0),
        ("engines: give a process's reader what ends it", 1),
        (f"engines: rename {'a' * 60}", 1),
    ],
)
def test_subjects_of_commits_are_short_and_have_no_verbs_of_people(subject, wrong):
    assert len(style.wrong_subjects([subject])) == wrong
