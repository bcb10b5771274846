"""The whole path of one input through a model, from text to probabilities, with the numbers of each step.

The formulas are those of Vaswani et al. (2017). T: tokens, K: keys, D: width, E: size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.blocks.attention import Attention
from regard.blocks.layers import Layer, Stack
from regard.errors import InputError
from regard.look.answers import Candidate
from regard.look.reading import Side
from regard.look.study import Run, Study

CORNER = 6
"""Rows and columns that are shown of a tensor."""


@dataclass(frozen=True)
class Place:
    """Where in the model one looks closely."""

    stack: str = "encoder"
    layer: int = 0
    kind: str = "attention"
    head: int = 0


@dataclass(frozen=True)
class Numbers:
    """A tensor, `[rows, columns]`: what is shown of it, and what it is like."""

    shape: list[int]
    corner: list[list[float | None]]
    """None: −∞, what may not be seen."""
    least: float
    most: float
    mean: float
    rows: list[str]
    columns: list[str]


@dataclass(frozen=True)
class WalkStep:
    """A step of the path."""

    name: str
    title: str
    formula: str
    says: str
    numbers: Numbers | None = None
    words: list[list[str]] | None = None
    """A table of texts, where there are no numbers yet."""


def walk(study: Study, run: Run, place: Place) -> list[WalkStep]:
    """The steps from the text to the answer, through one layer and head in full."""
    return walks(study, run, place, [place.head])[0]


def walks(study: Study, run: Run, place: Place, heads: Iterable[int]) -> list[list[WalkStep]]:
    """The same through several heads of a place, which are all recorded in one pass."""
    places = [replace(place, head=head) for head in heads]
    attentions = [_attention(study, each) for each in places]
    stem = f"{place.stack}.{place.layer}"
    path = f"{stem}.{place.kind}"
    embedding = _embedding(study, place.stack)
    wanted = [
        *(name for name in (f"{embedding}.tokens", f"{embedding}.positions") if name in study.names),
        f"{place.stack}.residual",
        *(f"{path}.{part}" for part in ("input", "q", "k", "v", "scores", "weights", "heads", "out", "residual")),
        *(f"{stem}.ffn.{part}" for part in ("input", "hidden", "out")),
        f"{stem}.residual",
        f"{place.stack}.out",
    ]
    seen = study.values(run, list(dict.fromkeys(wanted)))
    tokens = run.sides[place.stack]
    keys = run.sides["encoder" if place.kind == "cross" else place.stack]
    before = list(_reading(tokens, seen, embedding, place.stack, study))
    after = [*_joining(seen, path, stem, study, tokens), *_answering(run, seen, place.stack, tokens)]
    return [[*before, *_attending(seen, path, each, attentions[0], (tokens, keys)), *after] for each in places]


def _attention(study: Study, place: Place) -> Attention:
    stack = getattr(study.network, place.stack, None) if place.stack in ("encoder", "decoder") else None
    layer = stack[place.layer] if isinstance(stack, Stack) and 0 <= place.layer < len(stack) else None
    found = getattr(layer, place.kind, None) if place.kind in ("attention", "cross") else None
    if not isinstance(layer, Layer) or not isinstance(found, Attention) or not 0 <= place.head < found.heads:
        raise InputError(
            f"{place.stack}.{place.layer}.{place.kind}, head {place.head}, is not in this model; choose another"
        )
    return found


def _embedding(study: Study, stack: str) -> str:
    if study.loaded.settings.kind != "encoder-decoder":
        return "embedding"
    return "source" if stack == "encoder" else "target"


# --------------------------------------------------------------------------------------------------------------- steps


def _reading(side: Side, seen: Mapping[str, Tensor], embedding: str, stack: str, study: Study) -> Iterator[WalkStep]:
    tokens = [token.text for token in side.tokens]
    if side.text:
        yield WalkStep("text", "Text", "“…”", "What is read, as it was written.", words=[[side.text]])
    yield WalkStep("tokens", "Tokens", "text → t₁ … tₙ", f"Cut into {len(tokens)} pieces.", words=[tokens])
    rows = [[str(i) for i in range(len(tokens))], tokens, [str(token.id) for token in side.tokens]]
    yield WalkStep("ids", "Ids", "tᵢ → idᵢ", "Each piece has a number in the vocabulary.", words=rows)
    scale = " · √d" if getattr(study.loaded.settings, "embedding_scale", False) else ""
    name = f"{embedding}.tokens"
    says = "The row of the embedding matrix that belongs to each id."
    yield WalkStep(name, "Embeddings", f"eᵢ = E[idᵢ]{scale}", says, _numbers(seen[name], tokens))
    name = f"{embedding}.positions"
    if name in seen:
        formula = "PE(p, 2i) = sin(p / 10000^(2i/d))   PE(p, 2i+1) = cos(p / 10000^(2i/d))"
        kind = study.loaded.settings.position.kind
        formula = formula if kind == "sinusoidal" else "p₁ … pₙ, learned"
        says = "What is added to each embedding, so that the model knows the order."
        yield WalkStep(name, "Positions", formula, says, _numbers(seen[name], tokens))
    name = f"{stack}.residual"
    says = "What the first layer gets."
    if f"{embedding}.positions" not in seen:
        says += f" Positions of this kind ({study.loaded.settings.position.kind}) come in at attention, not here."
    yield WalkStep(name, "Embeddings + positions", "xᵢ = eᵢ + pᵢ", says, _numbers(seen[name], tokens))


def _attending(
    seen: Mapping[str, Tensor], path: str, place: Place, attention: Attention, sides: tuple[Side, Side]
) -> Iterator[WalkStep]:
    queries, keys = ([token.text for token in side.tokens] for side in sides)
    head, group = place.head, place.head * attention.kv_heads // attention.heads
    q_TE, k_KE, v_KV = seen[f"{path}.q"][:, head], seen[f"{path}.k"][:, group], seen[f"{path}.v"][:, group]
    scores_TK, weights_TK = seen[f"{path}.scores"][head], seen[f"{path}.weights"][head]
    where = f"layer {place.layer + 1}, head {head + 1}"
    memory = "what the encoder gives" if place.kind == "cross" else "the same input"
    says = f"What {where} reads: the stream, after the norm where that comes first."
    yield WalkStep(f"{path}.input", "Input of attention", "x", says, _numbers(seen[f"{path}.input"], queries))
    yield WalkStep(f"{path}.q", "Queries", "Q = x Wᵠ", f"What each token asks for ({where}).", _numbers(q_TE, queries))
    yield WalkStep(
        f"{path}.k", "Keys", "K = x Wᴷ", f"What each token offers to be found by, from {memory}.", _numbers(k_KE, keys)
    )
    product_TK = q_TE @ k_KE.T
    says = "How well each query fits each key: a dot product for each pair."
    yield WalkStep("q·k", "Query · key", "Q Kᵀ", says, _numbers(product_TK, queries, keys))
    scaled_TK = product_TK * attention.scale
    formula = f"Q Kᵀ / √dₖ,   dₖ = {attention.head_size}"
    if abs(attention.scale - attention.head_size**-0.5) > 1e-9:
        formula = f"Q Kᵀ × {attention.scale:.4g}"
    says = "Scaled, so that the softmax does not saturate when heads are wide."
    yield WalkStep("scale", "Scale", formula, says, _numbers(scaled_TK, queries, keys))
    yield WalkStep(f"{path}.scores", "Mask", *_masking(scores_TK, scaled_TK), _numbers(scores_TK, queries, keys))
    says = (
        "Each row is a distribution: how much each query takes from each key. Derived, and checked against the kernel."
    )
    softmax = "A = softmax(Q Kᵀ / √dₖ)"
    yield WalkStep(f"{path}.weights", "Softmax", softmax, says, _numbers(weights_TK, queries, keys))
    yield WalkStep(
        f"{path}.v", "Values", "V = x Wⱽ", f"What each token hands over, from {memory}.", _numbers(v_KV, keys)
    )
    says = f"What {where} takes: for each query the mean of the values, weighted by its row."
    attention_formula = "Attention(Q, K, V) = softmax(Q Kᵀ / √dₖ) V"
    yield WalkStep(
        f"{path}.heads", "× values", attention_formula, says, _numbers(seen[f"{path}.heads"][:, head], queries)
    )


def _masking(scores_TK: Tensor, scaled_TK: Tensor) -> tuple[str, str]:
    """The formula of the mask, and what it did here."""
    visible_TK = scores_TK != -torch.inf
    hidden = int((~visible_TK).sum())
    apart_TK = (scores_TK - scaled_TK).abs().where(visible_TK, 0)
    added = bool(apart_TK.max() > 1e-3 * scaled_TK.abs().max().clamp(min=1))
    says = (
        f"{hidden} of {scores_TK.numel()} pairs may not be seen, and get −∞." if hidden else "Every pair may be seen."
    )
    if added:
        says += " The bias of positions, or the soft cap, is in here too."
    return "scores + M,   M = −∞ where key > query" if hidden else "scores + M,   M = 0", says


def _joining(seen: Mapping[str, Tensor], path: str, stem: str, study: Study, side: Side) -> Iterator[WalkStep]:
    tokens = [token.text for token in side.tokens]
    place = study.loaded.settings.norm_place
    add = {
        "post": "x ← LayerNorm(x + Sublayer(x))",
        "pre": "x ← x + Sublayer(LayerNorm(x))",
        "sandwich": "x ← x + LayerNorm(Sublayer(LayerNorm(x)))",
    }[place]
    if study.loaded.settings.norm.kind != "layer":
        add = add.replace("LayerNorm", "Norm")
    joined = "MultiHead(Q, K, V) = Concat(head₁, …, headₕ) Wᴼ"
    says = "All heads side by side, and one matrix over them."
    yield WalkStep(f"{path}.out", "Heads joined", joined, says, _numbers(seen[f"{path}.out"], tokens))
    says = f"Added to the stream. The norm comes {_WHERE[place]} in this model."
    yield WalkStep(f"{path}.residual", "Add & norm", add, says, _numbers(seen[f"{path}.residual"], tokens))
    says = "Each token by itself: a wide layer …"
    yield WalkStep(
        f"{stem}.ffn.hidden",
        "Feed-forward, hidden",
        "h = act(x W₁ + b₁)",
        says,
        _numbers(seen[f"{stem}.ffn.hidden"], tokens),
    )
    says = "… and back to the width of the model."
    yield WalkStep(
        f"{stem}.ffn.out", "Feed-forward, out", "FFN(x) = h W₂ + b₂", says, _numbers(seen[f"{stem}.ffn.out"], tokens)
    )
    says = "What this layer hands to the next."
    yield WalkStep(f"{stem}.residual", "Add & norm", add, says, _numbers(seen[f"{stem}.residual"], tokens))


_WHERE = {"post": "last, as in the paper,", "pre": "first", "sandwich": "first and last"}


def _answering(run: Run, seen: Mapping[str, Tensor], stack: str, side: Side) -> Iterator[WalkStep]:
    tokens = [token.text for token in side.tokens]
    says = "After the last layer (and the last norm, where there is one)."
    yield WalkStep(f"{stack}.out", "Out of the stack", "z", says, _numbers(seen[f"{stack}.out"], tokens))
    if stack == "encoder" and "decoder" in run.sides:
        return
    for answer in run.answers:
        rows = [
            [tokens[i] if answer.each else "the whole", *_told(row.candidates)] for i, row in enumerate(answer.rows)
        ]
        head = "" if answer.name == "output" else f" of {answer.name}"
        formula = "P = softmax(z Wᵁ)"
        says = "What could come next, the likeliest first." if answer.name == "output" else "What it could be."
        yield WalkStep(f"answer.{answer.name}", f"Logits{head}, softmax", formula, says, words=rows)


def _told(candidates: list[Candidate]) -> list[str]:
    return [f"{each.text}  {each.chance:.4f}" for each in candidates]


def _numbers(x: Tensor, rows: list[str], columns: list[str] | None = None) -> Numbers:
    x = x.float()
    least, most = x.aminmax()
    mean = x.mean()
    if not (least.isfinite() and most.isfinite()):
        finite = x[x.isfinite()]
        least, most, mean = finite.min(), finite.max(), finite.mean()
    shown = [[value if math.isfinite(value) else None for value in row] for row in x[:CORNER, :CORNER].tolist()]
    named = [] if columns is None else columns[:CORNER]
    return Numbers(list(x.shape), shown, float(least), float(most), float(mean), rows[:CORNER], named)
