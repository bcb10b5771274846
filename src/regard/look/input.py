"""One input as a model reads it: its tokens, one forward pass over them, and the answers in the logits.

T: tokens, C: vocabulary or classes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.data.images import read_image
from regard.decoding.settings import Ends, TranslateOptions
from regard.errors import InputError
from regard.models.families import Decoder, Encoder, EncoderDecoder, Vision
from regard.models.settings import Classification, Masked, NextSentence, Spans, Tagging
from regard.models.settings import Vision as VisionSettings
from regard.shipped import MODELS
from regard.tasks.image import fitted, to_input
from regard.text.tokenizer import Span, Tokenizer
from regard.use.generator import Generator
from regard.use.model import Loaded
from regard.use.translator import Translator
from regard.weights.directory import load_labels

CANDIDATES = 5
"""Most probable answers that are kept for each position."""
NO_SPAN = (0, 0)
"""The span of a token that is not in the text, such as the start token."""
_SPACES = "▁Ġ "
"""How vocabularies write a space."""
_BLANKS = {" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"}


_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(byte): byte for byte in _PRINTED} | {
    chr(256 + number): byte for number, byte in enumerate(byte for byte in range(256) if byte not in _PRINTED)
}
"""The letter for each byte in byte-level vocabularies (Radford et al. 2019)."""


@dataclass(frozen=True)
class Input:
    """An input to look at. Example: `regard.Input("Ein Hund läuft.", target="A dog runs.")`."""

    text: str = ""
    target: str | None = None
    """A translation of the text; none: the model's own. For an encoder, the second text of a pair."""
    to: str | None = None
    """Target language, for a model with several."""
    image: NDArray[np.uint8] | None = None
    """`[channels, height, width]`, for a vision model."""
    ablated: tuple[str, ...] = ()
    """Changed heads: `decoder.1.cross.3` is silenced; see `regard.look.heads.change_named`."""

    @property
    def key(self) -> str:
        """Equal for equal inputs."""
        pixels = None if self.image is None else hashlib.sha256(self.image.tobytes()).hexdigest()
        content = json.dumps([self.text, self.target, self.to, pixels, sorted(self.ablated)])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:20]


@dataclass(frozen=True)
class InputToken:
    """A token, or a patch of an image, which has its number as id; the class token has −1.

    The text is for display. The span of a token that is not in the text is (0, 0).
    """

    text: str
    id: int
    span: Span


@dataclass(frozen=True)
class InputSide:
    """The sequence that one stack reads."""

    text: str
    tokens: list[InputToken]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def names(self) -> list[str]:
        return [token.text for token in self.tokens]


@dataclass(frozen=True)
class ReadInput:
    """A tokenized input. `sides` is keyed by the stack that reads each sequence."""

    sides: dict[str, InputSide]
    follows: list[int | None]
    """For a stack that writes: the token after each token. None: unknown."""
    pixels: Tensor | None = None
    segments: list[int] = field(default_factory=list)
    """For an encoder of texts: 0 up to the first separator, 1 after it."""


def read(loaded: Loaded, given: Input, limit: int) -> ReadInput:
    """Tokenizes an input. Raises `InputError` for more than `limit` tokens."""
    network, tokenizers = loaded.network, loaded.tokenizers
    if isinstance(network, Vision):
        return _read_image(loaded, given)
    if given.image is not None:
        raise InputError(f"image is for vision models, and this model is of kind {loaded.settings.kind}; give a text")
    if isinstance(loaded, Translator):
        return _read_translation(loaded, given, limit)
    if tokenizers is None or isinstance(network, EncoderDecoder):
        raise InputError(f"model {loaded.name} has no tokenizer.json; add one next to its weights to read text")
    tokenizer, continues = tokenizers.source, isinstance(network, Decoder)
    text, second = given.text, None if continues else given.target
    encoding = tokenizer.encode(text, second, framed=not continues, special=True)
    ids, spans = list(encoding.ids), list(encoding.offsets)
    if second is not None:
        shift, parts = len(text) + 1, encoding.sequence_ids
        spans = [(a + shift, b + shift) if part else (a, b) for (a, b), part in zip(spans, parts, strict=True)]
        text = f"{text}\n{second}"
    if isinstance(loaded, Generator):
        ids = loaded.ids(text, special=True)
        spans = [*[NO_SPAN] * (len(ids) - len(spans)), *spans]
    if not ids:
        raise InputError("text is empty; write something for the model to read")
    side = _side(tokenizer, text, ids, spans)
    require_length(side, "text", limit)
    if continues:
        return ReadInput({"decoder": side}, [*ids[1:], None])
    separators = [0, *accumulate(int(token == tokenizer.roles.get("separator")) for token in ids)]
    return ReadInput({"encoder": side}, [], segments=[min(count, 1) for count in separators[:-1]])


