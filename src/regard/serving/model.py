"""Models behind the server: what it asks of a translator, asked of those that were loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regard.errors import InputError
from regard.serving.memory import Trim
from regard.serving.settings import Serving
from regard.serving.translating import Route, Translated
from regard.use.model import load
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator

UNNAMED = ("source", "target")
"""The languages of a model that names none, such as one that writes summaries."""


class Models:
    """Translators, one for each direction; of two for one direction the first serves it."""

    def __init__(self, translators: Sequence[Translator], beam: int) -> None:
        self._beam = beam
        self._trim = Trim()
        self._by_direction: dict[tuple[str, str], Translator] = {}
        for translator in translators:
            for direction in translator.directions or [UNNAMED]:
                self._by_direction.setdefault(direction, translator)

    @property
    def directions(self) -> list[tuple[str, str]]:
        return list(self._by_direction)

    def options(self, route: Route) -> TranslateOptions:
        """What a route asks of a model; a beam as wide as it has alternatives, and no narrower than the server's."""
        named = bool(self._translator(route).directions)
        wanted = route.alternatives + 1
        return TranslateOptions(
            source=route.source if named else None,
            to=route.target if named else None,
            beam=max(self._beam, wanted),
            nbest=wanted,
        )

    def sizes(self, texts: Sequence[str], route: Route) -> list[int]:
        return self._translator(route).sizes(texts)

    def translate(self, texts: Sequence[str], route: Route) -> list[Translated]:
        found = self._translator(route).translations(texts, self.options(route))
        self._trim()
        return [Translated(tuple(each.text for each in row), len(row[0].tokens)) for row in found]

    def stream(self, text: str, route: Route) -> Iterator[str]:
        options = self.options(Route(route.source, route.target)).changed({"beam": 1})
        return self._translator(route).stream(text, options)

    def _translator(self, route: Route) -> Translator:
        return self._by_direction[route.source, route.target]


def open_models(names: Sequence[str], settings: Serving) -> Models:
    """Loads models, and lets each translate a word, so that the first request need not wait for what is made ready."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    translators = []
    for name in names:
        loaded = load(name, settings.device)
        if not isinstance(loaded, Translator):
            raise InputError(
                f"model ({name}) is of kind {loaded.settings.kind} and cannot be served; give one that translates, of "
                "kind encoder-decoder with its tokenizer.json"
            )
        translators.append(loaded)
    models = Models(translators, settings.beam)
    for source, target in models.directions:
        models.translate(["."], Route(source, target))
    return models
