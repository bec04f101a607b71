#!/usr/bin/env bash
# elevenlabs 2.78.0: what `text_to_speech.convert_realtime` sends of the text that a language model streams into it.
#
# Behaviour: the SDK's `text_chunker` groups what the iterator yields and ends each group with a space if it ends with one of
# . , ? ! ; : - ( ) [ ] } or a long dash. A mark inside a word or a number ends a group too, and tokenizers of language models put
# marks into tokens of their own. So "3", ".", "14" leaves as "3. " and "14 ", and joining what was sent does not
# give the text back. It depends on the tokens: "3.14" in one token stays whole.
#
# The usual guess: the chunker only waits for complete words, the concatenation of the messages is the concatenation of the
# tokens, and a voice that says "three. fourteen" has a bad number normalizer.
#
# Output seen (2026-11-29):
#   ['Pi is', ' 3', '.', '14', '.']     -> 'Pi is 3. 14. '
#   ['At', ' 10', ':', '30', '.']       -> 'At 10: 30. '
#   ['See', ' example', '.com', '.']    -> 'See example. com. '
#   ['A', ' well', '-known', ' man.']   -> 'A well- known man. '
#   ['Pi is 3.14.']                     -> 'Pi is 3.14. '
#
# Why it matters: prices, times, versions and addresses of streamed answers are spoken as two sentences with a pause. A server
# cannot tell "3. " and "14 " from the end of a sentence and the start of the next, but by the SDK's header.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check elevenlabs==2.78.0

cat > "$folder/chunks.py" <<'PY'
import sys

from elevenlabs.realtime_tts import text_chunker

SEEN = {
    ("Pi is", " 3", ".", "14", "."): "Pi is 3. 14. ",
    ("At", " 10", ":", "30", "."): "At 10: 30. ",
    ("See", " example", ".com", "."): "See example. com. ",
    ("A", " well", "-known", " man."): "A well- known man. ",
    ("Pi is 3.14.",): "Pi is 3.14. ",
}
changed = False
for tokens, expected in SEEN.items():
    sent = "".join(text_chunker(iter(tokens)))
    print(f"{list(tokens)!s:35} -> {sent!r}")
    changed |= sent != expected
sys.exit(changed)
PY
"$folder/venv/bin/python" "$folder/chunks.py"