def _read_translation(loaded: Translator, given: Input, limit: int) -> ReadInput:
    to, ends = target_of(loaded, given.to), loaded.frame.ends
    ids = loaded.inputs([given.text], to)[0]
    source = _side(loaded.tokenizers.source, given.text, ids, loaded.input_spans(given.text))
    require_length(source, "text", limit)
    tokenizer = loaded.tokenizers.target
    if given.target is None:
        written = loaded.decode(ids, TranslateOptions(to=to))
        text, spans = loaded.output_text(written), loaded.output_spans(written)
    else:
        text, encoding = given.target, tokenizer.encode(given.target, framed=False)
        prefix = list(loaded.frame.prefix)
        written, spans = [*prefix, *encoding.ids], [*[NO_SPAN] * len(prefix), *encoding.offsets]
    start = [] if ends.start is None else [ends.start]
    target = _side(tokenizer, text, [*start, *written], [*[NO_SPAN] * len(start), *spans])
    require_length(target, "target", limit)
    return ReadInput({"encoder": source, "decoder": target}, [*written, ends.end])


def _read_image(loaded: Loaded, given: Input) -> ReadInput:
    settings = loaded.settings
    if not isinstance(settings, VisionSettings):
        raise InputError(f"model {loaded.name} is of kind {settings.kind}, which no view can show; use regard predict")
    expected = (settings.channels, *settings.image)
    if given.image is None or given.image.shape != expected or given.image.dtype != np.uint8:
        has = "none" if given.image is None else f"{given.image.dtype} {list(given.image.shape)}"
        raise InputError(f"image ({has}) must be uint8 of shape {list(expected)}: channels, height, width; resize it")
    rows, columns = settings.grid
    tokens = [InputToken(f"{i // columns},{i % columns}", i, NO_SPAN) for i in range(rows * columns)]
    registers = [InputToken(f"[register {i}]", -2 - i, NO_SPAN) for i in range(settings.registers)]
    first = [InputToken("[class]", -1, NO_SPAN)] if settings.class_token else []
    tokens = [*first, *registers, *tokens]
    return ReadInput({"encoder": InputSide("", tokens)}, [], torch.from_numpy(given.image.copy()))


def image_from(loaded: Loaded, file: Path) -> NDArray[np.uint8]:
    """Reads an image file as training does: channels and size of the model."""
    settings = loaded.settings
    if not isinstance(settings, VisionSettings):
        raise InputError(f"{file} is an image, and the model is of kind {settings.kind}; give a text")
    if settings.channels not in (1, 3):
        raise InputError(
            f"model {loaded.name} reads {settings.channels} channels, and image files have 1 or 3; use Python: "
            "regard.look.input.Input(image=…)"
        )
    pixels = read_image(file, "rgb" if settings.channels == 3 else "grey")
    return fitted(pixels, settings.image, settings.channels)


def example_of(loaded: Loaded) -> tuple[str, NDArray[np.uint8]] | None:
    """The first image of a shipped vision model's page: `example.pgm`, grey numbers in plain text."""
    file, settings = loaded.directory / "example.pgm", loaded.settings
    if loaded.name not in MODELS or not isinstance(settings, VisionSettings):
        return None
    _, width, height, _, *values = file.read_text("ascii").split()
    grey = np.array(values, np.uint8).reshape(int(height), int(width), 1)
    return file.name, fitted(grey, settings.image, settings.channels)


