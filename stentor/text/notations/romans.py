"""Roman numerals behind a name or a word such as Chapter."""

from __future__ import annotations

import re

from stentor.text.notations.rule import rules
from stentor.text.numbers import ordinal, roman, say, year

_COUNTED = (
    "Chapter Part Act Scene Book Volume Section War Type Phase Level Bowl Fantasy Episode Mark Apollo Title Article "
    "Grade Stage Schedule Appendix Figure Table Civilization Auto Quake Diablo Halo Rocky Rambo Wars Trek Class Group "
    "Category Tier Unit Exhibit Module Lesson Form Step Round Division Saturn Gemini Vatican Wing Souls Kombat Doom"
).split()
_NUMERAL = r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_FIRST = (
    "Elizabeth|Charles|James|Henry|Edward|George|William|Richard|Francis|Napoleon|Frederick|Peter|Louis|Leopold|Otto"
)
_FULL = rf"(?=[IVXLCDM])({_NUMERAL})(?![\w'’-])"
_NAME = r"(?!(?:The|A|An|This|That|In|On|At|And|Or|But|If|With|Vitamin|Plan|Option|Hepatitis)\b)[A-Z][a-z]+"
_NUMERAL_AT = rf"(?=[IVXL])({_NUMERAL})"
_SMALL = r"(?=[ivxl])(x{0,3}(?:ix|iv|v?i{0,3})|xl(?:ix|iv|v?i{0,3})|lx{0,3}(?:ix|iv|v?i{0,3}))"
_PAGED = r"[Pp]ages?|[Pp]p?\.|[Cc]hapters?|[Ss]cene|[Ff]olios?|[Pp]lates?|[Ss]ections?|[Vv]olumes?|[Ff]ootnote"
_PAGES = (
    "page pages p pp chapter chapters scene folio folios plate plates section sections volume volumes footnote".split()
)
_SMALL_WORDS = "of|the|and|a|an|in|to|on|for|with|from|at|by"
_TITLE = rf"[A-Z][\w’'-]*(?: (?:(?:{_SMALL_WORDS}) )*[A-Z][\w’'-]*){{0,7}}"


def _pages(m: re.Match[str]) -> str:
    """ "pages xii-xiv" -> "pages twelve to fourteen"."""
    more = f" {'and' if 'and' in m[3] else 'to'} {say(roman(m[4].upper()))}" if m[4] else ""
    return f"{m[1]}{say(roman(m[2].upper()))}{more}"


ITEMS = rules((rf"^{_NUMERAL_AT}\.(?= {_TITLE}[.:]?$)", lambda m: f"{say(roman(m[1]))}."))
""" "V. Maps": before a rule takes the numeral for an initial."""

RULES = rules(
    (rf"\b((?:{_PAGED}) ){_SMALL}(?:( ?[-–] ?| to | and ){_SMALL})?(?![\w'’-])", _pages, "", _PAGES),
    (rf"\b({'|'.join(_COUNTED)})\s+{_FULL}", lambda m: f"{m[1]} {say(roman(m[2]))}", "", _COUNTED),
    (
        rf"\b({'|'.join(w.lower() for w in _COUNTED[:10])})\s+(?=[IVXLCDM]{{2}}|[VX]\b){_FULL}",
        lambda m: f"{m[1]} {say(roman(m[2]))}",
        "",
        _COUNTED,
    ),
    (
        rf"\b({'|'.join(w.upper() for w in _COUNTED[:7])})\s+{_FULL}",
        lambda m: f"{m[1]} {say(roman(m[2]))}",
        "",
        _COUNTED,
    ),
    (rf"\b(?=M)(?=[MDCLXVI]{{5}}|MM[XVI]{{2}}){_FULL}", lambda m: year(str(roman(m[1])))),  # of a title page
    (rf"\b({'|'.join(w.lower() for w in _COUNTED[:7])})\s+I(?=[.:]|\s*$)", lambda m: f"{m[1]} one", "", _COUNTED),
    (rf"\b({_FIRST})\s+I(?=\s*[.,;)]|\s+of\b|['’]s\b)", lambda m: f"{m[1]} the first", "", _FIRST.split("|")),
    (rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b){_FULL}", lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}"),
    (rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b)({_NUMERAL})(?=['’]s\b)", lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}"),
    (
        rf"\b(the)\s+(?=[IVX]{{2,}}\b){_FULL}(?=\s+(?:century|dynasty|Olympiad|Corps|Legion))",
        lambda m: f"{m[1]} {ordinal(str(roman(m[2])))}",
    ),
    (rf"(?<![\w.])(?=(?:XX|XI|XV|XL|LX|VI|IV|IX|II))(?!X*L\b|LX\b){_FULL}(?=[.)]\s|$)", lambda m: say(roman(m[1]))),
)
