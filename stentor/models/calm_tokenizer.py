"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Callable

from stentor.models.dummy import dummy_tokens, dummy_words


class Tokenizer:
    """Ids without BOS or EOS. ends, pauses: the ids of marks that end sentences, and of those that
    end clauses."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
    ) -> None:
        self.encode = encode
        self.decode = decode
        # The first id of each is that of a beginning word.
        self.ends = frozenset(encode(".!...?")[1:])
        self.pauses = frozenset(encode(",;:")[1:])


def dummy_tokenizer(vocab: int) -> Tokenizer:
    """One id per word. An id is decoded as the word that had it last."""
    phrases: dict[int, str] = {}

    def encode(text: str) -> list[int]:
        ids = dummy_tokens(text, vocab)
        phrases.update(zip(ids, dummy_words(text), strict=True))
        return ids

    return Tokenizer(encode, lambda ids: "".join(phrases[i] for i in ids))
