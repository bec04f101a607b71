"""Words that are written alike and spoken differently, distinguished by the words around them.

misaki's dictionary has the readings of such words by part of speech. A word whose part of speech is
clear here is written with one more letter, for which the dictionary gets an entry with that
reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from stentor.text.english.dictionary import Dictionary
from stentor.text.trace import Trace

VERB, NOUN, PAST, ADJECTIVE = "ǀǁǂǃ"
"""Letters for Python and for no one who writes English. They end the spelling of a reading."""
_TAGS = {VERB: "VERB", NOUN: "NOUN", PAST: "VBD", ADJECTIVE: "ADJ"}
_MORE = {
    ("lead", NOUN): "lˈɛd",
    ("polish", ADJECTIVE): "pˈOlɪʃ",
    ("polish", VERB): "pˈɑlɪʃ",
    ("resume", NOUN): "ɹˈɛzəmˌA",
    ("resumes", NOUN): "ɹˈɛzəmˌAz",
    ("A", NOUN): "ˈA",
}
_PAST_TIME = (
    r"[^.!?]{0,80}\b(?:yesterday|ago|earlier|last (?:night|week|month|year|time|summer|winter|spring|fall|[A-Z]\w+day)|"
    r"when (?:I|he|she|we) was|and (?:wrote|said|thought|knew|went|saw|laughed|cried))\b"
)
_SUBJECTS = (
    "I|you|we|they|who|people|You|We|They|Who|People|don't|Don't|didn't|won't|can't|cannot|couldn't|wouldn't|doesn't|"
    "shouldn't|let's|Let's|please|Please|I'll|we'll|you'll|they'll|he'll|she'll|it'll|let me|Let me|let us|did|does|do"
)
_DETERMINERS = (
    "a|an|the|this|that|its|his|my|your|our|their|no|any|some|every|of|for|in|good|much|A|An|The|This|Its|His|My|Your|"
    "Our|Their|No|many|several|two|three|other|sharp|best|rough|poor"
)
_NOUNS = "use|uses|excuse|excuses|estimate|estimates|refuse|increase|increases|import|imports|produce|invalid"
_ADJECTIVES = (
    "close|present|separate|content|live|perfect|minute|appropriate|moderate|deliberate|duplicate|alternate|intimate|"
    "subject|invalid"
)
_OBJECT = "it|them|him|her|us|me|the|an?|this|these|those|all|your|my|our"
_NO_PLURALS = "his|this|is|was|has|as|its|us|plus|versus|sports|sales|news|goods|awards|savings|systems|operations"

_USE = "[Uu]ses?|[Rr]euses?|[Rr]efuses?|[Aa]buses?|[Mm]isuses?"
_USED = (  # a use of what kind, or how many
    "personal|private|public|common|commercial|daily|everyday|general|frequent|regular|heavy|fair|single|dual|multiple|"
    "future|current|medical|practical|proper|better|best|main|new|old|first|last|more|most|many|few|these|those|drug|land|"
    "water|energy|fuel|alcohol|tobacco|substance|data|phone|child|sexual|verbal|physical"
)


@dataclass(frozen=True)
class Context:
    """Where `words` have a reading. Every other field is a pattern of what stands beside them,
    separated by |.

    Where `before` and `after` are both set, one of them is enough.
    """

    part: str
    words: str
    before: str = ""
    after: str = ""
    not_before: str = ""
    not_after: str = ""

    def expression(self) -> str:
        """Matches the word alone. The words in front of it have a fixed length each, as Python
        requires, and are looked at where the word stands."""
        word = rf"(?:{self.words})\b"
        sides = [rf"(?<=\b{b} ){word}" for b in self.before.split("|") if b]
        sides += [rf"{word}(?=[- ]?(?:{self.after})(?!\w))"] if self.after else []
        unless = "".join(rf"(?<!\b{b} )" for b in self.not_before.split("|") if b)
        if self.not_after:
            but = rf"(?![- ](?:{self.not_after})\b)"
        else:
            but = ""
        return rf"\b(?={word}){unless}(?:{'|'.join(sides) or word}){but}"


_CONTEXTS = (
    Context(
        NOUN,
        "[Rr]efuse",
        after="collect(?:ion|ions|ors?)|bins?|disposal|trucks?|lorry|lorries|bags?|sacks?|containers?|dumps?|tips?|chutes?",
        not_before="I|you|we|they|We|They|You|to|not|who|will|can",
    ),
    Context(VERB, "Refuse", after="to"),
    Context(PAST, "[Rr]ead", after=_PAST_TIME, not_before="to|will|I'll|could|can|would|must"),
    Context(
        PAST,
        "read",
        before="have|I've|we've|they've|you've|he|she|He|She|well|have never|have just|have already|haven't|hasn't|"
        "hadn't|have you|Have you|have you ever|Have you ever|have they|Have they|have we|Have we|I've already|"
        "I've never|I've just|I've ever|I ever|you've ever",
    ),
    Context(
        PAST,
        "read",
        before="Yesterday I|Yesterday, I|Last night I|Last week I|Last year I|Once I|I just|we just",
    ),
    Context(VERB, _USE, before="that|which", not_after="of|cases?"),
    Context(VERB, "[Ee]xcuse", after="me|us|my|your|him|her|them"),
    Context(
        NOUN, "lead", before="of|contains|molten|with|heavy as", not_after="role|singer|the|in|over"
    ),
    Context(
        NOUN,
        "[Ll]ead",
        after="pipes?|paint|poisoning|acid|pencils?|shot|weights?|bullets?|glass|solder|free|lined|ore|crystal|apron|"
        "exposure|contamination|melts|is (?:an? )?(?:toxic|metal|heavy|poisonous|soft|element)",
    ),
    Context(
        VERB,
        "[Ll]ive",
        not_before="a|go|the|going|broadcast|went|perform|performed|streamed|is|are|was|it|recorded|sing|played",
        not_after="music|shows?|concerts?|audience|broadcasts?|coverage|streams?|streaming|events?|video|performances?|"
        "feed|bands?|wires?|ammunition|animals?|bait|chat|action|updates?|demos?|recordings?|albums?|TV|television|"
        "reports?|data|sites?|stock|rounds?|sessions?|match|matches|games?|entertainment|version|from|on air",
    ),
    Context(
        VERB,
        "lives",
        after="in|at|with|on|near|there|here|alone|next|by|under|across|for|to|a|up|down|far|close|somewhere|among|off",
        not_before="their|our|your|many|of|human",
    ),
    Context(
        VERB,
        "[Ww]ind",
        after="up|down|back|it|the (?:clock|watch|toy|yarn|wool|rope|string|tape|cable|film|spring|thread|handle)",
    ),
    Context(VERB, "[Ww]inds", after="up|down|its|through|around|along|between|the clock"),
    Context(
        ADJECTIVE,  # music, unless it swims
        "[Bb]ass",
        not_before="caught a|catch a|sea|largemouth|striped|for|trout and|grilled|of|caught",
        not_after=r"fi(?:sh|shing)|boat|lake|pond|swam|jumped|was caught|tournament|and (?:trout|pike|perch)|"
        "with lemon|from the (?:lake|river)",
    ),
    Context(
        VERB,
        "[Tt]ear",
        before="wear and",
        after="up|down|apart|off|out|it|this|them|the (?:paper|page|letter|wall|cloth|roof|envelope)",
    ),
    Context(VERB, "tears", after="up|down|apart|off|it|easily"),
    Context(VERB, "[Bb]ow", before="take a|took a|Take a", after="to|before|down|out"),
    Context(
        VERB,
        "[Cc]lose",
        after=r"the|your|this|it|my|his|her|their|our|all|that|every|a|any|down|up shop|at (?:\w+ )?(?:noon|midnight)",
        not_before="so|very|as",
    ),
    Context(
        ADJECTIVE,
        "[Cc]lose",
        before="so|too|as|very|how|How|pretty|quite|stay|stays|stayed|Stay|get|gets|got|getting|come|comes|came|coming|"
        "Come|keep it|live|lives|sit|stand|stick",
        after="to|by|enough|friends?|together|behind|call|relationship|relatives?|range|proximity|contact|attention",
        not_after="the|your|my|this|it|that|our|his|her|their|all|down|out|up",
    ),
    Context(ADJECTIVE, "(?<=a )close(?= [a-z])", not_after="of|to|for|in|on|and"),
    Context(
        ADJECTIVE,
        "[Uu]pset",
        not_before="an|the|big|major|huge|biggest|another|An|The|stunning|shock|massive",
        not_after="win|wins|victory|victories|bid|alert",
    ),
    Context(
        VERB,
        "[Gg]raduate",
        after="from|in|with|this|next|early",
        not_before="a|the|recent|college|university|every|A|The|Recent|each|or|an",
    ),
    Context(VERB, "[Aa]lternate", after="between|with"),
    Context(
        VERB,
        "conduct",
        after="electricity|heat|research|interviews?|business|tests?|experiments?|studies|surveys?|the|an?|themselves|"
        "yourself|himself|herself",
        not_before="his|her|their|of|the|your|my|this|such|bad|good|that",
    ),
    Context(
        PAST,
        "wound",
        after="up|down|its|the|his|her|around|through|along|tight",
        not_before="the|a|his|her|my",
    ),
    Context(
        VERB,
        "dove",
        after="in|into|off|under|for|down|right|deep|head|straight",
        not_before="the|a|white|The",
    ),
    Context(
        ADJECTIVE,
        "[Mm]inute",
        after="details?|amounts?|traces?|particles?|quantit(?:y|ies)|differences?",
    ),
    Context(
        NOUN,
        "resume",
        before="my|your|his|her|a|the|new|updated|full|My|Your|His|Her|The",
        not_after="the|work|it|button|command|key",
    ),
    Context(NOUN, "resumes", before="the|their|our|your|of|all|many|The|Their"),
    Context(
        ADJECTIVE,
        "Polish",
        before="the|a|in|is|are|speak|speaks|of|was|The|A|learn",
        not_after="the|it|your",
    ),
)
_BEHIND = (  # a verb behind a subject, a noun behind an article, an adjective behind a form of "be"
    (
        VERB,
        rf"\b(?:{_SUBJECTS})(?: (?:really|always|also|never|still|often|usually|not|now|just|all|both))? "
        r"(?!don?\b)([a-z]+)\b",  # "we do not permit": "do" is what stands in front
    ),
    (
        VERB,
        r"\b(?:[Hh]e|[Ss]he|[Ii]t|[Ww]ho|[Tt]hat|[Tt]his|[Ww]hich)(?: (?:really|always|also|never|often|usually|now))? "
        r"([a-z]+s)\b",
    ),
    (  # "Convert it to text."
        VERB,
        r"(?:^|(?<=[.!?:] ))[\"'“]?([A-Z][a-z]+)\b"
        rf"(?= (?:{_OBJECT}|yourself|any|some|every|each)\b)",
    ),
    (  # "Cows produce a lot of milk." "Does the law permit it?"
        VERB,
        rf"\b(?:(?!(?i:{_NO_PLURALS})\b)[A-Za-z][a-z]*[a-rt-z]s|"
        r"(?:[Dd]o|[Dd]oes|[Dd]id|[Ww]ill|[Ww]ould|[Cc]an|[Cc]ould|[Ss]hould) "
        r"(?:the|this|these|your|our|their|my) [a-z]+) "
        rf"(?!content\b)([a-z]+)\b(?= (?:{_OBJECT}|his|their|no|more|most|less|every|each)\b)",
    ),
    (NOUN, rf"\b(?:{_DETERMINERS}) ({_NOUNS})\b(?! (?:the|a|an|it|this|that|his|her|them)\b)"),
    (
        ADJECTIVE,
        r"\b(?:is|are|was|were|be|been|being|am|I'm|he's|she's|it's|[Ww]e're|[Tt]hey're|[Yy]ou're|"
        r"(?:seem|feel|look|remain|become)s?|(?:seem|look|remain)ed|felt|became)"
        r"(?: (?:not|so|very|too|quite|always|also|now|more|most|still|all))? "
        rf"({_ADJECTIVES})\b(?! (?:the|a|his|her|it)\b)",
    ),
)
_REST = (  # where nothing says that it is a noun, a word with an object is a verb
    Context(
        VERB,
        "produce",
        after="[a-z]+",
        not_before="fresh|local|organic|seasonal|farm|the|of|our|your|their|his|her|my|its|any|no|buy|sell|grow|bought|and|"
        "for|in|with|this|that|all|frozen|Fresh|Local|Organic|Seasonal|Farm|The|Our|Your",
        not_after="sections?|aisles?|prices?|stands?|markets?|departments?|stores?|boxes|bags?|is|was|has|from|in|at|and|"
        "or|to|on|with|for|that|grown|can|will|must|should",
    ),
    Context(
        VERB,
        _USE,
        after=r"['\"“]?\w\S*",
        not_before=_USED,
        not_after="of|for|in|by|as|and|or|but|to|at|on|with|from|is|are|was|were|has|have|had|will|can|may|cases?|during|among|"
        "rights?|only",
    ),
)
_LISTED = re.compile(rf"\b(?:{'|'.join(context.words for context in (*_CONTEXTS, *_REST))})\b")


@dataclass(frozen=True)
class _Marking:
    """Where words have the reading of a part of speech. listed: it is about words of
    _LISTED only."""

    part: str
    source: Context | str
    listed: bool

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled at first use."""
        if isinstance(self.source, Context):
            return re.compile(self.source.expression())
        return re.compile(self.source)


