"""Inflection and word order of the grammar, against the tables of grammar books and sentences written by hand."""

from __future__ import annotations

from tools.grammar import english, german
from tools.grammar.adjectives import ADJECTIVES, LIVING_ADJECTIVES, PLACED_ADJECTIVES
from tools.grammar.clauses import Clause, Tense, passive, verbal, with_modal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, GENITIVE, NOMINATIVE
from tools.grammar.nouns import NOUNS, Noun
from tools.grammar.parts import subject
from tools.grammar.phrases import (
    BARE,
    EVERY,
    MANY,
    NO,
    NUMBERS,
    POSSESSIVES,
    THE,
    A,
    Determiner,
    Phrase,
    Token,
    noun_phrase,
    prepositional,
    pronoun,
)
from tools.grammar.sentence import Sentence, pair
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
    Verb,
)

TABLES = (TRANSITIVES, DATIVES, GIVERS, INTRANSITIVES, PLACED_VERBS, MOVERS, SAYING_VERBS, CROSSERS.values())
GERMAN_VERBS = {verb.german.infinitive: verb.german for table in TABLES for verb in table}


def noun(word: str) -> Noun:
    return next(entry for entry in NOUNS if entry.english == word)


def verb(base: str) -> Verb:
    return next(entry for entry in (*TRANSITIVES, *INTRANSITIVES) if entry.english.base == base)


def phrase(draw: Draw, word: str, case: int, determiner: Determiner = THE) -> Phrase:
    return noun_phrase(draw, noun(word), case, determiner)


def words(tokens: list[Token]) -> str:
    return " ".join(word for word, _, _ in tokens)


def cases(determiner: Determiner, word: str, plural: bool = False, adjective: str = "small") -> str:
    """The noun phrase in the four cases."""
    found = next(entry for entry in ADJECTIVES if entry.english == adjective)
    made = [noun_phrase(Draw("train"), noun(word), case, determiner, plural, found) for case in range(4)]
    return ", ".join(words(each.german) for each in made)


def test_declension() -> None:
    my, _, _, her, our, _ = POSSESSIVES
    for found, expected in [
        (cases(THE, "dog"), "der kleine Hund, den kleinen Hund, dem kleinen Hund, des kleinen Hundes"),
        (cases(THE, "cat"), "die kleine Katze, die kleine Katze, der kleinen Katze, der kleinen Katze"),
        (cases(THE, "sheep"), "das kleine Schaf, das kleine Schaf, dem kleinen Schaf, des kleinen Schafes"),
        (cases(THE, "dog", True), "die kleinen Hunde, die kleinen Hunde, den kleinen Hunden, der kleinen Hunde"),
        (cases(THE, "boy"), "der kleine Junge, den kleinen Jungen, dem kleinen Jungen, des kleinen Jungen"),
        (cases(A, "dog"), "ein kleiner Hund, einen kleinen Hund, einem kleinen Hund, eines kleinen Hundes"),
        (cases(A, "child"), "ein kleines Kind, ein kleines Kind, einem kleinen Kind, eines kleinen Kindes"),
        (cases(A, "lion"), "ein kleiner Löwe, einen kleinen Löwen, einem kleinen Löwen, eines kleinen Löwen"),
        (
            cases(NO, "house", True),
            "keine kleinen Häuser, keine kleinen Häuser, keinen kleinen Häusern, keiner kleinen Häuser",
        ),
        (cases(BARE, "coffee", adjective="cold"), "kalter Kaffee, kalten Kaffee, kaltem Kaffee, kalten Kaffees"),
        (cases(BARE, "beer", adjective="cold"), "kaltes Bier, kaltes Bier, kaltem Bier, kalten Bieres"),
        (
            cases(NUMBERS[0], "egg", True, "fresh"),
            "zwei frische Eier, zwei frische Eier, zwei frischen Eiern, zwei frischer Eier",
        ),
        (cases(MANY, "cow", True), "viele kleine Kühe, viele kleine Kühe, vielen kleinen Kühen, vieler kleiner Kühe"),
        (cases(EVERY, "horse"), "jedes kleine Pferd, jedes kleine Pferd, jedem kleinen Pferd, jedes kleinen Pferdes"),
        (cases(my, "hat", adjective="new").split(", ")[1], "meinen neuen Hut"),
        (cases(her, "hat", adjective="new").split(", ")[0], "ihr neuer Hut"),
        (cases(our, "dress", adjective="new").split(", ")[2], "unserem neuen Kleid"),
        (cases(THE, "lamp", adjective="expensive").split(", ")[0], "die teure Lampe"),
    ]:
        assert found == expected


