"""Measures and names of heads: against hand-made attention, sums by hand, and loops over recorded weights."""

from __future__ import annotations

import math
from typing import Any

import family_cases as cases
import pytest
import torch

import regard
from regard.blocks import settings as blocks
from regard.blocks.layout import Padded
from regard.errors import InputError
from regard.look.addresses import Head, attentions_of, heads_of
from regard.look.heads import Score, entropy, induction, name_heads, spreads
from regard.models.build import build
from regard.models.settings import Decoder

PLACES, WORDS = 16, 40
SHARP = 40.0
"""Weights so large that a softmax gives all to one key."""


def settings(**changes: Any) -> Decoder:
    """A decoder whose stream holds places, words, and the words before, each as one of so many channels."""
    width = PLACES + 2 * WORDS
    attention = blocks.Attention(heads=2, head_size=WORDS, bias=True)
    plain = {"depth": 2, "norm_place": "pre", "norm": blocks.RmsNorm(), "dropout": 0.0}
    position = blocks.Learned(length=PLACES)
    return Decoder(vocabulary=WORDS, width=width, attention=attention, position=position, **{**plain, **changes})


@torch.no_grad()
def blank() -> Any:
    """Heads that look everywhere alike and say nothing; words and places one-hot."""
    model = build(settings()).eval()
    for name, parameter in model.named_parameters():
        if ".attention." in name or "ffn.down" in name:
            parameter.zero_()
    words, places = model.embedding.tokens.weight, model.embedding.position.weight
    words.zero_()
    words[:, PLACES : PLACES + WORDS] = torch.eye(WORDS)
    places.zero_()
    places[:, :PLACES] = torch.eye(PLACES)
    return model


@torch.no_grad()
def inductive() -> Any:
    """Head 0 of layer 0 takes the word before; head 0 of layer 1 looks for what came after the same word."""
    model = blank()
    before, after = model.decoder[0].attention, model.decoder[1].attention
    before.q.weight[: PLACES - 1, 1:PLACES] = SHARP * torch.eye(PLACES - 1)  # place p asks for p − 1
    before.k.weight[:PLACES, :PLACES] = torch.eye(PLACES)
    before.v.weight[:WORDS, PLACES : PLACES + WORDS] = torch.eye(WORDS)
    before.out.weight[PLACES + WORDS :, :WORDS] = torch.eye(WORDS)
    after.q.weight[:WORDS, PLACES : PLACES + WORDS] = SHARP * torch.eye(WORDS)
    after.k.weight[:WORDS, PLACES + WORDS :] = torch.eye(WORDS)
    return model


def by_head(found: list[Any]) -> dict[Head, Any]:
    return {one.head: one for one in found}


# ------------------------------------------------------------------------------------------------- entropy and distance


def test_the_entropy_of_uniform_and_single_weights() -> None:
    assert float(entropy(torch.full((7,), 1 / 7))) == pytest.approx(math.log(7))
    assert entropy(torch.eye(3)).tolist() == [0.0, 0.0, 0.0]
    assert float(entropy(torch.tensor([0.25, 0.75]))) == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


def test_heads_that_look_everywhere_alike() -> None:
    """Query t of a decoder sees t + 1 keys, which lie t / 2 places back as a mean. Padding must not count."""
    model = blank()
    tokens, lengths = torch.zeros(2, 6, dtype=torch.long), [4, 6]
    found = spreads(model, tokens, Padded.of(torch.tensor(lengths), 6))
    queries = [t for length in lengths for t in range(length)]
    assert [one.head for one in found] == heads_of(model)
    for one in found:
        assert one.entropy == pytest.approx(sum(math.log(t + 1) for t in queries) / len(queries), abs=1e-5)
        assert one.share == pytest.approx(1.0, abs=1e-5)
        assert one.distance == pytest.approx(sum(t / 2 for t in queries) / len(queries), abs=1e-5)
        assert one.signed == pytest.approx(-one.distance)


def test_distances_of_a_head_that_looks_back_by_one() -> None:
    spread = spreads(inductive(), torch.arange(6)[None])[0]
    assert spread.distance == pytest.approx(5 / 6, abs=1e-3)  # the first token sees only itself
    assert spread.share == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("family", list(cases.FAMILIES))
def test_every_family_against_loops(family: str) -> None:
    torch.manual_seed(3)
    model: Any = cases.unsettled(build(cases.FAMILIES[family]()))
    batch = BATCHES[family]()
    with torch.no_grad(), regard.record(model, "*.weights", "*.scores") as seen:
        model(*batch)
    found = {one.head: one for one in spreads(model, *batch)}
    named = by_head(name_heads(model, *batch, delimiters=range(cases.VOCABULARY)))
    assert list(found) == list(named) == heads_of(model)
    for attention in attentions_of(model):
        weights, scores = seen[f"{attention}.weights"], seen[f"{attention}.scores"]
        for head in (head for head in found if head.attention == attention):
            widths, far, previous, chances = [], [], [], []
            for row, row_scores in zip(weights[:, head.number], scores[:, head.number], strict=True):
                for q, (query, given) in enumerate(zip(row.tolist(), row_scores.tolist(), strict=True)):
                    visible = [k for k, score in enumerate(given) if score != -math.inf]
                    if not visible:
                        continue
                    widths.append(-sum(query[k] * math.log(query[k]) for k in visible))
                    far.append(sum(query[k] * abs(q - k) for k in visible))
                    if q - 1 in visible and len(visible) > 1:
                        previous.append(query[q - 1])
                        chances.append(1 / len(visible))
            assert found[head].entropy == pytest.approx(sum(widths) / len(widths), abs=1e-5)
            assert found[head].distance == pytest.approx(sum(far) / len(far), abs=1e-5)
            score = named[head].scores["previous-token"]
            assert score == pytest.approx((sum(previous) / len(previous), sum(chances) / len(chances)), abs=1e-5)
            assert ("induction" in named[head].scores) is (family != "vision" and head.kind == "attention")
            assert ("delimiter" in named[head].scores) is (family != "vision")


