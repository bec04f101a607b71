"""Roman numerals behind a name or a word such as Chapter."""

from __future__ import annotations

from stentor.text.notations.rule import rules
from stentor.text.numbers import ordinal, roman, say

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


RULES = rules(
    (rf"\b({'|'.join(_COUNTED)})\s+{_FULL}", lambda m: f"{m[1]} {say(roman(m[2]))}"),
    (
        rf"\b({'|'.join(w.lower() for w in _COUNTED[:10])})\s+(?=[IVXLCDM]{{2}}|[VX]\b){_FULL}",
        lambda m: f"{m[1]} {say(roman(m[2]))}",
    ),
    (rf"\b({_FIRST})\s+I(?=\s*[.,;)]|\s+of\b|['’]s\b)", lambda m: f"{m[1]} the first"),
    (rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b){_FULL}", lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}"),
    (rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b)({_NUMERAL})(?=['’]s\b)", lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}"),
    (
        rf"\b(the)\s+(?=[IVX]{{2,}}\b){_FULL}(?=\s+(?:century|dynasty|Olympiad|Corps|Legion))",
        lambda m: f"{m[1]} {ordinal(str(roman(m[2])))}",
    ),
    (rf"(?<![\w.])(?=(?:XX|XI|XV|XL|LX|VI|IV|IX|II))(?!X*L\b|LX\b){_FULL}(?=[.)]\s|$)", lambda m: say(roman(m[1]))),
)
