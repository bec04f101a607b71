"""Text of web pages: entities, and tags as pauses or nothing.

What a tag looks like is CommonMark's grammar of HTML, from markdown-it-py, and what an entity means is `html`'s table.
Nothing is fetched or expanded. SSML's tags stay for `markup`, and so do `<`, `>` and `&` as entities, so that what they
spell is never taken for a tag.
"""

from __future__ import annotations

import html
import re

from markdown_it.common import html_re

from stentor.text.cleanup.draft import COMMA, HEADING, LINE, PARAGRAPH, SCENE, STOP, Draft, Writer

_INLINE = frozenset(
    "a abbr acronym b base bdi bdo big br button cite code col colgroup data del dfn em embed font head hr html i "
    "iframe img input ins kbd label link map mark meta nobr object optgroup param picture q rp rt ruby samp select "
    "small source span strike strong sup textarea thead tbody tfoot time track tt u var video wbr canvas".split()
)
_PARAGRAPHS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form header main menu nav ol p pre section summary table title ul".split()
)
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_ITEMS, _CELLS = frozenset({"li", "tr", "option"}), frozenset({"td", "th"})
_UNSPOKEN = frozenset({"script", "style", "template", "noscript", "svg", "math"})
_KNOWN = _INLINE | _PARAGRAPHS | _HEADINGS | _ITEMS | _CELLS | _UNSPOKEN
_FLAGS = frozenset(
    "allowfullscreen async autofocus autoplay checked controls defer disabled download hidden loop multiple muted "
    "nowrap open readonly required reversed selected".split()
)
_TOKEN = re.compile(
    rf"(?P<comment><!--)|(?P<close>{html_re.close_tag})|(?P<open>{html_re.open_tag})"
    r"|&(?:amp;){0,3}(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
)
_NAME = re.compile(r"</?([A-Za-z][A-Za-z0-9-]*)")
_ATTRIBUTES = re.compile(rf"\s+({html_re.attr_name})(\s*=\s*{html_re.attr_value})?")
_KEPT = frozenset("<>&")
_SUPERSCRIPT = re.compile(
    r"\s*(?:<a\s[^<>]{0,400}>\s*)?(\[?\d{1,3}\]?|\[?[a-df-np-z]\]?|[*†‡§])\s*(?:</a\s*>\s*)?</sup\s*>", re.IGNORECASE
)


def cleaned(draft: Draft) -> Draft:
    """Without tags of HTML. Those that begin or end a line, a cell, a paragraph or a heading are pauses."""
    if "<" not in draft.text and "&" not in draft.text:
        return draft
    return _Page(draft).read()


class _Page:
    def __init__(self, draft: Draft) -> None:
        self.text, self.out = draft.text, Writer(draft)
        self._lost = ""  # an end that does not follow any more

    def read(self) -> Draft:
        at = 0
        while m := _TOKEN.search(self.text, at):
            at = max(m.end(), self._token(m))
        return self.out.done()

    def _token(self, m: re.Match[str]) -> int:
        """Read a tag or an entity. Returns where the next one may begin."""
        if m["comment"]:
            return self._without(m.start(), "-->", m.end())
        if m["open"] or m["close"]:
            return self._tag(m)
        entity = f"&{m[0][:-1].rpartition(';')[2].lstrip('&')};"  # of one that was written twice: &amp;quot;
        meant = html.unescape(entity)
        if meant == entity or (meant in _KEPT and entity == m[0]):
            return m.end()
        if meant in _KEPT:
            meant = entity
        self.out.keep_to(m.start())
        self.out.say(" " if meant.isspace() else meant, m.end())
        return m.end()

    def _without(self, start: int, end: str, after: int) -> int:
        """Leave out all up to `end`, where that follows."""
        at = -1 if end == self._lost else self.text.lower().find(end, after)
        if at < 0:
            self._lost = end
            return after
        self.out.keep_to(start)
        self.out.skip_to(stop := self.text.index(">", at) + 1 if ">" in self.text[at:] else len(self.text))
        return stop

    def _tag(self, m: re.Match[str]) -> int:
        found = _NAME.match(m[0])
        assert found is not None
        name = found[1].lower()
        if name not in _KNOWN or not _is_tag(m[0]):
            return m.end()
        if name in _UNSPOKEN and m["open"]:
            return self._without(m.start(), f"</{name}", m.end())
        self.out.keep_to(m.start())
        if name == "sup" and m["open"]:
            return self._raised(m)
        self.out.skip_to(m.end())
        if name == "br":
            self.out.close(COMMA, LINE)
        elif name == "hr":
            self.out.close(STOP, SCENE)
        elif name in _CELLS and m["close"]:
            self.out.close(COMMA, "")
        elif name in _ITEMS and m["close"]:
            self.out.close(STOP, LINE)
        elif name in _ITEMS or name in _PARAGRAPHS:
            self.out.close(STOP, LINE if name in _ITEMS else PARAGRAPH)
        elif name in _HEADINGS:
            self.out.close(STOP, HEADING if m["close"] else PARAGRAPH)
        return m.end()

    def _raised(self, m: re.Match[str]) -> int:
        """A raised number: a power behind a letter, a digit or a bracket, else the mark of a note."""
        note = _SUPERSCRIPT.match(self.text, m.end())
        before = self.text[max(0, m.start() - 2) : m.start()]
        power = re.search(r"(?<![^\W\d_])[A-Za-z]$|[\d)]$", before)
        power = power or re.search(r"=\s?\w{1,3}$", self.text[max(0, m.start() - 6) : m.start()])
        if note is None:
            self.out.skip_to(m.end())
            return m.end()
        if power and note[1].isalnum():
            self.out.say("^", note.start(1))
            self.out.keep_to(note.end(1))
        self.out.skip_to(note.end())
        return note.end()


def _is_tag(written: str) -> bool:
    """Whether its attributes are of HTML: `a <b and c> d` has none."""
    given = list(_ATTRIBUTES.finditer(written, 0, len(written)))
    return all(value is not None or name.lower() in _FLAGS for name, value in (g.groups() for g in given))
