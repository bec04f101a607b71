"""Text of web pages and chats: HTML and Markdown as words and pauses."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import TYPE_CHECKING

from stentor.text.draft import COMMA, HEADING, LINE, PARAGRAPH, SCENE, STOP, Draft, Writer
from stentor.text.english.tables import CENSORED
from stentor.text.marks import ADDRESS, PHONEMES
from stentor.text.patterns import lazy

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_INLINE = frozenset(
    "a abbr acronym b base bdi bdo big br button cite code col colgroup data del dfn em embed font head hr html i "
    "iframe img input ins kbd label link map mark meta nobr object optgroup param picture q rp rt ruby samp select "
    "small source span strike strong sup textarea thead tbody tfoot time track tt u var video wbr canvas".split()
)
_PARAGRAPHS = frozenset(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form header main menu ol p pre section summary table ul".split()
)
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_ITEMS = frozenset({"li", "tr", "option"})
_CELLS = frozenset({"td", "th"})
_UNSPOKEN = frozenset({"script", "style", "template", "noscript", "svg", "math", "title", "nav"})
_OPENING = {
    "br": (COMMA, LINE),
    "hr": (STOP, SCENE),
    **dict.fromkeys(_ITEMS, (STOP, LINE)),
    **dict.fromkeys(_PARAGRAPHS | _HEADINGS, (STOP, PARAGRAPH)),
}
"""Mark and white space that a tag ends the text before it with."""
_CLOSING = {
    **_OPENING,
    **dict.fromkeys(_CELLS, (COMMA, "")),
    **dict.fromkeys(_HEADINGS, (STOP, HEADING)),
}
_KNOWN = _INLINE | _PARAGRAPHS | _HEADINGS | _ITEMS | _CELLS | _UNSPOKEN
_FLAGS = frozenset(
    "allowfullscreen async autofocus autoplay checked controls defer disabled download hidden loop multiple muted "
    "nowrap open readonly required reversed selected".split()
)
_NAME = lazy(r"</?([A-Za-z][A-Za-z0-9-]*)")
_KEPT = frozenset("<>&")
_SUPERSCRIPT = lazy(
    r"(?<!\s)\s*+(?:<a\s[^<>]{0,400}>\s*+)?(\[?\d{1,3}\]?|\[?[a-df-np-z]\]?|[*†‡§])\s*+(?:</a\s*+>\s*+)?</sup\s*+>",
    re.IGNORECASE,
)


def without_html(draft: Draft) -> Draft:
    """Without tags of HTML. Those that begin or end a line, a cell, a paragraph or a heading are
    pauses."""
    if "<" not in draft.text and "&" not in draft.text:
        return draft
    return _Page(draft).read()


@cache
def _closing(end: str) -> re.Pattern[str]:
    """Find `end` in any case. A lowered copy of a text has other places: "İ" becomes two
    characters."""
    return re.compile(re.escape(end), re.IGNORECASE | re.ASCII)


@cache
def _tokens() -> re.Pattern[str]:
    """Find comments, tags and entities. The library is imported only for pages that have some."""
    from markdown_it.common import html_re

    return re.compile(
        rf"(?P<comment><!--)|(?P<close>{html_re.close_tag})|(?P<open>{html_re.open_tag})"
        r"|&(?:amp;){0,3}(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});"
    )


@cache
def _attributes() -> re.Pattern[str]:
    from markdown_it.common import html_re

    return re.compile(rf"(?<!\s)\s++({html_re.attr_name})(\s*+=\s*+{html_re.attr_value})?")


class _Page:
    def __init__(self, draft: Draft) -> None:
        self.text = draft.text
        self.out = Writer(draft)
        self._lost = ""  # an end that does not follow any more

    def read(self) -> Draft:
        at = 0
        while m := _tokens().search(self.text, at):
            at = max(m.end(), self._token(m))
        return self.out.done()

    def _token(self, m: re.Match[str]) -> int:
        """Read a tag or an entity. Returns where the next one may begin."""
        if m["comment"]:
            return self._without(m.start(), "-->", m.end())
        if m["open"] or m["close"]:
            return self._tag(m)
        # of one that was written twice: &amp;quot;
        entity = f"&{m[0][:-1].rpartition(';')[2].lstrip('&')};"
        meant = html.unescape(entity)
        if meant == entity or (meant in _KEPT and entity == m[0]):
            return m.end()
        if meant in _KEPT:
            meant = entity
        self.out.keep_to(m.start())
        self.out.write(" " if meant.isspace() else meant, m.end())
        return m.end()

    def _without(self, start: int, end: str, after: int) -> int:
        """Leave out all up to `end`, where that follows."""
        if end == self._lost:
            return after
        closing = _closing(end).search(self.text, after)
        if closing is None:
            self._lost = end
            return after
        bracket = self.text.find(">", closing.start())
        stop = len(self.text) if bracket < 0 else bracket + 1
        self.out.keep_to(start)
        self.out.skip_to(stop)
        return stop

    def _tag(self, m: re.Match[str]) -> int:
        tag = _NAME.match(m[0])
        assert tag is not None
        name = tag[1].lower()
        if name not in _KNOWN or not _is_tag(m[0]):
            return m.end()
        if name in _UNSPOKEN and m["open"]:
            return self._without(m.start(), f"</{name}", m.end())
        self.out.keep_to(m.start())
        if name == "sup" and m["open"]:
            return self._raised(m)
        self.out.skip_to(m.end())
        if pause := (_CLOSING if m["close"] else _OPENING).get(name):
            self.out.close(*pause)
        return m.end()

    def _raised(self, m: re.Match[str]) -> int:
        """A raised number: a power behind a letter, a digit or a bracket, else the mark of a
        note."""
        note = _SUPERSCRIPT.match(self.text, m.end())
        before = self.text[max(0, m.start() - 2) : m.start()]
        power = re.search(r"(?<![^\W\d_])[A-Za-z]$|[\d)]$", before)
        power = power or re.search(r"=\s?\w{1,3}$", self.text[max(0, m.start() - 6) : m.start()])
        if note is None:
            self.out.skip_to(m.end())
            return m.end()
        if power and note[1].isalnum():
            self.out.write("^", note.start(1))
            self.out.keep_to(note.end(1))
        self.out.skip_to(note.end())
        return note.end()


def _is_tag(written: str) -> bool:
    """Whether its attributes are of HTML: `a <b and c> d` has none."""
    attributes = list(_attributes().finditer(written, 0, len(written)))
    return all(
        value is not None or name.lower() in _FLAGS
        for name, value in (g.groups() for g in attributes)
    )


_SIGNS = lazy(
    r"[*_`~\\|^\]]|==|\+\+|<[a-z]+:|^[ \t]{0,3}(?:#{1,6}[ \t]|[-+][ \t]|>|\d{1,9}[.)][ \t]|-{3,}|={3,})",
    re.MULTILINE,
)
_HIGHLIGHT = lazy(r"(?<![=\w])==(?=[^\s=])([^\n=]{1,400})(?<=[^\s=])==(?![=\w])")
_SPOILER = lazy(r"(?<!\|)\|\|(?=[^\s|])([^\n|]{1,400})(?<=[^\s|])\|\|(?!\|)")
_BOX = lazy(r"(?<![ \t])[ \t]*+\[[ xX]\][ \t]+")
_DEFINITION = lazy(
    rf"^[ ]{{0,3}}\[([^\]\n^]{{1,200}})\]:[ \t]*<?({ADDRESS})>?[ \t]*(?:[\"'(][^\n]*)?(?:\n|$)",
    re.MULTILINE,
)
_INSERTED = lazy(r"(?<![+\w])\+\+(?=[^\s+])([^\n+]{1,400})(?<=[^\s+])\+\+(?![+\w])")
_LOWERED = lazy(r"(?<=[A-Za-z)])~(\w{1,3})~(?!~)")
_RAISED = lazy(r"(?<=[\w)])(\^[\w+-]{1,10})\^")
_ALERT = lazy(r"^[ \t]*>[ \t]?\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]", re.MULTILINE)
_LEFT = lazy(
    r"(?<!\s)\*{2,}|\*{2,}(?!\s)|~~|^\*(?=\w)|(?<=\w)\*$|(?<=[^\W\d_]{2})\*(?=[\s.,;:!?)])|__(?!\w)",
    re.MULTILINE,
)
_WRAPPED = (_HIGHLIGHT, _SPOILER, _INSERTED, _LOWERED, _RAISED, _ALERT)
_PHONEMES = lazy(PHONEMES)
_CENSORED = lazy(CENSORED, re.IGNORECASE)
_STAR = "\ue010"
"""Stands for a star that no sign of Markdown is, while Markdown is read."""
_STARS = lazy(_STAR)
_BLOCKS = frozenset("paragraph_open heading_open fence hr tr_open list_item_open".split())
_ENDS = {
    "hr": (STOP, SCENE),
    "th_close": (COMMA, ""),
    "td_close": (COMMA, ""),
    "tr_close": (STOP, LINE),
    "heading_close": (STOP, HEADING),
    "list_item_close": (STOP, LINE),
    "bullet_list_open": (STOP, LINE),
    "ordered_list_open": (STOP, LINE),
    "bullet_list_close": (STOP, PARAGRAPH),
    "ordered_list_close": (STOP, PARAGRAPH),
    "table_close": (STOP, PARAGRAPH),
    "blockquote_close": (STOP, PARAGRAPH),
}


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 12}).enable(
        ["table", "strikethrough"]
    )
    return parser.disable(["code", "reference", "entity", "text_join", "html_inline", "html_block"])


def without_markdown(draft: Draft) -> Draft:
    """Without Markdown's signs, with pauses where a list's item, a row, a cell or a heading
    ends."""
    if not _SIGNS.search(draft.text):
        return draft
    for pattern in _WRAPPED:
        draft = draft.sub(pattern, r"\1")
    draft = draft.sub(_CENSORED, lambda m: m[0].replace("*", _STAR))
    references = {
        m[1].strip().upper(): {"title": "", "href": m[2]} for m in _DEFINITION.finditer(draft.text)
    }
    if references:
        draft = draft.sub(_DEFINITION, "")
    answer = _Answer(draft, _parser().parse(draft.text, {"references": references})).read()
    return answer.sub(_STARS, "*")


class _Answer:
    """Goes through the tokens and the text side by side, as tokens have no place in a line."""

    def __init__(self, draft: Draft, tokens: list[Token]) -> None:
        self.text = draft.text
        self.tokens = tokens
        self.out = Writer(draft)
        self._given = False
        self._limit = 0
        self.lines = [0, *(m.end() for m in re.finditer("\n", self.text)), len(self.text)]

    def read(self) -> Draft:
        for token in self.tokens:
            self._block(token)
        self.out.skip_to(len(self.text))
        return self.out.done()

    def _block(self, token: Token) -> None:
        kind = token.type
        if token.map is not None and kind in _BLOCKS:
            self._begin(token.map[0])
        if kind == "inline":
            self._inline(token)
        elif kind == "list_item_open" and token.info:
            self._number(token)
        elif kind == "fence":
            self._code(token)
        elif kind in _ENDS:
            self.out.close(*_ENDS[kind])

    def _begin(self, line: int) -> None:
        """Begin a block: empty lines in front of it stay, as their number sets the length of a
        pause."""
        start = self.lines[min(line, len(self.lines) - 1)]
        if start > self.out.at:
            self.out.skip_to(start)
            if start < 200:
                before = self.text[:start]
            else:
                before = self.text[start - 200 : start]
            self.out.close("", "\n" * min(len(SCENE), before[len(before.rstrip()) :].count("\n")))

    def _number(self, token: Token) -> None:
        """The number of an item is read, and has its mark behind it."""
        start = self.text.find(token.info + token.markup, self.out.at)
        if start >= 0:
            self.out.keep(start, end := start + len(token.info + token.markup))
            self.out.write(" ", end)

    def _code(self, token: Token) -> None:
        if token.content:
            start = self.text.find(token.content, self.lines[(token.map or [0, 0])[0]])
        else:
            start = -1
        if start >= 0:
            self.out.keep(start, start + len(token.content))
        self.out.close(STOP, PARAGRAPH)

    def _inline(self, token: Token) -> None:
        start, self._limit = (
            self.lines[min(i, len(self.lines) - 1)] for i in token.map or (0, len(self.lines))
        )
        self.out.skip_to(start)
        box = _BOX.match(token.content)
        for at, child in enumerate(token.children or []):
            self._part(child, box.end() if box and at == 0 else 0)

    def _part(self, token: Token, skipped: int) -> None:
        if self._given:  # phonemes in the form of a link, which have been taken
            self._given = token.type != "link_close"
        elif token.type in ("text", "code_inline"):
            self._words(token.content[skipped:])
        elif token.type == "text_special":
            self._special(token)
        elif token.type in ("softbreak", "hardbreak"):
            self._line_break()
        elif token.type == "image":
            for child in token.children or []:
                self._part(child, 0)
            self._skip_target()
        elif token.type == "link_open":
            self._open_link()
        elif token.type == "link_close" and token.info != "auto":
            self._skip_target()
        elif token.type in ("em_open", "em_close") and token.markup == "*":
            self._star()

    def _words(self, content: str) -> None:
        if content:
            start = self.text.find(content, self.out.at, self._limit)
        else:
            start = -1
        if start < 0:
            if content.strip():  # the parser has made something else of it
                self.out.write(content, self.out.at)
            return
        self.out.skip_to(start)
        for m in _LEFT.finditer(content):
            self.out.keep_to(start + m.start())
            self.out.skip_to(start + m.end())
        self.out.keep_to(start + len(content))

    def _special(self, token: Token) -> None:
        start = self.text.find(token.markup, self.out.at, self._limit)
        if start >= 0:
            self.out.skip_to(start)
            self.out.write(token.content, start + len(token.markup))

    def _line_break(self) -> None:
        end = self.text.find("\n", self.out.at, self._limit)
        if end >= 0:
            self.out.keep(end, end + 1)

    def _star(self) -> None:
        """A star between two operands is a sign of multiplication."""
        at = self.text.find("*", self.out.at, self._limit)
        if (
            0 < at < len(self.text) - 1
            and self.text[at - 1].isdigit()
            and self.text[at + 1].isdigit()
        ):
            self.out.keep(at, at + 1)

    def _open_link(self) -> None:
        """Phonemes in the form of a link stay as they are."""
        phonemes = _PHONEMES.match(self.text, self.text.find("[", self.out.at, self._limit))
        if phonemes is not None:
            self.out.keep(*phonemes.span())
            self._given = True

    def _skip_target(self) -> None:
        """Leave out `](address)` or `][name]`."""
        at = self.text.find("]", self.out.at, self._limit)
        if at < 0:
            return
        end = {"(": ")", "[": "]"}.get(self.text[at + 1 : at + 2])
        if end is None:
            stop = at
        else:
            stop = self.text.find(end, at + 2, self._limit)
        self.out.skip_to(max(at, stop) + 1)
