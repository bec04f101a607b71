"""Telephone numbers and codes, e-mail and web addresses, names of files, programs and versions, and
words of code."""

from __future__ import annotations

import re

from stentor.text.english.notations.hexadecimal import HASH, KEY
from stentor.text.english.notations.rule import any_of, rules
from stentor.text.english.numbers import groups, house, letters, say, spell, version
from stentor.text.english.tables import CENSORED, TABLES

_ROOMS = "Flight flight Bus bus Route route Room room Area Apartment Suite suite Unit Highway Interstate Gate gate".split()
_NAMED = (
    "order|confirmation|tracking|account|acct|invoice|ticket|case|reference|ref|serial|code|zip|zip code|postcode|"
    "passcode|password|pin|PIN|id|ID|I D|card|policy|reservation|booking|part number|item number|model number|digits|"
    "phone|fax|extension|ext|area code|routing|member|employee|student|license|badge|room number|badge number|otp"
)
_BETWEEN = (
    r"(?:\s+(?:number|code|no|num|id|ID|is|was|ending in|of|are)\b)*\.?\s*+[:#]?\s*+(?:number\s++)?"
)
_COUNTED = r"(?!,\d)(?!\s+(?:more\s+|new\s+)?[a-z]+s\b)(?!\.\d)"
_WORDS = "AN|AS|AT|AX|BE|BY|CO|DO|GO|HE|HI|IF|IS|IT|MA|ME|MY|NO|OF|OH|ON|OR|OX|PA|SO|TO|UP|US|WE"
"""Letters of a code that would be read as a word."""
_SERVICES = {"411", "911", "999", "112", "311", "511", "611", "711", "811", "988"}
DOMAINS = (
    "com org net edu gov mil info biz io ai dev app co uk de fr eu ch jp au nz ca tv xyz tech"
).split()  # a host name without www needs one of these at its end
_LETTERS = frozenset(
    "www http https ftp io ai uk de fr eu ch jp au nz ca tv edu html php js css id api cdn pdf py md csv png "
    "jpg xml cpp".split()
)
_SIGNS = TABLES["addresses"]
_PART = re.compile(rf"\b(?:{HASH}|{KEY})\b|[A-Za-z]+|\d+|.")
_HOST = rf"(?<!\w[.-])[a-zA-Z0-9][\w-]*+(?:\.[a-zA-Z0-9][\w-]*+)*\.(?:{'|'.join(DOMAINS)})\b"
FILES = TABLES["files"]
NAMES = TABLES["names"]
_RELEASED = (
    "Python Ruby Java Node Django Flask CUDA PyTorch TensorFlow Go Rust PHP Perl macOS iOS iPadOS Android Windows "
    "Ubuntu Debian Fedora Linux Chrome Firefox Safari Swift Kotlin Postgres PostgreSQL MySQL Redis Kubernetes Docker "
    "React Angular Vue Bluetooth USB HDMI HTTP TLS SSL OpenGL Vulkan DirectX Unity release Release build Build "
    "firmware update Update GPT Claude Gemini Llama Qwen kernel"
).split()
_MODULES = "self this np pd os sys re io math json torch numpy pandas console window document process string std".split()
_ONE_WORD = re.compile(
    r"(?:Mc|Mac|O|De|Di|La|Le|Van|Fitz|[ie])[A-Z]|PhDs?$|(?<![A-Z])[A-Z]{2,}e?s$"
)
_ASIDE = {".": " dot ", "_": " ", "/": " slash ", "-": " "}
_EXT = any_of(FILES)
_STAGE = r"(?:-?(alpha|beta|rc|dev|post)[-.]?(\d*))?"


def _toll_free(digits: str) -> str:
    """ "800" -> "eight hundred"."""
    if digits.endswith("00"):
        return f"{say(digits[0])} hundred"
    return spell(digits)


