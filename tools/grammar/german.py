"""German inflection: declension of nouns, adjectives and articles, conjugation of verbs.

Tables are indexed `[case][column]`, where a column is a gender in the singular, or the plural of all three.
Conjugations are tuples over the six persons: ich, du, er, wir, ihr, sie.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
MASCULINE, FEMININE, NEUTER, PLURAL = range(4)
GENDERS = "mfn"

Table = tuple[tuple[str, str, str, str], ...]
Conjugation = tuple[str, str, str, str, str, str]

# ------------------------------------------------------------------------------------------------ articles, adjectives

DEFINITE: Table = (
    ("der", "die", "das", "die"),
    ("den", "die", "das", "die"),
    ("dem", "der", "dem", "den"),
    ("des", "der", "des", "der"),
)
RELATIVE: Table = (
    ("der", "die", "das", "die"),
    ("den", "die", "das", "die"),
    ("dem", "der", "dem", "denen"),
    ("dessen", "deren", "dessen", "deren"),
)
AFTER_EIN: Table = (("", "e", "", "e"), ("en", "e", "", "e"), ("em", "er", "em", "en"), ("es", "er", "es", "er"))
"""Endings of ein, kein and the possessives."""
AFTER_DIES: Table = (
    ("er", "e", "es", "e"),
    ("en", "e", "es", "e"),
    ("em", "er", "em", "en"),
    ("es", "er", "es", "er"),
)
"""Endings of dieser, jeder, welcher, alle."""
_ALL_EN = ("en", "en", "en", "en")
WEAK: Table = (("e", "e", "e", "en"), ("en", "e", "e", "en"), _ALL_EN, _ALL_EN)
"""Adjective endings after der, dieser, jeder, alle."""
MIXED: Table = (("er", "e", "es", "en"), ("en", "e", "es", "en"), _ALL_EN, _ALL_EN)
"""Adjective endings after ein, kein and the possessives."""
STRONG: Table = (
    ("er", "e", "es", "e"),
    ("en", "e", "es", "e"),
    ("em", "er", "em", "en"),
    ("en", "er", "en", "er"),
)
"""Adjective endings if no word before them shows the case: without an article, after numerals, viele, einige."""


def declined(stem: str, endings: Table) -> Table:
    """A stem with each of the endings: `declined("kein", AFTER_EIN)`."""
    return tuple(tuple(stem + ending for ending in row) for row in endings)  # type: ignore[misc]


def attributive_stem(adjective: str) -> str:
    """The stem before endings: müde -> müd-, dunkel -> dunkl-, teuer -> teur-, hoch -> hoh-."""
    if adjective == "hoch":
        return "hoh"
    if adjective.endswith("e"):
        return adjective[:-1]
    if adjective.endswith("el"):
        return adjective[:-2] + "l"
    if adjective.endswith(("auer", "euer")):
        return adjective[:-2] + "r"
    return adjective


def comparative(adjective: str) -> str:
    return attributive_stem(adjective) + "er"


def superlative(adjective: str) -> str:
    """The stem of the superlative before endings: klein -> kleinst-, bekannt -> bekanntest-."""
    return adjective + ("est" if adjective.endswith(("t", "d", "s", "ß", "z", "x", "sch", "eu", "au")) else "st")


# -------------------------------------------------------------------------------------------------------------- nouns


def _syllables(word: str) -> int:
    return len(re.findall(r"[aeiouäöüy]+", word.lower()))


def genitive(noun: str) -> str:
    """The genitive of a strong masculine or neuter noun: Hundes, Gartens, Hauses, Autos."""
    if noun.endswith(("s", "ß", "x", "z")):
        return noun + "es"
    if _syllables(noun) > 1 or noun[-1] in "aeiouäöü" or noun.endswith(("ee", "au", "eu", "ie")):
        return noun + "s"
    return noun + "es"


def dative_plural(plural: str) -> str:
    return plural if plural.endswith(("n", "s")) else plural + "n"


def noun_forms(singular: str, plural: str, column: int, *, weak: bool = False, second: str = "") -> Table:
    """`[case]` of (singular, plural). A weak noun takes its plural's form in every case but the nominative."""
    if weak:
        singulars = [singular, plural, plural, plural]
    else:
        last = singular if column == FEMININE else second or genitive(singular)
        singulars = [singular, singular, singular, last]
    plurals = [plural, plural, dative_plural(plural), plural]
    return tuple(zip(singulars, plurals, strict=True))  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- verbs


