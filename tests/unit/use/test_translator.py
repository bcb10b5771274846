"""Translating with a model of random weights: it writes nonsense, but what must be equal is equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny_translator
import torch
from tiny_translator import write_translator

from regard.blocks.settings import Attention
from regard.decoding.request import Wish
from regard.decoding.score import score
from regard.decoding.settings import Absolute, Rules
from regard.errors import InputError, SettingsError
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import load
from regard.use.translation import TranslateOptions, Translation
from regard.use.translator import Translator, options_for
from regard.weights.directory import save_model

SHORT = {"longest": {"kind": "absolute", "tokens": 8}}
TEXTS = ["ein Hund läuft", "", "und eine Katze. Ein Hund!", "   ", "durch den Schnee läuft ein Hund", "ein"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    loaded = load(write_translator(tmp_path_factory.mktemp("model"), both=False), "cpu")
    assert isinstance(loaded, Translator)
    return loaded


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    loaded = load(write_translator(tmp_path_factory.mktemp("both")), "cpu")
    assert isinstance(loaded, Translator)
    return loaded


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    """Whole words, so that whatever is written can be read."""
    place = tmp_path_factory.mktemp("words")
    tokenizer = train_tokenizer(Words(), tiny_translator.TEXTS)
    torch.manual_seed(1)
    settings = EncoderDecoder(vocabulary=tokenizer.size, width=16, depth=1, attention=Attention(heads=2), tied=())
    save_model(build(settings), place)
    TokenizerPair.of(tokenizer).save(place)
    loaded = load(place, "cpu")
    assert isinstance(loaded, Translator)
    return loaded


def test_what_comes_back_is_what_was_asked_for(model: Translator) -> None:
    one = model.translate("ein Hund", rules=SHORT)
    assert isinstance(one, str)
    assert model.translate(["ein Hund", "ein Hund"], rules=SHORT) == [one, one]
    assert model.translate([], rules=SHORT) == []
    told = model.translate("ein Hund", rules=SHORT, details=True)
    assert isinstance(told, Translation)
    assert told.text == one
    assert model.tokenizers.target.decode([model.tokenizers.target.id(token) for token in told.tokens]) == one
    several = model.translate("ein Hund", rules=SHORT, nbest=3)
    assert [type(each) for each in several] == [Translation] * 3
    assert several[0] == told
    assert several[0].score >= several[1].score >= several[2].score
    assert model.translate("ein Hund", rules=SHORT, align=True).alignment.source == ["ein", "Hund"]


def test_the_score_is_that_of_the_tokens(model: Translator) -> None:
    told = model.translate("ein Hund", rules=SHORT, details=True, length={"kind": "none"})
    (tokens,) = score(
        model.network,
        model.tokenizers.inputs(["ein Hund"]),
        [[model.tokenizers.target.id(token) for token in told.tokens]],
        model.frame.ends,
    )
    wanted = sum(tokens if told.finished else tokens[:-1])
    assert told.score == pytest.approx(wanted, abs=1e-4)


def test_empty_lines_stay_and_order_is_kept(model: Translator) -> None:
    found = model.translate(TEXTS, rules=SHORT)
    assert (found[1], found[3]) == ("", "   ")
    assert found == [model.translate(text, rules=SHORT) for text in TEXTS]


def test_lines_are_read_only_as_far_as_needed(model: Translator) -> None:
    read: list[int] = []

    def lines() -> Iterator[str]:
        for number in range(100_000):
            read.append(number)
            yield TEXTS[number % len(TEXTS)]

    found = model.lines(lines(), TranslateOptions(rules=SHORT, beam=1), ahead=6)
    assert not read
    expected = model.translate(TEXTS, rules=SHORT, beam=1)
    for number in range(12):
        assert next(found) == expected[number % len(TEXTS)]
        assert len(read) <= 12
    assert len(read) == 12


def test_long_lines_are_not_hoarded(model: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.use.translator.AHEAD_CHARACTERS", 10)
    read: list[str] = []
    lines = (read.append(text) or text for text in ["ein Hund und", "ein", "ein", "ein"])  # type: ignore[func-returns-value]
    next(model.lines(lines, TranslateOptions(rules=SHORT, beam=1)))
    assert len(read) == 1


def test_lines_must_be_some(model: Translator) -> None:
    with pytest.raises(InputError, match=r"ahead \(0\) must be at least 1"):
        model.lines([], ahead=0)


@pytest.mark.parametrize("text", ["ein Hund läuft", "ein Hund. Und eine Katze!\n\n {x} 3 Katze ", "", "12"])
def test_a_stream_is_the_translation_in_pieces(model: Translator, text: str) -> None:
    pieces = list(model.stream(text, TranslateOptions(rules=SHORT, beam=1)))
    assert "".join(pieces) == model.translate(text, beam=1, rules=SHORT)
    warm = {"sampling": {"temperature": 0.7, "seed": 3}}
    assert "".join(model.stream("ein", TranslateOptions(rules=SHORT, beam=1, **warm))) == model.translate(
        "ein", rules=SHORT, **warm
    )


def test_a_stream_comes_as_it_is_written(model: Translator) -> None:
    options = TranslateOptions(rules=Rules(longest=Absolute(tokens=20)), beam=1)
    assert len(list(model.stream("ein Hund läuft", options))) > 3
    with pytest.raises(InputError, match="a stream writes one sequence: set beam to 1, and leave out nbest"):
        model.stream("ein", TranslateOptions(beam=4))


# -------------------------------------------------------------------------------------------------------------- wishes


def test_wishes(model: Translator, worded: Translator) -> None:
    text = "ein Hund läuft durch den Schnee"
    assert model.translate(text, prefix="the dog", rules=SHORT).startswith("the dog")
    assert " snow" in model.translate(text, must=["snow"], rules=SHORT)
    assert "snow" in worded.translate(text, must=["snow"], rules=SHORT).split()
    plain = worded.translate(text, rules=SHORT).split()
    assert plain
    for word in plain:
        assert word not in worded.translate(text, must_not=[word], rules=SHORT).split()


def test_words_that_cannot_be_written(worded: Translator) -> None:
    with pytest.raises(
        InputError, match=r"must \('Haus'\) cannot be written with this model's vocabulary; leave it out"
    ):
        worded.translate("ein Hund", must=["Haus"])
    with pytest.raises(InputError, match=r"prefix \('Das Haus'\) cannot be written with this model's vocabulary"):
        worded.translate("ein Hund", prefix="Das Haus")


def test_a_word_that_must_not_occur_is_not_written_with_other_pieces(model: Translator) -> None:
    """What was written in its place is forbidden too, until none of it is left."""
    scribe = model.scribe(TranslateOptions(must_not=("the dog",)))
    pieces = [token for letter in "the dog" for token in model.tokenizers.target.ids([letter])[0]]
    assert scribe.text(pieces) == "the dog"
    assert scribe._forbidden(pieces) == {tuple(pieces)}
    assert scribe._forbidden(model.tokenizers.target.ids(["the dogs"])[0]) == set()


def test_special_tokens_are_not_written(model: Translator) -> None:
    special = model.tokenizers.target.roles["mask"]
    forced = model.scribe(TranslateOptions(rules=SHORT))  # type: ignore[arg-type]
    assert special in forced.special
    (row,) = forced.write(forced.read(["ein"]), [Wish()], 1)
    assert not forced.special & {*row[0].tokens}


def test_several_samples_differ_and_can_be_repeated(model: Translator) -> None:
    options: dict[str, Any] = {"sampling": {"temperature": 1.5, "seed": 1}, "nbest": 4, "rules": SHORT}
    found = [each.text for each in model.translate("ein Hund", **options)]
    assert len(found) == 4
    assert len(set(found)) > 1
    assert found == [each.text for each in model.translate("ein Hund", **options)]


# -------------------------------------------------------------------------------------------------------------- asking


def test_score_and_alternatives(model: Translator) -> None:
    ((first, *rest),) = model.score(["ein Hund"], ["the"])
    assert len(rest) == len(model.tokenizers.target.ids(["the"])[0])
    likely = model.alternatives("ein Hund", count=model.network.settings.target_size)
    assert likely[0][1] >= likely[-1][1]
    token = model.tokenizers.target.decode(model.tokenizers.target.ids(["the"])[0][:1])
    assert (token, pytest.approx(first, abs=1e-5)) in likely
    assert model.sizes(["ein", "ein Hund läuft"]) == [
        len(ids) for ids in model.tokenizers.source.ids(["ein", "ein Hund läuft"])
    ]


# ---------------------------------------------------------------------------------------------------------- directions


def test_the_language_is_told_by_a_tag(tagged: Translator) -> None:
    for to in ("de", "en"):
        (ids,) = tagged.scribe(TranslateOptions(to=to)).read(["ein"])
        assert ids[0] == tagged.tokenizers.source.extra[f"<2{to}>"]
    scribe = tagged.scribe(TranslateOptions(to="en"))
    assert len(scribe.read_spans("ein Hund")) == len(scribe.read(["ein Hund"])[0])
    assert tagged.translate("ein Hund", to="en", align=True, rules=SHORT).alignment.source == ["ein", "Hund"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "translates de to en or en to de: say which: to='en' in Python, --to en in a shell"),
        ({"to": "fr"}, r"language fr is not known to model \(.*\), which translates de to en or en to de; choose that"),
        ({"to": "de", "source": "de"}, r"from de to de is not for model \(.*\), which translates de to en or en to de"),
    ],
)
def test_wrong_directions(tagged: Translator, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tagged.translate("ein Hund", **options)


def test_a_direction_that_fits_is_found(tagged: Translator, model: Translator) -> None:
    assert tagged._direction("en", None) == ("en", "de")
    assert tagged._direction(None, "en") == ("de", "en")
    assert model._direction(None, None) == ("de", "en")


# -------------------------------------------------------------------------------------------------------------- options


def test_options_and_keywords() -> None:
    base = TranslateOptions(beam=3, must_not=("x",))
    assert options_for(base, {}) is base
    assert options_for(base, {"nbest": 2, "sampling": None}) == TranslateOptions(beam=3, must_not=("x",), nbest=2)
    assert options_for(None, {"length": {"kind": "power", "alpha": 1.0}}).length.kind == "power"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beem": 3}, r"unknown setting beem \(did you mean beam\?\)"),
        ({"nbest": 6}, r"nbest \(6\) must be at most beam \(5\); widen the beam"),
        ({"must": ["a"], "sampling": {}}, "must needs a beam search and does not go with sampling"),
        ({"beam": 0}, "beam"),
        ({"must": [""]}, "must"),
    ],
)
def test_options_that_make_no_sense(model: Translator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        model.translate("ein", **options)


def test_texts_that_are_none(model: Translator) -> None:
    with pytest.raises(InputError, match=r"text 2 \(3\) is no text but int; give strings"):
        model.translate(["ein", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"a list of texts is wanted here, not a single one \('ein'\); write \[text\]"):
        model.translations("ein")
