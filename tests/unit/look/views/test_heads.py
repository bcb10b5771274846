"""Heads view: notes against hand-made attention and loops over recorded weights; rollout against numpy products."""

from __future__ import annotations

import math
from typing import Any

import family_cases as cases
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from study_cases import run_of

import regard
from regard.blocks import settings as blocks
from regard.blocks.layout import Padded
from regard.errors import InputError
from regard.look.heads import HeadAddress, attentions_of, heads_of
from regard.look.study import Study
from regard.look.views.heads import (
    HeadNote,
    head_notes,
    induction,
    notes_on,
    rollout,
    rollout_map,
    rollouts_of,
)
from regard.models.build import build
from regard.models.settings import Decoder

POSITIONS, WORDS = 16, 40
SHARP = 40.0
"""Weights so large that a softmax gives all to one key."""


@torch.no_grad()
def blank() -> Any:
    """Heads with uniform attention and no output; channels are one-hot positions, words, and previous words."""
    settings = Decoder(
        vocabulary=WORDS,
        width=POSITIONS + 2 * WORDS,
        attention=blocks.Attention(heads=2, head_size=WORDS, bias=True),
        position=blocks.Learned(length=POSITIONS),
        depth=2,
        norm_place="pre",
        norm=blocks.RmsNorm(),
        dropout=0.0,
    )
    model = build(settings).eval()
    for name, parameter in model.named_parameters():
        if ".attention." in name or "ffn.down" in name:
            parameter.zero_()
    words, positions = model.embedding.tokens.weight, model.embedding.position.weight
    words.zero_()
    words[:, POSITIONS : POSITIONS + WORDS] = torch.eye(WORDS)
    positions.zero_()
    positions[:, :POSITIONS] = torch.eye(POSITIONS)
    return model


@torch.no_grad()
def inductive() -> Any:
    """Head 0 of layer 0 copies the previous word; head 0 of layer 1 looks for what followed the same word."""
    model = blank()
    before, after = model.decoder[0].attention, model.decoder[1].attention
    before.q.weight[: POSITIONS - 1, 1:POSITIONS] = SHARP * torch.eye(POSITIONS - 1)
    before.k.weight[:POSITIONS, :POSITIONS] = torch.eye(POSITIONS)
    before.v.weight[:WORDS, POSITIONS : POSITIONS + WORDS] = torch.eye(WORDS)
    before.out.weight[POSITIONS + WORDS :, :WORDS] = torch.eye(WORDS)
    after.q.weight[:WORDS, POSITIONS : POSITIONS + WORDS] = SHARP * torch.eye(WORDS)
    after.k.weight[:WORDS, POSITIONS + WORDS :] = torch.eye(WORDS)
    return model


def by_head(notes: list[HeadNote]) -> dict[HeadAddress, HeadNote]:
    return {note.head: note for note in notes}


def test_uniform_heads_without_padding() -> None:
    """Query t of a decoder sees t + 1 keys, at a mean distance of t / 2."""
    model = blank()
    tokens, lengths = torch.zeros(2, 6, dtype=torch.long), [4, 6]
    found = head_notes(model, tokens, Padded.of(torch.tensor(lengths), 6))
    queries = [t for length in lengths for t in range(length)]
    assert [note.head for note in found] == heads_of(model)
    for note in found:
        assert note.entropy == pytest.approx(sum(math.log(t + 1) for t in queries) / len(queries), abs=1e-5)
        assert note.share == pytest.approx(1.0, abs=1e-5)
        assert note.distance == pytest.approx(sum(t / 2 for t in queries) / len(queries), abs=1e-5)
        assert note.signed == pytest.approx(-note.distance)


def text_batch() -> tuple[Any, ...]:
    laid = cases.padded(cases.sentences([5, 3]), room=1)
    return laid.tokens, laid.layout


def pair_batch() -> tuple[Any, ...]:
    source, target = cases.padded(cases.sentences([5, 3])), cases.padded(cases.sentences([4, 6], seed=1))
    return source.tokens, target.tokens, source.layout, target.layout


