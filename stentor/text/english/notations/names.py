"""Words that are written short: titles, streets, months and other abbreviations, letters that are
read one by one, Roman numerals, markers of items, and verses of the Bible and the Quran."""

from __future__ import annotations

import re

from stentor.text.english.notations.rule import any_of, rules
from stentor.text.english.numbers import house, ordinal, roman, say, year
from stentor.text.english.tables import (
    DATED,
    DAYS,
    MONTHS,
    NUMBERED,
    SHORT_DAYS,
    SHORT_MONTHS,
    STARTERS,
    STREETS,
    TABLES,
    TITLES,
    WORDS,
)
from stentor.text.patterns import lazy

_ANY_MONTH = any_of({*MONTHS, *SHORT_MONTHS})
_CLEAR_DAYS = SHORT_DAYS.keys() - {"Sun", "Sat", "Wed"}
_CONTRACTED = (
    "don't doesn't didn't isn't aren't wasn't weren't haven't hasn't hadn't couldn't wouldn't shouldn't mustn't "
    "can't won't that's what's there's here's who's where's how's ain't y'all could've should've would've "
    "might've must've you're they're we've they've you've i've you'll they'll he's she's i'm"
).split()
"""Words that people write without their apostrophe. Those that are other words without it are
missing."""
BARE = {
    **TABLES["bare"],
    **{contraction.replace("'", ""): contraction for contraction in _CONTRACTED},
    **{
        contraction.replace("'", "").capitalize(): contraction.capitalize()
        for contraction in _CONTRACTED
    },
}
_CLEAR_STREETS = STREETS.keys() - {"St", "Dr", "Ct", "Pl", "Ter"}
SPELLED = frozenset(  # letters whose lower case is another word
    "AWS US WHO SAT LED ID AI HR LA ER ET PR IRA PA EU UI UX QA VP TA AC DC DIY LAX".split()
)
_SAID = "|".join(sorted(SPELLED))
# "He said no. I left."
_CLEAR_NUMERAL = r"(?=[IVXL]{2}|[VX]\b|[ivxl]{2})([IVXLC]{1,7}|[ivxlc]{2,7})"
_NORTH = TABLES["directions"]
_STREET = any_of({*STREETS, *STREETS.values()})
_STARTS = lazy(rf"(?<!\s)\s++(?:{any_of(word.capitalize() for word in STARTERS)})\b")
_COUNTED = (
    "Chapter Part Act Scene Book Volume Section War Type Phase Level Bowl Fantasy Episode Mark Apollo Title Article "
    "Grade Stage Schedule Appendix Figure Table Civilization Auto Quake Diablo Halo Rocky Rambo Wars Trek Class Group "
    "Category Tier Unit Exhibit Module Lesson Form Step Round Division Saturn Gemini Vatican Wing Souls Kombat Doom"
).split()
_NUMERAL = r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
_FIRST = "Elizabeth|Charles|James|Henry|Edward|George|William|Richard|Francis|Napoleon|Frederick|Peter|Louis|Leopold|Otto"
_FULL = rf"(?=[IVXLCDM])({_NUMERAL})(?![\w'’-])"
_NAME = r"(?!(?:The|A|An|This|That|In|On|At|And|Or|But|If|With|Vitamin|Plan|Option|Hepatitis)\b)[A-Z][a-z]+"
_NUMERAL_AT = rf"(?=[IVXL])({_NUMERAL})"
_SMALL = r"(?=[ivxl])(x{0,3}(?:ix|iv|v?i{0,3})|xl(?:ix|iv|v?i{0,3})|lx{0,3}(?:ix|iv|v?i{0,3}))"
_PAGED = r"[Pp]ages?|[Pp]p?\.|[Cc]hapters?|[Ss]cene|[Ff]olios?|[Pp]lates?|[Ss]ections?|[Vv]olumes?|[Ff]ootnote"
_PAGES = "page pages p pp chapter chapters scene folio folios plate plates section sections volume volumes footnote".split()
_SMALL_WORDS = "of|the|and|a|an|in|to|on|for|with|from|at|by"
_TITLE = rf"[A-Z][\w’'-]*(?: (?:(?:{_SMALL_WORDS}) )*[A-Z][\w’'-]*){{0,7}}"
_MARKER = r"(?<!\S)(?P<open>\(?)(?P<sign>[a-hA-H]|\d{1,2}|[ivx]{1,4})\)(?=\s)"
_BEHIND_WORD = r"(?P<word>(?<=\w)(?<!\bor)(?<!\band)\s)?"
_BOOKS = (
    "Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth Samuel Kings Chronicles Ezra Nehemiah Esther "
    "Job Psalm Psalms Proverbs Ecclesiastes Isaiah Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah "
    "Jonah Micah Nahum Habakkuk Zephaniah Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans Corinthians "
    "Galatians Ephesians Philippians Colossians Thessalonians Timothy Titus Philemon Hebrews James Peter Jude "
    "Revelation Surah Quran"
).split()
_SHORT = TABLES["books"]
_OF_SEVERAL = (
    "Samuel|Kings|Chronicles|Corinthians|Cor|Thessalonians|Thess|Timothy|Tim|Peter|Pet|John"
)
_ORDINALS = {"1": "First", "2": "Second", "3": "Third"}