def _phone(m: re.Match[str]) -> str:
    if m[1] and m[1] != "1":
        country = f"{spell(m[1])}, "
    elif m[1]:
        country = f"{say(1)} "
    else:
        country = ""
    if m[1] == "1":
        area = _toll_free(m[2])
    else:
        area = spell(m[2])
    return f"{country}{area}, {spell(m[3])}, {spell(m[4])}"


def _vanity(m: re.Match[str]) -> str:
    return f"{say(1) + ' ' if m[1] else ''}{_toll_free(m[2])} " + m[3].replace("-", " ").lower()


def _code(m: re.Match[str]) -> str:
    between = re.sub(r"[:#]", " ", m[2]).replace(".", " ")
    between = re.sub(r"\b(?:no|num)\b", "number", between)
    word = {"ext": "extension", "acct": "account", "ref": "reference"}.get(m[1].lower(), m[1])
    return f"{word}{between.rstrip() or ''} " + _digits(m[3])


def _room(m: re.Match[str]) -> str:
    place = m[1].replace("Apt.", "Apartment")
    return f"{place} {house(m[2]) if place.lower() in ('room', 'suite') else spell(m[2])}"


def _digits(written: str) -> str:
    parts = re.findall(r"\d+|[A-Z]+", written)
    return ", ".join(spell(p) if p[0].isdecimal() else letters(p) for p in parts)


def spoken_address(address: str) -> str:
    """ "www.stentor.org/a_b" -> "W W W dot stentor dot org slash a underscore b". Digits stay."""
    parts = (p for p in _PART.findall(address) if not p.isspace())
    return " ".join(map(_address_part, parts))


def _address_part(part: str) -> str:
    if part in _SIGNS:
        return _SIGNS[part]
    if part.lower() in _LETTERS:
        return letters(part)
    return part


def _web(m: re.Match[str]) -> str:
    address = m[0].rstrip(".,;:!?)'\"/")
    scheme = re.match(r"(?i)(?:https?|ftp)://", address)
    return f" {spoken_address(address[scheme.end() if scheme else 0 :])} " + m[0][
        len(address) :
    ].lstrip("/")


def _number(m: re.Match[str]) -> str:
    return " dot ".join(spell(p) for p in m[1].split(".")) + (
        f" port {spell(m[2])}" if m[2] else ""
    )


def camel(word: str) -> str:
    """ "HTTPServer" -> "HTTP Server", "getUserName" -> "get User Name"."""
    return re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", word)


def _file(m: re.Match[str]) -> str:
    stem = "".join(_ASIDE.get(c, c) for c in m[1]).strip()
    inner = [f" dot {FILES[e]}" for e in m[2].lower().split(".") if e]
    return camel(stem) + "".join(inner)


def _of_stage(stage: str | None, number: str | None) -> str:
    """ "rc", "1" -> " R C 1"."""
    if stage:
        return f" {'R C' if stage == 'rc' else stage} {number}".rstrip()
    return ""


def _censored(m: re.Match[str]) -> str:
    """ "f**king" -> "bleeping"."""
    ending = re.search(r"(?:ing|ers?|ed)$", m[0])
    return "bleep" + (ending[0] if ending else "")


CENSORED_WORDS = rules(
    (rf"(?i){CENSORED}", _censored, "*"),
    (r"(?<![^\s\"“'(])(?=\S{0,6}[@#$%&])(?!([@#$%&])\1+)[@#$%^&*!?]{4,}", "bleep ", "@#$%&"),
    (
        r"(?i)(?<![\w@#$%])(?:f[#%@]c?k|sh[#%@]t|b[#%@]tch|d[#%@]mn|[fsbcd][a-z]?[#%$@!*]{2,4}[a-z]{1,3})"
        r"(?:ing|ers?|ed|s)?(?![\w@]|\.\w)",
        _censored,
        "#%$@!",
    ),
    (r"(?<=[a-z])\$\$(?![\d$])", "ss", "$"),
    (r"(?<![\w$])\$(?=hit)", "s", "$"),
    (r"(?<![\w@.])@(?=ss(?:hole)?(?:es)?\b)", "a", "@"),
    (
        r"\b(s?[bh])[!1](?=t(?:ch)?(?:es|s|ty)?\b)",
        r"\1i",
        "!",
    ),
)
"""Before a rule takes their stars and signs for something else."""

