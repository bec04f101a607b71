"""Text as the original cleans it before the model reads it, as far as that needs no grammar of numbers.

The model reads digits itself. The original spells those of any text without Chinese characters in English, also in
French, so they stay here.
"""

from __future__ import annotations

import re

_CHINESE = re.compile("[\u4e00-\u9fff]")
_REPLACED = (("²", "平方"), ("³", "立方"), (" - ", "\uff0c"), ("——", " "))
_DROPPED = re.compile("[\uff08\uff09【】`\n]")
_STOP = re.compile(r"(?<!\d)\.|\.(?!\d)")  # the original has spelled decimals before, by another package
_SPACE = re.compile(r"(?<![!-~]) | (?![!-~])")
_OPEN_END = re.compile("[\uff0c,、]+$")


def normalized(text: str) -> str:
    """Chinese text without brackets, and with Chinese stops. Text that has a `<|mark|>` stays as it is."""
    if ("<|" in text and "|>" in text) or not _CHINESE.search(text):
        return text
    text = _SPACE.sub("", text.strip().replace("\n", ""))
    text = _STOP.sub("。", text)
    for written, meant in _REPLACED:
        text = text.replace(written, meant)
    return _OPEN_END.sub("。", _DROPPED.sub("", text))
