"""Markdown as chats write it: CommonMark with tables and ~~strikethrough~~, parsed by markdown-it-py, and ==marks==.

Words stay and signs go. Targets of links and images go too, but an address that stands alone is read. Indented code and
HTML are not looked for: pasted prose is indented, and `pages` knows tags.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from stentor.text.cleanup.draft import COMMA, HEADING, LINE, PARAGRAPH, SCENE, STOP, Draft, Writer

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_SIGNS = re.compile(
    r"[*_`~\\|^]|!?\[|==|\+\+|<[a-z]+:|^[ \t]{0,3}(?:#{1,6}[ \t]|[-+][ \t]|>|\d{1,9}[.)][ \t]|-{3,}|={3,})",
    re.MULTILINE,
)
_HIGHLIGHT = re.compile(r"(?<![=\w])==(?=[^\s=])([^\n=]{1,400})(?<=[^\s=])==(?![=\w])")
_SPOILER = re.compile(r"(?<!\|)\|\|(?=[^\s|])([^\n|]{1,400})(?<=[^\s|])\|\|(?!\|)")
_BOX = re.compile(r"[ \t]*\[[ xX]\][ \t]+")
_DEFINITION = re.compile(
    r"^[ ]{0,3}\[([^\]\n^]{1,200})\]:[ \t]*<?((?:[a-z]{2,9}:|www\.|[/#.])[^\s>]*)>?[^\n]*\n?", re.MULTILINE
)
_INSERTED = re.compile(r"(?<![+\w])\+\+(?=[^\s+])([^\n+]{1,400})(?<=[^\s+])\+\+(?![+\w])")
_LOWERED = re.compile(r"(?<=[A-Za-z)])~(\w{1,3})~(?!~)")
_RAISED = re.compile(r"(?<=[\w)])(\^[\w+-]{1,10})\^")
_ALERT = re.compile(r"^[ \t]*>[ \t]?\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]", re.MULTILINE)
_LEFT = re.compile(
    r"(?<!\s)\*{2,}|\*{2,}(?!\s)|~~|^\*(?=\w)|(?<=\w)\*$|(?<=[^\W\d_]{2})\*(?=[\s.,;:!?)])|__(?!\w)", re.MULTILINE
)
_WRAPPED = (_HIGHLIGHT, _SPOILER, _INSERTED, _LOWERED, _RAISED, _ALERT)
_PHONEMES = re.compile(r"\[[^\[\]\n]{1,80}\]\(/[^/\n]{1,200}/\)")
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

    found = MarkdownIt("commonmark", {"html": False, "maxNesting": 12}).enable(["table", "strikethrough"])
    return found.disable(["code", "reference", "entity", "text_join", "html_inline", "html_block"])


def cleaned(draft: Draft) -> Draft:
    """Without Markdown's signs, with pauses where a list's item, a row, a cell or a heading ends."""
    if not _SIGNS.search(draft.text):
        return draft
    for pattern in _WRAPPED:
        draft = draft.sub(pattern, r"\1")
    references = {m[1].strip().upper(): {"title": "", "href": m[2]} for m in _DEFINITION.finditer(draft.text)}
    if references:
        draft = draft.sub(_DEFINITION, "")
    return _Answer(draft, _parser().parse(draft.text, {"references": references})).read()


class _Answer:
    """Goes through the tokens and the text side by side, as tokens do not say where they stand in a line."""

    def __init__(self, draft: Draft, tokens: list[Token]) -> None:
        self.text, self.tokens, self.out = draft.text, tokens, Writer(draft)
        self._given, self._limit = False, 0
        self.lines = [0, *(m.end() for m in re.finditer("\n", self.text)), len(self.text)]

    def read(self) -> Draft:
        for token in self.tokens:
            self._block(token)
        self.out.skip_to(len(self.text))
        return self.out.done()

    def _block(self, token: Token) -> None:
        kind = token.type
        if token.map is not None and kind in (
            "paragraph_open",
            "heading_open",
            "fence",
            "hr",
            "tr_open",
            "list_item_open",
        ):
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
        """Begin a block: empty lines in front of it stay, as their number says how long a pause is."""
        start = self.lines[min(line, len(self.lines) - 1)]
        if start > self.out.at:
            self.out.skip_to(start)
            before = self.text[:start] if start < 200 else self.text[start - 200 : start]
            self.out.close("", "\n" * min(len(SCENE), before[len(before.rstrip()) :].count("\n")))

    def _number(self, token: Token) -> None:
        """The number of an item is read, and has its mark behind it."""
        start = self.text.find(token.info + token.markup, self.out.at)
        if start >= 0:
            self.out.skip_to(start)
            self.out.keep_to(end := start + len(token.info + token.markup))
            self.out.say(" ", end)

    def _code(self, token: Token) -> None:
        start = self.text.find(token.content, self.lines[(token.map or [0, 0])[0]]) if token.content else -1
        if start >= 0:
            self.out.skip_to(start)
            self.out.keep_to(start + len(token.content))
        self.out.close(STOP, PARAGRAPH)

    def _inline(self, token: Token) -> None:
        start, self._limit = (self.lines[min(i, len(self.lines) - 1)] for i in token.map or (0, len(self.lines)))
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
        start = self.text.find(content, self.out.at, self._limit) if content else -1
        if start < 0:
            if content.strip():  # the parser has made something else of it
                self.out.say(content, self.out.at)
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
            self.out.say(token.content, start + len(token.markup))

    def _line_break(self) -> None:
        end = self.text.find("\n", self.out.at, self._limit)
        if end >= 0:
            self.out.skip_to(end)
            self.out.keep_to(end + 1)

    def _star(self) -> None:
        """A star between two operands is a sign of multiplication."""
        at = self.text.find("*", self.out.at, self._limit)
        if 0 < at < len(self.text) - 1 and self.text[at - 1].isdigit() and self.text[at + 1].isdigit():
            self.out.skip_to(at)
            self.out.keep_to(at + 1)

    def _open_link(self) -> None:
        """Phonemes in the form of a link stay as they are."""
        found = _PHONEMES.match(self.text, self.text.find("[", self.out.at, self._limit))
        if found is not None:
            self.out.skip_to(found.start())
            self.out.keep_to(found.end())
            self._given = True

    def _skip_target(self) -> None:
        """Leave out `](address)` or `][name]`."""
        at = self.text.find("]", self.out.at, self._limit)
        if at < 0:
            return
        end = {"(": ")", "[": "]"}.get(self.text[at + 1 : at + 2])
        stop = at if end is None else self.text.find(end, at + 2, self._limit)
        self.out.skip_to(max(at, stop) + 1)
