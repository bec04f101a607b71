"""Tables of written English (`tables.toml`), and words that begin a sentence, to cut text and to
read it."""

from __future__ import annotations

import tomllib
from pathlib import Path

TABLES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
)

MONTHS = (
    "January February March April May June July August September October November December"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SHORT_MONTHS = {name[:3]: name for name in MONTHS if name != "May"} | {"Sept": "September"}
SHORT_DAYS = {d[:3]: d for d in DAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}
TITLES = TABLES["titles"]
WORDS = TABLES["words"]
STREETS = TABLES["streets"]
NUMBERED = TABLES["numbered"]
DATED = TABLES["dated"]
BEFORE_NUMBER = frozenset(
    (*NUMBERED, *DATED, *"ver bd ed jan feb mar apr jun jul aug sep sept oct nov dec".split())
)
"""Abbreviations before a number. Before anything else their stop ends a sentence, as in "He said
no. Then"."""
_OTHER = frozenset(
    "msgr mx esq phd u.s u.k u.n u.s.a e.g i.e a.m p.m ph.d m.d b.a m.a b.sc m.sc d.c l.a n.b p.s a.k.a mon tue wed "
    "thu fri sat sun v hr bzw z.b d.h usw ca str fr sra srta sres ud uds mm mgr".split()
)
ALL = (
    frozenset(
        name.lower()
        for table in (TITLES, WORDS, STREETS, SHORT_MONTHS, SHORT_DAYS)
        for name in table
    )
    | _OTHER
)
"""In small letters, without the last stop."""
MAY_END = frozenset(
    "etc inc ltd co corp jr sr esq u.s u.k u.n u.s.a d.c l.a a.m p.m ph.d m.d b.a m.a b.sc m.sc ave blvd rd st hwy "
    "usw al approx min max avg".split()
)
"""Abbreviations that end a sentence where one of STARTERS follows: "at 5 p.m. She left"."""
STARTERS = frozenset(
    "a an the this that these those my your his her its our their each every some any no none both all most many few "
    "several another other such one he she it they we you i who what which whose whom someone somebody something "
    "everyone everybody everything nobody nothing anyone anything there here in on at by for from with without of to "
    "into onto over under after before during since until till about above across against along among around behind "
    "below beneath beside besides between beyond despite down inside near off out outside past through throughout "
    "toward towards up upon within and but or nor so yet because although though if unless while whereas whether when "
    "whenever where wherever why how as than then thus therefore hence however moreover furthermore meanwhile "
    "nevertheless nonetheless instead indeed still also too even only just now once soon later today tomorrow "
    "yesterday perhaps maybe again finally suddenly never always often sometimes usually yes please is are was were "
    "be am do does did has have had can could may might must shall should will would let".split()
)
"""The closed class of words that begin a sentence rather than go on with a name."""
CENSORED = (
    r"(?<![\w*])(?=[a-z*]{4})(?:(?:[a-z]{1,2}|motherf|bullsh?|horsesh?|godd|jacka|dumba)\*{1,6}[a-z]{1,5}(?:ing|ers?|ed|s)?"
    r"|[a-z]\*{3,6}(?:ing|ers?|ed|s)?)(?![\w*(=])"
)
"""Pattern of a word with stars for letters, in any case: f**k."""
