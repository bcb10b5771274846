"""Clauses: the verb's words in both languages, and the order of words.

German puts the finite verb second in a main clause, first in a question and last in a subordinate clause; what else
belongs to the verb (participle, infinitive, separable prefix) stands at the end. English needs *do* for questions and
for *not*.

English has one simple past where German has two tenses. A rule gives every sentence one translation: conversation (I,
you, we; questions) takes the perfect, narration (he, the dog) the simple past.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tools.grammar.draw import Draw
from tools.grammar.german import AUXILIARIES, WERDEN
from tools.grammar.phrases import HE, THEY, Phrase, Token, constituent
from tools.grammar.verbs import BE, MODALS, Verb

Tense = Literal["present", "past", "perfect", "future", "progressive"]
TENSES: tuple[Tense, ...] = ("present", "present", "past", "past", "perfect", "future", "progressive")

BE_PRESENT = ("am", "are", "is", "are", "are", "are")
BE_PAST = ("was", "were", "was", "were", "were", "were")
NOT = {"am": "am not", "can": "can't", "will": "won't"}


@dataclass(slots=True)
class Verbal:
    """The words of a verb: English (auxiliary, rest), German (finite, end), and the link of their negation."""

    auxiliary: Token | None
    rest: list[Token]
    finite: Token
    end: list[Token]
    prefix: str = ""
    adverb: list[Token] = field(default_factory=list)
    """gerade, which German uses for the English progressive."""


def _negated(english: str, negative: bool) -> str:
    return NOT.get(english, f"{english}n't") if negative else english


def _lexical(verb: Verb, form: str, link: int) -> list[Token]:
    particle = verb.english.particle
    return [(form, link, 0), *[(part, link, 0) for part in particle]] if particle else [(form, link, 0)]


def verbal(
    draw: Draw,
    verb: Verb,
    tense: Tense,
    person: int,
    negation: int = 0,
    asked: bool = False,
    kein_for_a: bool = False,
    spoken: bool = False,
) -> Verbal:
    """The verb in a tense. `negation` is the link of its *not*, 0 for none; `kein_for_a` says that kein has it.

    `asked` wants do-support; `spoken` is conversation without it (Who ate the apple?).
    """
    link = draw.link()
    negative = negation > 0
    if verb is BE:
        link = negation or link
        english = (BE_PAST if tense == "past" else BE_PRESENT)[person]
        german = (verb.german.past if tense == "past" else verb.german.present)[person]
        return Verbal((_negated(english, negative), link, 0), [], (german, link, 0), [])
    forms, words = verb.english, verb.german
    third = person == HE
    if tense == "present" and forms.past == forms.base and not (third or negative or asked):
        tense = "progressive"  # they read: only a reader who hears it can tell the tense
    if tense in ("present", "past"):
        finite, end, prefix = _simple(verb, tense, person, link, spoken or asked or person not in (HE, THEY))
        if not negative and not asked:
            form = forms.past if tense == "past" else forms.third if third else forms.base
            return Verbal(None, _lexical(verb, form, link), finite, end, prefix)
        do = "did" if tense == "past" else "does" if third else "do"
        return Verbal((_negated(do, negative), negation, link), _lexical(verb, forms.base, link), finite, end, prefix)
    # An auxiliary has a counterpart. Its n't is linked to nicht by sharing its link, to kein for *a* by a hint.
    helper = draw.link() if kein_for_a or not negative else negation
    hint = negation if kein_for_a else 0
    if tense == "progressive":
        is_ = (_negated(BE_PRESENT[person], negative), helper, link)
        now: list[Token] = [("gerade", helper, 0)]
        return Verbal(
            is_, _lexical(verb, forms.progressive, link), (words.present[person], link, 0), [], words.prefix, now
        )
    if tense == "perfect":
        has = (_negated("has" if third else "have", negative), helper, hint)
        finite = (AUXILIARIES[words.auxiliary].present[person], helper, 0)
        return Verbal(has, _lexical(verb, forms.participle, link), finite, [(words.participle, link, 0)])
    will = (_negated("will", negative), helper, hint)
    finite = (WERDEN.present[person], helper, 0)
    return Verbal(will, _lexical(verb, forms.base, link), finite, [(words.infinitive, link, 0)])


def _simple(verb: Verb, tense: Tense, person: int, link: int, spoken: bool) -> tuple[Token, list[Token], str]:
    words = verb.german
    if tense == "present":
        return (words.present[person], link, 0), [], words.prefix
    if spoken and words.infinitive != "haben":
        return (AUXILIARIES[words.auxiliary].present[person], 0, link), [(words.participle, link, 0)], ""
    return (words.past[person], link, 0), [], words.prefix


def with_modal(
    draw: Draw, verb: Verb, name: str, person: int, past: bool = False, negation: int = 0, asked: bool = False
) -> Verbal:
    """can, must, should, may, want to; could and wanted to in the past."""
    link = draw.link()
    negative = negation > 0
    words = MODALS[name]
    base = _lexical(verb, verb.english.base, link)
    end: list[Token] = [(verb.german.infinitive, link, 0)]
    if name == "want":
        helper = draw.link()
        finite = ((words.past if past else words.present)[person], helper, 0)
        form = "wanted" if past else "wants" if person == HE else "want"
        if not negative and not asked:
            return Verbal(None, [(form, helper, 0), ("to", helper, 0), *base], finite, end)
        do = "did" if past else "does" if person == HE else "do"
        rest: list[Token] = [("want", helper, 0), ("to", helper, 0), *base]
        return Verbal((_negated(do, negative), negation, helper), rest, finite, end)
    helper = negation or draw.link()
    in_past = past or name == "should"  # sollte: German gives advice in a past form, as English does
    english = "could" if past else name
    finite = ((words.past if in_past else words.present)[person], helper, 0)
    return Verbal((_negated(english, negative), helper, 0), base, finite, end)


def passive(draw: Draw, verb: Verb, past: bool, person: int, negation: int = 0) -> Verbal:
    """is avoided -> wird gemieden."""
    link, helper = draw.link(), negation or draw.link()
    english = (BE_PAST if past else BE_PRESENT)[person]
    finite = ((WERDEN.past if past else WERDEN.present)[person], helper, 0)
    rest = _lexical(verb, verb.english.participle, link)
    return Verbal((_negated(english, negation > 0), helper, 0), rest, finite, [(verb.german.participle, link, 0)])


@dataclass(slots=True)
class Clause:
    """A clause before its words are put in order. Objects come in the order of both languages, datives first."""

    subject: Phrase
    verbal: Verbal
    objects: list[Phrase] = field(default_factory=list)
    place: Phrase | None = None
    """Places, directions and predicates, which follow nicht in German."""
    time: Phrase | None = None
    frequency: Phrase | None = None
    negation: int = 0
    """The link of nicht; 0 if the clause has none (or has kein instead)."""

    # ------------------------------------------------------------------------------------------------------- English

    def english(self, asked: bool = False) -> list[Token]:
        auxiliary = self.verbal.auxiliary
        words: list[Token] = []
        if auxiliary is not None:
            if " " in auxiliary[0]:  # am not
                first, second = auxiliary[0].split()
                words += [(first, auxiliary[1], 0), (second, auxiliary[1], 0)]
            else:
                words.append(auxiliary)
        subject = self.subject.english
        if not any(getattr(text, "path", ()) for text, *_ in subject):  # it, who
            subject = constituent("NP", subject)
        before = [*words, *subject] if asked else subject
        words = [] if asked else words
        if self.frequency is not None:
            words += constituent("ADVP", self.frequency.english)
        words += self.verbal.rest
        for phrase in self.objects:
            words += phrase.english
        if self.place is not None:
            plain = not any(getattr(text, "path", ()) for text, *_ in self.place.english)
            words += constituent("ADJP", self.place.english) if plain else self.place.english
        if self.time is not None:
            words += constituent("ADVP", self.time.english)
        return constituent("S", [*before, *constituent("VP", words)])

    # -------------------------------------------------------------------------------------------------------- German

    def _middle(self) -> list[Token]:
        words: list[Token] = []
        for phrase in self.objects:
            if phrase.pronoun:
                words += phrase.german
        if self.time is not None:
            words += self.time.german
        if self.frequency is not None:
            words += self.frequency.german
        words += self.verbal.adverb
        for phrase in self.objects:
            if not phrase.pronoun:
                words += phrase.german
        if self.negation:
            words.append(("nicht", self.negation, 0))
        if self.place is not None:
            words += self.place.german
        return words

    def _end(self) -> list[Token]:
        verbal = self.verbal
        return [(verbal.prefix, verbal.finite[1], 0)] if verbal.prefix else verbal.end

    def german(self) -> list[Token]:
        """Verb second, after the subject."""
        return [*self.subject.german, self.verbal.finite, *self._middle(), *self._end()]

    def german_after(self) -> list[Token]:
        """Verb first: in a question, or after another phrase at the start of the sentence."""
        return [self.verbal.finite, *self.subject.german, *self._middle(), *self._end()]

    def german_last(self) -> list[Token]:
        """Verb last: after weil, dass, wenn, obwohl or a relative pronoun."""
        verbal = self.verbal
        text, link, hint = verbal.finite
        return [*self.subject.german, *self._middle(), *verbal.end, (verbal.prefix + text, link, hint)]
