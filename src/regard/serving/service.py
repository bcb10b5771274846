"""From a request that was read to its answer: languages and directions; the worker does the rest. No torch in here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from regard.errors import InputError
from regard.serving.bodies import Gone, Receive, Refused, disconnected
from regard.serving.detect import Detected, detect
from regard.serving.languages import name_of
from regard.serving.settings import Serving
from regard.serving.shapes import DetectAsked, TranslateAsked, check_alternatives, check_length, shown
from regard.serving.translating import Route, Translated, Translating
from regard.serving.worker import Busy, Failed, Stopping, Stream, Worker

AUTO = "auto"
_TAG = re.compile(r"<[^<>]*>")

Answer = dict[str, Any]


class Service:
    """Answers in LibreTranslate's shapes. Lives in the event loop; what computes is the worker's."""

    def __init__(self, translating: Translating, worker: Worker, settings: Serving) -> None:
        self._worker = worker
        self._settings = settings
        self.directions = tuple(dict.fromkeys(translating.directions))
        self.codes = tuple(dict.fromkeys(code for direction in self.directions for code in direction))

    # ---------------------------------------------------------------------------------------------------- languages

    def languages(self) -> list[Answer]:
        """Every language, with those that it can be translated into; itself too, as LibreTranslate has it."""
        return [
            {"code": code, "name": name_of(code), "targets": sorted({code, *self._targets(code)})}
            for code in self.codes
            if self._targets(code) or any(code == target for _, target in self.directions)
        ]

    def _targets(self, source: str) -> list[str]:
        return [target for other, target in self.directions if other == source]

    def detect(self, asked: DetectAsked) -> list[Answer]:
        check_length(asked.texts, self._settings)
        return [_detected(each) for each in detect(asked.texts, self.codes)]

    def _route(self, asked: TranslateAsked) -> tuple[Route, Detected | None]:
        """The way that a request asks for, and the language that was found where it did not name one."""
        check_length(asked.texts, self._settings)
        check_alternatives(asked.alternatives, self._settings)
        found = self._found(asked) if asked.source == AUTO else None
        source, target = found.language if found else asked.source, asked.target
        for code in (source, target):
            if code not in self.codes:
                raise Refused(400, f"{shown(code)} is not supported; known: {', '.join(self.codes)}")
        if source != target and (source, target) not in self.directions:
            known = ", ".join(f"{a} to {b}" for a, b in self.directions)
            raise Refused(
                400,
                f"{name_of(target)} ({target}) is not available as a target language from {name_of(source)} ({source})"
                f"; known: {known}",
            )
        return Route(source, target, asked.alternatives), found

    def _found(self, asked: TranslateAsked) -> Detected:
        """The likeliest language; in doubt one that can be translated into what is asked for."""
        texts = [_TAG.sub(" ", text) for text in asked.texts] if asked.format == "html" else asked.texts
        found = detect(texts, self.codes)
        best = found[0].confidence
        usable = [code for code in self.codes if asked.target in self._targets(code)]
        if best == 0:
            return Detected((usable or [found[0].language])[0], 0.0)
        return next((each for each in found if each.confidence == best and each.language in usable), found[0])

    # ------------------------------------------------------------------------------------------------- translations

    async def translate(self, asked: TranslateAsked, receive: Receive) -> Answer:
        """Translations of all texts of a request. Raises `Gone` when its client does not wait for them."""
        route, detected = self._route(asked)
        return _answer(asked, await self._translated(asked.texts, route, receive), detected)

    async def _translated(self, texts: list[str], route: Route, receive: Receive) -> list[Translated]:
        """Texts that have nothing to translate never wait."""
        found = [Translated((text,)) for text in texts]
        places = [place for place, text in enumerate(texts) if text.strip() and route.source != route.target]
        if places:
            for place, each in zip(places, await self._waited([texts[i] for i in places], route, receive), strict=True):
                found[place] = each
        return found

    async def _waited(self, texts: list[str], route: Route, receive: Receive) -> list[Translated]:
        try:
            ticket = self._worker.submit(texts, route)
        except (Busy, Stopping, InputError) as error:
            raise refused(error) from None
        answer = asyncio.wrap_future(ticket.answer)
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            either: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Gone
            return answer.result()
        except (InputError, Failed, Stopping) as error:
            raise refused(error) from None
        finally:
            gone.cancel()
            if not answer.done():
                self._worker.leave(ticket)

    def stream(self, asked: TranslateAsked) -> AsyncIterator[Answer]:
        """A translation in pieces: `{"piece": …}` each, and at last the whole, or an error."""
        if asked.format != "text" or not isinstance(asked.q, str) or asked.alternatives:
            raise Refused(400, "Invalid request: a stream takes one text, of format text and without alternatives")
        route, detected = self._route(asked)
        pieces: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(piece: str | Exception | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        stream = Stream(asked.q, route, tell)
        if route.source == route.target or not asked.q.strip():
            pieces.put_nowait(asked.q)
            pieces.put_nowait(None)
        else:
            try:
                self._worker.stream(stream)
            except (Busy, Stopping) as error:
                raise refused(error) from None
        return self._pieces(asked, stream, pieces, detected)

    async def _pieces(
        self,
        asked: TranslateAsked,
        stream: Stream,
        pieces: asyncio.Queue[str | Exception | None],
        detected: Detected | None,
    ) -> AsyncIterator[Answer]:
        whole = ""
        try:
            while isinstance(piece := await pieces.get(), str):
                whole += piece
                yield {"piece": piece}
            if piece is None:
                yield {"done": True, **_answer(asked, [Translated((whole,))], detected)}
            else:
                yield {"error": refused(piece).why}
        finally:
            self._worker.leave(stream)


def refused(error: Exception) -> Refused:
    """What a client is told of an error on the way to its translation."""
    if isinstance(error, Busy):
        return Refused(503, "too many texts wait; try again later", {"Retry-After": str(error.seconds)})
    if isinstance(error, Stopping):
        return Refused(503, "the server is shutting down", {"Retry-After": "5", "Connection": "close"})
    if isinstance(error, InputError):
        return Refused(400, str(error))
    return Refused(500, str(error))


def _answer(asked: TranslateAsked, found: Sequence[Translated], detected: Detected | None) -> Answer:
    """LibreTranslate's shape: lists where a list was asked for."""
    listed = not isinstance(asked.q, str)
    answer: Answer = {"translatedText": _shaped([each.versions[0] for each in found], listed)}
    if detected is not None:
        answer["detectedLanguage"] = _shaped([_detected(detected)] * len(found), listed)
    if asked.alternatives:
        others = [_others(each.versions, asked.alternatives) for each in found]
        answer["alternatives"] = _shaped(others, listed)
    return answer


def _shaped(values: list[Any], listed: bool) -> Any:
    return values if listed else values[0]


def _others(versions: Iterable[str], number: int) -> list[str]:
    """The versions after the best, without repetitions."""
    return list(dict.fromkeys(versions))[1 : number + 1]


def _detected(found: Detected) -> Answer:
    return {"confidence": found.confidence, "language": found.language}
