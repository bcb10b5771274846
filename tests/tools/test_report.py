"""The report on the grammar, for translators with known mistakes."""

from __future__ import annotations

import pytest
from tools import grammar
from tools.grammar.corpus import dependent
from tools.grammar.report import EXAMPLES, PRONOUNS, Translate, because, grammar_report, resolve

COUNT, SEED = 400, 71


@pytest.fixture(scope="module")
def known() -> dict[str, grammar.Pair]:
    """Every sentence that a report asks for, with its pair."""
    pairs = [*grammar.pairs("test", SEED, COUNT), *(pair for pair, _ in dependent("test", SEED, COUNT))]
    return {pair.source: pair for pair in pairs}


def with_pronoun(pair: grammar.Pair, gender: str) -> str:
    """The right translation, but for the gender of the pronoun."""
    assert pair.referent is not None
    words = list(pair.target_tokens)
    words[pair.referent.pronoun[1]] = PRONOUNS[gender]
    return grammar.detokenise(words)


def constant(known: dict[str, grammar.Pair], gender: str) -> Translate:
    """Right in everything, but *it* has always one gender."""
    return lambda texts: [
        known[text].target if known[text].referent is None else with_pronoun(known[text], gender) for text in texts
    ]


def nearest(pair: grammar.Pair) -> str:
    """Right in everything, but *it* is the last noun before it, or, where none is, the first one behind it."""
    referent = pair.referent
    if referent is None:
        return pair.target
    genders = {referent.noun[0]: referent.gender, referent.distractor[0]: referent.distractor_gender}
    before = [place for place in genders if place < referent.pronoun[0]]
    return with_pronoun(pair, genders[max(before) if before else min(genders)])


def test_a_translator_that_is_right(known: dict[str, grammar.Pair]) -> None:
    report = grammar_report(lambda texts: [known[text].target for text in texts], SEED, "test", COUNT)
    assert (report.sentences, report.exact, report.wrong, report.wrong_by_construction) == (COUNT, 1.0, (), {})
    assert (report.pronouns, report.pronoun_accuracy) == (COUNT, 1.0)
    # What the grammar promises: with different genders, either noun is meant and each gender is as frequent.
    assert report.nearest_noun == pytest.approx(1 / 2, abs=0.08)
    assert report.majority == pytest.approx(1 / 3, abs=0.08)
    assert (report.split, report.seed) == ("test", SEED)


def test_a_translator_that_takes_the_nearest_noun(known: dict[str, grammar.Pair]) -> None:
    report = grammar_report(lambda texts: [nearest(known[text]) for text in texts], SEED, "test", COUNT)
    assert report.pronoun_accuracy == report.nearest_noun
    assert 0.7 < report.exact < 1
    assert set(report.wrong_by_construction) <= set(grammar.REFERENT_CONSTRUCTIONS)
    assert sum(report.wrong_by_construction.values()) == round((1 - report.exact) * COUNT)


def test_translators_that_know_one_gender(known: dict[str, grammar.Pair]) -> None:
    reports = [grammar_report(constant(known, gender), SEED, "test", COUNT) for gender in PRONOUNS]
    assert sum(report.pronoun_accuracy for report in reports) == pytest.approx(1)
    assert max(report.pronoun_accuracy for report in reports) == reports[0].majority


def test_a_letter_makes_a_sentence_wrong(known: dict[str, grammar.Pair]) -> None:
    first = next(grammar.pairs("test", SEED, 1))

    def translate(texts: list[str]) -> list[str]:
        return [known[text].target.replace(".", " .") if text == first.source else known[text].target for text in texts]

    report = grammar_report(translate, SEED, "test", COUNT)
    assert report.exact == 1 - 1 / COUNT
    assert report.wrong_by_construction == {first.construction: 1}
    (wrong,) = report.wrong
    assert (wrong.source, wrong.right, wrong.written) == (first.source, first.target, first.target.replace(".", " ."))


def test_only_a_few_wrong_translations_are_kept() -> None:
    report = grammar_report(lambda texts: [""] * len(texts), SEED, "test", 50)
    assert (report.exact, report.pronoun_accuracy, len(report.wrong)) == (0, 0, 5)


def test_pronouns_that_do_not_depend_on_the_referent_are_left_out() -> None:
    for _, referent in dependent("valid", 5, 100):
        assert referent.gender != referent.distractor_gender


def test_a_text_with_several_pronouns_has_none_right(known: dict[str, grammar.Pair]) -> None:
    report = grammar_report(lambda texts: [f"Er, sie, es: {known[text].target}" for text in texts], SEED, count=20)
    assert report.pronoun_accuracy == 0


# ------------------------------------------------------------------------------------------------- one sentence to show

LECTURE = {
    "The animal didn't cross the street because it was too tired.": (
        "Das Tier überquerte die Straße nicht, weil es zu müde war."
    ),
    "The animal didn't cross the street because it was too wide.": (
        "Das Tier überquerte die Straße nicht, weil sie zu breit war."
    ),
}


def test_the_lectures_sentences_are_resolved() -> None:
    lecture = [("animal", "street", "tired"), ("animal", "street", "wide")]
    tired, wide = resolve(lambda texts: [LECTURE[text] for text in texts], lecture)
    assert (tired.source, wide.source) == tuple(LECTURE)
    assert (tired.translation, wide.translation) == tuple(LECTURE.values()) == (tired.right, wide.right)
    assert (tired.pronoun, tired.referent) == ("es", "das Tier")
    assert (wide.pronoun, wide.referent) == ("sie", "die Straße")


@pytest.mark.parametrize(
    ("written", "pronoun", "referent"),
    [
        ("Das Tier überquerte die Straße nicht, weil sie zu müde war.", "sie", "die Straße"),
        ("Das Tier überquerte die Straße nicht, weil er zu müde war.", "er", ""),
        ("Das Tier überquerte die Straße nicht.", "", ""),
        ("Sie sagt, dass sie müde ist.", "", ""),
    ],
)
def test_the_referent_is_what_the_translation_says(written: str, pronoun: str, referent: str) -> None:
    (found,) = resolve(lambda texts: [written] * len(texts), [("animal", "street", "tired")])
    assert (found.translation, found.pronoun, found.referent) == (written, pronoun, referent)


def test_the_examples_are_new_to_every_training() -> None:
    for combination in EXAMPLES:
        assert grammar.split_of(*combination) == "test"
        referent = because(*combination).referent
        assert referent is not None
        assert referent.gender != referent.distractor_gender
    assert len({combination[:2] for combination in EXAMPLES}) == len(EXAMPLES) / 2, "each pair of nouns, both ways"


def test_words_that_the_grammar_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match=r"animal \(unicorn\) is not in the grammar; choose from animal, dog"):
        because("unicorn", "street", "tired")
    with pytest.raises(ValueError, match=r"place \(moon\) is not in the grammar; choose from"):
        because("animal", "moon", "tired")
    with pytest.raises(ValueError, match=r"adjective \(purple\) is not one; choose from tired, hungry"):
        because("animal", "street", "purple")
