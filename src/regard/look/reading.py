"""One input as a model reads it: its tokens as they are shown, and the pass over them, in every family."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.image_form import fitted
from regard.data.images import read_image
from regard.decoding.request import Ends
from regard.errors import InputError
from regard.models.families import Decoder, Encoder, EncoderDecoder, Vision
from regard.models.settings import Vision as VisionSettings
from regard.tasks.image import to_input
from regard.text.tokenizer import Span, Tokenizer
from regard.use.model import Loaded
from regard.use.scribe import Scribe
from regard.use.translation import TranslateOptions
from regard.use.translator import Translator
from regard.weights.directory import load_labels

NOWHERE = (0, 0)
"""The span of a token that stands in no text."""
_SPACES = "▁Ġ "
"""How vocabularies write a space."""


@dataclass(frozen=True)
class Input:
    """What a model is given to look at."""

    text: str = ""
    target: str | None = None
    """A translation; none: what the model writes itself."""
    to: str | None = None
    """The language to write, of a model that knows several."""
    image: NDArray[np.uint8] | None = None
    """`[C, height, width]`, for a model that reads images."""
    ablated: tuple[str, ...] = ()
    """Heads that are silent, each as stack.layer.kind.head: `decoder.1.cross.3`."""

    @property
    def key(self) -> str:
        """The same for the same input."""
        pixels = None if self.image is None else hashlib.sha256(self.image.tobytes()).hexdigest()
        told = json.dumps([self.text, self.target, self.to, pixels, sorted(self.ablated)])
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@dataclass(frozen=True)
class Token:
    """A token, or a patch of an image."""

    text: str
    """As it is shown."""
    id: int
    """In the vocabulary; of a patch its number, of a class token −1."""
    span: Span
    """Where it stands in its text; (0, 0): nowhere."""


@dataclass(frozen=True)
class Side:
    """A sequence that a stack of the model reads."""

    text: str
    tokens: list[Token]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]


@dataclass(frozen=True)
class Read:
    """An input, read: `sides` by the stack that reads them."""

    sides: dict[str, Side]
    follows: list[int | None]
    """After each token of a stack that writes, the one that comes next; none: nobody knows."""
    pixels: Tensor | None = None


def ends_of(loaded: Loaded) -> Ends:
    """The tokens that begin and end what a model writes."""
    if isinstance(loaded, Translator):
        return loaded.frame.ends
    return Ends(None, loaded.tokenizers.target.roles.get("end") if loaded.tokenizers else None)


def vocabulary_of(loaded: Loaded) -> Tokenizer | None:
    """The tokenizer of what a model writes."""
    return None if loaded.tokenizers is None else loaded.tokenizers.target


def scribe_of(loaded: Translator, to: str | None) -> Scribe:
    """What writes translations; of several languages the first, unless one is named."""
    if to is None and len(loaded.directions) > 1:
        to = loaded.directions[0][1]
    return loaded.scribe(TranslateOptions(to=to))


def class_names(loaded: Loaded, sort: Literal["label", "tags"]) -> Sequence[str]:
    """The names of the classes that a model tells apart, as far as its files say them."""
    labels = load_labels(loaded.directory).get(sort)
    if labels is not None:
        return labels.names
    theirs = loaded.config.get("id2label")  # a Hugging Face directory has them for its only head
    if not isinstance(theirs, dict) or not all(str(number).isdecimal() for number in theirs):
        return []
    return [str(theirs[number]) for number in sorted(theirs, key=int)]


def require_alike(loaded: Loaded, beside: Loaded) -> None:
    """Refuses to compare models of different families."""
    own, other = loaded.settings, beside.settings
    if own.kind != other.kind or isinstance(loaded, Translator) != isinstance(beside, Translator):
        raise InputError(
            f"beside ({beside.name}) is of kind {other.kind}, and {loaded.name} is of kind {own.kind}; give two that "
            "read and write the same kind of thing"
        )
    if isinstance(own, VisionSettings) and isinstance(other, VisionSettings):
        one, two = ((each.channels, *each.image) for each in (own, other))
        if one != two or own.patch != other.patch:
            raise InputError(
                f"beside ({beside.name}) reads images of {list(two)} in patches of {other.patch}, and {loaded.name} of "
                f"{list(one)} in patches of {own.patch}; give two that read the same"
            )


# -------------------------------------------------------------------------------------------------------------- reading


def read(loaded: Loaded, given: Input, limit: int) -> Read:
    """The input as the model reads it; more than `limit` tokens are refused."""
    if isinstance(loaded.network, Vision):
        return _image(loaded.network, given)
    if given.image is not None:
        kind = loaded.settings.kind
        raise InputError(f"image is for models that read images, and this one is of kind {kind}; give a text")
    if isinstance(loaded, Translator):
        return _translation(loaded, given, limit)
    tokenizers = loaded.tokenizers
    if tokenizers is None or isinstance(loaded.network, EncoderDecoder):
        raise InputError(f"model ({loaded.name}) has no tokenizer.json, so it cannot read texts; put one beside it")
    return _text(loaded.network, tokenizers.source, given, limit)


def _text(network: Encoder | Decoder | Vision, tokenizer: Tokenizer, given: Input, limit: int) -> Read:
    """A text alone: with the frame that its family reads around it."""
    continues = isinstance(network, Decoder)
    encoding = tokenizer.encode(given.text, framed=not continues)
    ids, spans = list(encoding.ids), list(encoding.offsets)
    if continues and tokenizer.settings is not None and "start" in tokenizer.roles:
        ids, spans = [tokenizer.roles["start"], *ids], [NOWHERE, *spans]
    if not ids:
        raise InputError("text is empty; write something for the model to read")
    side = _side(tokenizer, given.text, ids, spans)
    require_room(side, "text", limit)
    return Read({"decoder": side}, [*ids[1:], None]) if continues else Read({"encoder": side}, [])


def _translation(loaded: Translator, given: Input, limit: int) -> Read:
    scribe, ends = scribe_of(loaded, given.to), loaded.frame.ends
    ids = scribe.read([given.text])[0]
    source = _side(loaded.tokenizers.source, given.text, ids, scribe.read_spans(given.text))
    require_room(source, "text", limit)
    tokenizer = loaded.tokenizers.target
    if given.target is None:
        written = scribe.write([ids], [scribe.beginning], 1)[0][0].tokens
        text, spans = scribe.text(written), scribe.written_spans(written)
    else:
        text, encoding = given.target, tokenizer.encode(given.target, framed=False)
        prefix = list(loaded.frame.prefix)
        written, spans = [*prefix, *encoding.ids], [*[NOWHERE] * len(prefix), *encoding.offsets]
    start = [] if ends.start is None else [ends.start]
    target = _side(tokenizer, text, [*start, *written], [*[NOWHERE] * len(start), *spans])
    require_room(target, "target", limit)
    return Read({"encoder": source, "decoder": target}, [*written, ends.end])


def _image(network: Vision, given: Input) -> Read:
    settings = network.settings
    wanted = (settings.channels, *settings.image)
    if given.image is None or given.image.shape != wanted or given.image.dtype != np.uint8:
        has = "none" if given.image is None else f"{given.image.dtype} {list(given.image.shape)}"
        raise InputError(f"image ({has}) must be bytes of shape {list(wanted)}: channels, height, width; resize it")
    columns = settings.image[1] // settings.patch
    patches = (settings.image[0] // settings.patch) * columns
    tokens = [Token(f"{i // columns + 1},{i % columns + 1}", i, NOWHERE) for i in range(patches)]
    if settings.class_token:
        tokens.insert(0, Token("[class]", -1, NOWHERE))
    return Read({"encoder": Side("", tokens)}, [], torch.from_numpy(given.image.copy()))


def require_room(side: Side, name: str, limit: int) -> None:
    """Refuses more tokens than are looked at."""
    if len(side.tokens) > limit:
        raise InputError(f"{name} has {len(side.tokens):,} tokens, and at most {limit:,} are looked at; shorten it")


def _side(tokenizer: Tokenizer, text: str, ids: Sequence[int], spans: Sequence[Span]) -> Side:
    each = zip(ids, spans, strict=True)
    return Side(text, [Token(shown(tokenizer, number, text, span), number, span) for number, span in each])


def shown(tokenizer: Tokenizer, number: int, text: str = "", span: Span = NOWHERE) -> str:
    """A token for people: what it stands for in its text, or else what the vocabulary writes."""
    special = number in tokenizer.roles.values() or number in tokenizer.extra.values()
    written = tokenizer.token(number)
    if special:
        return written
    if not written.strip(_SPACES):
        return "␣"
    found = text[span[0] : span[1]].strip() or tokenizer.decode([number]).strip()
    return found or written


def image_from(loaded: Loaded, file: Path) -> NDArray[np.uint8]:
    """An image file as the model's training would have read it: its colours, and its size."""
    settings = loaded.settings
    if not isinstance(settings, VisionSettings):
        raise InputError(f"{file} cannot be read by a model of kind {settings.kind}; give a text")
    if settings.channels not in (1, 3):
        raise InputError(
            f"model ({loaded.name}) reads images of {settings.channels} channels, and files have 1 or 3; look at it "
            "in Python: regard.look.reading.Input(image=…)"
        )
    pixels = read_image(file, "rgb" if settings.channels == 3 else "grey")
    return fitted(pixels, settings.image, settings.channels, str(file))


# -------------------------------------------------------------------------------------------------------------- passing


def forward(loaded: Loaded, given: Read) -> dict[str, Tensor]:
    """One pass over the input: scores by the name of their tap, `[T, C]` or, of the whole input, `[1, C]`."""
    network = loaded.network
    device = next(network.parameters()).device
    ids = {stack: torch.tensor([side.ids], device=device) for stack, side in given.sides.items()}
    with torch.inference_mode():
        if isinstance(network, EncoderDecoder):
            return {"output.logits": network(ids["encoder"], ids["decoder"])[0]}
        if isinstance(network, Decoder):
            return {"output.logits": network(ids["decoder"])[0]}
        if isinstance(network, Vision):
            assert given.pixels is not None
            hidden_BTD = network(to_input(given.pixels[None].to(device), network))
        else:
            hidden_BTD = network(ids["encoder"])
        found = {name: head(hidden_BTD) for name, head in network.heads.items()}
    return {f"heads.{name}": scores if scores.dim() == 2 else scores[0] for name, scores in found.items()}
