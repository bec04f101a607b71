"""Abbreviations and words that begin a sentence: one list for who cuts text and for who reads it. Data only."""

from __future__ import annotations

MONTHS = ("January February March April May June July August September October November December").split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
SHORT_MONTHS = {name[:3]: name for name in MONTHS if name != "May"} | {"Sept": "September"}
SHORT_DAYS = {d[:3]: d for d in DAYS} | {"Tues": "Tuesday", "Thur": "Thursday", "Thurs": "Thursday"}
TITLES = {
    "Dr": "Doctor",
    "Mr": "Mister",
    "Mrs": "Missus",
    "Ms": "Miz",
    "Prof": "Professor",
    "Sen": "Senator",
    "Rep": "Representative",
    "Gov": "Governor",
    "Gen": "General",
    "Col": "Colonel",
    "Capt": "Captain",
    "Lt": "Lieutenant",
    "Sgt": "Sergeant",
    "Rev": "Reverend",
    "Hon": "Honorable",
    "Pres": "President",
    "St": "Saint",
    "Mt": "Mount",
    "Ft": "Fort",
    "Cpl": "Corporal",
    "Maj": "Major",
    "Cmdr": "Commander",
    "Adm": "Admiral",
    "Supt": "Superintendent",
    "Fr": "Father",
    "Mme": "Madame",
    "Mlle": "Mademoiselle",
    "Messrs": "Messieurs",
    "Msgr": "Monsignor",
    "Pvt": "Private",
    "Cdr": "Commander",
    "Brig": "Brigadier",
    "Insp": "Inspector",
    "Amb": "Ambassador",
    "Atty": "Attorney",
}
WORDS = {
    "vs": "versus",
    "etc": "et cetera",
    "e.g": "for example",
    "i.e": "that is",
    "approx": "approximately",
    "dept": "department",
    "Dept": "Department",
    "Inc": "Incorporated",
    "Ltd": "Limited",
    "Co": "Company",
    "Corp": "Corporation",
    "Jr": "Junior",
    "Sr": "Senior",
    "Bros": "Brothers",
    "est": "estimated",
    "Est": "Established",
    "vol": "volume",
    "Vol": "Volume",
    "fig": "figure",
    "Fig": "Figure",
    "figs": "figures",
    "Figs": "Figures",
    "pp": "pages",
    "p.s": "P S",
    "P.S": "P S",
    "a.k.a": "A K A",
    "Ph.D": "P H D",
    "M.Sc": "M S C",
    "B.Sc": "B S C",
    "LL.D": "L L D",
    "LL.B": "L L B",
    "Ed.D": "E D D",
    "M.Phil": "M Phil",
    "D.Phil": "D Phil",
    "Assn": "Association",
    "Intl": "International",
    "Univ": "University",
    "Govt": "Government",
    "govt": "government",
    "misc": "miscellaneous",
    "Misc": "Miscellaneous",
    "max": "maximum",
    "Max": "Maximum",
    "temp": "temperature",
    "cf": "compare",
    "ca": "circa",
    "eds": "editors",
    "al": "al",
    "viz": "namely",
    "ext": "extension",
    "Ext": "Extension",
    "tel": "telephone",
    "Tel": "Telephone",
    "Sec": "Section",
    "Ch": "Chapter",
    "ch": "chapter",
    "Apt": "Apartment",
    "Rm": "Room",
    "Bldg": "Building",
    "Ste": "Suite",
    "chap": "chapter",
    "Eq": "Equation",
    "eq": "equation",
    "min": "minimum",
    "avg": "average",
    "Avg": "Average",
    "incl": "including",
    "excl": "excluding",
    "yrs": "years",
    "wk": "week",
    "wks": "weeks",
    "mos": "months",
    "doz": "dozen",
    "Esq": "Esquire",
}
STREETS = {
    "St": "Street",
    "Ave": "Avenue",
    "Rd": "Road",
    "Blvd": "Boulevard",
    "Ln": "Lane",
    "Hwy": "Highway",
    "Sq": "Square",
    "Pkwy": "Parkway",
    "Ct": "Court",
    "Pl": "Place",
    "Ter": "Terrace",
    "Dr": "Drive",
}
NUMBERED = {
    "no": "number",
    "nos": "numbers",
    "nr": "number",
    "p": "page",
    "pp": "pages",
    "vol": "volume",
    "vols": "volumes",
    "fig": "figure",
    "figs": "figures",
    "ch": "chapter",
    "chs": "chapters",
    "chap": "chapter",
    "chaps": "chapters",
    "eq": "equation",
    "eqs": "equations",
    "sec": "section",
    "secs": "sections",
    "sect": "section",
    "art": "article",
    "arts": "articles",
    "para": "paragraph",
    "paras": "paragraphs",
    "vv": "verses",
    "ex": "example",
    "exs": "examples",
    "tab": "table",
    "pl": "plate",
    "app": "appendix",
    "pt": "part",
    "pts": "parts",
    "bk": "book",
    "l": "line",
    "ll": "lines",
    "n": "note",
    "op": "opus",
    "prop": "proposition",
    "thm": "theorem",
    "lem": "lemma",
    "def": "definition",
    "cor": "corollary",
    "apt": "apartment",
}
"""Read so in front of a number."""
DATED = {"b": "born", "d": "died", "r": "reigned", "fl": "flourished", "c": "circa", "est": "established"}
"""Read so in front of a year."""
BEFORE_NUMBER = frozenset((*NUMBERED, *DATED, *"ver bd ed jan feb mar apr jun jul aug sep sept oct nov dec".split()))
"""Abbreviations before a number. Before anything else their stop ends a sentence, as in "He said no. Then"."""
_OTHER = frozenset(
    "msgr mx esq phd u.s u.k u.n u.s.a e.g i.e a.m p.m ph.d m.d b.a m.a b.sc m.sc d.c l.a n.b p.s a.k.a mon tue wed "
    "thu fri sat sun hr bzw z.b d.h usw ca str fr sra srta sres ud uds mm mgr".split()
)
ALL = frozenset(name.lower() for table in (TITLES, WORDS, STREETS, SHORT_MONTHS, SHORT_DAYS) for name in table) | _OTHER
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
