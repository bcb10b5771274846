"""Attribution view: scores add up to the log probabilities, which are those of the model in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from study_cases import run_of

from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.attribution import AttributionRequest, attribution_of


def test_scores_add_up_to_the_log_probability(studies: dict[str, Study]) -> None:
    for family, place in (("translator", 1), ("decoder", 2), ("encoder", 1), ("vision", 0)):
        study, run = run_of(studies, family)
        found = attribution_of(study, run, AttributionRequest(run=run.key, place=place))
        best, _, share = found["answers"][0]
        assert found["answer"] == best
        assert share == max(each[2] for each in found["answers"])
        for stack, side in found["stacks"].items():
            assert len(side["scores"]) == len(run.sides[stack].tokens)
            assert side["value"] == pytest.approx(torch.tensor(share).log().item(), abs=1e-4)
            most = max(map(abs, side["scores"]))
            gap = sum(side["scores"]) - (side["value"] - side["baseline"])
            assert abs(gap) <= side["error"] * most + 1e-5
            assert side["error"] < 0.05
        if family in ("translator", "decoder"):
            assert found["stacks"]["decoder"]["scores"][place + 1 :] == pytest.approx(
                [0.0] * (len(run.sides["decoder"].tokens) - place - 1), abs=1e-7
            ), "what comes later has no influence"


def test_the_baseline_is_a_text_of_masks(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "encoder")
    tokenizers = study.loaded.tokenizers
    assert tokenizers is not None
    mask = tokenizers.source.roles["mask"]
    network = copy.deepcopy(study.network).double()
    ids = torch.tensor([run.sides["encoder"].ids])
    for output, place in (("masked", 2), ("label", 0)):
        found = attribution_of(study, run, AttributionRequest(run=run.key, output=output, place=place, answer=1))
        side = found["stacks"]["encoder"]
        for key, tokens in (("value", ids), ("baseline", torch.full_like(ids, mask))):
            logits = network.heads[output](network(tokens))  # type: ignore[operator,index]
            row = logits[0, place] if output == "masked" else logits[0]
            assert side[key] == pytest.approx(float(row.detach().log_softmax(-1)[1]), abs=1e-4)
        assert found["outputs"] == ["masked", "label"]
        assert side["start"] == tokenizers.source.token(mask)


def test_changed_heads_count(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator")
    _, changed = run_of(studies, "translator", ablated=("decoder.0.cross.1",))
    values = [
        attribution_of(study, each, AttributionRequest(run=each.key, place=1, answer=9))["stacks"]["encoder"]["value"]
        for each in (run, changed)
    ]
    assert abs(values[0] - values[1]) > 1e-6


def test_errors(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    for changes, named in (({"output": "tags"}, "output"), ({"place": 99}, "place"), ({"answer": 10**6}, "answer")):
        with pytest.raises(InputError, match=named):
            attribution_of(study, run, AttributionRequest(run=run.key, **changes))


def test_an_encoder_begins_with_its_mask(studies: dict[str, Study]) -> None:
    for text, wanted in (("ein <mask> läuft", "<mask>"), ("ein Hund", None)):
        study, run = run_of(studies, "encoder", text)
        place = attribution_of(study, run, AttributionRequest(run=run.key))["place"]
        side = run.sides["encoder"]
        assert side.tokens[place].text == (wanted or side.tokens[-2].text), "not the token that ends the text"
    study, run = run_of(studies, "decoder")
    place = attribution_of(study, run, AttributionRequest(run=run.key))["place"]
    assert place == len(run.sides["decoder"].tokens) - 1
