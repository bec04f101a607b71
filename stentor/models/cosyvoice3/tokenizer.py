"""The text tokenizer: Qwen2's, and special tokens for phones, sounds and the end of the system
part.

Special tokens match before anything else wherever they stand, so text that contains `[laughter]`
becomes that token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stentor.errors import CheckpointError
from stentor.models.byte_bpe import ByteBPE
from stentor.models.cosyvoice3.config import TEXT_MODEL
from stentor.text.marks import TextMarks

END_OF_PROMPT = "<|endofprompt|>"
_SOUNDS = """[breath] <strong> </strong> [noise] [laughter] [cough] [clucking] [accent] [quick_breath] <laughter>
</laughter> [hissing] [sigh] [vocalized-noise] [lipsmack] [mn] <|endofsystem|>"""
_VOWELS = {"AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"}
_PHONES = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
_PINYIN = """a ai an ang ao b c ch d e ei en eng f g h i ian in ing iu ià iàn iàng iào iá ián iáng iáo iè ié iòng
ióng iù iú iā iān iāng iāo iē iě iōng iū iǎ iǎn iǎng iǎo iǒng iǔ j k l m n o ong ou p q r s sh t u
uang ue un uo uà uài uàn uàng uá uái uán uáng uè ué uì uí uò uó uā uāi uān uāng uē uě uī uō uǎ uǎi
uǎn uǎng uǐ uǒ vè w x y z zh à ài àn àng ào á ái án áng áo è èi èn èng èr é éi én éng ér ì ìn ìng í
ín íng ò òng òu ó óng óu ù ùn ú ún ā āi ān āng āo ē ēi ēn ēng ě ěi ěn ěng ěr ī īn īng ō ōng ōu ū ūn
ǎ ǎi ǎn ǎng ǎo ǐ ǐn ǐng ǒ ǒng ǒu ǔ ǔn ǘ ǚ ǜ"""


def special_tokens() -> list[str]:
    """In the order of their ids, from `<|endofprompt|>` on: sounds, 84 phones (CMU's), 176 parts of
    pinyin."""
    phones = [
        p + stress
        for p in _PHONES.split(" ")
        for stress in (("", "0", "1", "2") if p in _VOWELS else ("",))
    ]
    return [END_OF_PROMPT, *_SOUNDS.split(), *(f"[{p}]" for p in (*phones, *_PINYIN.split()))]


SYSTEM = "You are a helpful assistant."
_LONGEST_SYSTEM = 2000  # characters of a system part in front of a text
MARKS = TextMarks(
    other="|".join([r"<\|[a-z]+\|>", *map(re.escape, special_tokens())]),
    unfinished=r"<[|/a-z]{0,20}$|\[[^\[\]\s]{0,20}$",
    lead=rf"(?s:.{{0,{_LONGEST_SYSTEM}}}?){re.escape(END_OF_PROMPT)}\s*",
    lead_begun=rf"\s*(?:{'|'.join(re.escape(SYSTEM[:n]) for n in range(len(SYSTEM)))}"
    rf"|{re.escape(SYSTEM)}(?s:(?!{re.escape(END_OF_PROMPT)}).){{0,{_LONGEST_SYSTEM}}})",
    lead_continues=True,
)
"""Special tokens in a text, and a system part of its own in front of it."""


@dataclass(frozen=True)
class Tokens:
    """A text encoder, and the id that ends the system part of a prompt."""

    encode: Callable[[str], list[int]]
    end_of_prompt: int


def read_tokens(path: Path, vocab: int) -> Tokens:
    """The tokenizer in the text model's folder. `vocab`: rows of the model's table. Raises
    CheckpointError.

    Special tokens that the table has no row for stay plain text.
    """
    folder = path / TEXT_MODEL
    bpe = ByteBPE(folder)
    bpe.add(special_tokens()[: max(0, vocab - bpe.size)])
    end = bpe.id(END_OF_PROMPT)
    if end is None or bpe.size > vocab:
        raise CheckpointError(
            f"{folder}: the tokenizer has {bpe.size} ids, the model {vocab}, one more is needed"
        )
    return Tokens(bpe.encode, end)