_MARKINGS = (
    *(_Marking(c.part, c, listed=True) for c in _CONTEXTS),
    *(_Marking(part, expression, listed=False) for part, expression in _BEHIND),
    *(_Marking(c.part, c, listed=True) for c in _REST),
)


class Heteronyms:
    """Marks words in a text, and adds each reading that it marks to the dictionary."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        for (word, part), phonemes in _MORE.items():
            dictionary[word + part] = dictionary[word.capitalize() + part] = phonemes

    def marked(self, words: Trace) -> Trace:
        """The words, each as the dictionary spells the reading that fits."""
        has_listed = _LISTED.search(words.text) is not None
        for marking in _MARKINGS:
            if has_listed or not marking.listed:
                words = words.sub(marking.pattern, self._marks(marking.part))
        return words

    def _marks(self, part: str) -> Callable[[re.Match[str]], str]:
        def mark(m: re.Match[str]) -> str:
            word = m[m.lastindex or 0]
            if self._has(word, part):
                return m[0] + part
            return m[0]

        return mark

    def _has(self, word: str, part: str) -> bool:
        """Whether the dictionary has this reading of a word. If so, it has it under the marked
        spelling from now on."""
        readings = self._dictionary.readings(word)
        if readings:
            by_part = {"ADJ": readings["DEFAULT"], **readings}
        else:
            by_part = {}
        if by_part.get("NOUN"):  # the default is then the one as a verb
            by_part.setdefault("VERB", readings["DEFAULT"])
        if _TAGS[part] in by_part:
            self._dictionary[word + part] = by_part[_TAGS[part]]
        return word + part in self._dictionary
