"""Read formulas of LaTeX as plain mathematics: signs that models read, and words for everything
else.

`formulas.toml` has the commands. The words follow ClearSpeak, as MathJax and NVDA speak
mathematics. A command that is in no table is read by its name, so nothing vanishes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

from stentor.text.draft import Draft, Writer
from stentor.text.english.tables import TABLES
from stentor.text.patterns import lazy

LONGEST = 2000
"""Characters of a formula."""
DEEPEST = 40
"""Groups inside each other. What is deeper is read without its structure."""
_BLOCKS = (
    "equation|align|aligned|alignat|flalign|gather|multline|eqnarray|displaymath|math|split|array|cases"
    "|[pbvBV]?matrix"
)
_DISPLAY = lazy(
    rf"(?<![A-Za-z$])\$\$([^$]{{1,{LONGEST}}})\$\$"
    rf"|\\\[((?:[^\\]|\\\\|\\(?![\]\[\\])){{1,{LONGEST}}})\\\]"
    rf"|\\\(((?:[^\\]|\\\\|\\(?![()\\])){{1,{LONGEST}}})\\\)"
)
_BLOCK_EDGE = lazy(rf"\\(begin|end)\{{(?:{_BLOCKS})\*?\}}")
_INLINE = lazy(r"(?<![\w$\\])\$(?![\s$])((?:[^$\n\\]|\\[^\n]){1,400})(?<!\s)\$(?![\d$])")
_MATHEMATICAL = lazy(
    r"[\\^_={}<>≤≥±×÷√∞∑∫≠≈∈]|^-?[A-Za-z]['’]{0,2}(?:\([A-Za-z]\))?$|^[A-Za-z](?:\([A-Za-z,\s]{1,9}\))?(?:\s?[-+*/]\s?\w{1,3})*$"
    r"|^[A-Za-z]\([\w,|\s]{1,20}\)$|^\|[\w\s+*/-]{1,30}\|$|^\(?[\w\s+*/-]{1,20}\)?!$|^\d+(?:[.,]\d+)*$"
    r"|^[A-Za-z](?:,\s?[A-Za-z]){1,8}$|^[\[(]\s?\w{1,6}(?:,\s?\w{1,6}){1,4}\s?[)\]]$"
    r"|^\d+\s?[*/+]\s?[A-Za-z]$|^\d*[A-Za-z](?:\s?[-+*/]\s?\d*[A-Za-z]?){1,6}$"
)
_TOKEN = lazy(
    r"\\\\(?:\s?\[-?[\d.]{1,6}\s?(?:pt|em|ex|mm|cm|in)\])?|\\(?:left|right)(?![A-Za-z])\s*\.?|\\(?:begin|end)\s*\{[A-Za-z]{1,20}\*?\}|\\[A-Za-z]+\*?|\\.|\d+(?:[.,]\d+)*|\s+|."
)
_SIMPLE = lazy(r"[\w.^\s∂∇]+")
_EXPONENT = lazy(r"[-−]?\w+")
_GIVEN = lazy(r"\b([A-Za-z]{1,4}[(\[][^()\[\]|]{1,40})\|([^()\[\]|]{1,40}[)\]])")
_INNER_PRODUCT = lazy(r"angle bracket\s+([^|()\s][^|()]{0,40})\|([^|()]{1,40}?)close angle bracket")
_ABSOLUTE = lazy(r"(?<![\w)])\|([^|]{1,200})\|")
_SPEED = lazy(r"(?<![\w/])([kcm]?m|mi|ft)/(s|h|min)(?![\w/])")
_NO_MEANING = frozenset(
    "left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr displaystyle textstyle scriptstyle limits "
    "nolimits quad qquad enspace thinspace nonumber notag hline centering nobreak allowbreak strut mathstrut rm bf it cal "
    "mathop mathrel mathbin mathord mathopen mathclose ensuremath null relax , ; : !".split()
)
_ARGUMENT_DROPPED = frozenset(
    "label tag hspace vspace color phantom hphantom vphantom textcolor colorbox mspace".split()
)
_WORDS_INSIDE = frozenset(
    "text textbf textit textrm textsf texttt textnormal mbox hbox operatorname emph mathop ce unit".split()
)
_INVERTED = tuple("sin cos tan sec csc cot sinh cosh tanh".split())
"""Functions whose power -1 is the inverse."""
SYMBOLS = TABLES["symbols"]
_ROOTS = {"2": "square root", "3": "cube root"}
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}
_ALIGNED = frozenset(
    "equation align aligned alignat flalign gather multline eqnarray displaymath math split".split()
)
_RAISED = {
    "°": "°",
    "composed with": "°",
    "prime": " prime",
    "*": " star",
    "star": " star",
    "×": " star",
    "+": " plus",
    "−": " minus",
    "top": " transpose",
    "dagger": " dagger",
}


def plain_formulas(draft: Draft) -> Draft:
    """With formulas as plain text."""
    text = draft.text
    if "\\(" in text or "\\[" in text or "$$" in text:
        draft = draft.sub(_DISPLAY, lambda m: plain_formula(next(g for g in m.groups() if g)))
    if text.count("$") > 1:
        draft = draft.sub(_INLINE, _inline)
    if "\\begin{" in draft.text:
        draft = _plain_blocks(draft)
    return draft


def _plain_blocks(draft: Draft) -> Draft:
    """With environments that stand without dollars as plain text."""
    out = Writer(draft)
    start = depth = 0
    for m in _BLOCK_EDGE.finditer(draft.text):
        if m[1] == "begin":
            start = start if depth else m.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth and m.end() - start <= LONGEST:
                out.keep_to(start)
                out.write(plain_formula(draft.text[start : m.end()]), m.end())
    return out.done()


def _inline(m: re.Match[str]) -> str:
    if _MATHEMATICAL.search(m[1]):
        return plain_formula(m[1])
    return m[0]


@cache
def tables() -> dict[str, dict[str, str]]:
    """The tables of commands, read when the first formula is."""
    source = Path(__file__).with_name("formulas.toml").read_text(encoding="utf-8")
    read: dict[str, dict[str, str]] = tomllib.loads(source)
    return read


def _inner_product(m: re.Match[str]) -> str:
    return f"the inner product of {m[1].strip()} and {m[2].strip()}"


@lru_cache(256)
def plain_formula(formula: str) -> str:
    r""" "\frac{a}{b}" -> "a ÷ b", "x_{1}^2" -> "x 1^2", "\ll" -> "is much less than"."""
    text = _Formula(formula).read()
    text = _GIVEN.sub(r"\1 given \2", text)
    text = _INNER_PRODUCT.sub(_inner_product, text)
    text = _ABSOLUTE.sub(r" the absolute value of \1 ", text)
    text = re.sub(r"(?<=[\w)])\s*\|\s*(?=[\w(])", " divides ", text)
    text = _SPEED.sub("\\1\u2044\\2", text)
    text = re.sub(r"(?<=[\w)])\s*/\s*(?=[A-Za-z(])|(?<=[A-Za-z)])\s*/\s*(?=\w)", " ÷ ", text)
    text = text.replace("\u2044", "/")
    text = re.sub(r"(?:(?<!\s)\s++)?([=<>≤≥≠≈→⇒×÷∈])\s*+", r" \1 ", text)
    text = re.sub(r"(?<!\s)\s++\^", "^", text)
    text = re.sub(r"°\s+(?=[CF]\b)", "°", re.sub(r"(?<!\s)\s++([,;:.])(?=\s|$)", r"\1", text))
    if not any(map(str.isalnum, text)):  # a text of nothing but signs counts as empty
        text = "".join(f" {SYMBOLS[c]} " if c in SYMBOLS else c for c in text)
    return " ".join(text.split())


class _Formula:
    """A reader of the tokens of a formula, from the first to the last."""

    def __init__(self, formula: str) -> None:
        tokens: list[str] = _TOKEN.findall(formula)
        self.tokens = ["\\\\" if token.startswith("\\\\") else token for token in tokens]
        self.at = 0
        self.depth = 0

    def read(self, *ends: str) -> str:
        """The text up to one of these tokens, which is not taken, or to the end."""
        text = ""
        self.depth += 1
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if token in ends or (token.startswith("\\end") and "\\end" in ends):
                break
            self.at += 1
            text += self._item(token, text)
        self.depth -= 1
        return text

    def _item(self, token: str, before: str) -> str:
        if token == "{" and self.depth < DEEPEST:
            return self._rest_of_group("}")
        if token in ("^", "_"):
            return self._script(token, before)
        if token.startswith("\\"):
            return self._command(token, before)
        if token == "-":
            return " − " if _ends_operand(before) else "−"
        if token == "'" and self._next() == "'":
            self.at += 1
            return " double prime "
        if token == "!" and _ends_operand(before):
            return " factorial "
        if token == "|" and self._next() == "_":
            return " evaluated at "
        return {"{": "", "}": "", "&": " ", "~": " ", "'": " prime ", "*": " × ", "+": " + "}.get(
            token, token
        )

    def _rest_of_group(self, *ends: str) -> str:
        text = self.read(*ends)
        self.at += 1
        return text

    def _next(self) -> str:
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        return ""

    def _argument(self, whole_number: bool = False) -> str:
        """The next group, or the next sign: of a number one digit, unless it is wanted whole."""
        while self._next().isspace():
            self.at += 1
        token = self._next()
        self.at += 1
        if token in ("^", "_") or self.depth >= DEEPEST:
            return ""
        if token == "{":
            return self._rest_of_group("}").strip()
        if token[:1].isdigit() and not whole_number and len(token) > 1:
            self.at -= 1
            self.tokens[self.at] = token[1:]
            return token[0]
        if token in ("", "}", "&"):
            self.at -= 1
            return ""
        self.depth += 1
        argument = self._item(token, "").strip()
        self.depth -= 1
        return argument

    def _words(self) -> str:
        """The next group as it is written."""
        if self._next() != "{":
            return self._argument()
        open_groups = 0
        words = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            open_groups += {"{": 1, "}": -1}.get(token, 0)
            if not open_groups:
                break
            words.append({"{": "", "}": "", "$": "", "~": " "}.get(token, token.lstrip("\\")))
        return "".join(words)

    def _script(self, token: str, before: str) -> str:
        raised = token == "^"
        script = self._argument(whole_number=True)
        last = before.rsplit(None, 1)[-1:]
        if raised and script in _RAISED:
            return _RAISED[script] + (" " if script != "°" else "")
        if raised and script == "T" and last and (last[0][-1:].isupper() or last[0][-1:] == ")"):
            return " transpose "
        if raised and _EXPONENT.fullmatch(script):
            gap = " " if self._next()[:1].isalnum() else ""  # "d^2y" is no power of 2y
            return "^" + script.replace("−", "-") + gap
        if raised:
            return f" to the power of {script} "
        if before.rstrip().endswith("log"):
            return f" base {script} of "
        return f" {script} "

    def _command(self, token: str, before: str) -> str:
        """Read a command by its table, and one of no table by its name."""
        if token.startswith("\\begin"):
            return self._environment(token)
        name = token[1:].rstrip("*").strip()
        command = commands().get(name)
        if command is not None:
            return command(self, before)
        if name.startswith(("left", "right")):
            return " "  # of a bracket that is not drawn
        return f" {name} " if name.isalpha() else name

    def _product(self, sign: str, before: str) -> str:
        """A dot and a cross behind the operator del have its own names."""
        if before.rstrip().endswith("del"):
            return f" {sign} "
        return " × "

    def _function(self, words: str) -> str:
        """ "\\sin^{-1} x" -> "inverse sine x"."""
        start = self.at
        if self._next() == "^":
            self.at += 1
            if self._argument(whole_number=True) in ("−1", "-1"):
                return f" inverse {words} "
        self.at = start
        return f" {words} "

    def _fraction(self, before: str) -> str:
        top = self._argument()
        bottom = self._argument()
        if top.isdigit() and bottom.isdigit() and before.rstrip()[-1:].isdigit():
            return f" {top}/{bottom} "  # a mixed number
        return f" {_grouped(top)} ÷ {_grouped(bottom)} "

    def _dropped(self, before: str) -> str:
        self._words()
        return " "

    def _as_written(self, before: str) -> str:
        return f" {self._words()} "

    def _root(self, before: str) -> str:
        index = ""
        if self._next() == "[":
            self.at += 1
            index = self._rest_of_group("]").strip()
        radicand = _grouped(self._argument())
        if not index or index == "2":
            return f"√{radicand}"
        if index in _ROOTS:
            return f" the {_ROOTS[index]} of {radicand} "
        suffix = _ORDINALS.get(index[-1], "th") if index[-2:-1] != "1" else "th"
        return f" the {index}{suffix} root of {radicand} "

    def _not(self, before: str) -> str:
        meant = self._argument()
        crossed = {"=": " ≠ ", "∈": " ∉ ", "<": " is not less than ", ">": " is not greater than "}
        return (
            crossed.get(meant)
            or f" {meant.replace('is ', 'is not ', 1) if 'is ' in meant else 'not ' + meant} "
        )

    def _blackboard(self, before: str) -> str:
        letter = self._argument()
        return f" {tables()['blackboard'].get(letter, letter)} "

    def _set(self, before: str) -> str:
        content = self._rest_of_group("\\}")
        return f" the set {content.replace('|', ' such that ')} "

    def _norm(self, before: str) -> str:
        return f" the norm of {self._rest_of_group(chr(92) + '|')} "

    def _large(self, word: str) -> str:
        """ "\\sum_{i=1}^n" -> "sum from i=1 to n of"."""
        bounds = {"_": "", "^": ""}
        while (
            (token := self._next()) in bounds
            or token.isspace()
            or token in ("\\limits", "\\nolimits")
        ):
            self.at += 1
            if token in bounds:
                bounds[token] = self._argument(whole_number=True)
        lower, upper = bounds["_"], bounds["^"]
        if word.startswith("limit") and lower:
            return f" {word} as {lower} of "
        if lower and upper:
            return f" {word} from {lower} to {upper} of "
        if lower:
            return f" {word} over {lower} of "
        return f" {word}{' to ' + upper if upper else ''} of "

    def _environment(self, token: str) -> str:
        kind = token.partition("{")[2].rstrip("}* ")
        if kind in ("array", "alignat"):
            self._words()
        rows = [[""]]
        while self.at < len(self.tokens):
            rows[-1][-1] = self.read("&", "\\\\", "\\end").strip()
            end = self._next()
            self.at += 1
            if end == "&":
                rows[-1].append("")
            elif end == "\\\\":
                rows.append([""])
            else:
                break
        return _rows(kind, [row for row in rows if any(row)])


Command = Callable[[_Formula, str], str]
"""Reads the rest of a command. It gets the text in front."""


@cache
def commands() -> dict[str, Command]:
    """All commands by name."""
    table = tables()
    readers: dict[str, Command] = {
        "sqrt": _Formula._root,
        "not": _Formula._not,
        "mathbb": _Formula._blackboard,
        "{": _Formula._set,
        "|": _Formula._norm,
        "\\": _as(", "),
    }
    readers |= dict.fromkeys(("frac", "dfrac", "tfrac", "cfrac"), _Formula._fraction)
    readers |= dict.fromkeys(_NO_MEANING, _as(" "))
    readers |= dict.fromkeys(_ARGUMENT_DROPPED, _Formula._dropped)
    readers |= dict.fromkeys(_WORDS_INSIDE, _Formula._as_written)
    readers |= {name: _as(sign) for name, sign in table["signs"].items()}
    readers |= {name: _as(f" {words} ") for name, words in table["words"].items()}
    readers |= {name: _function(table["words"][name]) for name in _INVERTED}
    readers |= {"cdot": _product("dot"), "times": _product("cross")}
    readers |= {name: _large(word) for name, word in table["large"].items()}
    readers |= {name: _around(words) for name, words in table["around"].items()}
    readers |= {name: _two(words) for name, words in table["two"].items()}
    for pair, words in table["pairs"].items():
        opening, closing = pair.split()
        readers[opening] = _paired(closing, words)
    return readers


def _as(text: str) -> Command:
    return lambda formula, before: text


def _large(word: str) -> Command:
    return lambda formula, before: formula._large(word)


def _function(words: str) -> Command:
    return lambda formula, before: formula._function(words)


def _product(sign: str) -> Command:
    return lambda formula, before: formula._product(sign, before)


def _around(words: str) -> Command:
    return lambda formula, before: f" {words.format(formula._argument())} "


def _two(words: str) -> Command:
    return lambda formula, before: f" {words.format(formula._argument(), formula._argument())} "


def _paired(closing: str, words: str) -> Command:
    return lambda formula, before: f" {words} {formula._rest_of_group(chr(92) + closing)} "


def _rows(kind: str, rows: list[list[str]]) -> str:
    if kind in _ALIGNED:
        return f" {', '.join(' '.join(row) for row in rows)} "
    cells = [", ".join(cell for cell in row if cell) for row in rows]
    if kind == "cases":
        return f" cases: {'; '.join(cells)} "
    what = "determinant" if kind in ("vmatrix", "Vmatrix") else "matrix"
    return f" {what}, {'; '.join(f'row {at}: {row}' for at, row in enumerate(cells, 1))} "


def _ends_operand(text: str) -> bool:
    last = text.rstrip()[-1:]
    return last.isalnum() or last in tuple(")]°∞")


def _grouped(part: str) -> str:
    if _SIMPLE.fullmatch(part.strip()):
        return part.strip()
    return f"({part.strip()})"