class Conjugated(NamedTuple):
    """All forms of a verb that sentences need; `prefix` is the separable one, "" where there is none."""

    infinitive: str
    present: Conjugation
    past: Conjugation
    participle: str
    auxiliary: str
    prefix: str
    command: str
    """The imperative to one friend: komm, gib, warte."""

    @property
    def with_zu(self) -> str:
        """The infinitive after um: zu sehen, aufzumachen (one word if the prefix is separable)."""
        return f"{self.prefix}zu{self.infinitive.removeprefix(self.prefix)}" if self.prefix else f"zu {self.infinitive}"


INSEPARABLE = ("be", "emp", "ent", "er", "ge", "miss", "ver", "zer")


def _stem(infinitive: str) -> str:
    return infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]


def _needs_e(stem: str) -> bool:
    """du wartest, er öffnet, es regnet; but er lernt, er filmt, er wohnt."""
    return stem.endswith(("t", "d")) or bool(re.search(r"([^aeiouäöülrmnh]|ch)[mn]$", stem))


def _present(infinitive: str, third: str) -> Conjugation:
    stem = _stem(infinitive)
    first = f"{stem[:-2]}le" if infinitive.endswith("eln") else f"{stem}e"
    plural_you = stem + ("et" if _needs_e(stem) else "t")
    if third:
        changed = third[:-1]
        second = third if changed.endswith(("s", "ß", "x", "z")) else f"{changed}st"
    else:
        third = plural_you
        second = f"{stem}est" if _needs_e(stem) else stem + ("t" if stem.endswith(("s", "ß", "x", "z")) else "st")
    return (first, second, third, infinitive, plural_you, infinitive)


def _past(infinitive: str, past: str) -> Conjugation:
    stem = _stem(infinitive)
    past = past or stem + ("ete" if _needs_e(stem) else "te")
    if past.endswith("e"):
        return (past, f"{past}st", past, f"{past}n", f"{past}t", f"{past}n")
    second = past + ("est" if past.endswith(("s", "ß", "d", "t")) else "st")
    plural_you = past + ("et" if past.endswith(("d", "t")) else "t")
    return (past, second, past, f"{past}en", plural_you, f"{past}en")


def _command(infinitive: str, third: str) -> str:
    stem = _stem(infinitive)
    if infinitive.endswith("eln"):
        return f"{stem[:-2]}le"
    changed = third[:-1] if third else stem
    # Only e -> i carries over to the imperative (gib, lies), not a -> ä (fahr, schlaf).
    if changed != stem and not re.search("[äöü]", changed):
        return changed
    return stem + ("e" if _needs_e(stem) or stem.endswith("er") else "")


def conjugate(
    infinitive: str, third: str = "", past: str = "", participle: str = "", auxiliary: str = ""
) -> Conjugated:
    """Conjugate a verb; forms that are left out follow the rules of weak verbs. `auf-machen` marks a separable prefix.

    `third` (er ...), `past` (ich ...) and `participle` are given without the prefix.
    """
    prefix, _, base = infinitive.rpartition("-")
    if not participle:
        stem = _stem(base)
        bare = base.startswith(INSEPARABLE) or base.endswith("ieren")
        participle = ("" if bare else "ge") + stem + ("et" if _needs_e(stem) else "t")
    return Conjugated(
        infinitive=prefix + base,
        present=_present(base, third),
        past=_past(base, past),
        participle=prefix + participle,
        auxiliary=auxiliary or "haben",
        prefix=prefix,
        command=_command(base, third),
    )


SEIN = Conjugated(
    "sein",
    ("bin", "bist", "ist", "sind", "seid", "sind"),
    ("war", "warst", "war", "waren", "wart", "waren"),
    "gewesen",
    "sein",
    "",
    "sei",
)
HABEN = Conjugated(
    "haben",
    ("habe", "hast", "hat", "haben", "habt", "haben"),
    ("hatte", "hattest", "hatte", "hatten", "hattet", "hatten"),
    "gehabt",
    "haben",
    "",
    "hab",
)
WERDEN = Conjugated(
    "werden",
    ("werde", "wirst", "wird", "werden", "werdet", "werden"),
    ("wurde", "wurdest", "wurde", "wurden", "wurdet", "wurden"),
    "geworden",
    "sein",
    "",
    "werde",
)
AUXILIARIES = {"haben": HABEN, "sein": SEIN}


def modal(infinitive: str, singular: str, past: str) -> Conjugated:
    """kann, kannst, kann, können: modal verbs have no ending in the first and third person."""
    second = singular + ("t" if singular.endswith("s") else "st")
    stem = _stem(infinitive)
    present = (singular, second, singular, infinitive, f"{stem}t", infinitive)
    return Conjugated(infinitive, present, _past(infinitive, past), "", "haben", "", "")