def text_batch() -> tuple[Any, ...]:
    laid = cases.padded(cases.sentences([5, 3]), room=1)
    return laid.tokens, laid.layout


def pair_batch() -> tuple[Any, ...]:
    source, target = cases.padded(cases.sentences([5, 3])), cases.padded(cases.sentences([4, 6], seed=1))
    return source.tokens, target.tokens, source.layout, target.layout


BATCHES = {
    "encoder": text_batch,
    "decoder": text_batch,
    "encoder-decoder": pair_batch,
    "vision": lambda: (torch.randn(2, 2, 8, 12),),
}


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_packed_batches_give_what_padded_ones_do(family: str) -> None:
    model: Any = cases.unsettled(build(cases.FAMILIES[family](position=blocks.Rotary())))
    sides = [cases.sentences([5, 3]), cases.sentences([4, 6], seed=1)][: 1 if family == "decoder" else 2]
    plain = [cases.padded(side) for side in sides]
    packed = cases.packed(*sides, widths=[None] * len(sides))
    batches = [(*(one.tokens for one in laid), *(one.layout for one in laid)) for laid in (plain, packed)]
    one, other = ([(found.scores, found.name) for found in name_heads(model, *batch)] for batch in batches)
    for (first, name), (second, again) in zip(one, other, strict=True):
        assert name == again
        assert {kind: pytest.approx(tuple(score), abs=1e-5) for kind, score in first.items()} == second
    for first_spread, second_spread in zip(*(spreads(model, *batch) for batch in batches), strict=True):
        assert tuple(first_spread[1:]) == pytest.approx(tuple(second_spread[1:]), abs=1e-5)


# ---------------------------------------------------------------------------------------------------------------- kinds


def test_an_induction_model_is_found_out() -> None:
    model = inductive()
    found = by_head(name_heads(model, torch.arange(12).reshape(2, 6)))
    names = {(head.layer, head.number): one.name for head, one in found.items()}
    assert names == {(0, 0): "previous-token", (0, 1): None, (1, 0): "induction", (1, 1): None}
    previous = found[Head("decoder", 0, "attention", 0)]
    assert previous.score == pytest.approx(1.0, abs=1e-3)
    assert previous.chance == pytest.approx(sum(1 / n for n in range(2, 7)) / 5, abs=1e-6)


def test_induction_needs_the_same_words_again() -> None:
    """With words that do not repeat within a copy the head is always right; a uniform one gets what chance gives."""
    found = induction(inductive(), length=6, count=3, tokens=range(WORDS))
    chance = sum(1 / n for n in range(7, 13)) / 6
    right, uniform = found[Head("decoder", 1, "attention", 0)], found[Head("decoder", 1, "attention", 1)]
    assert right.value > 0.85
    assert right.chance == pytest.approx(chance)
    assert uniform.value == pytest.approx(chance, abs=1e-6)
    assert found[Head("decoder", 0, "attention", 0)].value == pytest.approx(0.0, abs=1e-3)


def test_heads_that_look_at_the_first_token_at_delimiters_ahead_and_at_themselves() -> None:
    model = blank()
    with torch.no_grad():
        for layer, number, wanted in ((0, 0, 0), (0, 1, None), (1, 0, None)):
            attention = model.decoder[layer].attention
            rows = slice(number * WORDS, (number + 1) * WORDS)
            q, k = attention.q, attention.k
            if layer == 1:  # a place asks for itself
                q.weight[rows][:PLACES, :PLACES] = SHARP * torch.eye(PLACES)
                k.weight[rows][:PLACES, :PLACES] = torch.eye(PLACES)
                continue
            q.bias[number * WORDS] = SHARP
            if wanted is not None:
                k.weight[number * WORDS, wanted] = 1.0  # the first place
            else:
                k.weight[number * WORDS, PLACES + 9] = 1.0  # word 9
    tokens = torch.tensor([[1, 9, 2, 3, 9, 4]])
    found = by_head(name_heads(model, tokens, delimiters=[9]))
    first, marks, same, nothing = (found[head] for head in heads_of(model))
    assert [one.name for one in (first, marks, same, nothing)] == ["first-token", "delimiter", "same-position", None]
    # Queries 1 to 5 see one or two of the marks, among 2 to 6 keys.
    assert marks.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 2 / 5 + 2 / 6) / 5)
    assert marks.score == pytest.approx(1.0, abs=1e-3)
    assert first.scores["first-token"].chance == pytest.approx(sum(1 / n for n in range(2, 7)) / 5)
    assert "next-token" not in first.scores  # no one sees it
    assert found[heads_of(model)[3]].score == pytest.approx(nothing.chance, abs=1e-5)


def test_scores_between_chance_and_nothing_else() -> None:
    assert Score(0.25, 0.25).lift == 0
    assert Score(1.0, 0.25).lift == 1
    assert Score(0.625, 0.25).lift == pytest.approx(0.5)
    assert Score(1.0, 1.0).lift == 0


def test_what_cannot_be_measured() -> None:
    vision = build(cases.vision())
    with pytest.raises(InputError, match="reads no tokens to repeat"):
        induction(vision)
    with pytest.raises(InputError, match="no tokens at place 1 or no layout at place 3"):
        spreads(build(cases.encoder_decoder()).eval(), torch.tensor([[1, 2]]))