def target_of(loaded: Translator, to: str | None) -> str | None:
    """The target language of a translation, by default the model's first."""
    return loaded.directions[0][1] if to is None and len(loaded.directions) > 1 else to


def ends_of(loaded: Loaded) -> Ends:
    """The tokens that begin and end the model's output."""
    if isinstance(loaded, Translator):
        return loaded.frame.ends
    return Ends(None, loaded.tokenizers.target.roles.get("end") if loaded.tokenizers else None)


def require_length(side: InputSide, name: str, limit: int) -> None:
    if len(side.tokens) > limit:
        raise InputError(f"{name} has {len(side.tokens):,} tokens, and the limit is {limit:,}; shorten it")


def require_same_kind(loaded: Loaded, other: Loaded) -> None:
    """Raises `InputError` for models whose outputs cannot be compared."""
    names = ("kind", "channels", "image", "patch")
    kinds = [{name: getattr(each.settings, name, None) for name in names} for each in (loaded, other)]
    if kinds[0] != kinds[1] or isinstance(loaded, Translator) != isinstance(other, Translator):
        shown = [", ".join(f"{name} {value}" for name, value in kind.items() if value is not None) for kind in kinds]
        raise InputError(f"{other.name} has {shown[1]}, expected {shown[0]} as {loaded.name}; give another model")


def _side(tokenizer: Tokenizer, text: str, ids: Sequence[int], spans: Sequence[Span]) -> InputSide:
    tokens = [InputToken(shown(tokenizer, id_, text, span), id_, span) for id_, span in zip(ids, spans, strict=True)]
    return InputSide(text, tokens)


def shown(tokenizer: Tokenizer, token: int, text: str = "", span: Span = NO_SPAN) -> str:
    """A token for display: its characters in the text, or else its entry in the vocabulary."""
    written, inside = tokenizer.token(token), text[span[0] : span[1]].strip()
    if token == tokenizer.roles.get("unknown") and inside:
        return f"{written} {inside}"
    if token in tokenizer.roles.values() or token in tokenizer.extra.values():
        return written
    if not written.strip(_SPACES):
        return "␣" * len(written)
    plain = tokenizer.decode([token])
    if plain and all(letter in _BLANKS for letter in plain):
        return "".join(_BLANKS[letter] for letter in plain)
    decoded = inside or plain.strip() or written
    if not decoded.isascii() and "\ufffd" in plain:  # a part of a character
        decoded = _bytes_of(written) or decoded
    return f"␣{decoded}" if written[0] in _SPACES else decoded


def _bytes_of(written: str) -> str:
    """A token of a byte-level vocabulary that is part of a character: its bytes. Empty for other tokens."""
    try:
        found = bytes(_BYTES[letter] for letter in written.lstrip(_SPACES))
        found.decode()
    except KeyError:
        return ""
    except UnicodeDecodeError:
        return "".join(f"‹{byte:02X}›" if byte > 127 else chr(byte) for byte in found)
    return ""


def special_tokens(loaded: Loaded) -> list[str]:
    """The special tokens that a text for this model may contain."""
    tokenizer = None if isinstance(loaded, Translator) or loaded.tokenizers is None else loaded.tokenizers.source
    return [] if tokenizer is None else [tokenizer.token(token) for token in dict.fromkeys(tokenizer.roles.values())]


def token_name(loaded: Loaded, token: int) -> str:
    """A token of the output vocabulary for display."""
    tokenizer = loaded.tokenizers.target if loaded.tokenizers else None
    return str(token) if tokenizer is None or token >= tokenizer.size else shown(tokenizer, token)


def decoded(loaded: Loaded, tokens: Sequence[int]) -> str:
    """The text of output tokens. A model may have more tokens than its tokenizer."""
    tokenizer = loaded.tokenizers.target if loaded.tokenizers else None
    return "" if tokenizer is None else tokenizer.decode([token for token in tokens if token < tokenizer.size])


def forward(loaded: Loaded, given: ReadInput) -> dict[str, Tensor]:
    """One forward pass: logits by output, `[T, C]`, or `[1, C]` for an output over the whole input.

    A model that writes text has the output `output`; others have the names of their heads.
    """
    with torch.inference_mode():
        return logits_of(loaded.network, given)


