"""Names of languages, and a small language detector for the languages of a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_NAMES = """
ar Arabic|bg Bulgarian|bn Bengali|ca Catalan|cs Czech|cy Welsh|da Danish|de German|el Greek|en English|eo Esperanto
es Spanish|et Estonian|eu Basque|fa Persian|fi Finnish|fr French|ga Irish|gl Galician|he Hebrew|hi Hindi|hr Croatian
hu Hungarian|hy Armenian|id Indonesian|is Icelandic|it Italian|ja Japanese|ka Georgian|kk Kazakh|ko Korean|la Latin
lb Luxembourgish|lt Lithuanian|lv Latvian|mk Macedonian|mn Mongolian|ms Malay|mt Maltese|nb Norwegian Bokmål|nl Dutch
nn Norwegian Nynorsk|no Norwegian|pl Polish|pt Portuguese|ro Romanian|ru Russian|sk Slovak|sl Slovenian|sq Albanian
sr Serbian|sv Swedish|sw Swahili|ta Tamil|te Telugu|th Thai|tl Tagalog|tr Turkish|uk Ukrainian|ur Urdu|uz Uzbek
vi Vietnamese|yi Yiddish|zh Chinese
"""
NAMES = dict(entry.split(" ", 1) for line in _NAMES.split("\n") if line for entry in line.split("|"))
"""English names by ISO 639-1 code."""

_MARKS = {
    "de": """der die das dem den des ein eine einer einem einen kein keine und oder aber weil dass wenn als wie wo was
        wer ich du er sie es wir ihr mich uns mir ihm sich mein sein seine ihre dieser diese alle nicht nichts noch nur
        auch schon sehr so zu zum zur mit von bei nach aus auf an am im in für über durch um bis vor ist bin sind war
        waren hat habe haben wird werden wurde kann muss soll will hier dann jetzt immer ja nein man doch ä ö ü ß""",
    "en": """the a an and or but because that if when as how where what who why which i you he she it we they me him her
        us them my your his its our their this these those all any some not nothing never no only also very so too to
        with of from by at on in into for about over through is am are was were be been have has had do does did don't
        can could will would should must here there then than now always yes it's i'm out up one two""",
    "fr": """le la les l' un une des du de d' et ou mais parce que qu' si quand comme où qui je tu il elle on nous vous
        ils elles me te se lui leur mon ma son sa ses notre votre ce cet cette ces c' j' n' s' m' t' tout tous plus très
        aussi ne pas rien avec sans pour par dans en sur sous entre est suis sont était être ai as a avons avez ont fait
        peut va au aux ici là y oui non deux é è ê ë à â ç î ï ô û ù œ""",
    "es": """el la los las un una del de al y e o pero porque que si cuando como donde quien yo él ella usted nosotros
        ellos me te se lo le les nos mi tu su sus este esta esto ese esa cada todo todos más muy también ya no nada ni
        con sin para por en sobre hasta desde entre es soy son era fue ser está están he has ha hemos han había hay
        tiene puede va aquí sí dos ñ ¿ ¡ á í ó ú""",
    "it": """il lo la i gli le l' un uno una del dello della dei degli delle di a da in con su per tra al alla ai dal
        nel nella sul e ed o ma perché che chi cosa se quando come dove io tu lui lei noi voi loro mi ti si ci vi ne mio
        suo questo questa quello ogni tutto tutti molto più anche ancora già mai sempre non niente senza dopo è sono sei
        siamo era essere stato ho hai ha abbiamo hanno può va qui sì no due c'è à è é ì ò ù""",
    "nl": """de het een en of maar want omdat dat die als hoe waar wat wie ik jij je u hij zij ze wij we jullie mij me
        hem haar ons hun zich mijn zijn onze deze dit alle veel meer niet niets nooit geen ook nog al zeer te om met van
        bij naar uit op aan in voor over door tegen zonder tot na is ben was waren heb heeft hebben had wordt worden kan
        moet zal zou wil hier daar er dan nu altijd ja nee twee wel ë ï ĳ""",
}
"""Function words and special letters of each language. They are about half of running text."""
_LANGUAGES: dict[str, list[str]] = defaultdict(list)
for _code, _marks in _MARKS.items():
    for _mark in dict.fromkeys(_marks.split()):
        _LANGUAGES[_mark].append(_code)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?'?")
_DOUBT = 0.5
"""Weight of the words that a text does not contain: a single function word is not certain evidence."""


class Detected(NamedTuple):
    """A language that a text may be in, and the confidence from 0 to 100."""

    language: str
    confidence: float


def detect_language(texts: Iterable[str], languages: Sequence[str]) -> list[Detected]:
    """The languages, of those given, that the texts may be in, most likely first; without evidence the first with 0.

    Evidence for other languages lowers the confidence: a French text is neither German nor English.
    """
    found: dict[str, float] = defaultdict(float)
    for text in texts:
        lower = text.lower().replace("’", "'")
        letters = {letter for letter in lower if not letter.isascii()}
        for token in [*_WORD.findall(lower), *letters]:
            codes = _LANGUAGES.get(token) or _LANGUAGES.get(token[: token.find("'") + 1], [])  # l'homme, c'est
            for code in codes:
                found[code] += 1 / len(codes)
    total = sum(found.values()) + _DOUBT
    scored = [Detected(code, round(100 * found[code] / total, 1)) for code in languages if code in found]
    return sorted(scored, key=lambda each: -each.confidence) or [Detected(code, 0.0) for code in languages[:1]]
