"""Characters that a speech engine never hears: invisible ones, ligatures, apostrophes of other kinds, other spaces."""

from __future__ import annotations

import re
import unicodedata

from stentor.text.cleanup.draft import Draft

_JOINERS = "\u200c\u200d"  # say how letters of some scripts are joined
_INVISIBLE = (  # all others of category Cf, as tests/text/test_cleanup.py counts them
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U00013438\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001"
    "\U000e0020-\U000e007f"
)
_DROPPED = re.compile(
    rf"[\x00\x7f-\x84\x86-\x9f{_INVISIBLE}]|(?<=[ -\u024f])[{_JOINERS}]+(?=[ -\u024f]|$)|^[{_JOINERS}]+"
)
_CUT_BY_SOFT_HYPHEN = re.compile(r"(?<=\w)\u00ad[ \t]*\r?\n[ \t]*(?=\w)")
_LINE_ENDS = re.compile(r"\r\n?|[\x85\u2028]")
_PARAGRAPH_ENDS = re.compile("\u2029")
_LIGATURES = re.compile(r"[\ufb00-\ufb06\ufb13-\ufb17]")
_LETTER = r"[^\W\d_]"
_APOSTROPHES = re.compile(rf"(?<={_LETTER})[\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`](?={_LETTER})")
_ANY = re.compile(
    rf"[\r\x00\x7f-\x9f\u2028\u2029\ufb00-\ufb17\u02bc\u00b4\u2032\u201b\u02b9\uff07\u055a`{_JOINERS}{_INVISIBLE}]"
)


def cleaned(draft: Draft) -> Draft:
    """Without characters of category Cf and NULs, with plain letters for ligatures and ’ inside words."""
    if not _ANY.search(draft.text):
        return draft
    draft = draft.sub(_CUT_BY_SOFT_HYPHEN, "").sub(_DROPPED, "").sub(_LINE_ENDS, "\n").sub(_PARAGRAPH_ENDS, "\n\n")
    return draft.sub(_LIGATURES, lambda m: unicodedata.normalize("NFKC", m[0])).sub(_APOSTROPHES, "’")
