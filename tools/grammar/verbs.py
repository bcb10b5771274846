"""The verbs: English forms, German principal parts, who does it, and to whom or what.

A row reads `English | German | subjects | objects`. English: `cross`, `eat ate eaten`, `wake+up woke woken`. German,
as in a dictionary: infinitive, er-form, past, participle (`ist` before it where the perfect is made with sein); weak
verbs need the infinitive only, `.` skips a part that follows the rules, and `auf-machen` shows a separable prefix.
Subjects and objects are kinds of nouns.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.grammar.english import Forms, verb_forms
from tools.grammar.german import HABEN, SEIN, Conjugated, conjugate, modal

TRANSITIVE = """
eat ate eaten | essen isst aß gegessen | person animal | food staple
drink drank drunk | trinken . trank getrunken | person | drink
cook | kochen | person | soup potato egg
bake | backen bäckt backte gebacken | person | cake pie bread roll cookie
buy bought bought | kaufen | person | food staple drink thing clothes book newspaper novel own furniture
sell sold sold | verkaufen | person | food staple thing clothes own furniture
see saw seen | sehen sieht sah gesehen | person animal | person infant animal place vehicle thing
hear heard heard | hören | person animal | person infant animal vehicle
find found found | finden . fand gefunden | person animal | thing food person animal
lose lost lost | verlieren . verlor verloren | person | thing clothes
look+for | suchen | person animal | person animal thing clothes
need | brauchen | person | thing clothes own furniture food staple
have had had | haben | person | thing clothes own furniture
carry | tragen trägt trug getragen | person | thing furniture
steal stole stolen | stehlen stiehlt stahl gestohlen | person | thing own
repair | reparieren | person | vehicle furniture opening clock camera phone
clean | putzen | person | opening kitchen room garage hall shop stable shoe mirror
wash | waschen wäscht wusch gewaschen | person | clothes car bus truck bicycle dog
paint | malen | person | person animal castle church bridge garden lake tower village
read read read | lesen liest las gelesen | person | reading
write wrote written | schreiben . schrieb geschrieben | person | book letter story poem novel message
understand understood understood | verstehen . verstand verstanden | person | reading person
forget forgot forgotten | vergessen vergisst vergaß vergessen | person | thing clothes
break broke broken | zerbrechen zerbricht zerbrach zerbrochen | person | plate cup glass bottle mirror lamp
open | auf-machen | person | opening bag box bottle suitcase gift letter
close | zu-machen | person | opening bag box suitcase book
love | lieben | person | person infant animal
know knew known | kennen . kannte gekannt | person | person place
meet met met | treffen trifft traf getroffen | person | person
visit | besuchen | person | person building museum castle zoo
call | an-rufen . rief gerufen | person | person
invite | ein-laden lädt lud geladen | person | person
greet | begrüßen | person | person
ask | fragen | person | person
hug | umarmen . . umarmt | person | person infant
draw drew drawn | zeichnen | person | animal person house castle bridge vehicle
feed fed fed | füttern | person | animal infant
watch | beobachten | person animal | person animal
chase | jagen | animal | animal
hide hid hidden | verstecken | person animal | thing food
"""
"""A list of objects may name a single noun if a kind would be too wide."""

DATIVE = """
help | helfen hilft half geholfen | person | person animal
thank | danken | person | person
answer | antworten | person | person
follow | folgen . . ist gefolgt | person animal | person animal
trust | vertrauen | person | person animal
congratulate | gratulieren | person | person
"""

GIVING = """
give gave given | geben gibt gab gegeben | person | thing food clothes reading
show showed shown | zeigen | person | thing place reading own animal
send sent sent | schicken | person | reading thing
bring brought brought | bringen . brachte gebracht | person | food staple drink thing reading
sell sold sold | verkaufen | person | own furniture
lend lent lent | leihen . lieh geliehen | person | book own umbrella hammer camera
recommend | empfehlen empfiehlt empfahl empfohlen | person | book novel hotel museum
"""

INTRANSITIVE = """
sleep slept slept | schlafen schläft schlief geschlafen | person infant animal
work | arbeiten | person
laugh | lachen | person infant
cry | weinen | child infant
sing sang sung | singen . sang gesungen | person bird
dance | tanzen | person
wait | warten | person animal
play | spielen | child boy girl animal
sit sat sat | sitzen . saß gesessen | person animal
stand stood stood | stehen . stand gestanden | person animal
fall+asleep fell fallen | ein-schlafen schläft schlief ist geschlafen | person infant animal
wake+up woke woken | auf-wachen . . ist gewacht | person infant animal
get+up got gotten | auf-stehen . stand ist gestanden | person
disappear | verschwinden . verschwand ist verschwunden | person animal
stay | bleiben . blieb ist geblieben | person animal
"""

PLACED = """
sleep slept slept | schlafen schläft schlief geschlafen | person animal
work | arbeiten | person
wait | warten | person animal
play | spielen | child boy girl animal
sit sat sat | sitzen . saß gesessen | person animal
stand stood stood | stehen . stand gestanden | person animal vehicle
live | wohnen | person
stay | bleiben . blieb ist geblieben | person animal
read read read | lesen liest las gelesen | person
"""

MOVING = """
go went gone | gehen . ging ist gegangen | person animal
run ran run | rennen . rannte ist gerannt | person animal
drive drove driven | fahren fährt fuhr ist gefahren | person
come came come | kommen . kam ist gekommen | person animal
"""

LAYING = """
lay laid laid | legen | person | thing clothes book letter newspaper
"""

SAYING = """
think thought thought | denken . dachte gedacht | person
believe | glauben | person
hope | hoffen | person
say said said | sagen | person
"""
"""Verbs that are followed by that."""

CROSSING = """
cross | überqueren . . überquert | animal
enter | betreten betritt betrat betreten | animal
leave left left | verlassen verlässt verließ verlassen | animal
reach | erreichen | animal
avoid | meiden . mied gemieden | animal
explore | erkunden | animal
"""
"""Verbs for animals and places, in the sentences whose *it* must be resolved."""

MODALS = {
    "can": modal("können", "kann", "konnte"),
    "must": modal("müssen", "muss", "musste"),
    "should": modal("sollen", "soll", "sollte"),
    "may": modal("dürfen", "darf", "durfte"),
    "want": modal("wollen", "will", "wollte"),
}


class Verb(NamedTuple):
    """A verb in both languages, and the kinds of its subjects and objects (or single nouns by their English name)."""

    english: Forms
    german: Conjugated
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    goals: str
    """The objects in one word, as a name for them all."""


def _german(entry: str) -> Conjugated:
    parts = ["" if part == "." else part for part in entry.split()]
    auxiliary = "haben"
    if "ist" in parts:
        parts.remove("ist")
        auxiliary = "sein"
    infinitive, third, past, participle = [*parts, "", "", ""][:4]
    if infinitive == "haben":
        return HABEN
    if infinitive == "betreten":  # a stem in -t that changes its vowel takes no further ending: du betrittst
        plain = conjugate(infinitive, "", past, participle, auxiliary)
        present = (plain.present[0], "betrittst", third, *plain.present[3:])
        return plain._replace(present=present, command="betritt")
    return conjugate(infinitive, third, past, participle, auxiliary)


def _verb(row: str) -> Verb:
    english, german, *kinds = (part.strip() for part in row.split("|"))
    subjects, objects = ([*kinds, ""])[:2]
    return Verb(verb_forms(english), _german(german), tuple(subjects.split()), tuple(objects.split()), objects)


def _verbs(rows: str) -> tuple[Verb, ...]:
    return tuple(_verb(row) for row in rows.strip().splitlines())


TRANSITIVES = _verbs(TRANSITIVE)
DATIVES = _verbs(DATIVE)
GIVERS = _verbs(GIVING)
INTRANSITIVES = _verbs(INTRANSITIVE)
PLACED_VERBS = _verbs(PLACED)
MOVERS = _verbs(MOVING)
LAY = _verbs(LAYING)[0]
SAYING_VERBS = _verbs(SAYING)
CROSSERS = {verb.english.base: verb for verb in _verbs(CROSSING)}
BE = Verb(Forms("be", "is", "was", "been", "being", ()), SEIN, (), (), "")
