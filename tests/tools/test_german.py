"""German inflection against the tables that every grammar book prints."""

from __future__ import annotations

import pytest
from tools.grammar import german
from tools.grammar.adjectives import ADJECTIVES, LIVING_ADJECTIVES, PLACED_ADJECTIVES
from tools.grammar.draw import Draw
from tools.grammar.nouns import NOUNS, Noun, nouns_of
from tools.grammar.phrases import (
    BARE,
    EVERY,
    MANY,
    NO,
    NUMBERS,
    POSSESSIVES,
    THE,
    THIS,
    A,
    Determiner,
    noun_phrase,
    prepositional,
    pronoun,
)
from tools.grammar.verbs import (
    CROSSERS,
    DATIVES,
    GIVERS,
    INTRANSITIVES,
    MODALS,
    MOVERS,
    PLACED_VERBS,
    SAYING_VERBS,
    TRANSITIVES,
)

VERBS = {
    verb.german.infinitive: verb
    for table in (TRANSITIVES, DATIVES, GIVERS, INTRANSITIVES, PLACED_VERBS, MOVERS, SAYING_VERBS, CROSSERS.values())
    for verb in table
}


def noun(english: str) -> Noun:
    return next(entry for entry in NOUNS if entry.english == english)


def phrases(determiner: Determiner, english: str, plural: bool = False, adjective: str = "small") -> list[str]:
    """The noun phrase in the four cases."""
    found = next(entry for entry in ADJECTIVES if entry.english == adjective)
    made = [noun_phrase(Draw("train"), noun(english), case, determiner, plural, found) for case in range(4)]
    return [" ".join(word for word, _, _ in phrase.german) for phrase in made]


WEAK = [
    ("dog", False, ["der kleine Hund", "den kleinen Hund", "dem kleinen Hund", "des kleinen Hundes"]),
    ("cat", False, ["die kleine Katze", "die kleine Katze", "der kleinen Katze", "der kleinen Katze"]),
    ("sheep", False, ["das kleine Schaf", "das kleine Schaf", "dem kleinen Schaf", "des kleinen Schafes"]),
    ("dog", True, ["die kleinen Hunde", "die kleinen Hunde", "den kleinen Hunden", "der kleinen Hunde"]),
    ("boy", False, ["der kleine Junge", "den kleinen Jungen", "dem kleinen Jungen", "des kleinen Jungen"]),
    ("bear", True, ["die kleinen Bären", "die kleinen Bären", "den kleinen Bären", "der kleinen Bären"]),
    ("car", True, ["die kleinen Autos", "die kleinen Autos", "den kleinen Autos", "der kleinen Autos"]),
]
MIXED = [
    ("dog", False, ["ein kleiner Hund", "einen kleinen Hund", "einem kleinen Hund", "eines kleinen Hundes"]),
    ("cat", False, ["eine kleine Katze", "eine kleine Katze", "einer kleinen Katze", "einer kleinen Katze"]),
    ("child", False, ["ein kleines Kind", "ein kleines Kind", "einem kleinen Kind", "eines kleinen Kindes"]),
    ("lion", False, ["ein kleiner Löwe", "einen kleinen Löwen", "einem kleinen Löwen", "eines kleinen Löwen"]),
]


@pytest.mark.parametrize(("english", "plural", "expected"), WEAK)
def test_weak_declension(english: str, plural: bool, expected: list[str]) -> None:
    assert phrases(THE, english, plural) == expected


@pytest.mark.parametrize(("english", "plural", "expected"), MIXED)
def test_mixed_declension(english: str, plural: bool, expected: list[str]) -> None:
    assert phrases(A, english, plural) == expected


def test_mixed_declension_in_the_plural() -> None:
    assert phrases(NO, "house", True) == [
        "keine kleinen Häuser",
        "keine kleinen Häuser",
        "keinen kleinen Häusern",
        "keiner kleinen Häuser",
    ]


def test_strong_declension() -> None:
    assert phrases(BARE, "coffee", adjective="cold") == [
        "kalter Kaffee",
        "kalten Kaffee",
        "kaltem Kaffee",
        "kalten Kaffees",
    ]
    assert phrases(BARE, "milk", adjective="cold") == ["kalte Milch", "kalte Milch", "kalter Milch", "kalter Milch"]
    assert phrases(BARE, "beer", adjective="cold") == ["kaltes Bier", "kaltes Bier", "kaltem Bier", "kalten Bieres"]
    assert phrases(NUMBERS[0], "egg", True, "fresh") == [
        "zwei frische Eier",
        "zwei frische Eier",
        "zwei frischen Eiern",
        "zwei frischer Eier",
    ]
    assert phrases(MANY, "cow", True) == [
        "viele kleine Kühe",
        "viele kleine Kühe",
        "vielen kleinen Kühen",
        "vieler kleiner Kühe",
    ]


