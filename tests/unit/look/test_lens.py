"""The logit lens: its last layer is the model's own output, the others are worked out by hand."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch.testing import assert_close

import regard
from regard.errors import InputError
from regard.look.lens import lens, outputs_of
from regard.models import settings
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])
SOURCE = torch.tensor([[4, 8, 1], [6, 3, 3]])


def own_output(model: Any, batch: tuple[Any, ...]) -> torch.Tensor:
    with torch.no_grad():
        out = model(*batch)
        return out if not isinstance(model.settings, settings.Encoder) else model.heads["masked"](out)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder", "encoder"])
def test_the_last_layer_says_what_the_model_says(family: str, place: str) -> None:
    model: Any = cases.unsettled(build(cases.FAMILIES[family](norm_place=place)))
    batch = (SOURCE, TOKENS) if family == "encoder-decoder" else (TOKENS,)
    found = lens(model, *batch, top=4)
    scores = own_output(model, batch)
    best, tokens = scores.softmax(-1).topk(4)
    assert_close(found.probabilities[-1], best)
    assert torch.equal(found.tokens[-1], tokens)
    assert torch.equal(found.answers, scores.argmax(-1))
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
                assert float(found.answer_probabilities[layer, row, time]) == pytest.approx(each[asked], abs=1e-6)
                assert int(found.ranks[layer, row, time]) == sum(chance > each[asked] for chance in each)
                assert int(found.tokens[layer, row, time, 0]) == max(range(len(each)), key=each.__getitem__)


def test_a_packed_batch() -> None:
    model: Any = cases.unsettled(build(cases.decoder()))
    sequences = cases.sentences([3, 5])
    (laid,) = cases.packed(sequences, widths=[None])
    found = lens(model, laid.tokens, laid.layout)
    alone = lens(model, torch.tensor([sequences[1]]))
    assert_close(found.answer_probabilities[:, 3:], alone.answer_probabilities[:, 0])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("head", ["next", "class", "tags"])
def test_classes_by_hand(head: str, place: str) -> None:
    model: Any = cases.unsettled(build(cases.encoder(norm_place=place)))
    laid = cases.padded([[1, 5, 3], [2, 2, 9, 4]])
    found = lens(model, laid.tokens, laid.layout, head=head, top=2)
    with torch.no_grad(), regard.record(model, "encoder.0.residual") as seen:
        hidden = model(laid.tokens, laid.layout)
    own = model.heads[head](hidden, laid.layout).softmax(-1)
    assert_close(found.probabilities[-1], own.topk(2)[0])
    assert torch.equal(found.answers, own.argmax(-1))
    norm = model.encoder.norm or (lambda x: x)
    chances = model.heads[head](norm(seen["encoder.0.residual"]), laid.layout).softmax(-1)
    assert_close(found.answer_probabilities[1], chances.gather(-1, found.answers[..., None])[..., 0])
    assert_close(found.entropies[1], -(chances * chances.log()).sum(-1))


def test_an_image() -> None:
    model: Any = cases.unsettled(build(cases.vision()))
    images = torch.randn(2, 2, 8, 12)
    found = lens(model, images)
    assert_close(found.probabilities[-1], model.heads["class"](model(images)).softmax(-1).sort(descending=True)[0])
    assert found.tokens.shape == (3, 2, 3)


def test_a_long_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = cases.unsettled(build(cases.decoder()))
    whole = lens(model, TOKENS)
    monkeypatch.setattr("regard.look.lens.AT_ONCE", 3 * cases.VOCABULARY)
    for one, other in zip(whole[1:], lens(model, TOKENS)[1:], strict=True):
        assert_close(one, other)


def test_models_that_say_nothing() -> None:
    assert outputs_of(build(cases.encoder())) == ["masked", "next", "class", "tags"]
    silent = build(settings.Vision(**cases.body(image=(8, 8), patch=4, channels=1, heads={"all": settings.Pooling()})))
    with pytest.raises(InputError, match="kind vision without a head that answers says nothing"):
        lens(silent.eval(), torch.randn(1, 1, 8, 8))
    two = {"one": settings.Masked(), "two": settings.Masked()}
    model = build(settings.Encoder(**cases.body(vocabulary=9, heads=two))).eval()
    with pytest.raises(InputError, match="there are 2 heads that answer; choose one: head='one'"):
        lens(model, TOKENS % 9)
    with pytest.raises(InputError, match=r"head \(three\) is not one that layers can be read by; choose one or two"):
        lens(model, TOKENS % 9, head="three")
    assert lens(model, TOKENS % 9, head="two").tokens.shape == (3, 2, 4, 5)