def _initials(m: re.Match[str]) -> str:
    ends = _STARTS.match(m.string, m.end())
    return " ".join(m[1].replace(".", " ").split()) + ("." if ends else "")


def _street(m: re.Match[str]) -> str:
    number, letter, side, name, street = m.groups()
    words = [
        house(number),
        letter,
        _NORTH.get((side or "").strip(" ."), ""),
        name.strip(),
        STREETS.get(street, street),
    ]
    return " ".join(word for word in words if word)


def _letters(m: re.Match[str]) -> str:
    if m.string.isupper() and " " in m.string:
        return m[0]
    return " ".join(m[1]) + m[2]


def _numbered(m: re.Match[str]) -> str:
    """ "Art. 5" -> "Article 5", "no. IV" -> "number four"."""
    word = NUMBERED[m[1].lower()]
    return f"{word.capitalize() if m[1][0].isupper() else word} {say(roman(m[2].upper())) if m[2] else ''}"


def _word(m: re.Match[str]) -> str:
    ends = m[0].endswith(".") and _STARTS.match(m.string, m.end())
    return WORDS[m[1]] + ("." if ends else "")


def _pages(m: re.Match[str]) -> str:
    """ "pages xii-xiv" -> "pages twelve to fourteen"."""
    if m[4]:
        more = f" {'and' if 'and' in m[3] else 'to'} {say(roman(m[4].upper()))}"
    else:
        more = ""
    return f"{m[1]}{say(roman(m[2].upper()))}{more}"


def _item(m: re.Match[str]) -> str:
    """ "a) one b) two" -> "A) one, B) two", "ii)" -> "2)". What ends a parenthesis stays."""
    sign = m["sign"]
    before = m.string[: m.start("open")]
    if not m["open"] and before.count("(") > before.count(")"):
        return m[0]
    if re.fullmatch("[ivx]+", sign) and "ii)" in m.string:
        sign = str(roman(sign.upper()))
    if m["word"] and re.search(_MARKER, before):
        pause = ","
    else:
        pause = ""
    return f"{pause}{m['word'] or ''}{m['open']}{sign.upper()})"


def _verse(m: re.Match[str]) -> str:
    """ "Matt. 5:3-12" -> "Matthew five three to twelve"."""
    place = m[2].replace(":", " ").replace("-", " to ")
    return f"{_SHORT.get(m[1], m[1])} {re.sub('[0-9]+', lambda number: say(number[0]), place)}"


ITEMS = rules(
    (
        rf"^{_NUMERAL_AT}\.(?= {_TITLE}[.:]?$)",
        lambda m: f"{say(roman(m[1]))}.",
    ),  # "V. Maps" has no initial
    (_BEHIND_WORD + _MARKER, _item, ")"),
    (r"(?<=\()a(?=\))", "A", ") ("),
)
"""Before a rule takes their numerals and numbers for something else."""