def test_articles_that_are_declined_like_der() -> None:
    assert phrases(THIS, "cow") == ["diese kleine Kuh", "diese kleine Kuh", "dieser kleinen Kuh", "dieser kleinen Kuh"]
    assert phrases(EVERY, "horse") == [
        "jedes kleine Pferd",
        "jedes kleine Pferd",
        "jedem kleinen Pferd",
        "jedes kleinen Pferdes",
    ]


def test_possessives() -> None:
    my, _, _, her, our, _ = POSSESSIVES
    assert phrases(my, "hat", adjective="new")[1] == "meinen neuen Hut"
    assert phrases(her, "hat", adjective="new")[0] == "ihr neuer Hut"
    assert phrases(our, "dress", adjective="new")[2] == "unserem neuen Kleid"


@pytest.mark.parametrize(
    ("english", "expected"),
    [("expensive", "die teure Lampe"), ("old", "die alte Lampe"), ("white", "die weiße Lampe")],
)
def test_stems_of_adjectives(english: str, expected: str) -> None:
    assert phrases(THE, "lamp", adjective=english)[0] == expected


def test_stems_that_change() -> None:
    assert [german.attributive_stem(word) for word in ("müde", "dunkel", "teuer", "hoch", "lecker", "neu")] == [
        "müd",
        "dunkl",
        "teur",
        "hoh",
        "lecker",
        "neu",
    ]


def test_comparison() -> None:
    forms = {entry.english: (entry.german_more, entry.german_most) for entry in (*ADJECTIVES, *LIVING_ADJECTIVES)}
    assert forms["old"] == ("älter", "ältest")
    assert forms["big"] == ("größer", "größt")
    assert forms["expensive"] == ("teurer", "teuerst")
    assert forms["interesting"] == ("interessanter", "interessantest")
    assert forms["new"] == ("neuer", "neuest")
    assert forms["fresh"] == ("frischer", "frischest")
    assert forms["short"] == ("kürzer", "kürzest")
    assert forms["friendly"] == ("freundlicher", "freundlichst")
    assert next(entry for entry in PLACED_ADJECTIVES if entry.english == "dark").german_more == "dunkler"


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("garden", "Gartens"),
        ("house", "Hauses"),
        ("bus", "Busses"),
        ("river", "Flusses"),
        ("car", "Autos"),
        ("museum", "Museums"),
        ("king", "Königs"),
        ("doctor", "Arztes"),
        ("farmer", "Bauern"),
        ("cheese", "Käses"),
        ("girl", "Mädchens"),
        ("woman", "Frau"),
    ],
)
def test_genitives(english: str, expected: str) -> None:
    assert noun(english).forms[german.GENITIVE][0] == expected


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("man", "Männern"),
        ("garden", "Gärten"),
        ("apple", "Äpfeln"),
        ("taxi", "Taxis"),
        ("teacher", "Lehrern"),
        ("mouse", "Mäusen"),
        ("queen", "Königinnen"),
        ("museum", "Museen"),
    ],
)
def test_dative_plurals(english: str, expected: str) -> None:
    assert noun(english).forms[german.DATIVE][1] == expected


PRESENT = {
    "essen": "esse isst isst essen esst essen",
    "lesen": "lese liest liest lesen lest lesen",
    "geben": "gebe gibst gibt geben gebt geben",
    "sehen": "sehe siehst sieht sehen seht sehen",
    "fahren": "fahre fährst fährt fahren fahrt fahren",
    "tragen": "trage trägst trägt tragen tragt tragen",
    "waschen": "wasche wäschst wäscht waschen wascht waschen",
    "einladen": "lade lädst lädt laden ladet laden",
    "betreten": "betrete betrittst betritt betreten betretet betreten",
    "verlassen": "verlasse verlässt verlässt verlassen verlasst verlassen",
    "arbeiten": "arbeite arbeitest arbeitet arbeiten arbeitet arbeiten",
    "finden": "finde findest findet finden findet finden",
    "zeichnen": "zeichne zeichnest zeichnet zeichnen zeichnet zeichnen",
    "wohnen": "wohne wohnst wohnt wohnen wohnt wohnen",
    "umarmen": "umarme umarmst umarmt umarmen umarmt umarmen",
    "putzen": "putze putzt putzt putzen putzt putzen",
    "füttern": "füttere fütterst füttert füttern füttert füttern",
    "haben": "habe hast hat haben habt haben",
}


