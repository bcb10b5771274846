"""The nouns: English, German, gender, German plural, and the kinds of thing that each is.

A row reads `english[/plural] German gender plural kinds...`. Gender `w` is a weak masculine noun (der Bär, den Bären).
A plural of `-` marks what is not counted, and `Bus=Busses` gives a genitive that breaks the rule. Verbs and adjectives
choose their nouns by kind. The kinds of places are what may be wrong with them: a `way` may be slippery, a `slope`
steep. The first kind, `in`, `on`, `in:auf`, ..., says with which preposition one is there in both languages (`-` for
none). `only` marks people of whom one speaks one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tools.grammar.english import with_s
from tools.grammar.german import GENDERS, MASCULINE, Table, noun_forms

PEOPLE = """
man/men Mann m Männer
woman/women Frau f Frauen
child/children Kind n Kinder
boy Junge w Jungen
girl Mädchen n Mädchen
father Vater m Väter - only
mother Mutter f Mütter - only
brother Bruder m Brüder
sister Schwester f Schwestern
son Sohn m Söhne
daughter Tochter f Töchter
uncle Onkel m Onkel
aunt Tante f Tanten
grandfather Großvater m Großväter - only
grandmother Großmutter f Großmütter - only
friend Freund m Freunde
neighbor Nachbar w Nachbarn
guest Gast m Gäste
lady Dame f Damen
hero Held w Helden
king König m Könige
queen Königin f Königinnen
prince Prinz w Prinzen
princess Prinzessin f Prinzessinnen
teacher Lehrer m Lehrer
student Student w Studenten
doctor Arzt m Ärzte
farmer Bauer w Bauern
baker Bäcker m Bäcker
cook Koch=Kochs m Köche
driver Fahrer m Fahrer
judge Richter m Richter
artist Künstler m Künstler
customer Kunde w Kunden
colleague Kollege w Kollegen
tourist Tourist w Touristen
actress Schauspielerin f Schauspielerinnen
"""

INFANTS = """
baby Baby n Babys
"""

ANIMALS = """
animal Tier n Tiere
dog Hund m Hunde
fox Fuchs m Füchse
wolf/wolves Wolf m Wölfe
hedgehog Igel m Igel
donkey Esel m Esel
tiger Tiger m Tiger
stag Hirsch m Hirsche
bird Vogel m Vögel
frog Frosch m Frösche
rooster Hahn m Hähne
bear Bär w Bären
hare Hase w Hasen
lion Löwe w Löwen
monkey Affe w Affen
elephant Elefant w Elefanten
cat Katze f Katzen
mouse/mice Maus f Mäuse
goat Ziege f Ziegen
cow Kuh f Kühe
duck Ente f Enten
goose/geese Gans f Gänse
snake Schlange f Schlangen
turtle Schildkröte f Schildkröten
rat Ratte f Ratten
giraffe Giraffe f Giraffen
snail Schnecke f Schnecken
spider Spinne f Spinnen
toad Kröte f Kröten
lizard Eidechse f Eidechsen
mare Stute f Stuten
horse Pferd n Pferde
sheep/sheep Schaf n Schafe
pig Schwein n Schweine
rabbit Kaninchen n Kaninchen
lamb Lamm n Lämmer
calf/calves Kalb n Kälber
deer/deer Reh n Rehe
squirrel Eichhörnchen n Eichhörnchen
camel Kamel n Kamele
zebra Zebra n Zebras
crocodile Krokodil n Krokodile
pony Pony n Ponys
rhino/rhinos Nashorn n Nashörner
foal Fohlen n Fohlen
"""

PLACES = """
path Weg m Wege on way broad soft stony
trail Pfad m Pfade on way slope stony
pass Pass m Pässe on way slope
footbridge Steg m Stege on way
tunnel Tunnel m Tunnel in room
square Platz m Plätze in:auf way broad public
market Markt m Märkte at:auf public
park Park=Parks m Parks in public soft
zoo/zoos Zoo m Zoos in public
beach Strand m Strände on:an public land stony far
forest Wald m Wälder in soft far
garden Garten m Gärten in soft land
yard Hof m Höfe in soft
hill Hügel m Hügel on slope land stony far
slope Hang m Hänge on:an slope land stony
river Fluss m Flüsse - broad water
stream Bach m Bäche - broad water
canal Kanal m Kanäle - broad water
ditch Graben m Gräben - broad water
lake See m Seen - water
pond Teich m Teiche - water
stable Stall m Ställe in room far
cellar Keller m Keller in room
tower Turm m Türme in room far
shop Laden m Läden in room public
attic Dachboden m Dachböden in:auf room
street Straße f Straßen on way broad slope public
bridge Brücke f Brücken on way public
alley Gasse f Gassen in way public
avenue Allee f Alleen on way broad
highway Autobahn f Autobahnen on way broad
ramp Rampe f Rampen on way slope
staircase Treppe f Treppen on way slope
gorge Schlucht f Schluchten in broad slope water stony
dune Düne f Dünen on slope land
meadow Wiese f Wiesen in:auf soft land far
pasture Weide f Weiden in:auf soft land stony
clearing Lichtung f Lichtungen in:auf soft land far
desert Wüste f Wüsten in land stony
island Insel f Inseln on land far stony
bay Bucht f Buchten in broad water
puddle Pfütze f Pfützen - broad water
lagoon Lagune f Lagunen - water
barn Scheune f Scheunen in room far
cave Höhle f Höhlen in room far
kitchen Küche f Küchen in room
hut Hütte f Hütten in room far
hall Halle f Hallen in room public
garage Garage f Garagen in room
church Kirche f Kirchen in room public
school Schule f Schulen in room public
track Gleis n Gleise on way broad
viaduct Viadukt n Viadukte on way
shore Ufer n Ufer on:an way slope soft stony
riverbed Flussbett n Flussbetten in way broad soft stony
field Feld n Felder in:auf way broad soft land far stony
cliff Kliff=Kliffs n Kliffe on slope land stony
valley Tal n Täler in broad slope soft land far
terrain Gelände n - - slope soft stony
moor Moor n Moore in soft land far
delta Delta n Deltas in broad water
sea Meer n Meere - water
basin Becken n Becken in broad water
camp Lager n Lager in public far
village Dorf n Dörfer in public far land
stadium Stadion n Stadien in public
museum Museum n Museen in room public
house Haus n Häuser in room far
room Zimmer n Zimmer in room
tent Zelt n Zelte in room public
castle Schloss n Schlösser in room far
"""
"""Many rows are only needed so that every kind of place has nouns of all three genders."""

BUILDINGS = """
station Bahnhof m Bahnhöfe at:an
hospital Krankenhaus n Krankenhäuser in
library Bibliothek f Bibliotheken in
hotel Hotel n Hotels in
office Büro n Büros in
factory Fabrik f Fabriken in
"""

FOOD = """
apple Apfel m Äpfel
cake Kuchen m Kuchen
fish/fish Fisch m Fische
salad Salat m Salate
pancake Pfannkuchen m Pfannkuchen
cookie Keks m Kekse
pear Birne f Birnen
banana Banane f Bananen
potato Kartoffel f Kartoffeln
tomato Tomate f Tomaten
carrot Karotte f Karotten
cherry Kirsche f Kirschen
nut Nuss f Nüsse
sausage Wurst f Würste
soup Suppe f Suppen
pie Torte f Torten
egg Ei=Eies n Eier
roll Brötchen n Brötchen
"""

STAPLES = """
bread Brot n -
cheese Käse m -
"""

DRINKS = """
water Wasser n -
milk Milch f -
tea Tee m -
coffee Kaffee m -
juice Saft m -
beer Bier n -
wine Wein m -
lemonade Limonade f -
"""

THINGS = """
ball Ball m Bälle
key Schlüssel m Schlüssel
plate Teller m Teller
umbrella Regenschirm m Regenschirme
basket Korb m Körbe
suitcase Koffer m Koffer
hammer Hammer m Hämmer
mirror Spiegel m Spiegel
cup Tasse f Tassen
clock Uhr f Uhren
lamp Lampe f Lampen
bag Tasche f Taschen
box Kiste f Kisten
bottle Flasche f Flaschen
candle Kerze f Kerzen
flower Blume f Blumen
camera Kamera f Kameras
knife/knives Messer n Messer
glass Glas n Gläser
picture Bild n Bilder
gift Geschenk n Geschenke
toy Spielzeug n Spielzeuge
phone Telefon n Telefone
pillow Kissen n Kissen
"""

CLOTHES = """
coat Mantel m Mäntel
hat Hut m Hüte
skirt Rock m Röcke
shoe Schuh m Schuhe
sweater Pullover m Pullover
jacket Jacke f Jacken
shirt Hemd n Hemden
dress Kleid n Kleider
"""

READING = """
book Buch n Bücher
letter Brief m Briefe
newspaper Zeitung f Zeitungen
story Geschichte f Geschichten
poem Gedicht n Gedichte
novel Roman m Romane
message Nachricht f Nachrichten
"""

VEHICLES = """
car Auto n Autos - own
bus Bus=Busses m Busse
train Zug m Züge
truck Lastwagen m Lastwagen - own
bicycle Fahrrad n Fahrräder - own
ship Schiff n Schiffe
boat Boot n Boote - own
taxi Taxi n Taxis
carriage Kutsche f Kutschen - own
"""

FURNITURE = """
table Tisch m Tische on
chair Stuhl m Stühle on
bed Bett n Betten in
sofa Sofa n Sofas on
shelf/shelves Regal n Regale on:in
cupboard Schrank m Schränke in
drawer Schublade f Schubladen in
carpet Teppich m Teppiche on
"""

OPENINGS = """
door Tür f Türen
window Fenster n Fenster
gate Tor n Tore
"""

MONEY = """
money Geld n -
bank Bank f Banken
"""

RIVERBANKS = """
bank Ufer n Ufer
"""

NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Thomas")
"""Names are the same in both languages; no genitive is made of them."""


class Noun(NamedTuple):
    """A noun in both languages. `forms[case]` holds (singular, plural); `there` is (in, auf) or nothing."""

    english: str
    plural: str
    forms: Table
    gender: int
    kinds: tuple[str, ...]
    there: tuple[str, str] | None
    counted: bool

    @property
    def several(self) -> bool:
        """Whether it also occurs in the plural: not if the plural equals the singular (sheep), and not for places,
        since each of the many plurals would be too rare to be learned."""
        return self.counted and self.plural != self.english and not {"only", "place"} & {*self.kinds}

    @property
    def german(self) -> str:
        return self.forms[0][0]


PREPOSITIONS_HERE = {"in": "in", "on": "auf", "at": "an"}


def _noun(row: str, kind: str) -> Noun:
    english, german, gender, plural, *kinds = row.split()
    english, _, irregular = english.partition("/")
    german, _, second = german.partition("=")
    weak = gender == "w"
    column = MASCULINE if weak else GENDERS.index(gender)
    there = None
    if kinds:
        place, _, german_place = kinds[0].partition(":")
        there = None if place == "-" else (place, german_place or PREPOSITIONS_HERE[place])
    return Noun(
        english=english,
        plural=irregular or with_s(english),
        forms=noun_forms(german, german if plural == "-" else plural, column, weak=weak, second=second),
        gender=column,
        kinds=(kind, *kinds[1:]),
        there=there,
        counted=plural != "-",
    )


def _nouns(rows: str, kind: str) -> list[Noun]:
    return [_noun(row, kind) for row in rows.strip().splitlines()]


NOUNS: tuple[Noun, ...] = (
    *_nouns(PEOPLE, "person"),
    *_nouns(INFANTS, "infant"),
    *_nouns(ANIMALS, "animal"),
    *_nouns(PLACES, "place"),
    *_nouns(BUILDINGS, "building"),
    *_nouns(FOOD, "food"),
    *_nouns(STAPLES, "staple"),
    *_nouns(DRINKS, "drink"),
    *_nouns(THINGS, "thing"),
    *_nouns(CLOTHES, "clothes"),
    *_nouns(READING, "reading"),
    *_nouns(VEHICLES, "vehicle"),
    *_nouns(FURNITURE, "furniture"),
    *_nouns(OPENINGS, "opening"),
    *_nouns(MONEY, "money"),
    *_nouns(RIVERBANKS, "riverbank"),
)


def nouns_of(kinds: Iterable[str]) -> tuple[Noun, ...]:
    """All nouns of any of the kinds."""
    wanted = set(kinds)
    return tuple(noun for noun in NOUNS if wanted & set(noun.kinds))
