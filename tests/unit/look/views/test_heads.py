"""Heads view: notes against hand-made attention and loops over recorded weights; rollout against numpy products."""

from __future__ import annotations

import math
from typing import Any

import family_cases as cases
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from study_cases import IMAGE, run_of, token_run

import regard
from regard.blocks import settings as blocks
from regard.errors import InputError
from regard.look.heads import attentions_of
from regard.look.study import Study, StudyRun
from regard.look.views.heads import HeadNote, head_notes, induction, rollout, rollouts_of
from regard.models.build import build
from regard.models.settings import Decoder, Recurrent

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


def all_notes(study: Study, run: StudyRun) -> dict[str, HeadNote]:
    return {head: note for each in attentions_of(study.network) for head, note in head_notes(study, run, each).items()}


def test_every_family_against_loops(studies: dict[str, Study]) -> None:
    torch.manual_seed(3)
    tokens = {"encoder": [[5, 3, 1, 7, 2]], "decoder": [[5, 3, 1]], "encoder-decoder": [[5, 3, 1, 7], [4, 6, 2, 8, 9]]}
    runs = {
        family: token_run(cases.unsettled(build(cases.FAMILIES[family]())), *ids, commas=(1, 2))
        for family, ids in tokens.items()
    }
    for family, (study, run) in (runs | {"vision": run_of(studies, "vision")}).items():
        network: Any = study.network
        batch = [torch.tensor([ids]) for ids in tokens.get(family, ())] or [
            torch.tensor(IMAGE[None] / 127.5 - 1).float()
        ]
        with torch.no_grad(), regard.record(network, "*.weights", "*.scores") as seen:
            network(*batch)
        for head, note in all_notes(study, run).items():
            attention, _, number = head.rpartition(".")
            weights, scores = (seen[f"{attention}.{name}"][0, int(number)].tolist() for name in ("weights", "scores"))
            widths, far, previous, chances = [], [], [], []
            for q, (query, given) in enumerate(zip(weights, scores, strict=True)):
                visible = [k for k, score in enumerate(given) if score != -math.inf]
                widths.append(-sum(query[k] * math.log(query[k]) for k in visible))
                far.append(sum(query[k] * abs(q - k) for k in visible))
                if q - 1 in visible and len(visible) > 1:
                    previous.append(query[q - 1])
                    chances.append(1 / len(visible))
            assert note.entropy == pytest.approx(sum(widths) / len(widths), abs=1e-5), (family, head)
            assert note.distance == pytest.approx(sum(far) / len(far), abs=1e-5), (family, head)
            wanted = (sum(previous) / len(previous), sum(chances) / len(chances))
            assert note.scores["previous-token"] == pytest.approx(wanted, abs=1e-5)
            assert ("induction" in note.scores) is (family != "vision" and attention.endswith(".attention"))
            assert ("delimiter" in note.scores) is (family != "vision")


def test_patterns_of_known_heads() -> None:
    found = all_notes(*token_run(inductive(), list(range(6))))
    assert [note.name for note in found.values()] == ["previous-token", None, "induction", None]
    previous = found["decoder.0.attention.0"]
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
    notes = list(all_notes(*token_run(model, [1, 9, 2, 3, 9, 4], commas=(9,))).values())
    assert [note.name for note in notes] == ["first-token", "delimiter", "same-position", None]
    # Queries 1 to 5 see one or two delimiters among 2 to 6 keys.
    assert notes[1].chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 2 / 5 + 2 / 6) / 5)
    assert notes[1].score == pytest.approx(1.0, abs=1e-3)
    assert "next-token" not in notes[0].scores, "a decoder does not see it"
    assert notes[3].score == pytest.approx(notes[3].chance, abs=1e-5)
    assert notes[3].share == pytest.approx(1.0, abs=1e-5), "this head is uniform"
    assert notes[3].signed == pytest.approx(-sum(t / 2 for t in range(6)) / 6, abs=1e-5)


def test_induction_against_chance_with_different_tokens() -> None:
    model, seen = inductive(), []
    model.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    found = induction(model, length=6)
    chance = sum(1 / n for n in range(7, 13)) / 6
    right, uniform = found["decoder.1.attention"]
    # In this model the very first token sees only itself, so the first query of the second copy finds two keys.
    assert right.value == pytest.approx(11 / 12, abs=1e-3)
    assert right.chance == pytest.approx(chance)
    assert uniform.value == pytest.approx(chance, abs=1e-6)
    assert (uniform.lift, right.lift) == pytest.approx((0, (11 / 12 - chance) / (1 - chance)), abs=1e-3)
    assert found["decoder.0.attention"][0].value == pytest.approx(0.0, abs=1e-3)
    (tokens,) = seen
    assert torch.equal(tokens[:, :6], tokens[:, 6:])
    assert all(len(set(row)) == 6 for row in tokens[:, :6].tolist()), "a repeated token would have two targets"
    assert len({tuple(row) for row in tokens.tolist()}) > 1, "rows differ"


def test_notes_where_there_is_little_to_measure(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator", "", target="")
    alone = head_notes(study, run, "decoder.0.attention")["decoder.0.attention.0"]
    score = induction(study.network)["decoder.0.attention"][0]
    assert (alone.entropy, alone.share, alone.best) == (0, None, "induction")
    assert (alone.score, alone.chance) == pytest.approx((score.value, score.chance))
    with pytest.raises(InputError, match="did you mean decoder"):
        head_notes(study, run, "decoder.0.attentio")


def test_notes_of_a_model_without_self_attention() -> None:
    study, run = token_run(build(Recurrent(vocabulary=9, width=8)).eval(), [4, 3, 5], [1, 5, 3, 2])
    weights_QK = study.tensor(run.key, "decoder.0.cross.weights")[0]
    note = head_notes(study, run, "decoder.0.cross")["decoder.0.cross.0"]
    assert induction(study.network) == {}
    assert note.scores["next-token"].value == pytest.approx(float((weights_QK[0, 1] + weights_QK[1, 2]) / 2))


def step(weights_HTT: Any) -> Any:
    both = np.asarray(weights_HTT, np.float64).mean(0) + np.eye(weights_HTT.shape[-1])
    return both / both.sum(-1, keepdims=True)


def test_rollout_of_an_encoder_decoder() -> None:
    """As one matrix over both sequences: target rows mix, source rows stay; then the source is rolled out."""
    study, run = token_run(cases.unsettled(build(cases.encoder_decoder())), [4, 8, 1, 7], [1, 5, 3])
    assert rollouts_of(study) == ["rollout.encoder", "rollout.decoder", "rollout.source"]
    weights = {name: study.tensor("run", f"{name}.weights").double().numpy() for name in attentions_of(study.network)}
    total = np.eye(7)
    for layer in (0, 1):
        own, cross = np.eye(7), np.eye(7)
        own[:3, :3] = step(weights[f"decoder.{layer}.attention"])
        cross[:3, :3] = 0.5 * np.eye(3)
        cross[:3, 3:] = 0.5 * weights[f"decoder.{layer}.cross"].mean(0)
        total = cross @ own @ total
    read = step(weights["encoder.1.attention"]) @ step(weights["encoder.0.attention"])
    for name, wanted in (("decoder", total[:3, :3]), ("source", total[:3, 3:] @ read), ("encoder", read)):
        assert_allclose(rollout(study, run, f"rollout.{name}").numpy(), wanted, atol=1e-6)
    with pytest.raises(InputError, match=r"must be rollout\.encoder or"):
        rollout(study, run, "rollout.nothing")