@pytest.mark.parametrize("infinitive", PRESENT)
def test_present(infinitive: str) -> None:
    assert " ".join(VERBS[infinitive].german.present) == PRESENT[infinitive]


@pytest.mark.parametrize(
    ("infinitive", "expected"),
    [
        ("gehen", "ging gingst ging gingen gingt gingen"),
        ("finden", "fand fandest fand fanden fandet fanden"),
        ("bringen", "brachte brachtest brachte brachten brachtet brachten"),
        ("arbeiten", "arbeitete arbeitetest arbeitete arbeiteten arbeitetet arbeiteten"),
        ("überqueren", "überquerte überquertest überquerte überquerten überquertet überquerten"),
        ("meiden", "mied miedest mied mieden miedet mieden"),
    ],
)
def test_past(infinitive: str, expected: str) -> None:
    assert " ".join(VERBS[infinitive].german.past) == expected


PARTICIPLES = {
    "essen": "hat gegessen",
    "gehen": "ist gegangen",
    "überqueren": "hat überquert",
    "besuchen": "hat besucht",
    "reparieren": "hat repariert",
    "aufmachen": "hat aufgemacht",
    "anrufen": "hat angerufen",
    "einschlafen": "ist eingeschlafen",
    "aufstehen": "ist aufgestanden",
    "bleiben": "ist geblieben",
    "folgen": "ist gefolgt",
    "arbeiten": "hat gearbeitet",
    "verstehen": "hat verstanden",
    "empfehlen": "hat empfohlen",
    "gratulieren": "hat gratuliert",
    "rennen": "ist gerannt",
}


@pytest.mark.parametrize("infinitive", PARTICIPLES)
def test_perfect(infinitive: str) -> None:
    verb = VERBS[infinitive].german
    assert f"{german.AUXILIARIES[verb.auxiliary].present[2]} {verb.participle}" == PARTICIPLES[infinitive]


@pytest.mark.parametrize(
    ("infinitive", "command", "with_zu"),
    [
        ("geben", "gib", "zu geben"),
        ("lesen", "lies", "zu lesen"),
        ("tragen", "trag", "zu tragen"),
        ("warten", "warte", "zu warten"),
        ("einladen", "lade", "einzuladen"),
        ("aufmachen", "mach", "aufzumachen"),
        ("füttern", "füttere", "zu füttern"),
        ("vergessen", "vergiss", "zu vergessen"),
    ],
)
def test_commands_and_infinitives(infinitive: str, command: str, with_zu: str) -> None:
    verb = VERBS[infinitive].german
    assert (verb.command, verb.with_zu) == (command, with_zu)


def test_modal_verbs() -> None:
    assert MODALS["can"].present == ("kann", "kannst", "kann", "können", "könnt", "können")
    assert MODALS["must"].present == ("muss", "musst", "muss", "müssen", "müsst", "müssen")
    assert MODALS["want"].past == ("wollte", "wolltest", "wollte", "wollten", "wolltet", "wollten")


def test_pronouns() -> None:
    table = [[pronoun(Draw("train"), index, case).german[0][0] for case in range(3)] for index in range(6)]
    assert table == [
        ["ich", "mich", "mir"],
        ["du", "dich", "dir"],
        ["er", "ihn", "ihm"],
        ["sie", "sie", "ihr"],
        ["wir", "uns", "uns"],
        ["sie", "sie", "ihnen"],
    ]


@pytest.mark.parametrize(
    ("preposition", "english", "case", "expected"),
    [
        ("in", "garden", german.DATIVE, "im Garten"),
        ("in", "kitchen", german.DATIVE, "in der Küche"),
        ("in", "house", german.ACCUSATIVE, "ins Haus"),
        ("auf", "table", german.ACCUSATIVE, "auf den Tisch"),
        ("zu", "school", german.DATIVE, "zur Schule"),
        ("zu", "station", german.DATIVE, "zum Bahnhof"),
        ("von", "bear", german.DATIVE, "vom Bären"),
        ("an", "beach", german.DATIVE, "am Strand"),
    ],
)
def test_prepositions(preposition: str, english: str, case: int, expected: str) -> None:
    draw = Draw("train")
    phrase = prepositional(draw, "to", preposition, noun_phrase(draw, noun(english), case, THE))
    assert " ".join(word for word, _, _ in phrase.german) == expected


def test_every_kind_of_place_has_all_three_genders() -> None:
    for kind in ("way", "broad", "slope", "water", "soft", "stony", "room", "public", "far", "land"):
        genders = [entry.gender for entry in nouns_of((kind,))]
        assert min(genders.count(gender) for gender in range(3)) >= 3, kind
