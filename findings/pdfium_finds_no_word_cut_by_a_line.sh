#!/usr/bin/env bash
# PDFium has a code of its own in place of a hyphen at the end of a line. Two functions of a page report two codes, and its
# search finds such a word in no spelling.
#
# Version: pypdfium2 5.15.2 (its wheel has PDFium), pypdf 7.1.1, the pages by reportlab 5.1.0, 2026-11.
# Behaviour: where a line of a PDF ends with a hyphen, the hyphen and the end of the line become one character. The text of
# a range of characters has U+FFFE there, the text inside a rectangle and the code of the single character U+0002.
# A hyphen that is part of the word ("well-known") is replaced as well. `search` finds the printed word neither joined nor
# with its hyphen, nor as the character is reported alone. Only U+FFFE finds it. pypdf has "-" and a line feed.
# The usual guess: text with the hyphen as it is printed, the same text from every function, and a search that finds words
# across lines, as that of a viewer does.
# Why it matters: a narrow column has such a word every few lines. Speech reads "jum" and "ped" as two words, an index of a
# book misses them, and who strips control characters makes "wellknown". Text must be mended before it is
# normalised, once for each of the two codes. The clean-up of `stentor` takes both as a hyphen and the end of a line.
#
# Output seen:
#   pypdf: 'A fox jum-\nped over a well-\nknown dog.\n'
#   range: 'A fox jum\ufffeped over a well\ufffeknown dog.'
#   rectangle: 'A fox jum\x02ped over a well\x02known dog.'
#   one character: U+0002, a hyphen by its flag
#   found by search: ['jum\ufffeped', 'dog']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pypdfium2==5.15.2 pypdf==7.1.1 reportlab==5.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import pypdf
import pypdfium2
from reportlab.pdfgen.canvas import Canvas

canvas = Canvas("page.pdf")
for line, text in enumerate(("A fox jum-", "ped over a well-", "known dog.")):
    canvas.drawString(72, 700 - 16 * line, text)
canvas.save()

page = pypdfium2.PdfDocument("page.pdf")[0].get_textpage()
by_range = page.get_text_range()
by_rectangle = page.get_text_bounded()
by_pypdf = pypdf.PdfReader("page.pdf").pages[0].extract_text()
place = len("A fox jum")
code = pypdfium2.raw.FPDFText_GetUnicode(page, place)
flag = pypdfium2.raw.FPDFText_IsHyphen(page, place)
words = ["jumped", "jum-ped", "jum\ufffeped", "jum\x02ped", "well-known", "wellknown", "dog"]
hits = [word for word in words if page.search(word).get_next()]

print(f"pypdf: {by_pypdf!r}")
print(f"range: {by_range!r}")
print(f"rectangle: {by_rectangle!r}")
print(f"one character: U+{code:04X}, {'a hyphen by its flag' if flag == 1 else 'no hyphen by its flag'}")
print(f"found by search: {hits}")
sys.exit(
    by_pypdf.split() != ["A", "fox", "jum-", "ped", "over", "a", "well-", "known", "dog."]
    or by_range != "A fox jum\ufffeped over a well\ufffeknown dog."
    or by_rectangle != "A fox jum\x02ped over a well\x02known dog."
    or (code, flag) != (2, 1)
    or hits != ["jum\ufffeped", "dog"]
)
PYTHON
