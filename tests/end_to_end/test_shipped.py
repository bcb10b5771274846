"""The models that come along: they are whole, small enough, say where they come from, and translate."""

from __future__ import annotations

import re
import tomllib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.data.embedded import read_embedded
from regard.data.settings import Digits, Referents
from regard.errors import InputError
from regard.look.input import example_of
from regard.shipped import MODELS, place_of
from regard.weights.checkpoints import find_damage, read_checksums

PLACES = sorted({place_of(shipped) for shipped in MODELS.values()})
REFERENTS = ("referent-class", "referent-pair", "referent-tags", "referent-answer")
MOST = {"german-english": 20_000_000, "encoder": 12_000_000, "books": 10_000_000, "digits": 140_000} | dict.fromkeys(
    REFERENTS, 500_000
)
"""Bytes of each."""
FROM = {
    "german-english": ("parallel-tsv", ("CC BY 2.0 FR", "tatoeba.org", "Europarl", "Multi30k", "BLEU")),
    "encoder": ("text", ("CC BY-SA", "Europarl", "WikiText-2", "SQuAD", "SST-2", "public domain")),
    "books": ("text", ("public domain", "bits per byte")),
    "digits": ("digits", ("CC BY 4.0", "scikit-learn", "accuracy")),
    **dict.fromkeys(REFERENTS, ("grammar-referents", ("grammar", "test sentences"))),
}
"""The kind of the training data, and words of the card."""

GERMAN = {
    "Ein Hund läuft durch den Schnee.": ("dog", "snow"),
    "Ich habe gestern einen Apfel gegessen.": ("ate", "apple", "yesterday"),
    "Wo ist der nächste Bahnhof?": ("where", "station"),
    "Meine Schwester wohnt in einem kleinen Haus am Meer.": ("sister", "small house", "sea"),
    "Das Parlament hat den Vorschlag der Kommission angenommen.": ("parliament", "proposal", "commission"),
    "Drei Männer stehen vor einem roten Auto.": ("three men", "red car"),
    "Wir müssen die Rechte der Arbeitnehmer schützen.": ("protect", "rights", "workers"),
    "Das Kind war müde, weil es nicht geschlafen hatte.": ("child", "tired", "slept"),
}
ENGLISH = {
    "A dog is running through the snow.": ("hund", "schnee"),
    "I ate an apple yesterday.": ("gestern", "apfel"),
    "Where is the nearest train station?": ("wo ", "bahnhof"),
    "Two girls are playing on the beach.": ("zwei mädchen", "strand"),
    "I would like to thank the rapporteur for his work.": ("berichterstatter", "danken", "arbeit"),
    "The children are not allowed to swim here.": ("kinder", "schwimmen", "nicht"),
}


@pytest.fixture(scope="module")
def both() -> Any:
    return regard.load("german-english")


def test_they_are_small_enough_to_come_along() -> None:
    for place in PLACES:
        assert sum(file.stat().st_size for file in place.iterdir()) <= MOST[place.name]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_one_is_whole(place: Path) -> None:
    """What a fresh clone holds is what was trained, to the last bit."""
    kept = read_checksums(place)[0]
    assert "weights.safetensors" in kept
    assert {"tokenizer.json", "labels.json"} & set(kept)
    assert all(find_damage(place / name, checksum) is None for name, checksum in kept.items())
    config = (place / "config.toml").read_text(encoding="utf-8")
    settings = tomllib.loads(config)
    assert not re.search(r'"/', config), "a place on the machine that it was trained on"
    assert settings["data"]["kind"] == FROM[place.name][0]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_its_card_says_what_it_learnt_from_and_what_it_is_not_for(place: Path) -> None:
    card = (place / "card.md").read_text(encoding="utf-8")
    for word in ("## Data", *FROM[place.name][1], "What it is not for"):
        assert word in card


@pytest.mark.parametrize(("to", "sentences"), [("en", GERMAN), ("de", ENGLISH)], ids=["de-en", "en-de"])
def test_what_sentences_mean_comes_over(both: Any, to: str, sentences: dict[str, tuple[str, ...]]) -> None:
    """Words that any right translation has. One sentence may miss: the model is small."""
    found = both.translate(list(sentences), to=to)
    missed = {
        text: translation
        for (text, words), translation in zip(sentences.items(), found, strict=True)
        if not all(word in translation.lower() for word in words)
    }
    assert len(missed) <= 1, missed


def test_a_name_is_a_direction() -> None:
    model: Any = regard.load("de-en")
    assert model.directions == [("de", "en")]
    assert "dog" in model.translate("Der Hund schläft.")
    with pytest.raises(InputError, match="de to en"):
        model.translate("The dog sleeps.", to="de")


def test_what_must_stay_as_it_is_stays(both: Any) -> None:
    text = "Mein Name ist {name}, siehe https://example.org/a?b=c, und der Preis beträgt 1.234,56 Euro."
    found = both.translate(text, to="en")
    for part in ("{name}", "https://example.org/a?b=c", "1,234.56"):
        assert part in found


