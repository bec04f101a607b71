"""scripts/prose.py reports pages that a reader would find too long, and quotes that have gone."""

from __future__ import annotations

from scripts import prose


def test_semicolons_of_prose_count_and_those_of_code_do_not():
    text = "Words " * 1000
    assert list(prose.semicolons(text + "; " * 4)) == []
    assert len(list(prose.semicolons(text + "; " * 5))) == 1
    assert list(prose.semicolons(text + "`a;b;c;d;e`\n```\n;;;;;\n```\n")) == []


def test_a_page_with_a_limit_is_neither_shorter_nor_longer():
    assert list(prose.length("word " * 449, "README.md")) == ["449 words, must be 450 to 950"]
    assert list(prose.length("word " * 950, "README.md")) == []
    assert len(list(prose.length("word\n" * 21, "docs/README.md"))) == 1
    assert list(prose.length("word " * 5000, "docs/serving.md")) == []


def test_an_answer_of_a_decision_has_fifteen_words_at_most():
    row = "| Why? | {} | yes | [details](log/decisions.md) |\n"
    assert list(prose.answers(row.format("word " * 15))) == []
    assert len(list(prose.answers(row.format("word " * 16)))) == 1


def test_a_quote_that_the_readme_has_lost_is_reported():
    readme = "stentor speaks\nin many voices."
    assert list(prose.first_minute(readme, "> `speaks in many voices`\n")) == []
    assert len(list(prose.first_minute(readme, "> `sings`\n"))) == 1