RULES = rules(
    (
        r"(?<=[A-Za-z] )(Pty )?Ltd\b(?!\.)",
        lambda m: "Proprietary Limited" if m[1] else "Limited",
        ("ltd",),
    ),
    (r"(?<!\S)(?:RE|Re|re):(?=\s)", "regarding:", ("re",)),
    (r"(?<!\S)(?:FW|Fw|FWD|Fwd|fwd):(?=\s)", "forward:", ("fw", "fwd")),
    (r"\b([A-Z][\w.'’]*,?)\sv\.?\s(?=(?:the\s)?[A-Z])", r"\1 versus ", ("v",)),
    # Verses stand before times of day.
    (rf"(?<![\w.,:-])([123]) (?=(?:{_OF_SEVERAL})\.? \d)", lambda m: f"{_ORDINALS[m[1]]} ", "0"),
    (
        rf"\b({any_of([*_BOOKS, *_SHORT])})\.? (\d+:\d+(?:-\d+(?::\d+)?)?)(?![:\d]|\s?[AaPp]\.?[Mm])",
        _verse,
        ": 0",
        [*_BOOKS, *_SHORT],
    ),
    (r"\b((?:[A-Z]\.){2,})", _initials),
    (r"(?<![A-Z] )\b([A-Z])\.\s?(?=[A-Z](?:\.|[a-z]))(?!Sc\b)", r"\1 "),
    (
        rf"\b({any_of(SHORT_MONTHS)})\b\.?(?=\s+\d)|\b({any_of(SHORT_MONTHS)})\.(?!\w)",
        SHORT_MONTHS,
    ),
    (
        rf"\b({any_of(_CLEAR_DAYS)})\.(?=\s|,|$)|\b({any_of(SHORT_DAYS)})\b\.?"
        rf"(?=,?\s+(?:{any_of(MONTHS)}|\d)|\s?[-/]\s?[MTWFS])|(?<=[-/])({any_of(SHORT_DAYS)})\b",
        SHORT_DAYS,
    ),
    (
        rf"\b({_ANY_MONTH})\.?\s?-\s?({_ANY_MONTH})\b",
        lambda m: f"{SHORT_MONTHS.get(m[1], m[1])} to {SHORT_MONTHS.get(m[2], m[2])}",
        "-",
    ),
    (rf"(?<=day)\s?[-–]\s?(?=(?:{any_of(DAYS)})\b)", " to ", "-–"),
    (
        rf"\b(\d{{1,5}})([A-D])?\s+((?:[NS][EW]?|[EW])\.?\s+)?((?:[A-Z][a-z]+\s+){{1,3}}|\d+(?:st|nd|rd|th)\s+)({_STREET})\b\.?",
        _street,
        "0",
    ),
    (
        rf"\b((?:[A-Z][a-z]+\.?|\d+(?:st|nd|rd|th))\s+)({any_of(_CLEAR_STREETS)})\b\.?",
        lambda m: f"{m[1]}{STREETS[m[2]]}",
        STREETS,
    ),
    (
        rf"(?<=[a-z])(,? )({'|'.join(n for n in _NORTH if len(n) == 2)})(?=,| \d{{5}}|$)",
        lambda m: m[1] + _NORTH[m[2]],
        [name for name in _NORTH if len(name) == 2],
    ),
    (r"\bHwy\b\.?(?= \d)", "Highway", "0"),
    (
        r"\b((?:I|US|Route|Highway)[- ]\d+) ([NSEW])\b(?!['’\w])",
        lambda m: f"{m[1]} {_NORTH[m[2]]}",
        "0",
    ),
    (r"\bApt\b(?= [#\d])", "Apartment", "#0"),
    (r"(?<=\d[snrt][tdh] )Fl\b\.?(?!\w)", "Floor", "0"),
    (r"\b(\d+(?:st|nd|rd|th)\s+)St\b\.?", r"\1Street", "0"),
    (
        r"\b((?:[Oo]n|[Aa]t|[Aa]long|[Dd]own|[Uu]p|[Oo]ff|[Nn]ear|of|into|from) (?:[A-Z][a-z]+ ){1,2})"
        r"Dr\b\.?(?! [A-Z])",
        r"\1Drive",
        ("dr",),
    ),
    (r"\b([A-Z][a-z]+ )Dr\.(?= [a-z]|[,;!?]|$)", r"\1Drive", ("dr",)),
    (rf"\b({'|'.join(TITLES)})\.(?=\s+(?:and|or|&)\s+(?:{'|'.join(TITLES)})\.)", TITLES),
    (rf"\b({'|'.join(TITLES)})\.(?=\s+[A-Z])", TITLES),
    (r"\b(Dr|Mr|Mrs|Ms|Prof)(?=\s+[A-Z][a-z])", TITLES),
    (r"\b([A-Z][a-z]+(?:'s)?\s+)(St)\b\.?", r"\1Street", ("st",)),
    (r"(?<!#)#\s*(?=\d)|№\s*", "number ", "#№"),
    (
        rf"\b(?<!\d )(?<!\d)((?i:{any_of(NUMBERED)}))\.\s?(?:(?=\d)|{_CLEAR_NUMERAL}(?![\w'’-]))",
        _numbered,
        NUMBERED,
    ),
    (
        rf"\b({any_of(DATED)})\.\s?(?=1\d{{3}}\b|20\d\d\b|[3-9]\d\d\b)",
        lambda m: f"{DATED[m[1]]} ",
        "0",
        DATED,
    ),
    (r"(?<=\d)\s?ff\.?(?!\w)", " and following", "0", ("ff",)),
    (r"(?<=[snrt][tdh] )ed\b\.?|(?<=\brev\. )ed\.", "edition", ("ed",)),
    (r"\b[Ee]ds?\.(?= by\b)", "edited", ("ed", "eds")),
    (
        rf"\b({any_of(SHORT_DAYS)})\b\.?(?=\s?(?:and|or|to|through|&|,)\s(?:{any_of([*SHORT_DAYS, *DAYS])})\b)",
        SHORT_DAYS,
    ),
    (
        rf"(?:(?<=day and )|(?<=day to )|(?<=day or ))({any_of(SHORT_DAYS)})\b\.?",
        SHORT_DAYS,
    ),
    (r"\bvs\.(?!\w)", "versus", ("vs",)),
    (r"\betc\.(?=\s*$)", "et cetera.", ("etc",)),
    (rf"(?<!\d )(?<!\d)\b({any_of(WORDS)})\.(?!\w)", _word, WORDS),
    (
        rf"(?<![\w.\d/-])(?<!\d )(?<!\bsq )(?<!\bsq\. )(?<!\bfl )({any_of(BARE)})(?![\w/]|-\w)",
        BARE,
    ),
    (rf"\b({_SAID})(s?)\b(?!\.\w|\$)", _letters, (*SPELLED, *(f"{name}s" for name in SPELLED))),
    (
        r"\bIT(?=\s+(?:department|team|support|staff|manager|services?|industry|security|specialist|guy|desk)\b)",
        "I T",
        ("it",),
    ),
)

