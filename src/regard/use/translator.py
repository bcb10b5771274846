"""Translating with a model that was loaded: texts in, texts out.

```python
model = regard.load("de-en")
model.translate("Ich habe einen Apfel gegessen.")
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from regard.decoding import score as scoring
from regard.errors import InputError
from regard.models.families import EncoderDecoder
from regard.settings import Table, to_table
from regard.tasks.recipe import reach
from regard.text.tokenizer import TokenizerPair, tag
from regard.use import sentencewise
from regard.use.model import Loaded
from regard.use.scribe import Frame, Scribe
from regard.use.translation import AHEAD, TranslateOptions, Translation

Translated: TypeAlias = str | Translation | list[Translation]
"""Of one text: itself; with more told; or several of them."""

FIRST = 64
"""Lines of the first chunk; each has up to twice as many as the one before."""
AHEAD_CHARACTERS = 200_000
"""The same in characters, for lines that are long."""
REACH = 256
"""Tokens that are read at once by a model that names no limit: longer sentences are rare in what models learn from."""
_LAG = 3
"""Tokens that a stream holds back, since what follows may still change how they are written."""


class Translator(Loaded):
    """A model that translates."""

    network: EncoderDecoder
    tokenizers: TokenizerPair

    def __init__(
        self,
        name: str,
        directory: Path,
        network: EncoderDecoder,
        tokenizers: TokenizerPair,
        config: Table,
        frame: Frame,
        direction: tuple[str, str] | None = None,
    ) -> None:
        """`direction` is the only one that is offered, of a model that has several."""
        super().__init__(name, directory, network, tokenizers, config)
        self.frame = frame
        every, self.tagged = _directions(config)
        self.directions = [each for each in every if direction is None or each == direction]
        """From which language into which; empty where the model does not say."""
        data = config.get("data", {})
        limits = [reach(network.settings), data.get("longest")]
        known = [limit for limit in limits if isinstance(limit, int)]
        self.reach = min(known, default=REACH)
        """Tokens that the model reads at once; longer sentences are cut."""

    @property
    def languages(self) -> list[str]:
        """Every language that it reads or writes."""
        return list(dict.fromkeys(language for direction in self.directions for language in direction))

    # ------------------------------------------------------------------------------------------------------ translating

    def translate(self, text: str | Sequence[str], options: TranslateOptions | None = None, **changes: Any) -> Any:
        """A text, or a list of them, in another language.

        Keywords are the fields of `TranslateOptions` (`to`, `beam`, `nbest`, `align`, `must`, ...). A text gives a
        string; with `details` or `align` a `Translation`, with `nbest` above 1 a list of these. A list gives a list.
        """
        chosen = options_for(options, changes)
        rows = self.translations([text] if isinstance(text, str) else text, chosen)
        found = [_as_asked(row, chosen) for row in rows]
        return found[0] if isinstance(text, str) else found

    def translations(self, texts: Sequence[str], options: TranslateOptions | None = None) -> list[list[Translation]]:
        """The translations of each text, the best first, always told in full."""
        if isinstance(texts, str):
            raise InputError(f"a list of texts is wanted here, not a single one ({texts[:20]!r}); write [text]")
        return sentencewise.translate(_strings(texts), self.scribe(options), self.reach)

    def lines(self, lines: Iterable[str], options: TranslateOptions | None = None, ahead: int = AHEAD) -> Iterator[Any]:
        """As `translate`, for any number of texts: at most `ahead` of them are in memory at once."""
        if ahead < 1:
            raise InputError(f"ahead ({ahead}) must be at least 1: the number of lines that are read at once")
        chosen = options or TranslateOptions()
        scribe = self.scribe(chosen)
        return (
            _as_asked(row, chosen)
            for some in chunks(iter(lines), ahead)
            for row in sentencewise.translate(_strings(some), scribe, self.reach)
        )

    def stream(self, text: str, options: TranslateOptions | None = None) -> Iterator[str]:
        """A translation in pieces, as it is written: what `translate` gives with `beam=1`, or with sampling.

        A sentence that holds something to keep comes all at once.
        """
        chosen = options or TranslateOptions(beam=1)
        if chosen.beam > 1 or chosen.told or chosen.must:
            raise InputError(
                "a stream writes one sequence: set beam to 1, and leave out nbest, align, details and must"
            )
        scribe = self.scribe(chosen)
        pieces, between = sentencewise.plan(_strings([text])[0], scribe)
        pieces, between = sentencewise.fitting(pieces, between, scribe, self.reach)
        return _streamed(pieces, between, scribe)

    # ---------------------------------------------------------------------------------------------------------- asking

    def score(
        self, sources: Sequence[str], targets: Sequence[str], options: TranslateOptions | None = None
    ) -> list[list[float]]:
        """For each pair the log-probability of each token of the target and of its end; their sum is the target's."""
        scribe = self.scribe(options)
        outputs = self.tokenizers.target.ids(_strings(targets))
        return scoring.score(self.network, scribe.read(_strings(sources)), outputs, self.frame.ends)

    def alternatives(
        self, source: str, written: str = "", count: int = 5, options: TranslateOptions | None = None
    ) -> list[tuple[str, float]]:
        """The likeliest tokens after what was written for a source, with their log-probabilities; the end is empty."""
        scribe = self.scribe(options)
        tokens = [*self.frame.prefix, *(self.tokenizers.target.ids([written])[0] if written else [])]
        found = scoring.alternatives(self.network, scribe.read([source])[0], tokens, self.frame.ends, count)
        before = scribe.text(tokens)
        return [(scribe.text([*tokens, token])[len(before) :], chance) for token, chance in found]

    def sizes(self, texts: Sequence[str]) -> list[int]:
        """How many tokens each text has."""
        return [len(ids) for ids in self.tokenizers.source.ids(_strings(texts))]

    def scribe(self, options: TranslateOptions | None = None) -> Scribe:
        """What writes as the options say; wrong languages and words are refused here."""
        chosen = options or TranslateOptions()
        _, target = self._direction(chosen.source, chosen.to)
        if self.tagged and target is not None and tag(target) not in self.tokenizers.source.extra:
            raise InputError(
                f"model ({self.name}) has no token {tag(target)} in its tokenizer; copy the whole model again"
            )
        return Scribe(self.network, self.tokenizers, self.frame, target if self.tagged else None, chosen)

    def _direction(self, source: str | None, to: str | None) -> tuple[str | None, str | None]:
        has = " or ".join(f"{first} to {second}" for first, second in self.directions)
        asked = f"to ({to})" if to is not None else f"source ({source})"
        if not self.directions:
            if source is not None or to is not None:
                raise InputError(f"{asked} cannot be checked: model ({self.name}) names no languages; leave it out")
            return None, None
        fitting = [each for each in self.directions if to in (None, each[1]) and source in (None, each[0])]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise InputError(
                f"model ({self.name}) translates {has}: say which: to={fitting[0][1]!r} in Python, "
                f"--to {fitting[0][1]} in a shell"
            )
        unknown = [each for each in (source, to) if each is not None and each not in self.languages]
        what = (
            f"language {unknown[0]} is not known to" if unknown else f"from {source or '…'} to {to or '…'} is not for"
        )
        raise InputError(f"{what} model ({self.name}), which translates {has}; choose that, or another model")