def test_what_the_vocabulary_cannot_spell_is_kept(both: Any) -> None:
    """Signs keep their position between the words; a text in an unknown script does not change."""
    found = both.translate(["Hallo 😀 Welt!", "مرحبا", "🎉🎉", "Er sagte „你好“ zu mir."], to="en")
    assert found[0] == "Hello 😀 world!"
    assert found[1:3] == ["مرحبا", "🎉🎉"]
    assert "你好" in found[3]


def test_words_that_mean_the_same_are_aligned(both: Any) -> None:
    found = both.translate("Meine Schwester wohnt in einem kleinen Haus am Meer.", to="en", align=True)
    source, target = found.alignment.source, found.alignment.target
    pairs = {(source[one].lower(), target[two].lower()) for one, two in found.alignment.pairs}
    known = {("meine", "my"), ("schwester", "sister"), ("kleinen", "small"), ("haus", "house"), ("meer", "sea")}
    assert len(known & pairs) >= 4


def test_the_encoder_fills_and_compares() -> None:
    model = regard.load("encoder")
    cases = {
        "He paid the [MASK] into his bank account.": "money",
        "The king and the [MASK] sat on their thrones.": "queen",
        "She opened the [MASK] and went into the house.": "door",
        "The committee will vote on the [MASK] tomorrow.": "report",
    }
    found = {text: model.fill(text)[0] for text in cases}
    missed = [text for text, word in cases.items() if word not in found[text]]
    assert len(missed) <= 1, found
    query, near, far = model.embed(
        ["A dog runs in the snow.", "A puppy plays in winter.", "Parliament voted on the budget."]
    )
    assert float(query @ near) > float(query @ far) + 0.02


def test_the_language_model_continues_stories() -> None:
    model: Any = regard.load("books", "cpu")
    text = model.generate("It was", tokens=60, temperature=0.8, seed=1)
    words = re.findall(r"[a-z]+", text.lower())
    usual = (
        "the",
        "and",
        "of",
        "to",
        "a",
        "in",
        "was",
        "he",
        "i",
        "it",
        "that",
        "his",
        "had",
        "with",
        "my",
        "not",
        "for",
    )
    assert len(words) > 20, text
    assert sum(word in usual for word in words) > len(words) / 5, text

    def chance(text: str) -> float:
        ids = torch.tensor(model.tokenizers.source.ids([text]))
        with torch.inference_mode():
            logs = model.network(ids[:, :-1]).log_softmax(-1)
        return float(logs.gather(-1, ids[:, 1:, None]).sum())

    assert (
        chance("He opened the door and went into the house.")
        > chance("He the opened door went and house the into.") + 10
    )


def test_small_encoders_show_what_a_pronoun_means() -> None:
    """The four uses of BERT on the same sentences, and the accuracy of the cards on some of their test sentences."""
    text = "The dog didn't cross the street because it was too {}."
    for word, noun, other in (("tired", "dog", "street"), ("wide", "street", "dog")):
        sentence = text.format(word)
        (found,) = regard.load("referent-class").predict([sentence])
        assert found["label"] == ("first" if noun == "dog" else "second")
        statements = [(sentence, f"The {each} was too {word}.") for each in (noun, other)]
        assert [each["label"] for each in regard.load("referent-pair").predict(statements)] == ["true", "false"]
        (tagged,) = regard.load("referent-tags").predict([sentence])
        assert dict(zip(tagged["words"], tagged["tags"], strict=True))[noun] == "B-REFERENT"
        (answer,) = regard.load("referent-answer").predict([(f"What was too {word}?", sentence)])
        assert answer["answer"] == noun
    models = {"classes": "referent-class", "pairs": "referent-pair"}
    for form, name in models.items():
        examples = [each.example for each in islice(read_embedded(Referents(form=form), "test"), 300)]
        inputs = [each.text if each.second is None else (each.text, each.second) for each in examples]
        found = [each["label"] for each in regard.load(name).predict(inputs)]
        assert sum(one == each.label for one, each in zip(found, examples, strict=True)) >= 295


def test_the_vision_model_reads_digits() -> None:
    """The card's accuracy on the images for the test, and a first image that is one of them."""
    model = regard.load("digits", "cpu")
    pictures = list(read_embedded(Digits(), "test"))
    images = [each.example.pixels for each in pictures]
    labels = [each.example.label for each in pictures]
    found = [each["label"] for each in model.predict(images)]
    right = sum(one == other for one, other in zip(found, labels, strict=True))
    assert right / len(labels) >= 0.97
    name, first = example_of(model) or ("", images[0])
    assert name == "example.pgm"
    (place,) = [number for number, image in enumerate(images) if np.array_equal(image[..., 0], first[0])]
    assert found[place] == labels[place] == "3"
