"""Recurrent models: their equations in NumPy, caches, layouts, and what depends on what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import family_cases as cases
import numpy as np
import pytest
import torch
from predecessor_cases import WRITERS, convolutional, lstm, recurrent, softmax
from torch import Tensor
from torch.nn import functional

import regard
from regard.blocks.layout import Padded
from regard.data.columns import IGNORED
from regard.errors import InputError, RegardError, SettingsError
from regard.look.views import views_of
from regard.models import settings
from regard.models.build import build
from regard.serving.page_file import page_file
from regard.tasks.language import both_labels
from regard.tasks.task import load_task
from regard.training.report import Display
from regard.weights.convert import Form, convert
from regard.weights.directory import load_model, save_model

SOURCES, TARGETS = cases.sentences([5, 1, 7, 3], 1), cases.sentences([4, 6, 1, 3], 2)


def exact(model: Any) -> Any:
    torch.manual_seed(5)
    return cases.unsettled(build(model, dtype=torch.float64))


def alone(model: Any) -> list[Tensor]:
    """The logits of each pair in a batch of its own."""
    return [
        model(torch.tensor([source]), torch.tensor([target]))[0]
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]


def arrays(module: torch.nn.Module) -> dict[str, Any]:
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def test_an_lstm_translator_equals_numpy() -> None:
    """Encoder in both directions, additive attention, decoder and output, step by step from the equations."""
    model = exact(recurrent("additive", depth=1, decoder_depth=2, tied=()))
    source, target = SOURCES[0], TARGETS[0]
    logits = model(torch.tensor([source]), torch.tensor([target]))[0].detach().numpy()
    scale = math.sqrt(model.settings.width)
    words = model.source.tokens.weight.detach().numpy()[source] * scale
    encoder = arrays(model.encoder[0])
    memory = np.concatenate([lstm(words, encoder, "l0"), lstm(words[::-1], encoder, "l0_reverse")[::-1]], axis=1)
    layers, half = arrays(model.decoder[0]), memory.shape[1] // 2
    summary = np.concatenate([memory[-1, :half], memory[0, half:]])
    first, second = np.split(np.tanh(layers["start.weight"] @ summary + layers["start.bias"]), 2)
    zero = np.zeros_like(first)
    written = model.target.tokens.weight.detach().numpy()[target] * scale
    queries = lstm(written, arrays(model.decoder[0].first), "l0", (first, zero))
    q = queries @ layers["cross.q.weight"].T + layers["cross.q.bias"]
    k = memory @ layers["cross.k.weight"].T
    weights = softmax(np.tanh(q[:, None] + k[None]) @ layers["cross.v.weight"][0])
    context = weights @ memory
    top = lstm(np.concatenate([queries, context], 1), arrays(model.decoder[0].others), "l0", (second, zero))
    joined = np.tanh(np.concatenate([top, context], 1) @ layers["join.weight"].T + layers["join.bias"])
    expected = joined @ model.output.weight.detach().numpy().T
    np.testing.assert_allclose(logits, expected, atol=1e-12)
    with regard.record(model, "decoder.0.cross.weights") as recording:
        model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(recording["decoder.0.cross.weights"][0, 0], weights, atol=1e-12)


def test_a_convolutional_translator_equals_numpy() -> None:
    model = exact(convolutional(depth=1, tied=()))
    source, target = SOURCES[0], TARGETS[0]
    words, written = (
        math.sqrt(8) * side.tokens.weight.detach().numpy()[ids] + side.position.weight.detach().numpy()[: len(ids)]
        for side, ids in ((model.source, source), (model.target, target))
    )

    def gated(x: Any, weights: dict[str, Any], before: int, after: int) -> Any:
        cells, kernel = np.pad(x, ((before, after), (0, 0))), weights["convolution.weight"]
        both = np.array([np.einsum("oiw,wi->o", kernel, cells[t : t + 3]) for t in range(len(x))])
        value, gate = np.split(both + weights["convolution.bias"], 2, axis=1)
        return value / (1 + np.exp(-gate))

    half = math.sqrt(0.5)
    memory = (words + gated(words, arrays(model.encoder[0]), 1, 1)) * half
    layer = arrays(model.decoder[0])
    state = gated(written, layer, 2, 0)
    asked = (state @ layer["ask.weight"].T + layer["ask.bias"] + written) * half
    weights = softmax(asked @ memory.T)
    context = math.sqrt(len(source)) * weights @ ((memory + words) * half)
    state = (state + context @ layer["answer.weight"].T + layer["answer.bias"]) * half
    expected = (written + state) * half @ model.output.weight.detach().numpy().T
    with regard.record(model, "decoder.0.cross.weights") as recording:
        logits = model(torch.tensor([source]), torch.tensor([target]))[0].detach().numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-12)
    np.testing.assert_allclose(recording["decoder.0.cross.weights"][0, 0], weights, atol=1e-12)


def test_local_attention_is_masked_global_attention() -> None:
    """A window on the scores alone: the same model without one, whose scores outside of it are edited to −∞."""
    for window in (1, 2, 4):
        local = exact(recurrent("general", window=window))
        everywhere = exact(recurrent("general"))
        everywhere.load_state_dict(local.state_dict())
        source, target = torch.tensor([SOURCES[2]]), torch.tensor([TARGETS[1]])
        apart = (torch.arange(target.shape[1])[:, None] - torch.arange(source.shape[1])).abs()
        hide = lambda scores: scores.masked_fill(apart >= window, -math.inf)  # noqa: B023
        with regard.record(everywhere, edit={"decoder.0.cross.scores": hide}):
            expected = everywhere(source, target)
        torch.testing.assert_close(local(source, target), expected, atol=1e-12, rtol=0)
        assert not torch.allclose(expected, everywhere(source, target))


@pytest.mark.parametrize("name", WRITERS)
def test_layouts_change_nothing(name: str) -> None:
    model = exact(WRITERS[name])
    expected = alone(model)
    padded = [cases.padded(side, room=2) for side in (SOURCES, TARGETS)]
    packed = cases.packed(SOURCES, TARGETS, widths=[12, 12])
    for source, target in (padded, packed, cases.packed(SOURCES, TARGETS, widths=[None, None])):
        logits = model(source.tokens, target.tokens, source.layout, target.layout)
        for found, wanted in zip(target.take(logits), expected, strict=True):
            torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", WRITERS)
def test_a_cache_changes_nothing(name: str) -> None:
    """A prompt of two tokens, then one token at a time; and beams that are reordered and dropped."""
    model = exact(WRITERS[name])
    source, target = (
        cases.padded([side[i] for i in (0, 2, 3)]) for side in (SOURCES, [[3, 1, 4, 1], *[[5, 9, 2, 6]] * 3])
    )
    memory = model.encode(source.tokens, source.layout)
    expected = model(source.tokens, target.tokens, source.layout)
    cache = model.new_cache(3)
    steps = [model.output(model.states(target.tokens[:, :2], memory, source.layout, cache=cache))]
    steps += [
        model.output(model.states(target.tokens[:, i : i + 1], memory, source.layout, cache=cache)) for i in (2, 3)
    ]
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-12, rtol=0)
    with pytest.raises(InputError, match="one at a time"):
        model.output(model.states(target.tokens[:, :2], memory, source.layout, cache=cache))
    # Two beams of each input write different tokens; then the inputs 2 and 0 stay, with their beams exchanged.
    cache = model.new_cache(3)
    model.output(model.states(target.tokens[:, :1], memory, source.layout, cache=cache))
    cache.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    model.output(model.states(torch.tensor([[7, 8], [7, 8], [7, 8]]), memory, source.layout, cache=cache))
    kept = torch.tensor([2, 0])
    cache.select(torch.tensor([5, 4, 1, 0]), kept)
    layout = Padded(2, source.layout.time, source.layout.lengths_B[kept])
    found = model.output(model.states(torch.tensor([[2, 3], [2, 3]]), memory[kept], layout, cache=cache))
    for row, number in enumerate((2, 0)):
        for beam, (before, last) in enumerate([(8, 2), (7, 3)]):
            text = torch.tensor([[int(target.tokens[number, 0]), before, last]])
            whole = model(torch.tensor([[SOURCES[i] for i in (0, 2, 3)][number]]), text)[0, -1]
            torch.testing.assert_close(found[row, beam], whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", WRITERS)
def test_no_token_sees_later_ones_and_gradients_reach_all_weights(name: str) -> None:
    model = exact(WRITERS[name])
    source, target = torch.tensor([SOURCES[2]]), torch.tensor([TARGETS[1]])
    logits = model(source, target)
    for place in range(target.shape[1]):
        other = target.clone()
        other[0, place] = (other[0, place] + 1) % cases.VOCABULARY
        changed = (model(source, other) - logits).abs().amax(-1)[0] > 1e-12
        assert not changed[:place].any()
        assert changed[place]
    logits.square().sum().backward()
    without = {name for name, each in model.named_parameters() if each.grad is None or not each.grad.any()}
    assert not without


def test_a_resnet_equals_its_formula() -> None:
    """Each layer by torch.nn.functional, in float64; and the head over the mean of the cells."""
    heads: dict[str, settings.ImageHead] = {"label": settings.Classification(classes=3, pooling="mean")}
    model = exact(settings.ResNet(width=32, depth=1, image=(8, 12), channels=1, dropout=0.0, heads=heads))
    images = torch.randn(2, 1, 8, 12, dtype=torch.float64)
    weights = dict(model.named_parameters())
    x = functional.conv2d(images, weights["encoder.stem.weight"], padding=1)
    for number, stride in enumerate((1, 2, 2)):
        path, added = f"encoder.{number}", x
        for i, by in enumerate((stride, 1)):
            scale, shift = (weights[f"{path}.norms.{i}.{name}"] for name in ("weight", "bias"))
            added = functional.relu(functional.group_norm(added, 8, scale, shift))
            added = functional.conv2d(added, weights[f"{path}.convolutions.{i}.weight"], stride=by, padding=1)
        x = added + (x if stride == 1 else functional.conv2d(x, weights[f"{path}.skip.weight"], stride=stride))
    x = functional.relu(functional.group_norm(x, 8, weights["encoder.norm.weight"], weights["encoder.norm.bias"]))
    hidden = model(images)
    assert hidden.shape == (2, model.settings.tokens, 32)
    torch.testing.assert_close(hidden, x.flatten(2).mT)
    linear = weights["heads.label.output.weight"], weights["heads.label.output.bias"]
    torch.testing.assert_close(model.heads["label"](hidden), functional.linear(x.mean((2, 3)), *linear))
    with pytest.raises(InputError, match="shape"):
        model(images[:, 0])


def test_an_image_lstm_equals_numpy() -> None:
    """Patches row by row, through two layers of two directions; and the head over the mean of the states."""
    heads: dict[str, settings.ImageHead] = {"label": settings.Classification(classes=3, pooling="mean")}
    size: dict[str, Any] = {"image": (4, 6), "patch": 2, "channels": 3}
    model = exact(settings.ImageLstm(width=8, depth=2, dropout=0.0, heads=heads, **size))
    images = torch.randn(1, 3, 4, 6, dtype=torch.float64)
    pixels, weight = images[0].numpy(), model.embedding.patches.weight.detach().numpy()
    cells = [pixels[:, row : row + 2, column : column + 2] for row in (0, 2) for column in (0, 2, 4)]
    x = np.array([np.einsum("dcij,cij->d", weight, cell) for cell in cells])
    x += model.embedding.patches.bias.detach().numpy()
    weights = arrays(model.encoder[0])
    for layer in ("l0", "l1"):
        x = np.concatenate([lstm(x, weights, layer), lstm(x[::-1], weights, f"{layer}_reverse")[::-1]], axis=1)
    hidden = model(images)
    assert hidden.shape == (1, model.settings.tokens, 8)
    np.testing.assert_allclose(hidden[0].detach().numpy(), x, atol=1e-12)
    head = arrays(model.heads["label"].output)
    expected = head["weight"] @ x.mean(0) + head["bias"]
    np.testing.assert_allclose(model.heads["label"](hidden)[0].detach().numpy(), expected, atol=1e-12)
    with pytest.raises(InputError, match="patch"):
        model(images[..., :5])


def test_counts() -> None:
    """Parameters and FLOPs by hand: each weight of an LSTM or a convolution is used once for each token."""
    width, vocabulary = 8, cases.VOCABULARY
    counted = regard.count(recurrent("dot", depth=1, bidirectional=False), length=10)
    cell, others = 4 * width * 2 * width, width * width + 2 * width * width
    assert counted.parameters == vocabulary * width + 2 * (cell + 8 * width) + others + 2 * width
    products = 10 * (2 * cell + others + vocabulary * width) + 10 * 10 * 2 * width
    assert counted.flops.sequence == 2 * products
    counted = regard.count(convolutional(depth=1), length=10)
    layer = 2 * width * width * 3
    assert counted.flops.sequence == 2 * (
        10 * (2 * layer + 2 * width * width + vocabulary * width) + 10 * 10 * 2 * width
    )
    image = settings.ResNet(width=32, depth=1, image=(8, 8), channels=1)
    stem, blocks = 8 * 9, [(8, 8, 64), (8, 16, 16), (16, 32, 4)]
    products = 64 * stem + sum(
        cells * (9 * before * after + 9 * after * after + (before != after) * before * after)
        for before, after, cells in blocks
    )
    assert regard.count(image).flops.sequence == 2 * products
    counted = regard.count(settings.ImageLstm(width=8, depth=1, image=(8, 8), channels=1))
    patches, cells = 4 * 4 * 8, 2 * 4 * 4 * (8 + 4)
    assert counted.parameters == patches + 8 + cells + 2 * 2 * 4 * 4
    assert counted.flops.sequence == 2 * 4 * (patches + cells)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "steps"), [({"kind": "resnet"}, 80), ({"kind": "image-lstm", "patch": 2}, 300)])
def test_models_of_images_learn_digits(kind: dict[str, Any], steps: int, tmp_path: Path) -> None:
    recipe = {
        "task": "image",
        "data": {"kind": "digits"},
        "model": {**kind, "image": [8, 8], "channels": 1, "width": 32, "depth": 1},
        "train": {"examples": 64, "steps": steps, "directory": str(tmp_path / "run"), "optimizer": {"rate": 1e-2}},
    }
    run = regard.train(recipe, display=Display(quiet=True), device="cpu")
    assert run.scores["accuracy"] > 0.9
    (found,) = regard.load(run.directory).predict([np.zeros((8, 8, 1), np.uint8)])
    assert set(found["probabilities"]) == set("0123456789")


def test_settings_that_do_not_fit() -> None:
    head = {"label": {"kind": "classification", "pooling": "class"}}
    for kind, table, word in (
        ("recurrent", {"width": 9}, "width"),
        ("recurrent", {"attention": {"score": "last", "window": 3}}, "window"),
        ("recurrent", {"attention": {"score": "cosine"}}, "score"),
        ("recurrent", {"ffn": {"hidden": 3}}, "ffn"),
        ("resnet", {"width": 48}, "width"),
        ("image-lstm", {"width": 9}, "width"),
        ("image-lstm", {"image": [8, 9]}, "patch"),
        ("image-lstm", {"heads": head}, "pooling"),
    ):
        with pytest.raises(SettingsError, match=word):
            regard.settings.parse(settings.AnyModel, {"kind": kind, **table})


def test_elmo_equals_numpy_and_mixes_its_layers() -> None:
    model = exact(settings.Elmo(vocabulary=cases.VOCABULARY, width=8, depth=2, dropout=0.0))
    tokens = SOURCES[2]
    x = model.embedding.tokens.weight.detach().numpy()[tokens] * math.sqrt(4)
    ahead, back, states = x, x, [np.concatenate([x, x], axis=1)]
    for number in range(2):
        weights = arrays(model.encoder.get_submodule(str(number)))
        parts = [
            {name.removeprefix(side): each for name, each in weights.items() if name.startswith(side)}
            for side in ("ahead.", "back.")
        ]
        before = (ahead, back) if number else (0.0, 0.0)
        ahead, back = lstm(ahead, parts[0], "l0") + before[0], lstm(back[::-1], parts[1], "l0")[::-1] + before[1]
        states.append(np.concatenate([ahead, back], axis=1))
    scores, factor = (model.encoder.mix.get_parameter(name).detach().numpy() for name in ("weight", "bias"))
    expected = np.exp(factor[0]) * np.einsum("l,ltd->td", softmax(scores[0]), np.array(states))
    np.testing.assert_allclose(model(torch.tensor([tokens]))[0].detach().numpy(), expected, atol=1e-12)
    fresh = build(settings.Elmo(vocabulary=cases.VOCABULARY, width=8, depth=2)).encoder.mix
    assert not fresh.weight.any()
    assert not fresh.bias.any()


def test_elmo_does_not_see_what_it_predicts() -> None:
    """Token t changes the logits of later tokens in one direction and of earlier tokens in the other, never its own."""
    heads: dict[str, settings.TextHead] = {"language": settings.TwoDirections()}
    model = exact(settings.Elmo(vocabulary=cases.VOCABULARY, width=8, depth=2, dropout=0.0, heads=heads))
    tokens = torch.tensor([SOURCES[2]])
    layout = Padded(1, tokens.shape[1])
    logits = model.heads["language"](model.directions(tokens, layout))
    assert logits.shape == (1, tokens.shape[1], 2, cases.VOCABULARY)
    for place in range(tokens.shape[1]):
        other = tokens.clone()
        other[0, place] = (other[0, place] + 1) % cases.VOCABULARY
        changed = (model.heads["language"](model.directions(other, layout)) - logits).abs().amax(-1)[0] > 1e-12
        # The logits at `place` predict its neighbours; those that predict token `place` are at place ∓ 1.
        assert changed[:, 0].tolist() == [at >= place for at in range(tokens.shape[1])]
        assert changed[:, 1].tolist() == [at <= place for at in range(tokens.shape[1])]


def test_labels_of_both_directions() -> None:
    sequences = [[5, 6, 7], [8, 9]]
    rows = [cases.padded(sequences, room=1), cases.packed(sequences, widths=[8])[0]]
    for laid in rows:
        following = torch.full_like(laid.tokens, IGNORED)
        for cells, sequence in zip(laid.cells, sequences, strict=True):
            for cell, token in zip(cells, [*sequence[1:], 3], strict=True):
                following[cell] = token
        labels = both_labels(laid.tokens, following, laid.layout)
        found = [each.tolist() for each in laid.take(labels)]
        assert found == [[[6, IGNORED], [7, 5], [3, 6]], [[9, IGNORED], [3, 8]]]
        assert int((labels != IGNORED).sum()) == 8


@pytest.mark.slow
def test_elmo_is_trained_and_then_fine_tuned(tmp_path: Path) -> None:
    texts = [f"the {adjective} day was {adjective} again" for adjective in ("good", "bad", "fine", "poor")] * 40
    (tmp_path / "raw.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    lines = [f"{text}\t{'yes' if 'good' in text or 'fine' in text else 'no'}" for text in texts]
    (tmp_path / "labels.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    quiet, losses = Display(quiet=True), []
    for layout in ("padded", "packed"):
        recipe = {
            "task": {"kind": "language", "across": False, "context": 16},
            "data": {"kind": "text", "root": str(tmp_path), "train": ["raw.txt"], "valid": ["raw.txt"]},
            "text": {"kind": "wordpiece", "size": 100},
            "model": {"kind": "elmo", "width": 32, "depth": 2, "dropout": 0.0},
            "train": {
                "tokens": 4096,
                "steps": 60,
                "directory": str(tmp_path / layout),
                "layout": layout,
                "optimizer": {"rate": 1e-2},
            },
        }
        losses.append(regard.train(recipe, display=quiet, device="cpu").scores["loss"])
    elmo = load_task(tmp_path / "padded", regard.load(tmp_path / "padded").network)
    assert elmo.usage.startswith("evaluate {} --suite")  # it cannot generate
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] < 1.5
    tuned = regard.train(
        {
            "task": {"kind": "classify"},
            "data": {"kind": "labelled-tsv", "root": str(tmp_path), "train": ["labels.tsv"], "valid": ["labels.tsv"]},
            "train": {
                "tokens": 1024,
                "steps": 40,
                "start": str(tmp_path / "padded"),
                "directory": str(tmp_path / "yes"),
                "optimizer": {"rate": 1e-2},
            },
        },
        display=quiet,
        device="cpu",
    )
    assert tuned.scores["accuracy"] == 1.0
    loaded = regard.load(tuned.directory)
    assert loaded.settings.kind == "elmo"
    study = regard.Study(loaded)
    run = study.run(regard.Input("the day was good"))
    assert list(views_of(study)) == ["task", "vectors"]
    assert page_file(study, run).views == ["task", "vectors"]
    assert loaded.embed(["the day was good"]).shape == (1, 32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_training_resuming_translating_and_looking(kind: str, tmp_path: Path) -> None:
    """The whole way of a translator, on the embedded grammar."""
    recipe = {
        "task": "translate",
        "data": {"kind": "grammar", "direction": "en-de", "train_pairs": 400},
        "text": {"kind": "words", "shared": False},
        "model": {"kind": kind, "width": 16, "depth": 1, "dropout": 0.0},
        "train": {"tokens": 256, "steps": 8, "directory": str(tmp_path / "half")},
    }
    quiet = Display(quiet=True)
    half = regard.train(recipe, display=quiet, device="cpu", on_step=lambda seen: seen["step"] < 4)
    resumed = regard.resume(half.directory, display=quiet, device="cpu")
    whole = regard.train(recipe, {"train.directory": str(tmp_path / "whole")}, display=quiet, device="cpu")
    assert (half.step, resumed.step) == (4, 8)
    weights = [load_model(each.directory).state_dict() for each in (resumed, whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    translator = regard.load(whole.directory)
    assert isinstance(translator, regard.Translator)
    (best, _) = translator.translate("The dog sleeps.", beam=3, nbest=2, align=True)
    assert isinstance(best, regard.Translation)
    assert best.alignment is not None
    study = regard.Study(translator)
    run = study.run(regard.Input("The dog sleeps."))
    weights_HTS = study.tensor(run.key, "decoder.0.cross.weights")
    torch.testing.assert_close(weights_HTS.sum(-1), torch.ones(weights_HTS.shape[:-1]))
    assert list(views_of(study)) == ["heads", "words", "decode", "vectors", "compare"]
    assert page_file(study, run).views == list(views_of(study))
    forms: tuple[Form, ...] = ("huggingface", "ctranslate2")
    for form in forms:
        with pytest.raises(RegardError, match=kind):
            convert(whole.directory, tmp_path / form, form)


@pytest.mark.parametrize("family", [settings.ResNet, settings.ImageLstm])
def test_the_page_refuses_images_without_attention(family: Any, tmp_path: Path) -> None:
    model = family(width=32, depth=1, image=(8, 8), channels=1)
    save_model(build(model), tmp_path)
    with pytest.raises(InputError, match=model.kind):
        regard.Study(regard.load(tmp_path)).run(regard.Input("text"))
