"""The report on the grammar, for translators with known mistakes."""

from __future__ import annotations

import pytest
from tools import grammar
from tools.grammar.report import PRONOUNS, grammar_report, resolve

COUNT, SEED = 400, 71


@pytest.fixture(scope="module")
def known() -> dict[str, grammar.Pair]:
    """Every sentence that a report translates, with its pair."""
    pairs = [*grammar.pairs("test", SEED, COUNT), *(pair for pair, _ in grammar.dependent("test", SEED, COUNT))]
    return {pair.source: pair for pair in pairs}


def with_pronoun(pair: grammar.Pair, gender: str) -> str:
    """The right translation except for the gender of the pronoun."""
    if pair.referent is None:
        return pair.target
    words = list(pair.target_tokens)
    words[pair.referent.pronoun[1]] = PRONOUNS[gender]
    return grammar.detokenise(words)


def nearest(pair: grammar.Pair) -> str:
    """*it* is the last noun before it, or the first one after it if there is none."""
    referent = pair.referent
    if referent is None:
        return pair.target
    genders = {referent.noun[0]: referent.gender, referent.distractor[0]: referent.distractor_gender}
    before = [index for index in genders if index < referent.pronoun[0]]
    return with_pronoun(pair, genders[max(before) if before else min(genders)])


def test_translators_with_known_mistakes(known: dict[str, grammar.Pair]) -> None:
    right = grammar_report(lambda texts: [known[text].target for text in texts], SEED, "test", COUNT)
    assert (right.exact, right.wrong, right.wrong_by_construction, right.pronoun_accuracy) == (1.0, (), {}, 1.0)
    assert right.nearest_noun == pytest.approx(1 / 2, abs=0.08)
    assert right.majority == pytest.approx(1 / 3, abs=0.08)
    near = grammar_report(lambda texts: [nearest(known[text]) for text in texts], SEED, "test", COUNT)
    assert near.pronoun_accuracy == near.nearest_noun
    assert 0.7 < near.exact < 1
    assert set(near.wrong_by_construction) <= set(grammar.REFERENT_CONSTRUCTIONS)
    assert sum(near.wrong_by_construction.values()) == round((1 - near.exact) * COUNT)
    constant = [
        grammar_report(lambda texts, one=one: [with_pronoun(known[text], one) for text in texts], SEED, "test", COUNT)
        for one in PRONOUNS
    ]
    assert sum(report.pronoun_accuracy for report in constant) == pytest.approx(1)
    assert max(report.pronoun_accuracy for report in constant) == right.majority
    several = grammar_report(lambda texts: [f"Er, sie, es: {known[text].target}" for text in texts], SEED, count=20)
    assert (several.exact, several.pronoun_accuracy, len(several.wrong)) == (0, 0, 5)
    first = next(grammar.pairs("test", SEED, 1))
    spaced = first.target.replace(".", " .")
    report = grammar_report(
        lambda texts: [spaced if text == first.source else known[text].target for text in texts], SEED, "test", COUNT
    )
    assert (report.exact, report.wrong_by_construction) == (1 - 1 / COUNT, {first.construction: 1})
    (wrong,) = report.wrong
    assert (wrong.source, wrong.right, wrong.written) == (first.source, first.target, spaced)
    for _, referent in grammar.dependent("valid", 5, 100):
        assert referent.gender != referent.distractor_gender


def test_resolved_pronouns() -> None:
    start = "Das Tier überquerte die Straße nicht"
    for adjective, text, pronoun, referent in [
        ("tired", f"{start}, weil es zu müde war.", "es", "das Tier"),
        ("wide", f"{start}, weil sie zu breit war.", "sie", "die Straße"),
        ("tired", f"{start}, weil sie zu müde war.", "sie", "die Straße"),
        ("tired", f"{start}, weil er zu müde war.", "er", ""),
        ("tired", f"{start}.", "", ""),
        ("tired", "Sie sagt, dass sie müde ist.", "", ""),
    ]:
        (found,) = resolve(lambda texts, text=text: [text] * len(texts), [("animal", "street", adjective)])
        assert found.source == f"The animal didn't cross the street because it was too {adjective}."
        assert (found.translation, found.pronoun, found.referent) == (text, pronoun, referent)
        assert found.right.startswith(start)
