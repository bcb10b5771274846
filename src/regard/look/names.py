"""What can be recorded in a model, and under which names: the same in all families.

`TAPS` is the one table of it: names are made from it for a model, sizes are estimated by it, and `docs/taps.md` is its
output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import nn

from regard.blocks.embedding import PatchEmbedding, TextEmbedding
from regard.blocks.positions.image import LearnedGridPosition, SinusoidalGridPosition
from regard.blocks.positions.learned import LearnedPosition
from regard.blocks.positions.sinusoidal import SinusoidalPosition
from regard.blocks.stack import Layer, Stack
from regard.errors import InputError
from regard.look.network import network_of
from regard.models.heads import MaskedHead, PoolingHead, SequenceHead
from regard.settings import did_you_mean
from regard.use.model import Loaded


@dataclass(frozen=True)
class Tap:
    """One row of the table."""

    name: str
    """As its module says it."""
    shape: str
    """Of a padded batch. Packed, `B T` become one; but scores and weights have a row for each row of the batch."""
    meaning: str

    @property
    def sizes(self) -> tuple[str, ...]:
        return tuple(self.shape.split())


SYMBOLS = {
    "B": "sequences of the batch",
    "T": "tokens, or patches, of each",
    "K": "keys that they look at",
    "D": "width",
    "H": "heads",
    "G": "heads of keys and values, which may be fewer",
    "E": "size of a head",
    "V": "size of its values",
    "F": "hidden size of the feed-forward",
    "C": "vocabulary, or classes",
}

EMBEDDING = (
    Tap("tokens", "B T D", "the vectors of tokens (scaled as the model does), or of patches, before positions"),
    Tap("positions", "T D", "what is added for the places, where positions are added (a B before it if rows differ)"),
)
BEFORE = (Tap("residual", "B T D", "the residual stream before the first layer: embeddings and positions"),)
ATTENTION = (
    Tap("input", "B T D", "what attention reads: the stream, after the norm where that comes first"),
    Tap("q", "B T H E", "queries, after norm and rotation where there are any"),
    Tap("k", "B K G E", "keys, likewise; with a cache, those of the new tokens (of `cross`, in the first step alone)"),
    Tap("v", "B K G V", "values; with a cache, as keys"),
    Tap(
        "scores", "B H T K", "what the softmax gets: q·k × scale, soft cap, bias of positions; −∞ where it may not see"
    ),
    Tap("weights", "B H T K", "the attention: what each query takes from each key; derived, and checked"),
    Tap("heads", "B T H V", "what each head took from the values"),
    Tap("out", "B T D", "the heads joined and projected: what is added to the stream, but for dropout and scale"),
    Tap("residual", "B T D", "the residual stream after it (and after the norm where that comes last)"),
)
FFN = (
    Tap("input", "B T D", "what the feed-forward reads"),
    Tap("hidden", "B T F", "its hidden layer, after the activation (and the gate)"),
    Tap("out", "B T D", "what it adds to the stream"),
)
LAYER = (Tap("residual", "B T D", "the residual stream after the layer"),)
AFTER = (Tap("out", "B T D", "what the stack gives: the stream after the last norm, where there is one"),)
OUTPUT = (Tap("logits", "B T C", "scores over the vocabulary"),)
POOLED = Tap("pooled", "B D", "one vector for each sequence")
SEQUENCE = Tap("logits", "B C", "scores of each sequence")
TOKEN = Tap("logits", "B T C", "scores of each token")

TAPS = (
    ("EMBEDDING", EMBEDDING),
    ("STACK", BEFORE),
    ("STACK.N.ATTENTION", ATTENTION),
    ("STACK.N.ffn", FFN),
    ("STACK.N", LAYER),
    ("STACK", AFTER),
    ("output", OUTPUT),
    ("heads.HEAD", (POOLED, SEQUENCE)),
    ("heads.HEAD", (TOKEN,)),
    ("heads.HEAD.output", OUTPUT),
)
"""Places in a model and what can be heard there, in the order in which it is computed."""
_PARTS = ("source", "embedding", "encoder", "target", "decoder", "output", "heads")
"""The parts of models, in the order in which they work."""
_ADDED = (SinusoidalPosition, LearnedPosition, SinusoidalGridPosition, LearnedGridPosition)


def names_of(model: nn.Module | Loaded) -> dict[str, Tap]:
    """Every name that can be recorded in this model, in the order in which it is computed."""
    network = network_of(model)
    found: dict[str, Tap] = {}
    for path in _PARTS:
        part = getattr(network, path, None)
        if isinstance(part, nn.Module):
            found |= {f"{path}.{name}": tap for name, tap in _part(part)}
    return found


def _part(part: nn.Module) -> Iterator[tuple[str, Tap]]:
    """Names within a part of a model."""
    if isinstance(part, TextEmbedding | PatchEmbedding):
        yield from _named(EMBEDDING if isinstance(part.position, _ADDED) else EMBEDDING[:1])
    elif isinstance(part, Stack):
        yield from _named(BEFORE)
        for i, layer in enumerate(part):
            yield from _layer(layer, f"{i}.")
        yield from _named(AFTER)
    elif isinstance(part, nn.ModuleDict):
        for name, head in part.items():
            yield from _named(*_head(head, f"{name}."))
    else:
        yield from _named(OUTPUT)


def _layer(layer: Layer, path: str) -> Iterator[tuple[str, Tap]]:
    yield from _named(ATTENTION, f"{path}attention.")
    if layer.cross is not None:
        yield from _named(ATTENTION, f"{path}cross.")
    yield from _named(FFN, f"{path}ffn.")
    yield from _named(LAYER, path)


def _head(head: nn.Module, path: str) -> tuple[tuple[Tap, ...], str]:
    if isinstance(head, MaskedHead):
        return OUTPUT, f"{path}output."
    if isinstance(head, SequenceHead):
        return (POOLED, SEQUENCE), path
    return ((POOLED,) if isinstance(head, PoolingHead) else (TOKEN,)), path


def _named(taps: Iterable[Tap], path: str = "") -> Iterator[tuple[str, Tap]]:
    return ((f"{path}{tap.name}", tap) for tap in taps)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern stands for, in which `*` is any text, dots too; an unknown one is refused."""
    known = list(names)
    form = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [name for name in known if form.fullmatch(name)]
    if not found:
        near = did_you_mean(pattern, [*dict.fromkeys(re.sub(r"\d+", "*", name) for name in known), *known])
        raise InputError(
            f"nothing in this model is called {pattern}{near}; regard.look.names.names_of(model) lists the names"
        )
    return found


def table() -> str:
    """The page of all names, as Markdown."""
    lines = [
        "# What can be recorded",
        "",
        "Made by `make docs`; do not edit. [Recording](recording.md) says how to use it.",
        "",
        "`EMBEDDING` is `source` or `target` in an encoder-decoder and `embedding` elsewhere; `STACK` is `encoder` or",
        "`decoder`, `N` the number of a layer, from 0; `ATTENTION` is `attention` or, in the decoder of an",
        "encoder-decoder, also `cross`; `HEAD` is the name of a head.",
        "",
        "| name | shape | what it is |",
        "|---|---|---|",
    ]
    for place, taps in TAPS:
        for tap in taps:
            lines.append(f"| `{place}.{tap.name}` | `[{', '.join(tap.sizes)}]` | {tap.meaning} |")
    lines += ["", *(f"- `{symbol}`: {meaning}" for symbol, meaning in SYMBOLS.items())]
    return "\n".join([*lines, "", _NOTES])


_NOTES = """\
Of a packed batch `B, T` is one dimension, `N`; but scores and weights are `[R, H, T, K]`, with a row for each row of
the batch (`Packed.width`), in which sequences do not see each other. A position that sees nothing has weights of zero.
"""