SPELLED = rules(
    (
        r"(?<![\w.'-])[A-Z](?:[ -]{1,2}[A-Z]){3,}(?![\w'-]|\.\w)",
        lambda m: ", ".join(re.findall("[A-Z]", m[0])),
    )
)
""" "S-W-I-F-T" -> "S, W, I, F, T": a name that is spelled has a pause behind each letter, an
acronym has none.

Before all other rules, which write acronyms as letters apart."""

_UNITS = TABLES["units"]
_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}


def _coordinate(m: re.Match[str]) -> str:
    """ "40°42′46″N" -> "40 degrees 42 minutes 46 seconds north"."""
    parts = zip(m.group(1, 2, 3), ("degrees", "minutes", "seconds"), strict=True)
    words = " ".join(f"{number} {unit}" for number, unit in parts if number)
    return f"{words} {_DIRECTIONS[m[4]]}"


IDENTIFIERS = rules(
    (
        r"(?<![\w.])(\d{1,3}(?:\.\d{1,8})?)°\s?(?:(\d{1,2}(?:\.\d{1,6})?)['′’]\s?)?"
        r"(?:(\d{1,2}(?:\.\d{1,6})?)[\"″”]\s?)?([NSEW])\b",
        _coordinate,
        "° 0",
    ),
    (
        r"(?i)\b(order|ticket|invoice|case|item|model|part|serial|booking|reservation|reference|tracking|confirmation)"
        r"\s+#(?=[A-Za-z][\w-]{0,30}\d)",
        r"\1 number ",
        "#",
    ),
    (
        rf"(?<=[a-z]{{3}}s)\s?/\s?({any_of(u for u in _UNITS if u.isalpha() and u != 'in')})(?![\w/])",
        lambda m: f" per {_UNITS[m[1]]}",
        "/",
    ),
    (
        r"(?<![\w.+-])([.+-]*+)(\w[\w.+-]*+@[\w-]++(?:\.[\w-]++)+)",
        lambda m: m[1] + spoken_address(m[2]),
        "@",
    ),
    (r"(?i)\b(?:https?|ftp)://[^\s<>\"]+|\bwww\.[^\s<>\"]+", _web, ("http", "https", "ftp", "www")),
    (rf"\b{_HOST}(?:[/?][^\s<>\"]*)?", _web, DOMAINS),
    (r"(?<![\d.])(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?![\d.]*\d)(?::(\d{2,5})\b)?", _number, "0"),
    (r"(?<![\w.])~?/(?:[\w.-]+/)+[\w.-]*\w", lambda m: spoken_address(m[0]), "/"),
    (r"(?<![\w.])\.{0,2}/[a-z][\w.-]*\w", lambda m: spoken_address(m[0]), "/"),
    (r"\b[A-Z]:\\[\w.\\-]+\w", lambda m: spoken_address(m[0]), ": \\"),
    (
        r"(?<!\S)#([A-Za-z]\w+)",
        lambda m: "hashtag " + re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", m[1]),
        "#",
    ),
    (r"(?<![\w.])@([A-Za-z]\w*)", lambda m: f"at {spoken_address(m[1])}", "@"),
    (rf"(?<![\w.$/-])({any_of(n for n in NAMES if n[-1] != '/')})(?![\w/]|-\w)", NAMES),
    (rf"(?<![\w./])({any_of(n for n in NAMES if n[-1] == '/')})(?=\s?\w)", NAMES),
    (
        rf"(?i)(?<![\w@])(?<![a-z_][.-])(\.?\d{{0,9}}[a-z_][\w-]++(?:\.[a-z_][\w-]*+)*?)((?:\.(?:{_EXT}))+)\b(?![\w@])",
        _file,
        FILES,
    ),
    (r"(?<!\S)([A-D])-(?![\w-])", r"\1 minus", "-"),
    (
        r"(?<![\w.])(?<!slash )(?<!score )(?<!dash )(?<!dot )"
        rf"([Vv]ersion\s+|(?:v|V(?=\d+\.)|[Vv]er)\.?\s?)(\d+(?:\.\d+)*){_STAGE}(?![\w])",
        lambda m: f"version {version(m[2])}" + _of_stage(m[3], m[4]),
        "0",
    ),
    (
        r"\b(?<!\d\.)(\d+(?:\.\d+)+)-?(alpha|beta|rc|dev|post)[-.]?(\d*)\b",
        lambda m: version(m[1]) + _of_stage(m[2], m[3]),
        "0",
    ),
    (
        rf"\b({any_of(_RELEASED)})[ -](\d+(?:\.\d+)+)\b",
        lambda m: f"{m[1]} {version(m[2])}",
        "0",
        _RELEASED,
    ),
    (r"(?<!\S)--(?=[a-z][a-z-]+(?![\w ]*--))", "dash dash ", "-"),
    (r"(?<!\S)-(?=[a-zA-Z](?!\S))", "dash ", "-"),
    (r"\b([a-zA-Z_]\w*)\(\)", r"\1", ") ("),
    (r"(?<=[a-z]{2})\.(?=[A-Z][a-z])", ". "),  # no space behind a sentence
    (rf"\b({'|'.join(_MODULES)}|[a-z]\w*_\w+)\.(?=[a-zA-Z_]\w)", r"\1 dot ", ("_", *_MODULES)),
    (r"\b([a-z]\w*)\.(?=[a-z]\w*_\w)", r"\1 dot ", "_"),
    (r"(?<=[a-z]{3})\.(?=[a-z]{2})", ". "),
    (
        r"\b[A-Za-z]+(?:[a-z][A-Z]|[A-Z]{2}[a-z])[A-Za-z]*\b",
        lambda m: m[0] if _ONE_WORD.match(m[0]) else camel(m[0]),
    ),
    (r"(?<=\w)_+(?=\w)", " ", "_"),
)