BATCHES: dict[str, Any] = {
    "encoder": text_batch,
    "decoder": text_batch,
    "encoder-decoder": pair_batch,
    "vision": lambda: (torch.randn(2, 2, 8, 12),),
}


def test_every_family_against_loops() -> None:
    for family, batch_of in BATCHES.items():
        torch.manual_seed(3)
        model: Any = cases.unsettled(build(cases.FAMILIES[family]()))
        batch = batch_of()
        with torch.no_grad(), regard.record(model, "*.weights", "*.scores") as seen:
            model(*batch)
        found = by_head(head_notes(model, *batch, delimiters=range(cases.VOCABULARY)))
        assert list(found) == heads_of(model)
        for head, note in found.items():
            weights, scores = (seen[f"{head.attention}.{name}"][:, head.number] for name in ("weights", "scores"))
            widths, far, previous, chances = [], [], [], []
            for row, row_scores in zip(weights, scores, strict=True):
                for q, (query, given) in enumerate(zip(row.tolist(), row_scores.tolist(), strict=True)):
                    visible = [k for k, score in enumerate(given) if score != -math.inf]
                    if not visible:
                        continue
                    widths.append(-sum(query[k] * math.log(query[k]) for k in visible))
                    far.append(sum(query[k] * abs(q - k) for k in visible))
                    if q - 1 in visible and len(visible) > 1:
                        previous.append(query[q - 1])
                        chances.append(1 / len(visible))
            assert note.entropy == pytest.approx(sum(widths) / len(widths), abs=1e-5), (family, head)
            assert note.distance == pytest.approx(sum(far) / len(far), abs=1e-5), (family, head)
            wanted = (sum(previous) / len(previous), sum(chances) / len(chances))
            assert note.scores["previous-token"] == pytest.approx(wanted, abs=1e-5)
            assert ("induction" in note.scores) is (family != "vision" and head.kind == "attention")
            assert ("delimiter" in note.scores) is (family != "vision")


def test_packed_batches_equal_padded_ones() -> None:
    for family in ("decoder", "encoder-decoder"):
        model: Any = cases.unsettled(build(cases.FAMILIES[family](position=blocks.Rotary())))
        sides = [cases.sentences([5, 3]), cases.sentences([4, 6], seed=1)][: 1 if family == "decoder" else 2]
        plain = [cases.padded(side) for side in sides]
        packed = cases.packed(*sides, widths=[None] * len(sides))
        batches = [(*(one.tokens for one in laid), *(one.layout for one in laid)) for laid in (plain, packed)]
        for one, other in zip(*(head_notes(model, *batch) for batch in batches), strict=True):
            assert one.name == other.name
            assert {name: pytest.approx(tuple(score), abs=1e-5) for name, score in one.scores.items()} == other.scores
            for measure in ("entropy", "share", "distance", "signed"):
                assert getattr(one, measure) == pytest.approx(getattr(other, measure), abs=1e-5)


def test_patterns_of_known_heads() -> None:
    found = by_head(head_notes(inductive(), torch.arange(12).reshape(2, 6)))
    names = {(head.layer, head.number): note.name for head, note in found.items()}
    assert names == {(0, 0): "previous-token", (0, 1): None, (1, 0): "induction", (1, 1): None}
    previous = found[HeadAddress("decoder", 0, "attention", 0)]
    assert previous.score == pytest.approx(1.0, abs=1e-3)
    assert previous.chance == pytest.approx(sum(1 / n for n in range(2, 7)) / 5, abs=1e-6)
    assert previous.distance == pytest.approx(5 / 6, abs=1e-3)  # the first token sees only itself

    model = blank()
    with torch.no_grad():
        first, second = model.decoder[0].attention, model.decoder[1].attention
        first.q.bias[0] = first.q.bias[WORDS] = SHARP
        first.k.weight[0, 0] = 1.0  # head 0 looks at the first position
        first.k.weight[WORDS, POSITIONS + 9] = 1.0  # head 1 looks at word 9
        second.q.weight[:POSITIONS, :POSITIONS] = SHARP * torch.eye(POSITIONS)  # head 0 looks at itself
        second.k.weight[:POSITIONS, :POSITIONS] = torch.eye(POSITIONS)
    notes = head_notes(model, torch.tensor([[1, 9, 2, 3, 9, 4]]), delimiters=[9])
    assert [note.name for note in notes] == ["first-token", "delimiter", "same-position", None]
    # Queries 1 to 5 see one or two delimiters among 2 to 6 keys.
    assert notes[1].chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 2 / 5 + 2 / 6) / 5)
    assert notes[1].score == pytest.approx(1.0, abs=1e-3)
    assert "next-token" not in notes[0].scores, "a decoder does not see it"
    assert notes[3].score == pytest.approx(notes[3].chance, abs=1e-5)