def test_nouns_and_adjectives() -> None:
    genitives = """garden Gartens house Hauses bus Busses river Flusses car Autos museum Museums king Königs doctor
        Arztes farmer Bauern cheese Käses girl Mädchens woman Frau"""
    plurals = """man Männern garden Gärten apple Äpfeln taxi Taxis teacher Lehrern mouse Mäusen queen Königinnen museum
        Museen"""
    for table, case, column in ((genitives, GENITIVE, 0), (plurals, DATIVE, 1)):
        for word, form in zip(table.split()[::2], table.split()[1::2], strict=True):
            assert noun(word).forms[case][column] == form
    stems = {"müde": "müd", "dunkel": "dunkl", "teuer": "teur", "hoch": "hoh", "lecker": "lecker", "neu": "neu"}
    assert {word: german.attributive_stem(word) for word in stems} == stems
    every = (*ADJECTIVES, *LIVING_ADJECTIVES, *PLACED_ADJECTIVES)
    forms = {entry.english: f"{entry.german_more} {entry.german_most}" for entry in every}
    expected = {
        "old": "älter ältest",
        "big": "größer größt",
        "expensive": "teurer teuerst",
        "interesting": "interessanter interessantest",
        "new": "neuer neuest",
        "fresh": "frischer frischest",
        "short": "kürzer kürzest",
        "friendly": "freundlicher freundlichst",
    }
    assert {word: forms[word] for word in expected} == expected
    assert forms["dark"].startswith("dunkler ")


def test_german_verbs() -> None:
    present = """
        esse isst isst essen esst essen|lese liest liest lesen lest lesen|gebe gibst gibt geben gebt geben
        sehe siehst sieht sehen seht sehen|fahre fährst fährt fahren fahrt fahren|trage trägst trägt tragen tragt tragen
        wasche wäschst wäscht waschen wascht waschen|wohne wohnst wohnt wohnen wohnt wohnen
        betrete betrittst betritt betreten betretet betreten|verlasse verlässt verlässt verlassen verlasst verlassen
        arbeite arbeitest arbeitet arbeiten arbeitet arbeiten|finde findest findet finden findet finden
        zeichne zeichnest zeichnet zeichnen zeichnet zeichnen|umarme umarmst umarmt umarmen umarmt umarmen
        putze putzt putzt putzen putzt putzen|füttere fütterst füttert füttern füttert füttern
        habe hast hat haben habt haben"""
    for forms in present.replace("\n", "|").split("|"):
        if forms.strip():
            assert " ".join(GERMAN_VERBS[forms.split()[3]].present) == forms.strip()
    assert " ".join(GERMAN_VERBS["einladen"].present) == "lade lädst lädt laden ladet laden"
    past = {
        "gehen": "ging gingst ging gingen gingt gingen",
        "finden": "fand fandest fand fanden fandet fanden",
        "bringen": "brachte brachtest brachte brachten brachtet brachten",
        "arbeiten": "arbeitete arbeitetest arbeitete arbeiteten arbeitetet arbeiteten",
        "überqueren": "überquerte überquertest überquerte überquerten überquertet überquerten",
        "meiden": "mied miedest mied mieden miedet mieden",
    }
    assert {infinitive: " ".join(GERMAN_VERBS[infinitive].past) for infinitive in past} == past
    perfect = """essen hat gegessen, gehen ist gegangen, überqueren hat überquert, besuchen hat besucht, reparieren hat
        repariert, aufmachen hat aufgemacht, anrufen hat angerufen, einschlafen ist eingeschlafen, aufstehen ist
        aufgestanden, bleiben ist geblieben, folgen ist gefolgt, arbeiten hat gearbeitet, verstehen hat verstanden,
        empfehlen hat empfohlen, gratulieren hat gratuliert, rennen ist gerannt"""
    for infinitive, auxiliary, participle in (entry.split() for entry in perfect.split(",")):
        found = GERMAN_VERBS[infinitive]
        assert (german.AUXILIARIES[found.auxiliary].present[2], found.participle) == (auxiliary, participle)
    for infinitive, command, with_zu in [
        ("geben", "gib", "zu geben"),
        ("lesen", "lies", "zu lesen"),
        ("tragen", "trag", "zu tragen"),
        ("warten", "warte", "zu warten"),
        ("einladen", "lade", "einzuladen"),
        ("aufmachen", "mach", "aufzumachen"),
        ("füttern", "füttere", "zu füttern"),
        ("vergessen", "vergiss", "zu vergessen"),
    ]:
        assert (GERMAN_VERBS[infinitive].command, GERMAN_VERBS[infinitive].with_zu) == (command, with_zu)
    assert " ".join(MODALS["can"].present) == "kann kannst kann können könnt können"
    assert " ".join(MODALS["must"].present) == "muss musst muss müssen müsst müssen"
    assert " ".join(MODALS["want"].past) == "wollte wolltest wollte wollten wolltet wollten"


def test_pronouns_and_prepositions() -> None:
    table = [" ".join(pronoun(Draw("train"), person, case).german[0][0] for case in range(3)) for person in range(6)]
    assert table == ["ich mich mir", "du dich dir", "er ihn ihm", "sie sie ihr", "wir uns uns", "sie sie ihnen"]
    for preposition, word, case, expected in [
        ("in", "garden", DATIVE, "im Garten"),
        ("in", "kitchen", DATIVE, "in der Küche"),
        ("in", "house", ACCUSATIVE, "ins Haus"),
        ("auf", "table", ACCUSATIVE, "auf den Tisch"),
        ("zu", "school", DATIVE, "zur Schule"),
        ("zu", "station", DATIVE, "zum Bahnhof"),
        ("von", "bear", DATIVE, "vom Bären"),
        ("an", "beach", DATIVE, "am Strand"),
    ]:
        draw = Draw("train")
        assert words(prepositional(draw, "to", preposition, phrase(draw, word, case)).german) == expected


