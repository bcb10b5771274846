"""A study against the model itself, whatever was asked before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from study_cases import IMAGE, TEXT, run_of

import regard
from regard.blocks.edits import Ablate
from regard.errors import InputError
from regard.look.input import Input
from regard.look.study import Study
from regard.use.translator import Translator


def test_a_translation_is_the_models_own(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator")
    loaded = study.loaded
    assert isinstance(loaded, Translator)
    source, target = run.sides["encoder"], run.sides["decoder"]
    assert source.ids == loaded.tokenizers.inputs([TEXT], ["en"])[0]
    chances = [each.actual.chance for each in run.answers[0].rows if each.actual is not None]
    with torch.inference_mode():
        scores = loaded.network(torch.tensor([source.ids]), torch.tensor([target.ids]))[0].softmax(-1)
    follows = [*target.ids[1:], loaded.frame.ends.end]
    assert np.allclose(chances, [float(scores[i, token]) for i, token in enumerate(follows)], atol=1e-5)
    given = study.run(Input(TEXT, "the dog", to="en"))
    assert given.sides["decoder"].text == "the dog"
    assert given.written == target.text


def test_weights_are_the_models_own_and_changes_apply(studies: dict[str, Study]) -> None:
    study, plain = run_of(studies, "decoder")
    silent = study.run(Input(TEXT, ablated=("decoder.0.attention.1",)))
    network, tokens, name = study.network, torch.tensor([plain.sides["decoder"].ids]), "decoder.1.attention.weights"
    with regard.record(network, name) as seen:
        network(tokens)
    with regard.record(network, name, edit={"decoder.0.attention.heads": Ablate([1])}) as edited:
        scores = network(tokens)[0, -1].softmax(-1)
    assert torch.equal(study.tensor(plain.key, name), seen.calls(name)[0][0])
    assert torch.equal(study.tensor(silent.key, name), edited.calls(name)[0][0])
    assert silent.answers[0].rows[-1].candidates[0].chance == pytest.approx(float(scores.detach().max()), abs=1e-6)
    assert silent.plain is plain
    assert silent.answers[0].rows[-1].actual is None


def test_classes_and_masked_tokens(studies: dict[str, Study]) -> None:
    names = [(answer.name, answer.each) for answer in run_of(studies, "encoder")[1].answers]
    assert names == [("masked", True), ("label", False)]
    study, run = run_of(studies, "vision")
    pixels = torch.from_numpy(IMAGE)[None].float() / 127.5 - 1
    scores = study.network.heads["label"](study.network(pixels))[0].detach().softmax(-1)  # type: ignore[union-attr]
    found = {each.id: each.chance for each in run.answers[0].rows[0].candidates}
    assert found == pytest.approx(dict(enumerate(scores.tolist())), abs=1e-6)


def test_memory_is_bounded(studies: dict[str, Study]) -> None:
    whole = studies["decoder"]
    small = Study(whole.loaded, room=4000)
    run = small.run(Input("the dog is running through the snow"))
    size = small.tensor(run.key, "decoder.0.attention.weights").nbytes
    for name in ("decoder.0.attention.weights", "decoder.1.attention.weights", "decoder.1.residual"):
        assert torch.equal(small.tensor(run.key, name), whole.tensor(whole.run(run.given).key, name))
        assert small.kept <= 4000 + size
    assert len(small._tensors) < 3


def test_errors(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    for given, message in (
        (Input("x " * 2000), "limit is 1,024"),
        (Input(TEXT, ablated=("decoder.0.attention.2",)), "heads are 0 to 1"),
        (Input(TEXT, ablated=("decoder.9.attention.0",)), "is not in this model"),
        (Input(TEXT, ablated=("<script>",)), "decoder.0.attention.0"),
        (Input(TEXT, image=IMAGE), "vision models"),
    ):
        with pytest.raises(InputError, match=message):
            study.run(given)
    with pytest.raises(InputError, match=r"did you mean decoder\.0\.attention\.weights"):
        study.tensor(run.key, "decoder.0.attention.weight")
    with pytest.raises(InputError, match="run the input again"):
        study.tensor("0" * 20, "decoder.0.residual")
    with pytest.raises(InputError, match="channels, height, width"):
        studies["vision"].run(Input(image=np.zeros((3, 8, 8), np.uint8)))