ROMANS = rules(
    (
        rf"\b((?:[Bb]ooks?|[Cc]antos?|[Pp]arts?|[Aa]cts?|[Ss]tanzas?|[Pp]salms?|[Aa]ppendix|[Ff]igures?|[Tt]ables?|[Aa]rticles?)"
        rf" )(?=[ivxl]{{2}}|[vx]\b){_SMALL}()()(?![\w'’-])",
        _pages,
        "book books canto cantos part parts act acts stanza stanzas psalm psalms appendix figure figures table tables "
        "article articles".split(),
    ),
    (rf"\b((?:{_PAGED}) ){_SMALL}(?:( ?[-–] ?| to | and ){_SMALL})?(?![\w'’-])", _pages, _PAGES),
    (rf"\b({'|'.join(_COUNTED)})\s+{_FULL}", lambda m: f"{m[1]} {say(roman(m[2]))}", _COUNTED),
    (
        rf"\b({'|'.join(w.lower() for w in _COUNTED[:10])})\s+(?=[IVXLCDM]{{2}}|[VX]\b){_FULL}",
        lambda m: f"{m[1]} {say(roman(m[2]))}",
        _COUNTED,
    ),
    (
        rf"\b({'|'.join(w.upper() for w in _COUNTED[:7])})\s+{_FULL}",
        lambda m: f"{m[1]} {say(roman(m[2]))}",
        _COUNTED,
    ),
    (
        rf"\b(?=M)(?=[MDCLXVI]{{5}}|MM[XVI]{{2}}){_FULL}",
        lambda m: year(str(roman(m[1]))),
    ),  # of a title page
    (rf"\b({'|'.join(w.lower() for w in _COUNTED[:7])})\s+I(?=[.:]|\s*$)", r"\1 one", _COUNTED),
    (rf"\b({_FIRST})\s+I(?=\s*[.,;)]|\s+of\b|['’]s\b)", r"\1 the first", _FIRST.split("|")),
    (
        rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b){_FULL}",
        lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}",
    ),
    (
        rf"\b({_FIRST})\s+(?=[ivx]{{2}}){_SMALL}(?![\w'’-])",
        lambda m: f"{m[1]} the {ordinal(str(roman(m[2].upper())))}",
        _FIRST.split("|"),
    ),
    (
        rf"\b({_NAME})\s+(?=[IVX]{{2}}|V\b)({_NUMERAL})(?=['’]s\b)",
        lambda m: f"{m[1]} the {ordinal(str(roman(m[2])))}",
    ),
    (
        rf"\b(the)\s+(?=[IVX]{{2,}}\b){_FULL}(?=\s+(?:century|dynasty|Olympiad|Corps|Legion))",
        lambda m: f"{m[1]} {ordinal(str(roman(m[2])))}",
    ),
    (
        rf"(?<![\w.])(?=(?:XX|XI|XV|XL|LX|VI|IV|IX|II))(?!X*L\b|LX\b){_FULL}(?=[.)]\s|$)",
        lambda m: say(roman(m[1])),
    ),
)
