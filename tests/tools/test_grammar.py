"""Properties of the grammar's corpus, for arbitrary seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

import pytest
from tools import grammar
from tools.grammar import adjectives, nouns, referents, verbs
from tools.grammar.__main__ import SEED, SIZES, pairs_of
from tools.grammar.draw import Draw
from tools.grammar.sentence import pair

from regard.data.embedded import grammar_pairs

pytestmark = pytest.mark.slow

Sample = dict[grammar.Split, list[grammar.Pair]]


@pytest.fixture(scope="module")
def sample() -> Sample:
    sizes: dict[grammar.Split, int] = {"train": 24_000, "valid": 3_000, "test": 3_000}
    return {split: list(grammar.pairs(split, 20_260, size)) for split, size in sizes.items()}


def test_sizes() -> None:
    tables = [verbs.TRANSITIVES, verbs.DATIVES, verbs.GIVERS, verbs.INTRANSITIVES, verbs.PLACED_VERBS, verbs.MOVERS]
    tables += [verbs.SAYING_VERBS, tuple(verbs.CROSSERS.values())]
    verb_lemmas = {verb.german.infinitive for table in tables for verb in table} | {*verbs.MODALS}
    adjective_lemmas = {
        entry.german for entry in (*adjectives.ADJECTIVES, *adjectives.LIVING_ADJECTIVES, *adjectives.PLACED_ADJECTIVES)
    }
    noun_lemmas = {noun.german for noun in nouns.NOUNS}
    assert len(noun_lemmas) + len(verb_lemmas) + len(adjective_lemmas) >= 400
    assert len(grammar.CONSTRUCTIONS) >= 40
    assert len({noun.english for noun in nouns.NOUNS}) == len(nouns.NOUNS) - 1  # bank means two things


def lecture(adjective: str, living: bool) -> set[tuple[str, str]]:
    """All that the grammar says of the animal, the street and the adjective."""
    table = adjectives.LIVING_ADJECTIVES if living else adjectives.PLACED_ADJECTIVES
    scene = referents.Scene(
        animal=next(noun for noun in nouns.NOUNS if noun.english == "animal"),
        place=next(noun for noun in nouns.NOUNS if noun.english == "street"),
        verb=verbs.CROSSERS["cross"],
        adjective=next(entry for entry in table if entry.english == adjective),
        living=living,
    )
    made = set()
    draw = Draw("train")
    for index in range(300):
        draw.restart(0, index)
        sentence = pair(referents.because_of(draw, scene), "because-it")
        made.add((sentence.source, sentence.target))
    return made


def test_the_lectures_sentences() -> None:
    start, german = (
        "The animal didn't cross the street because it was too",
        "Das Tier überquerte die Straße nicht, weil",
    )
    assert (f"{start} tired.", f"{german} es zu müde war.") in lecture("tired", living=True)
    assert (f"{start} wide.", f"{german} sie zu breit war.") in lecture("wide", living=False)


def test_the_same_seed_gives_the_same_pairs_and_any_can_be_made_alone() -> None:
    stream = list(grammar.pairs("valid", 5, 50))
    assert stream == list(grammar.pairs("valid", 5, 50))
    assert stream[20:30] == list(grammar.pairs("valid", 5, 10, start=20))
    assert grammar.Corpus("valid", 5)[33] == stream[33]
    assert stream != list(grammar.pairs("valid", 6, 50))


def test_every_construction_occurs_in_every_split(sample: Sample) -> None:
    for split, made in sample.items():
        assert {entry.construction for entry in made} == {*grammar.CONSTRUCTIONS}, split


def test_splits_have_no_sentence_in_common(sample: Sample) -> None:
    train, valid, test = ({entry.source for entry in sample[split]} for split in grammar.SPLITS)
    assert not train & valid
    assert not train & test
    assert not valid & test


def test_one_english_sentence_has_one_german_translation(sample: Sample) -> None:
    known: dict[str, str] = {}
    for made in sample.values():
        for entry in made:
            assert known.setdefault(entry.source, entry.target) == entry.target


def test_nearly_all_pairs_are_different(sample: Sample) -> None:
    assert len({entry.source for entry in sample["train"]}) > 0.97 * len(sample["train"])


def test_every_word_occurs_in_training(sample: Sample) -> None:
    def words(entries: Iterable[grammar.Pair]) -> set[str]:
        return {word.lower() for entry in entries for word in (*entry.source_tokens, *entry.target_tokens)}

    unseen = words([*sample["valid"], *sample["test"]]) - words(sample["train"])
    assert len(unseen) < 20
    more = grammar.Corpus("train", 20_261)
    for index in range(100_000):  # the few forms that are too rare for the sample
        if not unseen:
            break
        unseen -= words([more[index]])
    assert not unseen


def test_every_lemma_is_used_in_training(sample: Sample) -> None:
    known = {word.lower() for entry in sample["train"] for word in entry.source_tokens}
    for noun in nouns.NOUNS:
        assert {noun.english, noun.plural} & known, noun.english
    for entry in (*adjectives.ADJECTIVES, *adjectives.LIVING_ADJECTIVES, *adjectives.PLACED_ADJECTIVES):
        assert entry.english in known, entry.english


ARTICLES = {
    # Genders with the articles that can never stand right before a singular noun of theirs.
    0: {"die", "das", "eine", "keine", "diese", "meine"},
    1: {"das", "den", "dem", "des", "ein", "einen", "einem", "eines", "dieses", "diesem"},
    2: {"die", "den", "eine", "einen", "einer", "diese", "diesen"},
}


def test_articles_agree_with_their_nouns(sample: Sample) -> None:
    genders = {}
    for noun in nouns.NOUNS:
        if noun.forms[0][0] not in {form for row in noun.forms for form in row[1:]}:
            genders[noun.forms[0][0]] = noun.gender
    checked = 0
    for entry in (*sample["train"], *sample["test"]):
        words = [word.lower() if place == 0 else word for place, word in enumerate(entry.target_tokens)]
        for before, article, word in zip(["", *words], words, words[1:], strict=False):
            if word in genders and before != ",":  # after a comma stands a relative pronoun
                assert article not in ARTICLES[genders[word]], entry.target
                checked += 1
    assert checked > 10_000


def test_subordinate_clauses_end_with_their_verb() -> None:
    finite = {"war", "ist"}
    for entry in grammar.pairs("test", 3, 300, constructions=("because-it", "although-it", "if-it", "passive-it")):
        assert entry.target_tokens[-2] in finite
        comma = entry.target_tokens.index(",")
        assert entry.target_tokens[comma + 1] in {"weil", "da", "obwohl", "wenn"}


def test_names_of_splits_and_constructions_are_checked() -> None:
    with pytest.raises(ValueError, match="'dev'"):
        grammar.Corpus("dev", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'rhyme'"):
        grammar.Corpus("train", 1, ("rhyme",))


def test_tokens_and_text_are_the_same_thing(sample: Sample) -> None:
    for entry in sample["test"]:
        assert tuple(grammar.tokenise(entry.source)) == entry.source_tokens
        assert tuple(grammar.tokenise(entry.target)) == entry.target_tokens
        assert grammar.detokenise(entry.target_tokens) == entry.target
        assert re.fullmatch(r"[A-ZÄÖÜ].*[^ ,][.?!]", entry.target)


def test_the_shipped_corpus_is_what_the_generator_makes() -> None:
    """The first and the last pairs of each file; `python -m tools.grammar` writes them."""
    for part, size in SIZES.items():
        shipped = list(grammar_pairs(part))  # type: ignore[arg-type]
        assert len(shipped) == size
        made = list(islice(pairs_of(part), 300))
        rest = [] if part == "pronouns" else list(grammar.pairs(part, SEED, 200, start=size - 200))  # type: ignore[arg-type]
        for ours, theirs in [*zip(shipped, made, strict=False), *zip(shipped[size - len(rest) :], rest, strict=True)]:
            assert (ours.source_tokens, ours.target_tokens) == (list(theirs.source_tokens), list(theirs.target_tokens))
            assert ours == (
                theirs.source,
                theirs.target,
                theirs.construction,
                theirs.alignment,
                theirs.possible,
                theirs.referent,
            )
