"""Which language a text is in, told from its function words. A light test, to find what is plainly wrong.

Articles, pronouns, prepositions and auxiliaries make up about half of running text, and few are spelled alike in two
languages. A text of a few words may hold none of them: then nothing is known, and the filter keeps it. The lists are
our own; `docs/data.md` says how often they err.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from regard.data.filter_settings import Language

_WORDS: dict[Language, str] = {
    "de": """
        der die das dem den des ein eine einer eines einem einen kein keine keinen keiner keinem keines und oder aber
        sondern denn weil dass daß ob wenn als wie wo was wer wen wem warum ich du er sie es wir ihr mich dich ihn uns
        euch mir dir ihm ihnen sich mein meine meinen meinem meiner dein deine deinen sein seine seinen seinem seiner
        ihre ihren ihrem ihrer unser unsere unseren euer dieser diese dieses diesen diesem jener jede jeder jedes jeden
        alle alles allen viele viel mehr nicht nichts nie noch nur auch schon sehr so zu zum zur mit von vom bei beim
        nach aus auf an am im in ins für über unter durch gegen ohne um bis seit vor hinter zwischen neben während ist
        bin bist sind seid war waren wäre hat habe haben hast hatte hatten wird werden werde wurde wurden worden kann
        können konnte könnte muss muß müssen musste soll sollen sollte will wollen wollte darf dürfen möchte mag hier
        dort da dann jetzt heute immer wieder ja nein man wann welche welcher welches doch mal bitte zwei drei etwas
        jemand niemand damit davon darauf dazu""",
    "en": """
        the a an and or but because that if when as how where what who whom whose why which i you he she it we they me
        him her us them my your his its our their mine yours this these those each every all any some many much more
        most not nothing never no nor only also very so too to with of from by at on in into for about over under
        through against without until since before after between during while is am are was were be been being have has
        had having do does did doing don't doesn't didn't isn't wasn't aren't can't couldn't won't wouldn't i'm you're
        he's she's it's we're they're i've you've i'll you'll i'd can could will would shall should may might must here
        there then than now today always again yes out up down off just like get got go going one two three something
        someone somebody anybody nobody anything other another both few such own same let's please""",
    "fr": """
        le la les l' un une des du de d' et ou mais car parce que qu' si quand comme où qui quoi pourquoi je tu il elle
        on nous vous ils elles me te se lui leur leurs mon ma mes ton ta tes son sa ses notre nos votre vos ce cet cette
        ces c' j' n' s' m' t' chaque tout tous toute toutes beaucoup plus très trop aussi encore déjà jamais toujours ne
        pas rien ni avec sans pour par dans en sur sous vers chez entre avant après depuis pendant contre jusqu est suis
        es sommes êtes sont était étaient être été ai as a avons avez ont avait avaient avoir fait faire peut peux
        peuvent pouvoir doit dois veux veut va vais vont aller au aux ici là y oui non deux trois quel quelle dont""",
    "es": """
        el la los las un una unos unas del de al y e o u pero porque que si cuando como cómo donde dónde quien quién qué
        cuál yo tú él ella usted nosotros ellos ellas ustedes me te se lo le les nos mi mis tu tus su sus nuestro
        nuestra este esta esto estos estas ese esa eso esos aquel cada todo todos toda todas mucho mucha muchos más muy
        también ya nunca siempre no nada ni con sin para por en sobre bajo hacia hasta desde entre antes después durante
        contra es soy eres somos son era eran fue fueron ser sido está estoy estás están estaba estar he has ha hemos
        han había haber hay tiene tengo tienen tener puede puedo pueden quiero quiere va voy aquí allí sí dos tres""",
    "it": """
        il lo la i gli le l' un uno una del dello della dei degli delle di a da in con su per tra fra al allo alla ai
        agli alle dal dalla dai nel nella nei nelle sul sulla sui e ed o ma perché che chi cosa se quando come dove io
        tu lui lei noi voi loro mi ti si ci vi ne mio mia miei mie tuo tua suo sua suoi nostro nostra vostro questo
        questa questi queste quello quella quelli ogni tutto tutti tutta tutte molto molti più anche ancora già mai
        sempre non niente nulla né senza sotto verso dopo prima durante contro è sono sei siamo siete era erano essere
        stato stata ho hai ha abbiamo avete hanno aveva avere fare può posso devo deve voglio vuole va qui là sì no due
        tre c'è""",
    "nl": """
        de het een en of maar want omdat dat die als wanneer hoe waar wat wie waarom ik jij je u hij zij ze wij we
        jullie mij me jou hem haar ons hun zich mijn jouw zijn onze uw deze dit elke alle alles veel meer niet niets
        nooit geen ook nog al zeer heel te om met van bij naar uit op aan in voor over onder door tegen zonder tot sinds
        na tussen tijdens is ben bent was waren heb hebt heeft hebben had hadden wordt worden werd werden kan kunnen kon
        moet moeten zal zullen zou wil willen mag hier daar er dan nu vandaag altijd weer ja nee men twee drie iets
        iemand niemand wel toch""",
}


def _by_word() -> dict[str, tuple[Language, ...]]:
    found: dict[str, tuple[Language, ...]] = {}
    for language, words in _WORDS.items():
        for word in dict.fromkeys(words.split()):
            found[word] = (*found.get(word, ()), language)
    return found


_LANGUAGES_OF = _by_word()
_TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?['’]?")

CLEAR = 2.0
"""How many function words of another language, beyond those of the wanted one, make a case."""


def evidence(text: str) -> Mapping[Language, float]:
    """How many function words of each language a text holds; one that n languages share counts 1/n for each."""
    found: dict[Language, float] = defaultdict(float)
    for token in _TOKEN.findall(text.lower().replace("’", "'")):
        languages = _LANGUAGES_OF.get(token)
        if languages is None and "'" in token:
            head = token[: token.index("'") + 1]  # l'homme, c'est; what's
            languages = _LANGUAGES_OF.get(head) or _LANGUAGES_OF.get(head[:-1])
        for language in languages or ():
            found[language] += 1 / len(languages or ())
    return found


def another_language(text: str, wanted: Language) -> Language | None:
    """The language that a text is plainly in, where that is not the wanted one; else None."""
    found = evidence(text)
    own = found.get(wanted, 0.0)
    best = max(found, key=lambda language: found[language], default=wanted)
    return best if found.get(best, 0.0) - own >= CLEAR and found.get(best, 0.0) >= 2 * own else None
