"""Recurrent models: their equations in NumPy, caches, layouts, and what depends on what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import family_cases as cases
import numpy as np
import pytest
import torch
from predecessor_cases import WRITERS, lstm, recurrent, softmax
from torch import Tensor

import regard
from regard.blocks.layout import Padded
from regard.errors import InputError, RegardError, SettingsError
from regard.look.views import views_of
from regard.models import settings
from regard.models.build import build
from regard.serving.page_file import page_file
from regard.training.report import Display
from regard.weights.convert import Form, convert
from regard.weights.directory import load_model

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
    steps = [model.decode(target.tokens[:, :2], memory, source.layout, cache=cache)]
    steps += [model.decode(target.tokens[:, i : i + 1], memory, source.layout, cache=cache) for i in (2, 3)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, atol=1e-12, rtol=0)
    with pytest.raises(InputError, match="one at a time"):
        model.decode(target.tokens[:, :2], memory, source.layout, cache=cache)
    # Two beams of each input write different tokens; then the inputs 2 and 0 stay, with their beams exchanged.
    cache = model.new_cache(3)
    model.decode(target.tokens[:, :1], memory, source.layout, cache=cache)
    cache.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    model.decode(torch.tensor([[7, 8], [7, 8], [7, 8]]), memory, source.layout, cache=cache)
    kept = torch.tensor([2, 0])
    cache.select(torch.tensor([5, 4, 1, 0]), kept)
    layout = Padded(2, source.layout.time, source.layout.lengths_B[kept])
    found = model.decode(torch.tensor([[2, 3], [2, 3]]), memory[kept], layout, cache=cache)
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


def test_settings_that_do_not_fit() -> None:
    for table, word in (
        ({"width": 9}, "width"),
        ({"attention": {"score": "last", "window": 3}}, "window"),
        ({"attention": {"score": "cosine"}}, "score"),
        ({"ffn": {"hidden": 3}}, "ffn"),
    ):
        with pytest.raises(SettingsError, match=word):
            regard.settings.parse(settings.AnyModel, {"kind": "recurrent", **table})


@pytest.mark.slow
def test_training_resuming_translating_and_looking(tmp_path: Path) -> None:
    """The whole way of a recurrent translator, on the embedded grammar."""
    recipe = {
        "task": "translate",
        "data": {"kind": "grammar", "direction": "en-de", "train_pairs": 400},
        "text": {"kind": "words", "shared": False},
        "model": {"kind": "recurrent", "width": 16, "depth": 1, "dropout": 0.0},
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
    assert list(views_of(study)) == ["heads", "decode", "vectors", "compare"]
    assert page_file(study, run).views == list(views_of(study))
    forms: tuple[Form, ...] = ("huggingface", "ctranslate2")
    for form in forms:
        with pytest.raises(RegardError, match="recurrent"):
            convert(whole.directory, tmp_path / form, form)