RULES = rules(
    (
        r"(?<![\w-])(?:\+?(1)[-. ]\s?)?\(?(\d{3})\)?[-. ]\s?(\d{3})[-. ](\d{4})\b(?!-\d)",
        _phone,
        "0",
    ),
    (r"(?<![\w-])(?:\+?(1)[-. ])?(8\d\d|900)-((?:[A-Z]{2,}-?)+)\b", _vanity, "0 -"),
    (r"\+(\d{1,3}(?:[-. ]?\(?\d{1,5}\)?){2,6})\b", lambda m: f"plus {groups(m[1])}", "+ 0"),
    (r"(?<![\d-])(\d{3}-\d{4})\b(?!-\d)", lambda m: groups(m[1]), "0 -"),
    (r"(?<![\d-])(\d{3}-\d{2}-\d{4})\b", lambda m: groups(m[1]), "0 -"),
    (r"(?<![\w.-])(\d(?:-\d){2,})(?![\w-]|\.\d)", lambda m: letters(m[1]), "0 -"),
    (
        r"(?<![\w.-])(\d{2,4}(?:-\d{2,4}){2,}|0\d{1,3}-\d{2,4}|\d{2,4}-0\d{1,3})(?![\w-]|\.\d)",
        lambda m: groups(m[1]),
        "0",
    ),
    (
        r"(?<![\d.,-])(?<!\d )(555 \d{4}|\d{3} 0\d{3})(?![\d,-]| \d|\.\d)",
        lambda m: groups(m[1]),
        "0",
    ),
    (r"(?<![\w.,-])(0\d{2,4}(?: \d{3,6}){1,3})(?![\w,-]| \d|\.\d)", lambda m: groups(m[1]), "0"),
    (r"(?<![\d-])(\d{4}(?:[ -]\d{4}){2,3})\b", lambda m: groups(m[1]), "0"),
    (
        r"\bISBN(?:-1[03])?:?\s*([\d-]{9,16}\d|[\d-]{9,16}X)\b",
        lambda m: f"I S B N {_digits(m[1])}",
        "0",
        ("ISBN",),
    ),
    (r"\b(\d{5})-(\d{4})\b", lambda m: f"{spell(m[1])}, {spell(m[2])}", "0 -"),
    (r"\b([A-Z] ?[A-Z])\s+(\d{5})\b", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (
        rf"(?i)\b({_NAMED})({_BETWEEN})(?<=[\s:#.])((?:[A-Z]{{1,4}}-?)?\d{{3,}}(?:-\d+)*)\b{_COUNTED}",
        _code,
        "0",
        _NAMED.split("|"),
    ),
    (
        r"\b(?:(?i:ext|extension)\.?\s?|(?<!\d )(?<!['′])x(?=\d\d)(?!86\b|64\b))(\d{1,6})\b(?!\d|\s?[x×])",
        lambda m: f"extension {spell(m[1])}",
        "0",
    ),
    (r"\b([Ff]light [A-Z]{2})\s?(\d{3,4})\b", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (r"\b(Box)\s+(\d{3,4})\b", lambda m: f"{m[1]} {house(m[2])}", "0"),
    (rf"\b({any_of(_ROOMS)}|Apt\.)\s+(\d{{3,4}})\b(?!,\d)(?!\s+[a-z]+s\b)", _room, "0"),
    (r"\bnumber\s+(\d{5,})\b(?!,\d)", lambda m: f"number {spell(m[1])}", "0"),
    (
        rf"(?i)\b(call|dial|called|dialed|text|ring)\s+({'|'.join(sorted(_SERVICES))})\b(?!\s+[a-z]+s\b)",
        lambda m: f"{m[1]} {spell(m[2])}",
        "0",
    ),
    (
        r"\bBoeing (\d{3})(?:-(\d{1,3}))?\b",
        lambda m: f"Boeing {house(m[1])} {house(m[2]) if m[2] else ''}",
        "0",
    ),
    (r"\b(911|007)\b(?!,\d)", lambda m: spell(m[1]), "0"),
    (r"(?i)\b(dial|dialed|dialing)\s+(\d{2,3})\b(?!,\d)", lambda m: f"{m[1]} {spell(m[2])}", "0"),
    (
        r"\b([A-Z]{1,2}\d[A-Z\d]?) (\d[A-Z]{2})\b",
        lambda m: f"{letters(m[1])}, {letters(m[2])}",
        "0",
    ),
    (r"(?<![\w-])([A-Z]{1,3}\d{1,3}[A-Z]{2,3})(?![\w-])", lambda m: letters(m[1]), "0"),
    (r"(?<![\w-])([A-Z]{2,4}-\d{4,})(?![\w-]|\.\d)", lambda m: _digits(m[1]), "- 0"),
    (rf"\b({_WORDS})-?(?=\d)", lambda m: f"{letters(m[1])} ", "0"),
    (rf"(?<=\d)-?({_WORDS})\b(?=$|[^\w]*$|[.,!?]|-?\d)", lambda m: f" {letters(m[1])}", "0"),
    (
        r"(?<![\d.,])([2-9]\d{2})([2-9]\d{2})(\d{4})(?![\d,]|\.\d)",
        lambda m: ", ".join(spell(g) for g in m.groups()),
        "0",
    ),
    (r"\b(?=\w*\d[A-Z]+\d|\w*[A-Z]\d+[A-Z]+\d)([A-Z\d]{6,})\b", lambda m: letters(m[1]), "0"),
)
