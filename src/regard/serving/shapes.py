"""Requests and answers in LibreTranslate's shapes, checked here and told by /openapi.json. No torch in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from regard.serving.bodies import Refused
from regard.serving.settings import Serving

SHOWN = 40
"""Characters of a wrong value that an error repeats."""


def _plain(text: str) -> str:
    if "\0" in text:
        raise ValueError("a text must not hold NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may write and nothing else can
        raise ValueError("a text is not valid Unicode") from None
    return text


Text: TypeAlias = Annotated[str, AfterValidator(_plain)]


class _Shape(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, frozen=True)


# ----------------------------------------------------------------------------------------------------------- requests


class Asked(_Shape):
    """What every request that may need a key has."""

    api_key: Text = ""
    """A key, where the server wants one; `Authorization: Bearer KEY` does as well."""


class DetectAsked(Asked):
    """A text whose language is to be found."""

    q: Text | list[Text]
    """The text, or several of one language."""

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class TranslateAsked(DetectAsked):
    """Texts to be translated."""

    q: Text | list[Text]
    """The text, or a list of texts."""
    source: Text
    """The code of its language, or "auto" to have it found."""
    target: Text
    """The code of the language to write."""
    format: Literal["text", "html"] = "text"
    """What the texts are; tags and entities of HTML stay as they are either way, and are not taken for words here."""
    alternatives: int = Field(default=0, ge=0)
    """How many other translations are wanted."""


# ------------------------------------------------------------------------------------------------------------ answers


class DetectedAnswer(_Shape):
    """A language that a text may be in."""

    confidence: float
    """From 0 to 100."""
    language: str


class TranslateAnswer(_Shape):
    """Translations; lists where the request gave a list."""

    translatedText: str | list[str]
    detectedLanguage: DetectedAnswer | list[DetectedAnswer] | None = None
    """Where the source was "auto"."""
    alternatives: list[str] | list[list[str]] | None = None
    """Where some were asked for; without repetitions, so there may be fewer."""


class LanguageAnswer(_Shape):
    """A language, and those it can be translated into."""

    code: str
    name: str
    targets: list[str]


class ErrorAnswer(_Shape):
    """What is wrong, and how to mend it."""

    error: str


# ----------------------------------------------------------------------------------------------------------- checking

A = TypeVar("A", bound=Asked)


def asked(kind: type[A], fields: Mapping[str, Any]) -> A:
    """The request that some fields make; empty ones count as not given. Unknown fields are left alone."""
    given = {
        name: value for name, value in fields.items() if value is not None and not (name == "format" and not value)
    }
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
    name = str(detail["loc"][0]) if detail["loc"] else "body"
    if detail["type"] == "missing":
        raise Refused(400, f"Invalid request: missing {name} parameter")
    raise Refused(400, f"Invalid request: {name}: {detail['msg'].removeprefix('Value error, ')}")


def check_length(texts: list[str], settings: Serving) -> None:
    """Refuses what is too much for one request."""
    if len(texts) > settings.texts:
        raise Refused(400, f"Invalid request: {len(texts)} texts exceed the limit ({settings.texts}); send fewer")
    characters = sum(map(len, texts))
    if characters > settings.characters:
        raise Refused(
            413,
            f"Invalid request: {characters:,} characters exceed the limit ({settings.characters:,}); send fewer",
        )


def check_alternatives(number: int, settings: Serving) -> None:
    if number > settings.alternatives:
        raise Refused(400, f"Invalid request: alternatives must be at most {settings.alternatives}")


def shown(value: str) -> str:
    """A value in an error, in no more than a few plain letters."""
    return ascii(value[:SHOWN])[1:-1] + ("…" if len(value) > SHOWN else "")
