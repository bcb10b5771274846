"""English names of languages by their codes (ISO 639-1), as people see them in a client's list. No torch in here."""

from __future__ import annotations

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


def name_of(code: str) -> str:
    """The name of a language; its code where nobody told it."""
    return NAMES.get(code, code)
