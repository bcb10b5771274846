"""Starting from other weights: what is taken, what stays fresh, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from adopt_cases import (
    BERT,
    GPT2,
    IMAGES,
    PAIR,
    PLAIN,
    SIZE,
    UNCOMPARED,
    WORDS,
    adopted,
    answers,
    by_text_family,
    extend,
    message,
    pair,
    start_of,
    states,
    trained,
    words,
)
from torch.testing import assert_close

import regard
from regard.blocks.settings import LinearScaling, Rotary
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    Masked,
    ModelSettings,
    Spans,
    Tagging,
)
from regard.text.tokenizer import TokenizerPair, write_huggingface
from regard.weights.adopt import Start, adopt, read_start
from regard.weights.directory import save_model
from regard.weights.huggingface.directory import write_pretrained

# ---------------------------------------------------------------------------------------------------------- all alike


@by_text_family
def test_the_same_settings_give_the_same_answers(settings: ModelSettings) -> None:
    old = trained(settings)
    new, found, _ = adopted(settings, old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    assert found.copied == len(dict(old.named_parameters()))
    assert (found.fitted, found.fresh, found.dropped, found.notes) == ({}, (), (), ())
    assert found.text() == f"{found.copied} tensors taken from runs/old as they are"


def test_an_image_model() -> None:
    old = trained(IMAGES)
    new, found, _ = adopted(IMAGES, old)
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    assert torch.equal(new.heads["digits"](new(images)), old.heads["digits"](old(images)))
    assert found.notes == ()


def test_what_only_training_sees_may_differ() -> None:
    old = trained(GPT2.changed({"layer_scale": 0.1}))
    settings = GPT2.changed(
        {
            "dropout": 0.3,
            "attention.dropout": 0.1,
            "ffn.dropout": 0.2,
            "stochastic_depth": 0.1,
            "initial.kind": "xavier",
            "layer_scale": 0.5,
            "attention.head_size": 8,
            "ffn.hidden": 64,
        }
    )
    new, found, _ = adopted(settings, old)
    assert torch.equal(answers(new), answers(old))
    assert found.notes == (UNCOMPARED,)


def test_a_compiled_model_takes_weights_too() -> None:
    old, new = trained(GPT2), regard.build(GPT2, dtype=torch.float64).eval()
    adopt(torch.compile(new, backend="eager"), start_of(old))
    assert torch.equal(answers(new), answers(old))


# --------------------------------------------------------------------------------------------------------------- heads


def test_a_fresh_head_on_a_trained_encoder() -> None:
    old = trained(BERT)
    settings = BERT.changed({}).model_copy(update={"heads": {"topic": Classification(classes=4, dense=True)}})
    new, found, before = adopted(settings, old, (pair(), pair()))
    assert torch.equal(states(new), states(old))
    fresh = [f"heads.topic.{part}" for part in ("pool.weight", "pool.bias", "output.weight", "output.bias")]
    assert found.fresh == tuple(fresh)
    parameters = dict(new.named_parameters())
    assert all(torch.equal(parameters[name], before[name]) for name in fresh)
    assert {name.split(".")[1] for name in found.dropped} == {"words", "mood"}
    assert found.text().splitlines()[1:] == [
        "new: heads.topic.pool, heads.topic.output",
        "left behind: heads.words.dense, heads.words.norm, heads.words.output, heads.mood.pool, heads.mood.output",
    ]


def test_another_number_of_classes() -> None:
    """The pooler fits and is taken; the scores of classes start afresh."""
    old = trained(BERT)
    new, found, before = adopted(BERT.changed({"heads.mood.classes": 7}), old, (pair(), pair()))
    assert torch.equal(new.heads["mood"].pool.weight, old.heads["mood"].pool.weight)
    assert found.fresh == found.dropped == ("heads.mood.output.weight", "heads.mood.output.bias")
    assert torch.equal(new.heads["mood"].output.weight, before["heads.mood.output.weight"])


def test_a_head_of_another_kind_is_not_taken_though_it_fits() -> None:
    def with_head(head: Any) -> Encoder:
        return Encoder(**PLAIN, heads={"it": head})

    _, found, _ = adopted(with_head(Spans()), trained(with_head(Tagging(classes=2))), (pair(), pair()))
    assert found.fresh == found.dropped == ("heads.it.output.weight", "heads.it.output.bias")


def test_a_head_is_left_out_where_that_is_asked() -> None:
    """Its classes may have got other names."""
    old = trained(BERT)
    new, found, before = adopted(BERT, old, (pair(), pair()), anew=["mood"])
    assert {name.split(".")[1] for name in found.fresh} == {"mood"}
    assert torch.equal(new.heads["mood"].output.weight, before["heads.mood.output.weight"])
    assert torch.equal(answers(new), answers(old))
    assert message(lambda: adopted(BERT, old, anew=["mod"])) == (
        "anew (mod) is no head of the model (did you mean mood?); it has words, mood: name one of them, or leave it out"
    )


def test_a_masked_head_has_a_row_for_each_token() -> None:
    untied = BERT.changed({"heads.words.tied": False})
    old = trained(untied)
    order = list(reversed(range(SIZE)))
    new, found, _ = adopted(untied, old, (pair(), pair(words([WORDS[i] for i in order]))))
    assert torch.equal(new.heads["words"].output.weight, old.heads["words"].output.weight[order])
    assert torch.equal(new.heads["words"].output.bias, old.heads["words"].output.bias[order])
    assert set(found.fitted) == {"embedding.tokens.weight", "heads.words.output.weight", "heads.words.output.bias"}


# ----------------------------------------------------------------------------------------------------------- positions


@by_text_family
def test_more_places(settings: ModelSettings) -> None:
    old = trained(settings)
    new, found, before = adopted(settings.changed({"position.length": 11}), old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    tables = [name for name in before if name.endswith("position.weight")]
    assert found.fitted == dict.fromkeys(tables, "8 places taken, 3 new")
    for name in tables:
        assert torch.equal(dict(new.named_parameters())[name][8:], before[name][8:])


def test_fewer_places() -> None:
    old = trained(GPT2)
    new, found, _ = adopted(GPT2.changed({"position.length": 6}), old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    assert found.fitted == {"embedding.position.weight": "6 places taken, 2 left behind"}


def test_places_behind_unused_rows() -> None:
    """Row 2 is place 0 where two rows are unused, as in RoBERTa."""
    old = trained(GPT2.changed({"position.offset": 2}))
    new, *_ = adopted(GPT2, old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    longer, *_ = adopted(GPT2.changed({"position": {"offset": 2, "length": 9}}), old, (pair(), pair()))
    assert torch.equal(longer.embedding.position.weight[:10], old.embedding.position.weight)


def test_another_grid_of_patches() -> None:
    """The old model resizes its positions for every larger image; the new one has them in that size."""
    old = trained(IMAGES)
    new, found, _ = adopted(IMAGES.changed({"image": [16, 20]}), old)
    images = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    assert_close(new(images), old(images), rtol=0, atol=1e-13)
    assert found.fitted == {"embedding.position.weight": "resized from 2 × 3 to 4 × 5 patches"}
    assert torch.equal(new.embedding.position.first, old.embedding.position.first)


def test_settings_that_training_gets_used_to() -> None:
    plain = Decoder(**PLAIN, position=Rotary())
    settings = plain.changed({"position.base": 50_000.0, "attention.window": 4})
    settings = settings.model_copy(update={"position": Rotary(base=50_000.0, scaling=LinearScaling(factor=2.0))})
    new, found, _ = adopted(settings, trained(plain), (pair(), pair()))
    assert found.copied == len(list(new.parameters()))
    assert found.notes == tuple(
        f"{change}: training has to get used to it"
        for change in (
            "attention.window is 4 and was none",
            "position.base is 50000.0 and was 10000.0",
            "position.scaling.kind is linear and was none",
            "position.scaling.factor is 2.0 and was none",
        )
    )


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"width": 32, "ffn.hidden": 64, "attention.head_size": 8},
            "width is 32 here and 16 there; set model.width=16",
        ),
        ({"depth": 3}, "depth is 3 here and 2 there; set model.depth=2"),
        ({"tied": False}, "tied is false here and true there; set model.tied=true"),
        ({"norm.kind": "rms"}, "norm.kind is rms here and layer there; set model.norm.kind=layer"),
        (
            {"position.kind": "rotary"},
            "position.kind is rotary here and learned there; set model.position.kind=learned",
        ),
        ({"layer_scale": 0.1}, "layer_scale is 0.1 here and none there; set model.layer_scale=none"),
        (
            {"attention.bias": False, "output_bias": False},
            "attention.bias is false here and true there, attention.output_bias is false here and true there, "
            "output_bias is false here and true there; "
            "set model.attention.bias=true, model.attention.output_bias=true, model.output_bias=true",
        ),
    ],
)
def test_what_cannot_be_fitted(changes: dict[str, Any], said: str) -> None:
    old, model = trained(GPT2), regard.build(GPT2.changed(changes))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert message(lambda: adopt(model, start_of(old))) == (
        f"the model cannot start from runs/old: {said}, or choose another train.start"
    )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_another_family() -> None:
    assert message(lambda: adopted(BERT, trained(GPT2))) == (
        "the model cannot start from runs/old: kind is encoder here and decoder there; set model.kind=decoder, "
        "or choose another train.start"
    )


def test_the_base_of_sinusoids_is_not_learnt_again() -> None:
    plain = Decoder(**PLAIN)
    assert "position.base is 20000.0 here" in message(
        lambda: adopted(plain.changed({"position.base": 20_000.0}), trained(plain))
    )


def test_tensors_that_are_not_those_of_the_settings() -> None:
    old, model = start_of(trained(GPT2)), regard.build(GPT2)
    lacking = {name: tensor for name, tensor in old.tensors.items() if name != "output.bias"}
    assert message(lambda: adopt(model, Start(GPT2, lacking, None, "runs/old"))).startswith(
        "runs/old lacks 1 tensor: output.bias; "
    )
    whole = {name: tensor.to(torch.int8) for name, tensor in old.tensors.items()}
    assert "in runs/old is torch.int8" in message(lambda: adopt(model, Start(GPT2, whole, None, "runs/old")))


def test_a_model_without_memory() -> None:
    model = regard.build(GPT2, device="meta")
    assert message(lambda: adopt(model, start_of(trained(GPT2)))) == (
        "the model has no memory (device meta), so it can take no weights; build it on a device"
    )


# ---------------------------------------------------------------------------------------------------- types and places


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_model_keeps_its_own_type_and_its_own_parameters(dtype: torch.dtype) -> None:
    old, more = trained(PAIR), extend(words(), ["<de>"])
    model: Any = regard.build(PAIR.changed({"vocabulary": SIZE + 1, "position.length": 9}), dtype=dtype)
    model.encoder[0].ffn.up.weight.requires_grad_(False)
    parameters = {name: (parameter, parameter.requires_grad) for name, parameter in model.named_parameters()}
    adopt(model, start_of(old, pair()), pair(more))
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name][0]
        assert parameter.requires_grad == parameters[name][1]
        assert parameter.dtype == dtype
    assert torch.equal(model.source.tokens.weight[:SIZE], old.source.tokens.weight.to(dtype))
    assert torch.equal(model.target.position.weight[:8], old.target.position.weight.to(dtype))


def test_the_start_is_not_changed_and_not_shared() -> None:
    old = trained(GPT2)
    new, *_ = adopted(GPT2, old)
    before = answers(old)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.zero_()
    assert torch.equal(answers(old), before)


# --------------------------------------------------------------------------------------------------------- directories


def test_a_run_directory(tmp_path: Path) -> None:
    old = trained(PAIR)
    save_model(old, tmp_path)
    pair().save(tmp_path)
    start = read_start(tmp_path)
    assert (start.settings, start.tokenizer, start.source) == (PAIR, pair(), str(tmp_path))
    model: Any = regard.build(PAIR, dtype=torch.float64).eval()
    found = adopt(model, start, pair())
    assert torch.equal(answers(model), answers(old))
    assert found.text().startswith(f"{found.copied} tensors taken from {tmp_path} ")


def test_a_run_directory_with_two_tokenizers(tmp_path: Path) -> None:
    two = TokenizerPair(words(), words(["<unk>", "x"]))
    save_model(trained(PAIR), tmp_path)
    two.save(tmp_path)
    assert read_start(str(tmp_path)).tokenizer == two


def test_a_directory_without_a_tokenizer(tmp_path: Path) -> None:
    save_model(trained(IMAGES), tmp_path)
    assert read_start(tmp_path).tokenizer is None


@pytest.mark.parametrize("settings", [GPT2.changed({"output_bias": False}), BERT], ids=["gpt2", "bert"])
def test_a_hugging_face_directory(settings: Any, tmp_path: Path) -> None:
    """Its words by their names, its masked head by the name that it has there, with a new token and a new head."""
    if isinstance(settings, Encoder):
        settings = settings.model_copy(update={"heads": {"masked": Masked()}})
    old = trained(settings, torch.float32)
    write_pretrained(old, tmp_path)
    write_huggingface(words(), tmp_path)
    start = read_start(tmp_path)
    assert start.tokenizer is not None
    assert start.tokenizer.source == words()
    wider = settings.changed({"vocabulary": SIZE + 1})
    if isinstance(settings, Encoder):
        wider = wider.changed({"heads.topic.kind": "tagging"})
    new: Any = regard.build(wider).eval()
    found = adopt(new, start, pair(extend(words(), ["<de>"])))
    rows = dict(new.named_parameters())
    assert torch.equal(rows["embedding.tokens.weight"][:SIZE], old.embedding.tokens.weight)
    assert torch.equal(states(new), states(old))
    heads = ("heads.topic.output.weight", "heads.topic.output.bias") if isinstance(settings, Encoder) else ()
    assert found.fresh == heads
