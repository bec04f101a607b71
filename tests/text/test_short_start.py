"""A stream of a model whose pieces are heard whole begins with a short one, and the next are longer by degrees."""

import itertools

import pytest

from stentor.text.length import spoken_length
from stentor.text.segments import Reading
from stentor.text.sentences import START

PARAGRAPH = (
    "The ferry left the harbour late, because the captain had waited for a crate of lemons. "
    "Nobody minded. It was warm, and the gulls were loud. At the second island two men came "
    "aboard with a ladder. They put it against the mast, and one of them climbed up. "
    "He looked at the sea for a while. Then he came down again and shook his head. "
    "The captain poured him a cup of tea, and the ferry went on past the lighthouse."
)


def pieces(text, granularity="auto", **reading):
    return [s.text for s in Reading(**reading).segments(text, 300, granularity)]


def test_it_begins_with_a_clause_and_grows_at_most_twofold():
    found = pieces(PARAGRAPH, short_start=True)
    assert found[0] == "The ferry left the harbour late,"
    lengths = [START, *(spoken_length(text) for text in found)]
    sentences = [spoken_length(text) for text in pieces(PARAGRAPH, "sentence")]
    for before, length in itertools.pairwise(lengths):
        assert length <= max(2 * max(START, before), *sentences)
    assert " ".join(found) == PARAGRAPH
    assert len(found) > len(pieces(PARAGRAPH))


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("A short one, which is not cut.", "A short one, which is not cut."),
        ("Yes, " + "a very long sentence that has no other clause in it until its very end.", None),
        ("One. Two. Three.", "One. Two. Three."),
        ("First.\n\nSecond, which is another paragraph.", "First."),
    ],
)
def test_what_is_short_or_has_no_clause_stays_whole(text, first):
    assert pieces(text, short_start=True)[0] == (first or text)


@pytest.mark.parametrize("granularity", ["none", "sentence", "clause"])
def test_a_granularity_that_was_asked_for_stays(granularity):
    assert pieces(PARAGRAPH, granularity, short_start=True) == pieces(PARAGRAPH, granularity)


def test_only_the_beginning_of_a_text_with_pauses_is_cut():
    text = f"{PARAGRAPH} [pause 1s] {PARAGRAPH}"
    found = pieces(text, short_start=True)
    assert found.count("The ferry left the harbour late,") == 1