def logits_of(network: nn.Module, given: ReadInput) -> dict[str, Tensor]:
    """As `forward`, with gradients if they are on."""
    device = next(network.parameters()).device
    ids = {stack: torch.tensor([side.ids], device=device) for stack, side in given.sides.items()}
    if isinstance(network, EncoderDecoder):
        return {"output": network(ids["encoder"], ids["decoder"])[0]}
    if isinstance(network, Decoder):
        return {"output": network(ids["decoder"])[0]}
    if isinstance(network, Vision):
        assert given.pixels is not None
        hidden_BTD = network(to_input(given.pixels[None].to(device), network))
    else:
        assert isinstance(network, Encoder)
        two = bool(given.segments) and network.settings.segments > 1
        hidden_BTD = network(ids["encoder"], None, torch.tensor([given.segments], device=device) if two else None)
    found = {name: head(hidden_BTD) for name, head in network.heads.items()}
    return {name: logits if logits.dim() == 2 else logits[0] for name, logits in found.items()}


@dataclass(frozen=True)
class Candidate:
    """A possible answer and its probability."""

    text: str
    id: int
    chance: float


@dataclass(frozen=True)
class AnswerRow:
    """The answers at one position, the most probable first, and the token that follows, if known."""

    candidates: list[Candidate]
    actual: Candidate | None


@dataclass(frozen=True)
class OutputAnswer:
    """The answers of one output: for each token (`each`), or one for the whole input."""

    name: str
    each: bool
    rows: list[AnswerRow]


def answers_in(loaded: Loaded, given: ReadInput, logits: Mapping[str, Tensor]) -> list[OutputAnswer]:
    """The most probable answers of each output of a model."""
    answers = []
    for name, logits_TC in logits.items():
        head = None if name == "output" else getattr(loaded.settings, "heads", {})[name]
        actual: Sequence[int | None] = [None] * len(logits_TC)
        if head is None or isinstance(head, Masked):
            actual = given.follows if head is None else given.sides["encoder"].ids
        elif not isinstance(head, Classification | NextSentence | Tagging):
            continue
        each = head is None or isinstance(head, Masked | Tagging)
        answers.append(OutputAnswer(name, each, _rows(logits_TC, actual, names_in(loaded, name))))
    return answers


def _rows(logits_TC: Tensor, actual: Sequence[int | None], name_of: Callable[[int], str]) -> list[AnswerRow]:
    logits_TC = logits_TC.float()
    best_TN = logits_TC.topk(min(CANDIDATES, logits_TC.shape[-1]), dim=-1).indices
    total_T = logits_TC.logsumexp(-1)
    rows = []
    for i, (best, real) in enumerate(zip(best_TN.tolist(), actual, strict=True)):
        ids = best if real is None else [*best, real]
        found = [Candidate(name_of(id_), id_, float((logits_TC[i, id_] - total_T[i]).exp())) for id_ in ids]
        rows.append(AnswerRow(found[: len(best)], None if real is None else found[-1]))
    return rows


def names_in(loaded: Loaded, output: str) -> Callable[[int], str]:
    """The name of a token or class of an output; of an answer's span, 0 is the start."""
    head = getattr(loaded.settings, "heads", {}).get(output)
    if isinstance(head, Spans):
        return ("start", "end").__getitem__
    over_tokens = head is None or isinstance(head, Masked)
    return partial(token_name, loaded) if over_tokens else partial(class_name, class_names(loaded, output))


def class_names(loaded: Loaded, output: str) -> Sequence[str]:
    """The names of an output's classes, as far as the model's files have them."""
    tags = isinstance(getattr(loaded.settings, "heads", {}).get(output), Tagging)
    labels = load_labels(loaded.directory).get("tags" if tags else "label")
    if labels is not None:
        return labels
    theirs = loaded.config.get("id2label")  # a Hugging Face config.json has them for its only head
    if not isinstance(theirs, dict) or not all(str(number).isdecimal() for number in theirs):
        return []
    return [str(theirs[number]) for number in sorted(theirs, key=int)]


def class_name(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"class {number}"
