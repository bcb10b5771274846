"""Lens view: the last layer is the model's own output, the others are computed by hand."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from study_cases import run_of, token_run
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.lens import lens, outputs_of
from regard.models import settings
from regard.models.build import build

TOKENS, SOURCE = [1, 5, 3, 7], [4, 8, 1]
OUTPUTS = [("decoder", "output"), ("encoder-decoder", "output")]
OUTPUTS += [("encoder", name) for name in ("masked", "next", "class", "tags")]


def test_layers_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("pre", "post"):
        for family, output in OUTPUTS:
            model: Any = cases.unsettled(build(cases.FAMILIES[family](norm_place=place)))
            ids = [SOURCE, TOKENS] if family == "encoder-decoder" else [TOKENS]
            study, run = token_run(model, *ids)
            found = lens(study, run, output)
            stack = "encoder" if family == "encoder" else "decoder"
            names = [f"{stack}.residual", f"{stack}.0.residual", f"{stack}.1.residual"]
            assert [layer["name"] for layer in found["layers"]] == names
            head = model.heads[output] if family == "encoder" else model.output
            norm, count = getattr(model, stack).norm or (lambda x: x), len(found["final"])
            with torch.no_grad(), regard.record(model, *names) as seen:
                own = model(*(torch.tensor([each]) for each in ids))
                logits = head(own) if family == "encoder" else own
            assert found["final"] == logits.reshape(count, -1).argmax(-1).tolist()
            for layer, name in zip(found["layers"], names, strict=True):
                with torch.no_grad():
                    chances = head(norm(seen[name])).softmax(-1).reshape(count, -1)
                assert_close(torch.tensor(layer["chances"]), chances.topk(min(5, chances.shape[1]))[0])
                assert_close(torch.tensor(layer["entropy"]), -(chances * chances.log()).sum(-1))
                for i, (row, answer, actual) in enumerate(zip(chances, found["final"], found["actual"], strict=True)):
                    assert layer["tokens"][i][0] == int(row.argmax())
                    for kind, token in (("final", answer), ("actual", actual)):
                        if token is not None:
                            assert layer[f"{kind}_chance"][i] == pytest.approx(float(row[token]), abs=1e-6)
                            assert layer[f"{kind}_rank"][i] == int((row > row[token]).sum())
            with monkeypatch.context() as patch:
                patch.setattr("regard.look.views.lens.MAX_LOGITS", 3 * cases.VOCABULARY)
                assert lens(study, run, output)["layers"][1]["final_rank"] == found["layers"][1]["final_rank"]


def test_errors(studies: dict[str, Study]) -> None:
    assert outputs_of(build(cases.encoder())) == ["masked", "next", "class", "tags"]
    silent = build(settings.Encoder(**cases.body(vocabulary=9, heads={"all": settings.Pooling()}))).eval()
    with pytest.raises(InputError, match="needs a head"):
        lens(*token_run(silent, TOKENS))
    with pytest.raises(InputError, match=r"output \(nothing\) must be masked or label"):
        lens(*run_of(studies, "encoder"), "nothing")


def test_page_answers_agree_with_the_run(studies: dict[str, Study]) -> None:
    for family, output in (("decoder", "output"), ("vision", "label")):
        study, run = run_of(studies, family)
        found = lens(study, run, output)
        answer = next(each for each in run.answers if each.name == output)
        last = found["layers"][-1]
        for i, row in enumerate(answer.rows):
            assert [each.chance for each in row.candidates] == pytest.approx(last["chances"][i], abs=1e-5)
            assert found["texts"][found["final"][i]] == row.candidates[0].text
        assert len(answer.rows) == len(found["final"])
        assert found["each"] == answer.each


def test_shares_and_first_layers_by_hand(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder", "ein Hund läuft ein")
    found = lens(study, run)
    firsts = [[row[0] for row in layer["tokens"]] for layer in found["layers"]]
    for i, answer in enumerate(found["final"]):
        saying = [layer for layer, row in enumerate(firsts) if row[i] == answer]
        stays = [layer for layer in saying if all(other in saying for other in range(layer, len(firsts)))]
        assert (found["first"][i], found["settled"][i]) == (saying[0], min(stays))
    assert found["constant"] == max(map(found["final"].count, found["final"])) / len(found["final"])
    for layer, row in zip(found["layers"], firsts, strict=True):
        agrees = [a == b for a, b in zip(row, found["final"], strict=True)]
        assert layer["agrees"] == pytest.approx(sum(agrees) / len(row))
    assert found["choices"] == study.loaded.settings.vocabulary  # type: ignore[union-attr]
    assert found["actual"][-1] is None is found["layers"][0]["actual_chance"][-1]
