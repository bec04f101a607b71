#!/usr/bin/env bash
# ptts 0.4.2, the runtime of Gradium's Phonon models: `ptts.normalize(text, lang=...)`, which it documents as what its
# `TTS` does to a text before it tokenizes it, puts some words around numbers and leaves the digits to the model.
#
# Behaviour:
#   - numbers from a thousand on are cut at thousands and millions: "1234567" -> "1 million 234 thousand 567"
#   - decimals keep their digits as one group: "3.14" -> "3 point 14", "3.05" -> "3 point 05"
#   - money is read in units in English and French ("$5.50" -> "5 dollars and 50 cents", "5,50 €" -> "5 euros et 50
#     centimes"), and as a decimal in German, Spanish and Portuguese ("5,50 €" -> "5 coma 50 euros")
#   - "+", "=" and "°C" become words, in German with capitals ("2 Plus 2 Gleich 4"); "%", "&", "km/h", clock times,
#     dates, ordinals and a minus between spaces stay as they are, in each language
#   - without a language nothing of this happens
#
# The usual guess: a normalizer with rules per language spells numbers out, so that the model sees letters only, and
# treats a class alike in all languages that it has.
#
# Why it matters: transformers 5.24 runs the same checkpoints (`gradium_phonon_tts`) without any normalizer, so the same
# weights receive other texts in the two runtimes. Word error rates and durations of texts with numbers cannot be
# compared between them, and a clean-up in front of ptts that spells numbers changes what the model was given before.
#
# Output seen on 2026-11-29 (Linux, Python 3.11): the table below.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check ptts==0.4.2 numpy

"$folder/env/bin/python" - <<'PYTHON'
import sys

import ptts

SEEN = [
    ("en", "1234567", "1 million 234 thousand 567"),
    ("en", "3.14", "3 point 14"),
    ("en", "3.05", "3 point 05"),
    ("en", "$5.50", "5 dollars and 50 cents"),
    ("fr", "5,50 €", "5 euros et 50 centimes"),
    ("de", "5,50 €", "5 Komma 50 Euro"),
    ("es", "5,50 €", "5 coma 50 euros"),
    ("pt", "5,50 €", "5 vírgula 50 euros"),
    ("de", "1.234.567", "eine Million 234 Tausend 567"),
    ("de", "2+2=4", "2 Plus 2 Gleich 4"),
    ("en", "It is -5 °C.", "It is minus 5 degrees Celsius."),
    ("en", "3 - 2 = 1", "3 - 2 equals 1"),
    ("en", "50% of 10 km/h", "50% of 10 km/h"),
    ("fr", "50 %", "50 %"),
    ("en", "At 3:30 on the 2nd", "At 3:30 on the 2nd"),
    (None, "It is -5 °C.", "It is -5 °C."),
]
changed = 0
for language, text, expected in SEEN:
    result = ptts.normalize(text, lang=language)
    print(f"{language!s:5}{text:22}{result}")
    if result != expected:
        changed += 1
        print(f"     changed: was {expected!r}")
sys.exit(changed > 0)
PYTHON
