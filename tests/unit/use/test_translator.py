"""Translation: with a model of random weights, and with a function in place of a model."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tiny_translator
import torch
from scripted_translator import ScriptedTranslator, scripted, word_by_word
from tiny_translator import write_translator

from regard.blocks.settings import Attention
from regard.decoding.decode import score
from regard.decoding.settings import Absolute, Rules, TranslateOptions
from regard.errors import InputError, SettingsError
from regard.models.build import build
from regard.models.settings import EncoderDecoder
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.model import load
from regard.use.translator import Translation, Translator
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
    told = model.translate("ein Hund", rules=SHORT, details=True, length={"kind": "power", "alpha": 0.0})
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
    with pytest.raises(InputError, match=r"ahead \(0\)"):
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
    with pytest.raises(InputError, match="a stream needs beam=1"):
        model.stream("ein", TranslateOptions(beam=4))


def test_constraints(model: Translator, worded: Translator) -> None:
    text = "ein Hund läuft durch den Schnee"
    assert model.translate(text, prefix="the dog", rules=SHORT).startswith("the dog")
    assert " snow" in model.translate(text, must=["snow"], rules=SHORT)
    assert "snow" in worded.translate(text, must=["snow"], rules=SHORT).split()
    plain = worded.translate(text, rules=SHORT).split()
    assert plain
    for word in plain:
        assert word not in worded.translate(text, must_not=[word], rules=SHORT).split()
    for option, words in (("must", ["Haus"]), ("prefix", "Das Haus")):
        with pytest.raises(InputError, match=rf"{option} \('.*Haus'\) contains characters outside"):
            worded.translate("ein Hund", **{option: words})


def test_special_tokens_do_not_occur(model: Translator) -> None:
    assert model.tokenizers.target.roles["mask"] in model.special
    tokens = model.decode(model.inputs(["ein"])[0], TranslateOptions(rules=SHORT))
    assert tokens
    assert not model.special & {*tokens}


def test_samples_differ_and_can_be_repeated(model: Translator) -> None:
    options: dict[str, Any] = {"sampling": {"temperature": 1.5, "seed": 1}, "nbest": 4, "rules": SHORT}
    found = [each.text for each in model.translate("ein Hund", **options)]
    assert len(found) == 4
    assert len(set(found)) > 1
    assert found == [each.text for each in model.translate("ein Hund", **options)]


def test_score_alternatives_and_sizes(model: Translator) -> None:
    ((first, *rest),) = model.score(["ein Hund"], ["the"])
    assert len(rest) == len(model.tokenizers.target.ids(["the"])[0])
    likely = model.alternatives("ein Hund", count=model.network.settings.target_size)
    assert likely[0][1] >= likely[-1][1]
    token = model.tokenizers.target.decode(model.tokenizers.target.ids(["the"])[0][:1])
    assert (token, pytest.approx(first, abs=1e-5)) in likely
    texts = ["ein", "ein Hund läuft"]
    assert model.sizes(texts) == [len(ids) for ids in model.tokenizers.source.ids(texts)]


def test_language_tags(tagged: Translator) -> None:
    for to in ("de", "en"):
        (ids,) = tagged.inputs(["ein Hund"], to)
        assert ids[0] == tagged.tokenizers.source.extra[f"<2{to}>"]
        assert len(tagged.input_spans("ein Hund")) == len(ids)
    assert tagged.translate("ein Hund", to="en", align=True, rules=SHORT).alignment.source == ["ein", "Hund"]


def test_directions(tagged: Translator, model: Translator) -> None:
    assert tagged.target_language("en", None) == "de"
    assert tagged.target_language(None, "en") == "en"
    assert model.target_language() == "en"
    for options, parts in (
        ({}, ["de to en, en to de", "choose one", "--to en"]),
        ({"to": "fr"}, ["to (fr)", "de to en, en to de"]),
        ({"to": "de", "source": "de"}, ["source (de)", "to (de)"]),
    ):
        with pytest.raises(InputError) as caught:
            tagged.translate("ein Hund", **options)
        assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beem": 3}, r"unknown setting beem \(did you mean beam\?\)"),
        ({"nbest": 6}, r"nbest \(6\) must be at most beam \(5\)"),
        ({"must": ["a"], "sampling": {}}, "must needs a beam search"),
        ({"beam": 0}, "beam"),
        ({"must": [""]}, "must"),
    ],
)
def test_wrong_options(model: Translator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        model.translate("ein", **options)


def test_wrong_texts(model: Translator) -> None:
    with pytest.raises(InputError, match=r"^texts\[1\] is an int, expected str$"):
        model.translate(["ein", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"texts \('ein'\) is a str"):
        model.translations("ein")
    for wrong in (3, None, b"ein", {"ein": 1}):
        with pytest.raises(InputError, match=r"^texts is an? \w+, expected a str or a list of str$"):
            model.translate(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"texts \('ein'\) is a str, expected a list"):
        model.predict("ein")


def test_sentences_are_translated_one_by_one() -> None:
    model = scripted()
    text = "  The dog sees.  The cat!\n\n\tThe big dog?\r\nThe cat "
    assert model.translate(text) == "  Der Hund sieht.  Der Katze!\n\n\tDer große Hund?\r\nDer Katze "
    assert model.asked == ["The dog sees.", "The cat!", "The big dog?", "The cat"]
    model.asked.clear()
    assert model.translate("The dog. The cat.\nThe dog.", split=False) == "Der Hund. Der Katze.\nDer Hund."
    assert model.asked == ["The dog. The cat.", "The dog."]


def test_texts_without_words_do_not_reach_the_model() -> None:
    model = scripted(lambda text: "nonsense")
    for text in ["", " ", "\n", " \t\u2028 ", "1234", "--- !?", "3,5 %", "😀", "{name}", "<br/>", "<b>{x}</b> 5"]:
        assert model.translate(text) == text
    assert model.asked == []


def test_spaces_between_sentences_depend_on_the_script() -> None:
    model = scripted(lambda text: {"犬。": "Dog.", "猫。": "Cat."}.get(text, "犬。"))
    assert model.translate("犬。猫。") == "Dog. Cat."
    assert model.translate("The dog。The cat。") == "犬。犬。"


def test_long_sentences_are_cut() -> None:
    model = scripted()
    model.reach = 20
    text = "the dog the cat, the big dog the big cat the dog"
    assert model.translate(text) == word_by_word(text)
    assert model.asked[0] == "the dog the cat,"
    assert all(len(each) < 20 for each in model.asked)
    assert " ".join(model.asked) == text
    assert model.translate("a " * 50 + "{x} " + "b " * 50).count("{x}") == 1


def test_must_needs_one_piece() -> None:
    model = ScriptedTranslator(lambda text, wish: [f"{text} {len(wish.must)}"])
    assert model.translate("The dog. The cat.", must=["Hund"], keep=False) == "The dog. The cat. 1"
    model.reach = 10
    with pytest.raises(InputError, match=r"must needs a text in one piece, but 'The dog sees"):
        model.translate("The dog sees the cat.", must=["Hund"])


def test_nbest_of_a_text_is_sorted() -> None:
    model = ScriptedTranslator(lambda text, wish: ["A", "B", "C"] if "dog" in text else ["X"])
    found = model.translate("The dog. The cat.", nbest=3)
    assert [(each.text, each.score) for each in found] == [("A X", -2.0), ("B X", -3.0), ("C X", -4.0)]
    numbers = ScriptedTranslator(lambda text, wish: ["dog", "7 dog", "dog 7", "cat"])
    found = numbers.translate("7 dog", nbest=3)
    assert [(each.text, each.score) for each in found] == [("dog", -1.0), ("7 dog", -2.0), ("dog 7", -3.0)]


def test_lost_stand_ins() -> None:
    """A second search with other stand-ins, then the parts between the items."""
    first = scripted(lambda text: re.sub(r"X1", "X2", word_by_word(text)))
    assert first.translate("The dog sees {name} today.") == "Der Hund sieht {name} heute."
    assert first.asked == ["The dog sees X1 today.", "The dog sees 212 today."]
    neither = scripted(lambda text: re.sub(r" (X1|212)", "", word_by_word(text)))
    found = neither.translate("The dog sees {name} today.", details=True)
    assert (found.text, found.kept) == ("Der Hund sieht {name} heute.", True)
    assert neither.asked[2:] == ["The dog sees", "today."]
    twice = scripted(lambda text: re.sub(r"(X1|212)", r"\1 \1", word_by_word(text)))
    assert twice.translate("The dog sees {name} today.").count("{name}") == 1
    must = scripted(lambda text: "Hund")
    assert must.translate("The dog {name}", must=["Hund"], details=True).kept is False


def test_the_first_hypothesis_that_keeps_everything_wins() -> None:
    model = ScriptedTranslator(lambda text, wish: ["kein Hund", "Hund X1", "7 Hund X1 X1", "7 Hund X1"])
    found = model.translate("7 dog {name}", details=True)
    assert (found.text, found.kept, len(model.asked)) == ("7 Hund {name}", True, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The <b>dog</b> sees.", "Der <b>Hund</b> sieht."),
        ("<i>The <b>big dog</b></i> sees <br/>the cat.", "<i>Der <b>große Hund</b></i> sieht <br/>der Katze."),
        ("<p>The dog.</p><p>The cat.</p>", "<p>Der Hund.</p><p>Der Katze.</p>"),
        ("<b>The dog sees. The cat</b> today.", "<b>Der Hund sieht. Der Katze</b> heute."),
        ("The dog &amp; cat &lt; &eacute;", "Der Hund &amp; Katze &lt; é"),
        ("The <x id='1'/> dog", "Der <x id='1'/> Hund"),
        ("The dog <code>the cat</code>", "Der Hund <code>the cat</code>"),
        ("<!-- the dog --> The dog<script>the('dog')</script>", "<!-- the dog --> Der Hund<script>the('dog')</script>"),
    ],
)
def test_tags(text: str, expected: str) -> None:
    for model in (scripted(), scripted(lambda text: re.sub(r" ?(X1|212) ?", "", word_by_word(text)))):
        assert model.translate(text) == expected


def test_keep_off() -> None:
    model = scripted()
    assert model.translate("The {dog} <b>cat</b> 1", keep=False) == "Der {Hund} <b>Katze</b> 1"
    assert model.asked == ["The {dog} <b>cat</b> 1"]


def test_must_not_wins_over_keep() -> None:
    model = scripted(lambda text: word_by_word(re.sub(r"\d+ ?|\W?name\W?", "", text)))
    found = model.translate("The dog sees 17 cat {name}", must_not=["17", "name"])
    assert found.split() == ["Der", "Hund", "sieht", "Katze"]
    assert len(model.asked) == 1


def test_lost_numbers_are_replaced_by_small_ones() -> None:
    model = scripted(lambda text: re.sub(r"\d\d+", "viele", word_by_word(text)))
    found = model.translate("The dog sees 17 cat at 15:30 and {name} 8.", details=True)
    assert (found.text, found.kept) == ("Der Hund sieht 17 Katze at 15:30 and {name} 8.", True)
    assert model.asked == ["The dog sees 17 cat at 15:30 and X1 8.", "The dog sees 4 cat at 6 and X1 8."]
    shorter = scripted(lambda text: re.sub(r"\d\d+", "viele", word_by_word(text)))
    assert "17" in shorter.translate("The dog sees 17 cat.", align=True).alignment.source  # as read the second time
    never = scripted(lambda text: word_by_word(re.sub(r"\d+ ?", "", text)))
    lost = never.translate("The dog sees 17 big cat.", details=True)
    assert (lost.text, lost.kept, len(never.asked)) == ("Der Hund sieht große Katze.", False, 2)
    same = scripted(lambda text: text.replace("3,5", "3.5").replace("1.000.000", "1,000,000"))
    assert same.translate("dog 3,5 cat 1.000.000", details=True).text == "dog 3.5 cat 1,000,000"
    assert len(same.asked) == 1


def test_unknown_characters_and_stand_ins() -> None:
    """A vocabulary without stand-ins: the parts between the items are translated."""
    texts = ["the dog sees the cat today", "der Hund sieht der Katze heute"]
    model = ScriptedTranslator(lambda text, wish: [word_by_word(text)], Words(), texts)
    found = model.translate("the dog sees {name} at www.a.de and cat today", details=True)
    assert re.findall(r"\{name\}|www\.a\.de", found.text) == ["{name}", "www.a.de"]
    assert found.kept


@pytest.mark.parametrize(
    "text",
    [
        "<b>" * 5_000 + "the dog" + "</b>" * 5_000,
        "{a} " * 2_000,
        "<p>the dog</p>" * 500,
        "{x}" * 5_000 + " the",
        "the <wbr>, " * 300,
        "the<b> </b>" * 200,
        "the <b>dog</b> " * 100,
    ],
)
def test_hostile_texts_take_little_time(text: str) -> None:
    began = time.perf_counter()
    found = scripted().translate(text)
    assert time.perf_counter() - began < 20
    assert re.findall("<[^<>]*>", found) == re.findall("<[^<>]*>", text)
    assert re.findall(r"\w+", re.sub("<[^<>]*>", " ", found)) == re.findall(
        r"\w+", word_by_word(re.sub("<.*?>", " ", text))
    )


def test_alignments_are_joined() -> None:
    found = scripted().translate("The dog.\n<b>The</b> cat {name}! 5", align=True)
    alignment = found.alignment
    assert alignment.source[:3] == ["The", "dog", "."]
    assert [word for word in alignment.source if word in ("cat", "{name}", "5")] == ["cat", "{name}", "5"]
    assert [word for word in alignment.target if word in ("Katze", "{name}", "5")] == ["Katze", "{name}", "5"]
    assert alignment.weights.shape == (len(alignment.target), len(alignment.source))
    assert alignment.weights[:3, 3:].max() == 0
    assert {pair.split("-")[0] for pair in str(alignment).split()} <= {str(n) for n in range(len(alignment.source))}
    assert found.as_table()["alignment"]["pairs"] == alignment.pairs
