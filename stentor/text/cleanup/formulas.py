"""Formulas of LaTeX as plain mathematical text: `$n^2$` is n^2. What a command stands for is from pylatexenc.

An amount of money is none: a formula has a sign of mathematics in it, or is one letter.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache

from stentor.text.cleanup.draft import Draft

LONGEST = 400
"""Characters of a formula."""
_ENVIRONMENTS = "equation|align|aligned|gather|multline|eqnarray|displaymath|math"
_DISPLAY = re.compile(
    rf"\$\$([^$]{{1,{LONGEST}}})\$\$|\\\[((?:[^\\]|\\(?!\])){{1,{LONGEST}}})\\\]|\\\(((?:[^\\]|\\(?!\))){{1,{LONGEST}}})\\\)"
    rf"|\\begin\{{(?:{_ENVIRONMENTS})\*?\}}((?:[^\\]|\\(?!end\{{)){{1,{LONGEST}}})\\end\{{\w{{1,20}}\*?\}}"
)
_INLINE = re.compile(rf"(?<![\w$\\])\$(?![\s$])([^$\n]{{1,{LONGEST}}})(?<![\s\\])\$(?![\d$])")
_MATHEMATICAL = re.compile(
    r"[\\^_={}<>≤≥±×÷√∞∑∫≠≈∈]|^[A-Za-z]['’]?$|^[A-Za-z](?:\([A-Za-z,\s]{1,9}\))?(?:\s?[-+*/]\s?\w{1,3})*$"
    r"|^[A-Za-z]\([\w,|\s]{1,20}\)$"
)
_BRACES = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_BRACES}\s*{_BRACES}")
_TEXT = re.compile(
    r"\\(?:text|mathrm|mathbf|mathit|operatorname|mathcal|mathbb|left|right|displaystyle|,|;|!|quad|qquad)(?![A-Za-z])"
)
_BOUND = r"(?:\{([^{}]{1,40})\}|(\w|\\infty))"
_BOUNDS = re.compile(rf"\\(int|oint|sum|prod)(?![A-Za-z])\s*_{_BOUND}\s*\^{_BOUND}")
_LIMIT = re.compile(r"\\lim\s*_\{([^{}]{1,40})\}")
_OVER = {"int": "integral", "oint": "integral", "sum": "sum", "prod": "product"}
_GIVEN = re.compile(r"\bP\(([^()|]{1,20})\|([^()|]{1,20})\)")
_SPEED = re.compile(r"(?<![\w/])([kcm]?m|mi|ft)/(s|h|min)(?![\w/])")
_ROOT = re.compile(rf"\\sqrt\s*{_BRACES}")
_SPACE = re.compile(r"\s+")
_SCRIPT = re.compile(r"([_^])\{([^{}]{1,80})\}")
_WORDS = {
    "\\cdot": "×",
    "\\%": "%",
    "\\&": "&",
    "\\$": "$",
    "\\dots": "…",
    "\\ldots": "…",
    "\\cdots": "…",
    "\\\\": ", ",
}
_SIMPLE = re.compile(r"[\w.]+")


def cleaned(draft: Draft) -> Draft:
    """With formulas as plain text."""
    text = draft.text
    if "\\(" in text or "\\[" in text or "$$" in text or "\\begin{" in text:
        draft = draft.sub(_DISPLAY, lambda m: _plain(next(g for g in m.groups() if g)))
    if text.count("$") > 1:
        draft = draft.sub(_INLINE, lambda m: _plain(m[1]) if _MATHEMATICAL.search(m[1]) else m[0])
    return draft


@lru_cache(256)
def _plain(formula: str) -> str:
    """ "\\frac{a}{b}" -> "a ÷ b", "x_{1}^2" -> "x 1^2". A formula that is no LaTeX stays, without its signs."""
    for _ in range(3):  # as deep as braces are followed
        formula = _FRACTION.sub(lambda m: f"{_grouped(m[1])} ÷ {_grouped(m[2])}", formula)
    formula = _LIMIT.sub(r"limit as \1 of ", _BOUNDS.sub(_bounds, formula))
    formula = _GIVEN.sub(r"P(\1 given \2)", formula.replace("\\mid", "|"))
    formula = _ROOT.sub(lambda m: f"√{_grouped(m[1])}", _TEXT.sub(" ", formula))
    for command, sign in _WORDS.items():
        formula = formula.replace(command, sign)
    formula = _SCRIPT.sub(lambda m: f"{m[1]}{m[2]}" if m[1] == "^" else f" {m[2]}", formula)
    found = _unicode(formula) if "\\" in formula else formula
    found = re.sub(r"(?<=\w)_(?=\w)", " ", found)
    found = _SPEED.sub("\\1\u2044\\2", found)
    found = re.sub(r"(?<=[\w)])\s*/\s*(?=[\w(])", " ÷ ", found).replace("\u2044", "/")
    found = re.sub(r"\s*([=<>≤≥≠≈→⇒×÷∈])\s*", r" \1 ", found)
    return _SPACE.sub(" ", re.sub(r"[\\{}$&]", " ", found)).strip()


def _bounds(m: re.Match[str]) -> str:
    """ "\\sum_{i=1}^n" -> "sum from i=1 to n of "."""
    return f"{_OVER[m[1]]} from {m[2] or m[3]} to {m[4] or m[5]} of "


def _grouped(part: str) -> str:
    return part.strip() if _SIMPLE.fullmatch(part.strip()) else f"({part.strip()})"


def _unicode(formula: str) -> str:
    from pylatexenc.latex2text import LatexNodes2Text

    logging.getLogger("pylatexenc").setLevel(logging.CRITICAL)  # it warns of arguments that are missing
    try:
        return str(LatexNodes2Text(math_mode="text", strict_latex_spaces="based-on-source").latex_to_text(formula))
    except Exception:  # it is no LaTeX, or nested too deep: the words in it are read
        return re.sub(r"\\([A-Za-z]+)", r" \1 ", formula)
