"""A study against the model itself: the same numbers, whatever was asked for before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.blocks.edits import Ablate
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Paper, Rules, Sampling
from regard.errors import InputError
from regard.look.reading import Input
from regard.look.stepwise import Choosing, grow_tree, write_stepwise
from regard.look.study import Study
from regard.look.walk import Place, walk
from regard.use.translator import Translator

TEXT = "ein Hund läuft"


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_translator(tmp_path_factory.mktemp("translator")), "cpu"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_encoder(tmp_path_factory.mktemp("encoder")), "cpu"))


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_vision(tmp_path_factory.mktemp("vision")), "cpu"))


def image() -> np.ndarray:
    return np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


def given_to(study: Study) -> Input:
    return Input(image=image()) if study.loaded.settings.kind == "vision" else Input(TEXT, to=_to(study))


def _to(study: Study) -> str | None:
    return "en" if isinstance(study.loaded, Translator) else None


@pytest.fixture(params=["translator", "decoder", "encoder", "vision"])
def study(request: pytest.FixtureRequest) -> Study:
    found: Study = request.getfixturevalue(request.param)
    return found


def test_every_name_can_be_fetched_and_has_the_shape_that_was_told(study: Study) -> None:
    run = study.run(given_to(study))
    for name, shape in run.shapes.items():
        assert list(study.tensor(run.key, name).shape) == shape, name
    assert {name for name in study.names if name.endswith(".weights")} <= run.shapes.keys()


def test_a_translation_is_what_the_model_writes(translator: Study) -> None:
    loaded = translator.loaded
    assert isinstance(loaded, Translator)
    run = translator.run(Input(TEXT, to="en"))
    source, target = run.sides["encoder"], run.sides["decoder"]
    assert source.ids == loaded.tokenizers.inputs([TEXT], ["en"])[0]
    (row,) = loaded.score([TEXT], [target.text], loaded_options())
    chances = [each.actual.chance for each in run.answers[0].rows if each.actual is not None]
    if loaded.tokenizers.target.ids([target.text])[0] == target.ids[1:]:
        assert np.allclose(np.log(chances), row, atol=1e-4)
    with torch.inference_mode():
        scores = loaded.network(torch.tensor([source.ids]), torch.tensor([target.ids]))[0].softmax(-1)
    follows = [*target.ids[1:], loaded.frame.ends.end]
    expected = [float(scores[place, token]) for place, token in enumerate(follows)]
    assert np.allclose(chances, expected, atol=1e-5)


def loaded_options() -> object:
    from regard.use.translation import TranslateOptions

    return TranslateOptions(to="en")


def test_a_given_target_is_read_as_it_is(translator: Study) -> None:
    run = translator.run(Input(TEXT, "the dog", to="en"))
    assert run.sides["decoder"].text == "the dog"
    assert run.written == translator.run(Input(TEXT, to="en")).sides["decoder"].text


def test_weights_are_the_models_own_and_ablation_changes_what_follows(decoder: Study) -> None:
    plain = decoder.run(Input(TEXT))
    silent = decoder.run(Input(TEXT, ablated=("decoder.0.attention.1",)))
    network, tokens = decoder.network, torch.tensor([plain.sides["decoder"].ids])
    with regard.record(network, "decoder.1.attention.weights") as seen:
        network(tokens)
    with regard.record(
        network, "decoder.1.attention.weights", edit={"decoder.0.attention.heads": Ablate([1])}
    ) as edited:
        scores = network(tokens)[0, -1].softmax(-1)
    name = "decoder.1.attention.weights"
    assert torch.equal(decoder.tensor(plain.key, name), seen[name][0])
    assert torch.equal(decoder.tensor(silent.key, name), edited[name][0])
    best = silent.answers[0].rows[-1].candidates[0]
    assert best.chance == pytest.approx(float(scores.detach().max()), abs=1e-6)
    assert silent.plain is plain
    assert silent.answers[0].rows[-1].actual is None


def test_classes_and_gaps(encoder: Study, vision: Study) -> None:
    names = [(answer.name, answer.each) for answer in encoder.run(Input(TEXT)).answers]
    assert names == [("masked", True), ("label", False)]
    (answer,) = vision.run(Input(image=image())).answers
    pixels = torch.from_numpy(image())[None].float() / 127.5 - 1
    network = vision.network
    scores = network.heads["label"](network(pixels))[0].detach().softmax(-1)  # type: ignore[union-attr]
    assert {each.id: each.chance for each in answer.rows[0].candidates} == pytest.approx(
        dict(enumerate(scores.tolist())), abs=1e-6
    )


def test_memory_is_bounded_and_values_are_right_all_the_same(tmp_path: Path, decoder: Study) -> None:
    small = Study(decoder.loaded, room=4000)
    run = small.run(Input("the dog is running through the snow"))
    size = small.tensor(run.key, "decoder.0.attention.weights").nbytes
    for name in ("decoder.0.attention.weights", "decoder.1.attention.weights", "decoder.1.residual"):
        assert torch.equal(small.tensor(run.key, name), decoder.tensor(decoder.run(run.given).key, name))
        assert small.kept <= 4000 + size
    assert len(small._tensors) < 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Input("x " * 2000), "at most 1,024"),
        (Input(TEXT, ablated=("decoder.0.attention.2",)), "from 0 to 1"),
        (Input(TEXT, ablated=("decoder.9.attention.0",)), "is not in this model"),
        (Input(TEXT, ablated=("decoder.0.cross.0",)), "such as decoder.0.attention.0"),
        (Input(TEXT, ablated=("<script>",)), "is not in this model"),
        (Input(TEXT, image=image()), "models that read images"),
    ],
)
def test_what_cannot_be_looked_at_is_told(decoder: Study, given: Input, told: str) -> None:
    with pytest.raises(InputError, match=told):
        decoder.run(given)


def test_wrong_names_and_runs(decoder: Study, vision: Study) -> None:
    run = decoder.run(Input(TEXT))
    with pytest.raises(InputError, match=r"did you mean decoder\.0\.attention\.weights"):
        decoder.tensor(run.key, "decoder.0.attention.weight")
    with pytest.raises(InputError, match="run the input again"):
        decoder.tensor("0" * 20, "decoder.0.residual")
    with pytest.raises(InputError, match="channels, height, width"):
        vision.run(Input(image=np.zeros((3, 8, 8), np.uint8)))
    with pytest.raises(InputError, match="writes nothing"):
        write_stepwise(vision, vision.run(Input(image=image())), Choosing())
    with pytest.raises(InputError, match="is not in this model"):
        walk(decoder, run, Place("encoder"))


def test_the_walk_is_the_papers_arithmetic(study: Study) -> None:
    run = study.run(given_to(study))
    for place in study.attentions:
        steps = {step.name: step for step in walk(study, run, Place(place.stack, 0, place.kind, 1))}
        path = f"{place.stack}.0.{place.kind}"
        q, k, v = (study.tensor(run.key, f"{path}.{part}")[:, 1] for part in "qkv")
        scaled = steps["scale"].numbers
        product = steps["q·k"].numbers
        heads = steps[f"{path}.heads"].numbers
        assert scaled is not None
        assert product is not None
        assert heads is not None
        expected = q @ k.T
        assert np.allclose(product.corner, expected[:6, :6], atol=1e-5)
        assert np.allclose(scaled.corner, expected[:6, :6] / q.shape[-1] ** 0.5, atol=1e-5)
        hidden = torch.full_like(expected, -torch.inf).triu(1)
        masked = place.stack == "decoder" and place.kind == "attention"
        weights = (expected / q.shape[-1] ** 0.5 + (hidden if masked else 0)).softmax(-1)
        assert np.allclose(heads.corner, (weights @ v)[:6, :6], atol=1e-5)


@pytest.mark.parametrize("name", ["translator", "decoder"])
def test_steps_are_those_of_decode(request: pytest.FixtureRequest, name: str) -> None:
    study: Study = request.getfixturevalue(name)
    run = study.run(given_to(study))
    rules = Rules(frequency=0.5, presence=0.25, longest=Absolute(tokens=12))
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=7)
    side = run.sides["encoder" if name == "translator" else "decoder"]
    from regard.look.stepwise import _task

    network, tokens, ends, wish = _task(study, run, ())
    assert tokens == side.ids
    ((found,),) = decode(network, [tokens], ends, sampling, rules, [wish])
    drawn = write_stepwise(study, run, Choosing(sampling, rules, draws=True))
    assert [step.token.id for step in drawn.steps][: len(found.tokens)] == found.tokens
    for step in drawn.steps:
        assert step.kept <= 20
        assert step.token.chance > 0
    likeliest = write_stepwise(study, run, Choosing(rules=rules))
    for step in likeliest.steps:
        assert step.token == step.options[0]
    tree = grow_tree(study, run, Beam(size=3, length=Paper(alpha=1.0)), rules)
    ((best, *_),) = decode(network, [tokens], ends, Beam(size=3, length=Paper(alpha=1.0)), rules, [wish])
    assert tree.found[0].tokens == best.tokens


def test_a_token_chosen_by_hand(decoder: Study) -> None:
    run = decoder.run(Input(TEXT))
    steps = write_stepwise(decoder, run, Choosing(prefix=(70, 71), rules=Rules(longest=Absolute(tokens=4)))).steps
    assert [step.token.id for step in steps[:2]] == [70, 71]
    assert [step.forced for step in steps] == [True, True, False, False][: len(steps)]
