"""Reading of config.json: values that are accepted and refused."""

import math

import pytest

from stentor.errors import CheckpointError
from stentor.models.config_reader import ConfigReader

DATA = {
    "size": 4,
    "zero": 0,
    "eps": 1e-5,
    "yes": True,
    "none": None,
    "rates": [2, 5],
    "names": ["a"],
    "nan": math.nan,
    "huge": 10**400,
    "endless": [math.inf],
    "inner": {"deep": {"n": "x"}},
}


def reader() -> ConfigReader:
    return ConfigReader(DATA, "m/config.json")


def test_values_come_as_they_are():
    r = reader()
    assert (r.integer("size"), r.integer("zero", low=0), r.number("eps"), r.number("size")) == (
        4,
        0,
        1e-5,
        4.0,
    )
    assert (r.flag("yes"), r.integers("rates"), r.numbers("rates")) == (True, (2, 5), (2.0, 5.0))
    assert r.section("inner").section("deep").text("n") == "x"
    assert r.texts("names") == ("a",)
    assert r.table("inner") == {"deep": {"n": "x"}}


@pytest.mark.parametrize("key", ["none", "absent"])
def test_null_is_the_same_as_a_key_that_is_left_out(key: str):
    r = reader()
    assert (r.integer(key, 3), r.number(key, 0.5), r.flag(key, False), r.text(key, "t")) == (
        3,
        0.5,
        False,
        "t",
    )
    assert (r.integers(key, (1,)), r.texts(key, ()), r.table(key, {})) == ((1,), (), {})
    for read in (
        r.integer,
        r.number,
        r.flag,
        r.text,
        r.texts,
        r.integers,
        r.numbers,
        r.table,
        r.section,
    ):
        with pytest.raises(CheckpointError, match=rf"m/config\.json: {key} is missing"):
            read(key)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda r: r.integer("zero"), "zero must be a positive integer, got 0"),
        (lambda r: r.integer("size", low=5), "size must be an integer of at least 5, got 4"),
        (lambda r: r.integer("yes"), "yes must be a positive integer, got True"),
        (lambda r: r.integer("eps"), "eps must be a positive integer"),
        (lambda r: r.number("yes"), "yes must be a number"),
        (lambda r: r.number("zero", above=0), "zero must be a number above 0, got 0"),
        (lambda r: r.number("nan"), "nan must be a number, got nan"),
        (lambda r: r.number("huge"), "huge must be a number, got an integer of 1329 bits"),
        (lambda r: r.numbers("endless"), r"endless must be a list of numbers, got \[inf\]"),
        (lambda r: r.flag("size"), "size must be true or false"),
        (lambda r: r.text("size"), "size must be a string"),
        (
            lambda r: r.integers("rates", low=3),
            "rates must be a list of integers from 3 to 1048576",
        ),
        (lambda r: r.integers("size"), "size must be a list"),
        (lambda r: r.numbers("inner"), "inner must be a list of numbers"),
        (lambda r: r.texts("rates"), "rates must be a list of strings"),
        (lambda r: r.section("rates"), "rates must be an object, got list"),
        (
            lambda r: r.section("inner").section("deep").integer("n"),
            r"inner\.deep\.n must be a positive integer",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_file_and_section(read, message: str):
    with pytest.raises(CheckpointError, match=rf"m/config\.json: {message}"):
        read(reader())