# -------------------------------------------------------------------------------------------------------------- options


def options_for(options: TranslateOptions | None, changes: Table) -> TranslateOptions:
    """The options with keywords laid over them; an unknown one is refused with the nearest known."""
    if not changes:
        return options or TranslateOptions()
    if options is None:
        return TranslateOptions(**changes)
    plain = {name: to_table(value) if hasattr(value, "model_dump") else value for name, value in changes.items()}
    return options.changed(plain)


def _as_asked(row: list[Translation], options: TranslateOptions) -> Translated:
    if options.nbest > 1:
        return row
    return row[0] if options.told else row[0].text


def _strings(texts: Sequence[str]) -> list[str]:
    found = list(texts)
    for number, text in enumerate(found, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number:,} ({text!r:.40}) is no text but {type(text).__name__}; give strings")
    return found


def chunks(lines: Iterator[str], ahead: int) -> Iterator[list[str]]:
    """As many lines as are read at once, fewer where they are long; an error comes behind the lines before it.

    The first ones are small, so that something is seen soon.
    """
    chunk: list[str] = []
    size, room = 0, min(FIRST, ahead)
    failed: Exception | None = None
    while True:
        try:
            line = next(lines)
        except StopIteration:
            break
        except Exception as error:
            failed = error
            break
        chunk.append(line)
        size += len(line)
        if len(chunk) >= room or size >= AHEAD_CHARACTERS:
            yield chunk
            chunk, size, room = [], 0, min(2 * room, ahead)
    if chunk:
        yield chunk
    if failed is not None:
        raise failed


def _directions(config: Table) -> tuple[list[tuple[str, str]], bool]:
    """From which language into which a run was trained, and whether it must be told."""
    data = config.get("data", {})
    languages = data.get("languages")
    if languages is None and isinstance(data.get("direction"), str):
        languages = data["direction"].split("-")
    if not isinstance(languages, list | tuple) or len(languages) != 2:
        return [], False
    source, target = (str(language) for language in languages)
    both = data.get("both") is True
    return [(source, target), (target, source)] if both else [(source, target)], both


# -------------------------------------------------------------------------------------------------------------- streams


def _streamed(pieces: Sequence[str], between: Sequence[str], scribe: Scribe) -> Iterator[str]:
    """The pieces of text, joined as those of a whole translation are."""
    written = ""
    for place, gap in enumerate(between):
        if place and not gap and place < len(pieces):
            gap = sentencewise.gap_after(written)
        if gap:
            yield gap
        if place < len(pieces):
            written = ""
            for part in _sentence(pieces[place], place == 0, scribe):
                written += part
                yield part


def _sentence(text: str, first: bool, scribe: Scribe) -> Iterator[str]:
    piece = sentencewise.piece_of(text, first, scribe)
    if not piece.shown.plain or piece.careful or not any(map(str.isalpha, text)):
        yield sentencewise.write([piece], scribe)[0][0].text
        return
    tokens: list[int] = []
    recent: list[str] = []
    told = ""
    for token in scribe.stream(text, sentencewise.wish_for(piece, scribe)):
        tokens.append(token)
        recent = [*recent[-_LAG:], scribe.text(tokens)]
        sure = _common(recent) if len(recent) > _LAG else ""
        if len(sure) > len(told):
            yield sure[len(told) :]
            told = sure
    yield scribe.text(tokens)[len(told) :]


def _common(texts: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