def test_induction_against_chance() -> None:
    found = induction(inductive(), length=6, count=3)
    chance = sum(1 / n for n in range(7, 13)) / 6
    right, uniform = (found[HeadAddress("decoder", 1, "attention", number)] for number in (0, 1))
    # In this model the very first token sees only itself, so the first query of the second copy finds two keys.
    assert right.value == pytest.approx(11 / 12, abs=1e-3)
    assert right.chance == pytest.approx(chance)
    assert uniform.value == pytest.approx(chance, abs=1e-6)
    assert (uniform.lift, right.lift) == pytest.approx((0, (11 / 12 - chance) / (1 - chance)), abs=1e-3)
    assert found[HeadAddress("decoder", 0, "attention", 0)].value == pytest.approx(0.0, abs=1e-3)


def test_induction_draws_tokens_without_replacement() -> None:
    """With replacement, 8 rows of 8 tokens out of 10 would almost surely repeat one."""
    model, seen = blank(), []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    induction(model, length=8, tokens=range(10))
    (tokens,) = seen
    assert torch.equal(tokens[:, :8], tokens[:, 8:])
    assert all(len(set(row)) == 8 for row in tokens[:, :8].tolist())
    assert len({tuple(row) for row in tokens.tolist()}) > 1, "rows differ"
    for wrong, message in (
        (lambda: induction(model, length=11, tokens=range(10)), r"length \(11\)"),
        (lambda: induction(build(cases.vision())), "vision"),
        (lambda: head_notes(build(cases.encoder_decoder()).eval(), torch.tensor([[1, 2]])), "argument 1 must be tok"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


def test_notes_on_a_run_equal_those_on_a_batch(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder", "ein Hund, und eine Katze.")
    side, tokenizers = run.sides["decoder"], study.loaded.tokenizers
    assert tokenizers is not None
    special = {*tokenizers.target.roles.values()}
    marks = [each.id for each in side.tokens if each.text in (",", ".", "␣") or each.id in special]
    assert marks
    found: dict[str, Any] = {}
    for attention in attentions_of(study.network):
        found |= notes_on(study, run, attention)
    for note in head_notes(study.network, torch.tensor([side.ids]), delimiters=marks):
        page = found[str(note.head)]
        assert (page["name"], page["best"]) == (note.name, note.best)
        for measure in ("score", "chance", "entropy", "share", "distance", "signed"):
            assert page[measure] == pytest.approx(getattr(note, measure), abs=1e-5)
    with pytest.raises(InputError, match="did you mean decoder"):
        notes_on(study, run, "decoder.0.attentio")


def test_notes_where_there_is_little_to_measure(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "vision")
    notes = notes_on(study, run, "encoder.0.attention")
    assert set(notes) == {"encoder.0.attention.0", "encoder.0.attention.1"}
    assert all(note["best"] != "induction" for note in notes.values())
    study, run = run_of(studies, "translator", "", target="")
    alone = notes_on(study, run, "decoder.0.attention")["decoder.0.attention.0"]
    assert (alone["entropy"], alone["share"], alone["best"]) == (0, None, "induction")
    score = next(each for head, each in induction(study.network).items() if str(head) == "decoder.0.attention.0")
    assert (alone["score"], alone["chance"]) == pytest.approx((score.value, score.chance))


def step(weights_HTT: Any) -> Any:
    both = np.asarray(weights_HTT, np.float64).mean(0) + np.eye(weights_HTT.shape[-1])
    return both / both.sum(-1, keepdims=True)


def test_rollout_of_one_stack() -> None:
    for family in ("encoder", "decoder", "vision"):
        model: Any = cases.unsettled(build(cases.FAMILIES[family]()))
        batch = (torch.randn(2, 2, 8, 12),) if family == "vision" else (torch.tensor([[1, 5, 3], [2, 2, 9]]),)
        stack = "decoder" if family == "decoder" else "encoder"
        with torch.no_grad(), regard.record(model, "*.weights") as seen:
            model(*batch)
        found = rollout(model, *batch)
        assert found.source_RTS is None
        for row in range(2):
            one, two = (seen[f"{stack}.{layer}.attention.weights"][row].double().numpy() for layer in (0, 1))
            assert_allclose(found.own_RTT[row].numpy(), step(two) @ step(one), atol=1e-6)
        assert_allclose(found.own_RTT.sum(-1).numpy(), 1.0, atol=1e-6)


def test_rollout_of_an_encoder_decoder() -> None:
    """As one matrix over both sequences: target rows mix, source rows stay; then the source is rolled out."""
    model: Any = cases.unsettled(build(cases.encoder_decoder()))
    source, target = torch.tensor([[4, 8, 1, 7]]), torch.tensor([[1, 5, 3]])
    with torch.no_grad(), regard.record(model, "*.weights") as seen:
        model(source, target)
    weights = {name: seen[name][0].double().numpy() for name in seen}
    total = np.eye(7)
    for layer in (0, 1):
        own, cross = np.eye(7), np.eye(7)
        own[:3, :3] = step(weights[f"decoder.{layer}.attention.weights"])
        cross[:3, :3] = 0.5 * np.eye(3)
        cross[:3, 3:] = 0.5 * weights[f"decoder.{layer}.cross.weights"].mean(0)
        total = cross @ own @ total
    read = step(weights["encoder.1.attention.weights"]) @ step(weights["encoder.0.attention.weights"])
    found = rollout(model, source, target)
    assert found.source_RTS is not None
    assert_allclose(found.own_RTT[0].numpy(), total[:3, :3], atol=1e-6)
    assert_allclose(found.source_RTS[0].numpy(), total[:3, 3:] @ read, atol=1e-6)
    assert_allclose(rollout(model, source, target, stack="encoder").own_RTT[0].numpy(), read, atol=1e-6)
    with pytest.raises(InputError, match=r"stack \(encoder\) must be decoder"):
        rollout(build(cases.decoder()).eval(), torch.tensor([[1]]), stack="encoder")


def test_rollout_ignores_padding() -> None:
    model: Any = cases.unsettled(build(cases.encoder()))
    laid = cases.padded(cases.sentences([4, 2]))
    found = rollout(model, laid.tokens, laid.layout).own_RTT
    assert_allclose(found.sum(-1).numpy(), [[1, 1, 1, 1], [1, 1, 0, 0]], atol=1e-6)
    assert float(found[1, :, 2:].abs().max()) == 0
    alone = rollout(model, laid.tokens[1:, :2]).own_RTT
    assert_allclose(found[1, :2, :2].numpy(), alone[0].numpy(), atol=1e-6)


def test_rollout_of_a_run_with_a_silent_head(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator")
    assert rollouts_of(study) == ["rollout.encoder", "rollout.decoder", "rollout.source"]
    found = []
    for each in (run, run_of(studies, "translator", ablated=("encoder.0.attention.0",))[1]):
        encoder, own, cross = (
            study.tensor(each.key, f"{name}.weights").numpy()
            for name in ("encoder.0.attention", "decoder.0.attention", "decoder.0.cross")
        )
        found.append(rollout_map(study, each, "rollout.source")[0].numpy())
        assert_allclose(found[-1], cross.mean(0) @ step(encoder) / 2, atol=1e-6)
        assert_allclose(rollout_map(study, each, "rollout.decoder")[0].numpy(), step(own) / 2, atol=1e-6)
    assert np.abs(found[0] - found[1]).max() > 1e-6
    with pytest.raises(InputError, match=r"must be rollout\.encoder or"):
        rollout_map(study, run, "rollout.nothing")
