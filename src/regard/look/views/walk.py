"""Walk view: the path of one input through a model, from text to probabilities, with the numbers of each step.

The formulas are those of Vaswani et al. (2017). T: tokens, K: keys, E: size of a head, V: size of its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from regard.blocks.layers import Attention
from regard.blocks.settings import Body
from regard.errors import InputError
from regard.look.heads import attentions_of
from regard.look.study import Study, StudyRun
from regard.look.views import view

CORNER = 6
"""Rows and columns of a tensor that are shown."""
_NORM_ORDER = {
    "post": "last, as in the paper,",
    "pre": "first",
    "sandwich": "first and last",
    "output": "after the sublayer",
}
_ADD_AND_NORM = {
    "post": "x ← LayerNorm(x + Sublayer(x))",
    "pre": "x ← x + Sublayer(LayerNorm(x))",
    "sandwich": "x ← x + LayerNorm(Sublayer(LayerNorm(x)))",
    "output": "x ← x + LayerNorm(Sublayer(x))",
}


class WalkRequest(view.RunRequest):
    """The path of a run through one head."""

    stack: view.Text = "encoder"
    layer: view.Count = 0
    kind: view.Text = "attention"
    head: view.Count = 0


def walk(study: Study, run: StudyRun, attention: str, head: int) -> list[view.Answer]:
    """The steps from text to answer, through one head of an attention (`decoder.1.cross`).

    A step has a name, a title, a formula, a sentence (`text`), and a table of texts (`words`) or the `numbers` of a
    tensor `[rows, columns]`: its upper left corner (None: −∞, masked) and its statistics.
    """
    stack, layer, kind = attention.split(".")
    if attention not in attentions_of(study.network) or head >= study.loaded.settings.attention.heads:
        raise InputError(f"{attention}, head {head}, is not in this model; choose another")
    module = study.network.get_submodule(attention)
    assert isinstance(module, Attention)
    embedding = "embedding"
    if "encoder" in run.sides and "decoder" in run.sides:
        embedding = "source" if stack == "encoder" else "target"
    wanted = [
        *(name for name in (f"{embedding}.tokens", f"{embedding}.positions") if name in study.names),
        f"{stack}.residual",
        *(f"{attention}.{part}" for part in ("input", "q", "k", "v", "scores", "weights", "heads", "out", "residual")),
        *(name for part in ("hidden", "router", "out") if (name := f"{stack}.{layer}.ffn.{part}") in study.names),
        f"{stack}.{layer}.residual",
        f"{stack}.out",
    ]
    if study.cache.get("walk", (None, None))[0] != (run.key, attention):  # the heads of a layer often follow each other
        study.cache["walk"] = ((run.key, attention), study.values(run, list(dict.fromkeys(wanted))))
    seen = study.cache["walk"][1]
    queries = run.sides[stack].names
    keys = run.sides["encoder" if kind == "cross" else stack].names
    return [
        *_embedding_steps(study, run, seen, embedding, stack),
        *_head_steps(seen, attention, head, module, queries, keys),
        *_output_steps(study, run, seen, attention, queries),
    ]


def _embedding_steps(
    study: Study, run: StudyRun, seen: Mapping[str, Tensor], embedding: str, stack: str
) -> Iterator[view.Answer]:
    side, settings = run.sides[stack], study.loaded.settings
    tokens, kind = side.names, settings.position.kind
    if side.text:
        yield _step("text", "Text", "“…”", "The input as it was written.", words=[[side.text]])
    yield _step(
        "tokens", "Tokens", "text → t₁ … tₙ", f"The tokenizer cuts it into {len(tokens)} tokens.", words=[tokens]
    )
    rows = [[str(i) for i in range(len(tokens))], tokens, [str(id_) for id_ in side.ids]]
    yield _step("ids", "Ids", "tᵢ → idᵢ", "Each token has a number in the vocabulary.", words=rows)
    scale = " · √d" if getattr(settings, "embedding_scale", False) else ""
    name, text = f"{embedding}.tokens", "The row of the embedding matrix for each id."
    yield _step(name, "Embeddings", f"eᵢ = E[idᵢ]{scale}", text, seen[name], tokens)
    name = f"{embedding}.positions"
    text = f"The input of the first layer. Positions of kind {kind} enter in the attention, not here."
    if name in seen:
        formula = "p₁ … pₙ, learned"
        if kind == "sinusoidal":
            formula = "PE(p, 2i) = sin(p / 10000^(2i/d))   PE(p, 2i+1) = cos(p / 10000^(2i/d))"
        added = "Added to each embedding, so that the model knows the order."
        yield _step(name, "Positions", formula, added, seen[name], tokens)
        text = "The input of the first layer."
    name = f"{stack}.residual"
    yield _step(name, "Embeddings + positions", "xᵢ = eᵢ + pᵢ", text, seen[name], tokens)


def _head_steps(
    seen: Mapping[str, Tensor], path: str, head: int, attention: Attention, queries: list[str], keys: list[str]
) -> Iterator[view.Answer]:
    group = head * attention.kv_heads // attention.heads
    q_TE, k_KE, v_KV = seen[f"{path}.q"][:, head], seen[f"{path}.k"][:, group], seen[f"{path}.v"][:, group]
    scores_TK, weights_TK = seen[f"{path}.scores"][head], seen[f"{path}.weights"][head]
    where = f"layer {int(path.split('.')[1]) + 1}, head {head + 1}"
    memory = "the output of the encoder" if path.endswith(".cross") else "the same input"
    text = f"The input of {where}: the residual stream, after the norm if that comes first."
    yield _step(f"{path}.input", "Input of attention", "x", text, seen[f"{path}.input"], queries)
    yield _step(f"{path}.q", "Queries", "Q = x Wᵠ", f"What each token asks for ({where}).", q_TE, queries)
    text = f"What each token can be found by, from {memory}."
    yield _step(f"{path}.k", "Keys", "K = x Wᴷ", text, k_KE, keys)
    product_TK = q_TE @ k_KE.T
    text = "How well each query fits each key: a dot product for each pair."
    yield _step("q·k", "Query · key", "Q Kᵀ", text, product_TK, queries, keys)
    scaled_TK = product_TK * attention.scale
    formula = f"Q Kᵀ / √dₖ,   dₖ = {attention.head_size}"
    if abs(attention.scale - attention.head_size**-0.5) > 1e-9:
        formula = f"Q Kᵀ × {attention.scale:.4g}"
    text = "Scaled, so that the softmax does not saturate for wide heads."
    yield _step("scale", "Scale", formula, text, scaled_TK, queries, keys)
    yield _step(f"{path}.scores", "Mask", *_masking(scores_TK, scaled_TK), scores_TK, queries, keys)
    text = "Each row is a distribution: how much each query takes from each key. Derived, and checked with the kernel."
    formula = "A = softmax(Q Kᵀ / √dₖ)"
    yield _step(f"{path}.weights", "Softmax", formula, text, weights_TK, queries, keys)
    yield _step(f"{path}.v", "Values", "V = x Wⱽ", f"What each token passes on, from {memory}.", v_KV, keys)
    text = f"The output of {where}: for each query, the mean of the values weighted by its row."
    formula = "Attention(Q, K, V) = softmax(Q Kᵀ / √dₖ) V"
    yield _step(f"{path}.heads", "× values", formula, text, seen[f"{path}.heads"][:, head], queries)


def _masking(scores_TK: Tensor, scaled_TK: Tensor) -> tuple[str, str]:
    """The formula of the mask, and its effect here."""
    visible_TK = scores_TK != -torch.inf
    hidden = int((~visible_TK).sum())
    text = f"{hidden} of {scores_TK.numel()} pairs are masked with −∞." if hidden else "No pair is masked."
    apart_TK = (scores_TK - scaled_TK).abs().where(visible_TK, 0)
    if bool(apart_TK.max() > 1e-3 * scaled_TK.abs().max().clamp(min=1)):
        text += " The bias of positions, or the soft cap, is included."
    return "scores + M,   M = −∞ where key > query" if hidden else "scores + M,   M = 0", text


def _output_steps(
    study: Study, run: StudyRun, seen: Mapping[str, Tensor], path: str, tokens: list[str]
) -> Iterator[view.Answer]:
    layer, stack, settings = path.rpartition(".")[0], path.partition(".")[0], study.loaded.settings
    assert isinstance(settings, Body)
    add = _ADD_AND_NORM[settings.norm_place]
    if settings.norm.kind != "layer":
        add = add.replace("LayerNorm", "Norm")
    joined = "MultiHead(Q, K, V) = Concat(head₁, …, headₕ) Wᴼ"
    added = f"Added to the residual stream. The norm comes {_NORM_ORDER[settings.norm_place]} in this model."
    for name, title, formula, text in (
        (f"{path}.out", "Heads joined", joined, "All heads, one matrix."),
        (f"{path}.residual", "Add & norm", add, added),
        (f"{layer}.ffn.hidden", "Feed-forward, hidden", "h = act(x W₁ + b₁)", "Each token by itself: a wide layer …"),
        (
            f"{layer}.ffn.router",
            "Experts",
            "s = softmax(x W) or σ(x W)",
            "The score of each expert: the best few are used.",
        ),
        (f"{layer}.ffn.out", "Feed-forward, out", "FFN(x) = h W₂ + b₂", "… and back to the width of the model."),
        (f"{layer}.residual", "Add & norm", add, "The input of the next layer."),
        (f"{stack}.out", "Output of the stack", "z", "After the last layer, and after the last norm if there is one."),
    ):
        if name in seen:
            yield _step(name, title, formula, text, seen[name], tokens)
    read_by_decoder = stack == "encoder" and "decoder" in run.sides
    for answer in [] if read_by_decoder else run.answers:
        rows = []
        for i, row in enumerate(answer.rows):
            shown = [f"{each.text}  {each.chance:.4f}" for each in row.candidates]
            rows.append([tokens[i] if answer.each else "the whole", *shown])
        writes = answer.name == "output"
        title = f"Logits{'' if writes else f' of {answer.name}'}, softmax"
        text = "The most probable next tokens." if writes else "The most probable answers."
        yield _step(f"answer.{answer.name}", title, "P = softmax(z Wᵁ)", text, words=rows)


def _step(
    name: str,
    title: str,
    formula: str,
    text: str,
    x: Tensor | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    words: list[list[str]] | None = None,
) -> view.Answer:
    """A step with a table of texts, or with the corner and the statistics of a tensor."""
    numbers = None
    if x is not None:
        finite = x[x != -torch.inf]
        numbers = {
            "shape": list(x.shape),
            "corner": [[v if math.isfinite(v) else None for v in row] for row in x[:CORNER, :CORNER].tolist()],
            "least": float(finite.min()),
            "most": float(finite.max()),
            "mean": float(finite.mean()),
            "rows": list(rows[:CORNER]),
            "columns": list(columns[:CORNER]),
        }
    return {"name": name, "title": title, "formula": formula, "text": text, "numbers": numbers, "words": words}


def _answer(study: Study, asked: WalkRequest) -> view.Answer:
    attention = f"{asked.stack}.{asked.layer}.{asked.kind}"
    return {"steps": walk(study, study.known(asked.run), attention, asked.head)}


QUESTION = view.PageQuestion("walk", WalkRequest, _answer)


def _stored(page: view.SavedPage) -> Iterator[view.StoredAnswer]:
    chosen = page.location(0)
    for group, layer in page.layers(0):
        for head in view.first_of(chosen[2], group.heads):
            request = WalkRequest(run=page.run.key, stack=group.stack, layer=layer, kind=group.kind, head=head)
            yield page.ask(QUESTION, request, (group, layer, head) == chosen)


WALK = view.PageView("walk", (QUESTION,), _stored, view.is_transformer)
