"""Notes on heads, against the same figures worked out by hand from the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_vision
from tiny_translator import write_translator

import regard
from regard.look.head_notes import HeadNotes
from regard.look.heads import induction, name_heads
from regard.look.reading import Input
from regard.look.study import Study

TEXT = "ein Hund, und eine Katze."


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu"))


def test_entropy_distance_and_patterns_by_hand(decoder: Study) -> None:
    run = decoder.run(Input(TEXT))
    notes = HeadNotes(decoder).of(run)
    assert set(notes) == {f"decoder.{layer}.attention.{head}" for layer in (0, 1) for head in (0, 1)}
    for layer in (0, 1):
        for head in (0, 1):
            note = notes[f"decoder.{layer}.attention.{head}"]
            weights = decoder.tensor(run.key, f"decoder.{layer}.attention.weights")[head].double().numpy()
            with np.errstate(divide="ignore", invalid="ignore"):
                widths = -np.nansum(weights * np.log(weights), -1)
            places = np.arange(len(weights))
            assert note.entropy == pytest.approx(widths.mean(), abs=1e-5)
            assert note.share == pytest.approx((widths[1:] / np.log(places[1:] + 1)).mean(), abs=1e-5)
            apart = places[:, None] - places[None]
            assert note.distance == pytest.approx((weights * abs(apart)).sum(-1).mean(), abs=1e-4)
            assert note.signed == pytest.approx(-note.distance, abs=1e-4)  # what comes later is not seen


def test_names_are_those_of_name_heads(decoder: Study) -> None:
    run = decoder.run(Input(TEXT))
    ids = run.sides["decoder"].ids
    shown = [token.text for token in run.sides["decoder"].tokens]
    tokenizers = decoder.loaded.tokenizers
    assert tokenizers is not None
    special = {*tokenizers.target.roles.values()}
    marks = [token for token, text in zip(ids, shown, strict=True) if text in (",", ".", "␣") or token in special]
    assert marks
    notes = HeadNotes(decoder).of(run)
    for report in name_heads(decoder.network, torch.tensor([ids]), delimiters=marks):
        note = notes[str(report.head)]
        assert (note.name, note.best) == (report.name, report.best)
        assert note.score == pytest.approx(report.score, abs=1e-6)
        assert note.chance == pytest.approx(report.chance, abs=1e-6)


def test_a_head_that_only_looks_back_by_one_has_that_name(decoder: Study) -> None:
    run = decoder.run(Input(f"{TEXT} {TEXT}"))  # of which nothing is remembered yet
    time = len(run.sides["decoder"].tokens)
    forced = torch.zeros(time, time)
    forced[0, 0] = 1
    forced[torch.arange(1, time), torch.arange(time - 1)] = 1
    before = decoder.changes
    decoder.changes = lambda run: {"decoder.1.attention.weights": regard.edits.Force(forced, [0])}  # type: ignore[method-assign]
    try:
        note = HeadNotes(decoder).of(run)["decoder.1.attention.0"]
    finally:
        decoder.changes = before  # type: ignore[method-assign]
    chance = np.mean([1 / (place + 1) for place in range(1, time)])
    assert (note.name, note.score) == ("previous-token", pytest.approx(1))
    assert note.chance == pytest.approx(chance, abs=1e-6)
    assert (note.entropy, note.share) == (0, 0)


def test_every_family_and_little_to_choose_from(tmp_path: Path) -> None:
    seeing = Study(regard.load(write_vision(tmp_path / "vision"), "cpu"))
    run = seeing.run(Input(image=np.zeros((1, 8, 8), np.uint8)))
    notes = HeadNotes(seeing).of(run)
    assert set(notes) == {"encoder.0.attention.0", "encoder.0.attention.1"}
    assert all(note.best != "induction" for note in notes.values())
    study = Study(regard.load(write_translator(tmp_path / "translator"), "cpu"))
    found = HeadNotes(study).of(study.run(Input("", "", to="en")))
    alone = found["decoder.0.attention.0"]
    assert (alone.entropy, alone.share) == (0, None)  # a single token has nowhere else to look
    assert alone.best == "induction"  # which is looked for in other tokens
    (score,) = [score for head, score in induction(study.network).items() if str(head) == "decoder.0.attention.0"]
    assert (alone.score, alone.chance) == (pytest.approx(score.value), pytest.approx(score.chance))
    assert len(found) == 6
