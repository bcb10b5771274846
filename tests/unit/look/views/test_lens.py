"""Lens view: the last layer is the model's own output, the others are computed by hand."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from study_cases import run_of
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.lens import lens, lens_answer, outputs_of
from regard.models import settings
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])
SOURCE = torch.tensor([[4, 8, 1], [6, 3, 3]])


def test_last_layer_equals_the_model() -> None:
    for place in ("pre", "post"):
        for family in ("decoder", "encoder-decoder", "encoder"):
            model: Any = cases.unsettled(build(cases.FAMILIES[family](norm_place=place)))
            batch = (SOURCE, TOKENS) if family == "encoder-decoder" else (TOKENS,)
            found = lens(model, *batch, top=4)
            with torch.no_grad():
                logits = model(*batch)
                logits = model.heads["masked"](logits) if family == "encoder" else logits
            best, tokens = logits.softmax(-1).topk(4)
            assert_close(found.probabilities[-1], best)
            assert torch.equal(found.tokens[-1], tokens)
            assert torch.equal(found.answers[..., 0], logits.argmax(-1))
            assert int(found.ranks[-1].max()) == 0
            stack = "encoder" if family == "encoder" else "decoder"
            assert found.names == [f"{stack}.residual", f"{stack}.0.residual", f"{stack}.1.residual"]


def test_earlier_layers_and_given_answers_by_hand() -> None:
    model: Any = cases.unsettled(build(cases.decoder(norm_place="pre")))
    answers = torch.tensor([[3, 4, 0, 1], [12, 11, 10, 9]])
    found = lens(model, TOKENS, answers=answers)
    with torch.no_grad(), regard.record(model, "decoder.residual", "decoder.0.residual") as seen:
        model(TOKENS)
    for layer, name in enumerate(("decoder.residual", "decoder.0.residual")):
        with torch.no_grad():
            chances = model.output(model.decoder.norm(seen[name])).softmax(-1)
        for row in range(2):
            for time in range(4):
                each, asked = chances[row, time].tolist(), int(answers[row, time])
                assert float(found.answer_probabilities[layer, row, time, 0]) == pytest.approx(each[asked], abs=1e-6)
                assert int(found.ranks[layer, row, time, 0]) == sum(chance > each[asked] for chance in each)
                assert int(found.tokens[layer, row, time, 0]) == max(range(len(each)), key=each.__getitem__)


def test_packed_batch_and_logits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = cases.unsettled(build(cases.decoder()))
    sequences = cases.sentences([3, 5])
    (laid,) = cases.packed(sequences, widths=[None])
    alone = lens(model, torch.tensor([sequences[1]]))
    assert_close(lens(model, laid.tokens, laid.layout).ranks[:, 3:], alone.ranks[:, 0])
    whole = lens(model, TOKENS)
    monkeypatch.setattr("regard.look.views.lens.MAX_LOGITS", 3 * cases.VOCABULARY)
    for one, other in zip(whole[1:], lens(model, TOKENS)[1:], strict=True):
        assert_close(one, other)


def test_heads_of_an_encoder_by_hand() -> None:
    for place in ("pre", "post"):
        for head in ("next", "class", "tags"):
            model: Any = cases.unsettled(build(cases.encoder(norm_place=place)))
            laid = cases.padded([[1, 5, 3], [2, 2, 9, 4]])
            found = lens(model, laid.tokens, laid.layout, head=head, top=2)
            with torch.no_grad(), regard.record(model, "encoder.0.residual") as seen:
                own = model.heads[head](model(laid.tokens, laid.layout), laid.layout).softmax(-1)
            assert_close(found.probabilities[-1], own.topk(2)[0])
            assert torch.equal(found.answers[..., 0], own.argmax(-1))
            norm = model.encoder.norm or (lambda x: x)
            chances = model.heads[head](norm(seen["encoder.0.residual"]), laid.layout).softmax(-1)
            assert_close(found.answer_probabilities[1], chances.gather(-1, found.answers))
            assert_close(found.entropies[1], -(chances * chances.log()).sum(-1))


def test_errors(studies: dict[str, Study]) -> None:
    assert outputs_of(build(cases.encoder())) == ["masked", "next", "class", "tags"]
    silent = build(settings.Vision(**cases.body(image=(8, 8), patch=4, channels=1, heads={"all": settings.Pooling()})))
    with pytest.raises(InputError, match="needs a masked"):
        lens(silent.eval(), torch.randn(1, 1, 8, 8))
    two = {"one": settings.Masked(), "two": settings.Masked()}
    model = build(settings.Encoder(**cases.body(vocabulary=9, heads=two))).eval()
    with pytest.raises(InputError, match="head='one'"):
        lens(model, TOKENS % 9)
    with pytest.raises(InputError, match=r"head \(three\) must be one or two"):
        lens(model, TOKENS % 9, head="three")
    assert lens(model, TOKENS % 9, head="two").tokens.shape == (3, 2, 4, 5)
    with pytest.raises(InputError, match="masked or label"):
        lens_answer(*run_of(studies, "encoder"), "nothing")


def test_page_answers_agree_with_the_run(studies: dict[str, Study]) -> None:
    for family, output in (
        ("translator", "output"),
        ("decoder", "output"),
        ("encoder", "masked"),
        ("encoder", "label"),
        ("vision", "label"),
    ):
        study, run = run_of(studies, family)
        found = lens_answer(study, run, output)
        answer = next(each for each in run.answers if each.name == output)
        last = found["layers"][-1]
        for i, row in enumerate(answer.rows):
            assert [each.chance for each in row.candidates] == pytest.approx(last["chances"][i], abs=1e-5)
            assert found["texts"][found["final"][i]] == row.candidates[0].text
            if row.actual is not None:
                assert last["actual_chance"][i] == pytest.approx(row.actual.chance, abs=1e-5)
                assert found["texts"][found["actual"][i]] == row.actual.text
        assert len(answer.rows) == len(found["final"])
        assert last["final_rank"] == [0] * len(found["final"])
        assert (last["agrees"], found["each"]) == (1, answer.each)
        assert len(found["layers"]) == study.loaded.settings.depth + 1


def test_shares_and_first_layers_by_hand(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder", "ein Hund läuft ein")
    found = lens_answer(study, run)
    firsts = [[row[0] for row in layer["tokens"]] for layer in found["layers"]]
    for i, answer in enumerate(found["final"]):
        saying = [layer for layer, row in enumerate(firsts) if row[i] == answer]
        stays = [layer for layer in saying if all(other in saying for other in range(layer, len(firsts)))]
        assert (found["first"][i], found["settled"][i]) == (saying[0], min(stays))
    assert found["constant"] == max(map(found["final"].count, found["final"])) / len(found["final"])
    for layer, row in zip(found["layers"], firsts, strict=True):
        agrees = [a == b for a, b in zip(row, found["final"], strict=True)]
        assert layer["agrees"] == pytest.approx(sum(agrees) / len(row))
        known = [(a, b) for a, b in zip(row, found["actual"], strict=True) if b is not None]
        assert layer["right"] == pytest.approx(sum(a == b for a, b in known) / len(known))
    assert found["choices"] == study.loaded.settings.vocabulary  # type: ignore[union-attr]
    assert found["actual"][-1] is None is found["layers"][0]["actual_chance"][-1]