def test_english_forms() -> None:
    for entry, forms in [
        ("cross", "cross crosses crossed crossed crossing"),
        ("carry", "carry carries carried carried carrying"),
        ("hug", "hug hugs hugged hugged hugging"),
        ("invite", "invite invites invited invited inviting"),
        ("open", "open opens opened opened opening"),
        ("see saw seen", "see sees saw seen seeing"),
        ("go went gone", "go goes went gone going"),
        ("have had had", "have has had had having"),
        ("forget forgot forgotten", "forget forgets forgot forgotten forgetting"),
        ("lie lay lain", "lie lies lay lain lying"),
        ("play", "play plays played played playing"),
    ]:
        assert " ".join(english.verb_forms(entry)[:5]) == forms
    expected = {"box": "boxes", "baby": "babies", "mouse": "mice", "hero": "heroes", "knife": "knives", "key": "keys"}
    assert {word: noun(word).plural for word in expected} == expected
    assert english.comparison("big") == (("bigger",), ("biggest",))
    assert english.comparison("ugly") == (("uglier",), ("ugliest",))
    assert english.comparison("famous") == (("more", "famous"), ("most", "famous"))
    assert [english.a_or_an(word) for word in ("apple", "dog", "old")] == ["an", "a", "an"]


def test_tenses() -> None:
    table: list[tuple[Tense, int, bool, str, str]] = [
        ("present", 2, False, "He eats the apple.", "Er isst den Apfel."),
        ("present", 1, True, "You don't eat the apple.", "Du isst den Apfel nicht."),
        ("past", 0, False, "I ate the apple.", "Ich habe den Apfel gegessen."),
        ("past", 3, False, "She ate the apple.", "Sie aß den Apfel."),
        ("past", 5, True, "They didn't eat the apple.", "Sie aßen den Apfel nicht."),
        ("perfect", 4, False, "We have eaten the apple.", "Wir haben den Apfel gegessen."),
        ("perfect", 2, True, "He hasn't eaten the apple.", "Er hat den Apfel nicht gegessen."),
        ("future", 0, True, "I won't eat the apple.", "Ich werde den Apfel nicht essen."),
        ("progressive", 3, False, "She is eating the apple.", "Sie isst gerade den Apfel."),
    ]
    for tense, person, negative, source, target in table:
        draw = Draw("train")
        negation = draw.link() if negative else 0
        doer = pronoun(draw, person, NOMINATIVE)
        verbs = verbal(draw, verb("eat"), tense, doer.person, negation)
        clause = Clause(doer, verbs, [phrase(draw, "apple", ACCUSATIVE)], negation=negation)
        made = pair(Sentence(clause.english(), clause.german()), "")
        assert (made.source, made.target) == (source, target)


def test_word_order() -> None:
    draw = Draw("train")
    doer, door = phrase(draw, "woman", NOMINATIVE), phrase(draw, "door", ACCUSATIVE)
    clause = Clause(doer, verbal(draw, verb("open"), "past", doer.person), [door])
    assert words(clause.german()) == "die Frau machte die Tür auf"
    assert words(clause.german_after()) == "machte die Frau die Tür auf"
    assert words(clause.german_last()) == "die Frau die Tür aufmachte"
    wanted = Clause(doer, with_modal(draw, verb("open"), "want", doer.person, past=True), [door])
    assert words(wanted.english()) == "the woman wanted to open the door"
    assert words(wanted.german_last()) == "die Frau die Tür aufmachen wollte"
    doer = phrase(draw, "man", NOMINATIVE)
    asked = Clause(doer, verbal(draw, verb("see"), "past", doer.person, asked=True), [phrase(draw, "dog", ACCUSATIVE)])
    assert words(asked.english(asked=True)) == "did the man see the dog"
    assert words(asked.german_after()) == "hat der Mann den Hund gesehen"
    by = prepositional(draw, "by", "von", phrase(draw, "student", DATIVE))
    book = phrase(draw, "book", NOMINATIVE)
    read = Clause(book, passive(draw, verb("read"), True, book.person), [by])
    assert words(read.german()) == "das Buch wurde vom Studenten gelesen"


def test_alignment_of_a_verb_at_the_end() -> None:
    draw = Draw("train")
    doer = subject(draw, 0)
    clause = Clause(doer, verbal(draw, verb("eat"), "past", doer.person), [phrase(draw, "apple", ACCUSATIVE, A)])
    made = pair(Sentence(clause.english(), clause.german()), "past")
    assert (made.source, made.target) == ("I ate an apple.", "Ich habe einen Apfel gegessen.")
    assert made.alignment == ((0, 0), (1, 4), (2, 2), (3, 3), (4, 5))
    assert made.possible == ((1, 1),)
