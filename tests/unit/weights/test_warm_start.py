"""Starting from other weights: what is copied, adapted, left fresh and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.testing import assert_close
from warm_start_cases import (
    BERT,
    GPT2,
    IMAGES,
    PAIR,
    PLAIN,
    SIZE,
    TEXT,
    TEXT_FAMILIES,
    UNCOMPARED,
    WORDS,
    adopted,
    answers,
    extend,
    message,
    pair,
    start_of,
    states,
    trained,
    words,
)

import regard
from regard.blocks.settings import LinearScaling, Rotary
from regard.models.settings import Classification, Decoder, Encoder, Masked, Spans, Tagging
from regard.text.tokenizer import TokenizerPair, write_huggingface
from regard.weights.directory import save_model
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.warm_start import read_start, warm_start


def test_the_same_settings_give_the_same_answers() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        new, found, _ = adopted(settings, old, (pair(), pair()))
        assert torch.equal(answers(new), answers(old))
        assert found.copied == len(dict(old.named_parameters()))
        assert (found.fitted, found.fresh, found.dropped, found.notes) == ({}, (), (), ())
        assert found.text() == f"{found.copied} tensors copied from runs/old"
    old = trained(IMAGES)
    new, found, _ = adopted(IMAGES, old)
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    assert torch.equal(new.heads["digits"](new(images)), old.heads["digits"](old(images)))
    assert found.notes == ()


def test_settings_of_training_may_differ() -> None:
    old = trained(GPT2.changed({"layer_scale": 0.1}))
    changes = {"dropout": 0.3, "attention.dropout": 0.1, "ffn.dropout": 0.2, "stochastic_depth": 0.1}
    changes |= {"initial.kind": "xavier", "layer_scale": 0.5, "attention.head_size": 8, "ffn.hidden": 64}  # type: ignore[dict-item]
    new, found, _ = adopted(GPT2.changed(changes), old)
    assert torch.equal(answers(new), answers(old))
    assert found.notes == (UNCOMPARED,)


def test_a_compiled_model_and_the_random_state() -> None:
    old, new = trained(GPT2), regard.build(GPT2, dtype=torch.float64).eval()
    warm_start(torch.compile(new, backend="eager"), start_of(old))
    assert torch.equal(answers(new), answers(old))
    with torch.no_grad():  # nothing is shared
        before = answers(old)
        for parameter in new.parameters():
            parameter.zero_()
    assert torch.equal(answers(old), before)
    model = regard.build(GPT2.changed({"vocabulary": SIZE + 1}))
    state = torch.random.get_rng_state()
    warm_start(model, start_of(old, pair()), pair(extend(words(), ["<de>"])))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_model_keeps_its_dtype_and_its_parameters() -> None:
    old, more = trained(PAIR), extend(words(), ["<de>"])
    for dtype in (torch.bfloat16, torch.float32):
        model: Any = regard.build(PAIR.changed({"vocabulary": SIZE + 1, "position.length": 9}), dtype=dtype)
        model.encoder[0].ffn.up.weight.requires_grad_(False)
        parameters = {name: (parameter, parameter.requires_grad) for name, parameter in model.named_parameters()}
        warm_start(model, start_of(old, pair()), pair(more))
        for name, parameter in model.named_parameters():
            assert parameter is parameters[name][0]
            assert parameter.requires_grad == parameters[name][1]
            assert parameter.dtype == dtype
        assert torch.equal(model.source.tokens.weight[:SIZE], old.source.tokens.weight.to(dtype))
        assert torch.equal(model.target.position.weight[:8], old.target.position.weight.to(dtype))


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
        "not used: heads.words.dense, heads.words.norm, heads.words.output, heads.mood.pool, heads.mood.output",
    ]


def test_other_classes_and_kinds() -> None:
    """The pooler fits and is copied; logits of other classes start fresh, and so do heads of another kind."""
    old = trained(BERT)
    new, found, before = adopted(BERT.changed({"heads.mood.classes": 7}), old, (pair(), pair()))
    assert torch.equal(new.heads["mood"].pool.weight, old.heads["mood"].pool.weight)
    assert found.fresh == found.dropped == ("heads.mood.output.weight", "heads.mood.output.bias")
    assert torch.equal(new.heads["mood"].output.weight, before["heads.mood.output.weight"])
    spans, tags = (Encoder(**PLAIN, heads={"it": head}) for head in (Spans(), Tagging(classes=2)))  # type: ignore[dict-item]
    _, found, _ = adopted(spans, trained(tags), (pair(), pair()))
    assert found.fresh == found.dropped == ("heads.it.output.weight", "heads.it.output.bias")


def test_a_masked_head_has_a_row_for_each_token() -> None:
    untied = BERT.changed({"heads.words.tied": False})
    old = trained(untied)
    order = list(reversed(range(SIZE)))
    new, found, _ = adopted(untied, old, (pair(), pair(words([WORDS[i] for i in order]))))
    assert torch.equal(new.heads["words"].output.weight, old.heads["words"].output.weight[order])
    assert torch.equal(new.heads["words"].output.bias, old.heads["words"].output.bias[order])
    assert set(found.fitted) == {"embedding.tokens.weight", "heads.words.output.weight", "heads.words.output.bias"}


def test_more_and_fewer_positions_and_an_offset() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        new, found, before = adopted(settings.changed({"position.length": 11}), old, (pair(), pair()))
        assert torch.equal(answers(new), answers(old))
        tables = [name for name in before if name.endswith("position.weight")]
        assert found.fitted == dict.fromkeys(tables, "8 positions copied, 3 new")
        for name in tables:
            assert torch.equal(dict(new.named_parameters())[name][8:], before[name][8:])
    old = trained(GPT2)
    new, found, _ = adopted(GPT2.changed({"position.length": 6}), old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    assert found.fitted == {"embedding.position.weight": "6 positions copied, 2 not used"}
    # With an offset of 2, row 2 is position 0, as in RoBERTa.
    old = trained(GPT2.changed({"position.offset": 2}))
    new, *_ = adopted(GPT2, old, (pair(), pair()))
    assert torch.equal(answers(new), answers(old))
    longer, *_ = adopted(GPT2.changed({"position": {"offset": 2, "length": 9}}), old, (pair(), pair()))
    assert torch.equal(longer.embedding.position.weight[:10], old.embedding.position.weight)


def test_another_image_size() -> None:
    """The old model resizes its positions for larger images; the new one has them in that size."""
    old = trained(IMAGES)
    new, found, _ = adopted(IMAGES.changed({"image": [16, 20]}), old)
    images = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    assert_close(new(images), old(images), rtol=0, atol=1e-13)
    assert found.fitted == {"embedding.position.weight": "resized from 2 × 3 to 4 × 5 patches"}
    assert torch.equal(new.embedding.position.first, old.embedding.position.first)


def test_settings_that_training_adapts_to() -> None:
    plain = Decoder(**PLAIN, position=Rotary())
    settings = plain.changed({"position.base": 50_000.0, "attention.window": 4})
    settings = settings.model_copy(update={"position": Rotary(base=50_000.0, scaling=LinearScaling(factor=2.0))})
    new, found, _ = adopted(settings, trained(plain), (pair(), pair()))
    assert found.copied == len(list(new.parameters()))
    keys = ["attention.window is 4 and was none", "position.base is 50000.0 and was 10000.0"]
    keys += ["position.scaling.kind is linear and was none", "position.scaling.factor is 2.0 and was none"]
    assert [note.partition(":")[0] for note in found.notes] == keys


def test_new_tokens_do_not_change_the_others() -> None:
    for settings in TEXT_FAMILIES:
        old, more = trained(settings), extend(words(), ["<de>", "<fr>"])
        new, found, _ = adopted(settings.changed({"vocabulary": SIZE + 2}), old, (pair(), pair(more)))
        assert torch.equal(states(new), states(old))
        parameters = dict(new.named_parameters())
        for name, parameter in old.named_parameters():
            assert torch.equal(parameters[name][: len(parameter)], parameter), name
        # Not to the bit: a wider product may sum in another order.
        assert_close(answers(new)[..., :SIZE], answers(old), rtol=0, atol=1e-13)
        assert set(found.fitted.values()) == {f"{SIZE} tokens copied, 2 new, near the mean of the old"}


def test_a_new_token_gets_at_most_an_average_probability() -> None:
    """The logit of the mean row is the mean of the logits, and the exponential of a mean is below the mean of them."""
    old, more = trained(GPT2), extend(words(), ["<de>", "<fr>"])
    new, *_ = adopted(GPT2.changed({"vocabulary": SIZE + 2}), old, (pair(), pair(more)))
    assert_close(answers(new)[..., SIZE], answers(old).mean(-1), rtol=0, atol=0.1)
    assert answers(new).softmax(-1)[..., SIZE:].max() < 1 / SIZE
    rows = new.embedding.tokens.weight
    mean, deviation = rows[:SIZE].mean(0), rows[:SIZE].std(0)
    assert not torch.equal(rows[SIZE], rows[SIZE + 1])
    assert ((rows[SIZE:] - mean).abs() < 0.1 * deviation).all()
    assert_close(new.output.bias[SIZE:], old.output.bias.mean().expand(2))
    tokens, settings = (pair(), pair(extend(words(), ["<de>"]))), GPT2.changed({"vocabulary": SIZE + 1})
    drawn = [adopted(settings, old, tokens, seed=seed)[0].embedding.tokens.weight[-1] for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_another_order_gives_the_same_answers_in_that_order() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(5))
        shuffled = words([WORDS[i] for i in order.tolist()])
        new, found, _ = adopted(settings, old, (pair(), pair(shuffled)))
        place = torch.argsort(order)
        assert_close(answers(new, place[TEXT]), answers(old)[..., order], rtol=0, atol=1e-13)
        assert set(found.fitted.values()) == {f"{SIZE} tokens copied"}


def test_fewer_tokens() -> None:
    old, kept = trained(GPT2), words([*WORDS[:4], "n", "a", "new"])
    new, found, _ = adopted(GPT2.changed({"vocabulary": 7}), old, (pair(), pair(kept)))
    rows = [0, 1, 2, 3, WORDS.index("n"), WORDS.index("a")]
    assert torch.equal(new.embedding.tokens.weight[:6], old.embedding.tokens.weight[rows])
    assert torch.equal(new.output.bias[:6], old.output.bias[rows])
    how = "6 tokens copied, 1 new, near the mean of the old, 14 not used"
    assert found.fitted == dict.fromkeys(["embedding.tokens.weight", "output.bias"], how)
    assert found.text().splitlines()[1:] == [f"{name}: {how}" for name, how in found.fitted.items()]


def test_a_special_token_takes_the_row_of_its_role() -> None:
    """Under another name, or of a similar role; a role that the old tokenizer lacks is new."""
    old = trained(GPT2)
    other = words(["[PAD]", "[CLS]", "<mask>", *WORDS[3:]], pad="[PAD]", class_token="[CLS]", mask="<mask>")
    new, *_ = adopted(GPT2, old, (pair(), pair(other)))
    rows, old_rows = new.embedding.tokens.weight, old.embedding.tokens.weight
    assert torch.equal(rows[[0, 1, 4]], old_rows[[0, 1, 4]])
    assert not torch.equal(rows[2], old_rows[2])


def test_rows_without_a_token() -> None:
    """A vocabulary is often rounded up: unused rows keep their place, and a new token does not take one over."""
    settings = GPT2.changed({"vocabulary": SIZE + 4})
    old, more = trained(settings), extend(words(), ["<de>"])
    new, found, _ = adopted(settings, old, (pair(), pair(more)))
    rows, old_rows = new.embedding.tokens.weight, old.embedding.tokens.weight
    assert torch.equal(rows[:SIZE], old_rows[:SIZE])
    assert torch.equal(rows[SIZE + 1 :], old_rows[SIZE + 1 :])
    assert ((rows[SIZE] - old_rows[:SIZE].mean(0)).abs() < 0.1 * old_rows.std(0)).all()
    assert found.fitted["output.bias"] == f"{SIZE + 3} tokens copied, 1 new, near the mean of the old"


def test_two_vocabularies() -> None:
    """Each side by its own tokenizers; a side without changes is copied."""
    separate = PAIR.changed({"tied": ["target", "output"], "target_vocabulary": 7})
    targets = ["<pad>", "<s>", "</s>", "<unk>", "x", "y", "z"]
    old = trained(separate)
    settings = separate.changed({"target_vocabulary": 8})
    tokens = TokenizerPair(words(), words(targets)), TokenizerPair(words(), words(["z", *targets[:6], "new"]))
    new, found, _ = adopted(settings, old, tokens)
    assert torch.equal(new.source.tokens.weight, old.source.tokens.weight)
    assert torch.equal(new.target.tokens.weight[:7], old.target.tokens.weight[[6, 0, 1, 2, 3, 4, 5]])
    assert set(found.fitted) == {"target.tokens.weight", "output.bias"}
    # Three tied matrices stay one.
    old, more = trained(PAIR), extend(words(), ["<de>"])
    new, found, _ = adopted(PAIR.changed({"vocabulary": SIZE + 1}), old, (pair(), pair(more)))
    assert new.source.tokens.weight is new.target.tokens.weight
    assert list(found.fitted) == ["source.tokens.weight", "output.bias"]
    with torch.no_grad():
        new.source.tokens.weight.mul_(2)
        hidden = new.states(TEXT, new.encode(TEXT))
    assert_close(answers(new), hidden @ new.target.tokens.weight.T + new.output.bias)


def test_without_both_tokenizers_equal_sizes_are_copied() -> None:
    old = trained(GPT2)
    for tokens in ((None, None), (pair(), None), (None, pair())):
        new, found, _ = adopted(GPT2, old, tokens)
        assert torch.equal(answers(new), answers(old))
        assert found.notes == (UNCOMPARED,)
        assert found.text().splitlines()[-1] == UNCOMPARED


def test_settings_that_cannot_be_adapted() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"width": 32, "ffn.hidden": 64, "attention.head_size": 8}, "model.width=16,"),
        ({"depth": 3}, "depth is 3 here and 2 there; set model.depth=2,"),
        ({"tied": False}, "model.tied=true,"),
        ({"norm.kind": "rms"}, "model.norm.kind=layer,"),
        ({"position.kind": "rotary"}, "model.position.kind=learned,"),
        ({"layer_scale": 0.1}, "model.layer_scale=none,"),
        (
            {"attention.bias": False, "output_bias": False},
            "model.attention.bias=true, model.attention.output_bias=true, model.output_bias=true,",
        ),
    ]
    for changes, remedy in cases:
        model = regard.build(GPT2.changed(changes))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        assert remedy in message(lambda model=model: warm_start(model, start_of(trained(GPT2))))  # type: ignore[misc]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert "set model.kind=decoder," in message(lambda: adopted(BERT, trained(GPT2)))
    plain = Decoder(**PLAIN)  # the base of sinusoids is not learned again
    other = plain.changed({"position.base": 20_000.0})
    assert "position.base is 20000.0 here" in message(lambda: adopted(other, trained(plain)))


def test_vocabularies_that_cannot_be_matched() -> None:
    wider, old, more = GPT2.changed({"vocabulary": 23}), trained(GPT2), pair(extend(words(), ["<de>"]))
    two = TokenizerPair(words(), words([*WORDS[:-1], "other"]))
    assert "the model has no tokenizer" in message(lambda: adopted(wider, old, (pair(), None)))
    assert "runs/old has no tokenizer.json" in message(lambda: adopted(wider, old, (None, pair())))
    assert "model.vocabulary (20) is smaller" in message(lambda: adopted(GPT2, old, (pair(), more)))
    assert "text.shared=true" in message(lambda: adopted(PAIR, trained(PAIR), (pair(), two)))


def test_a_run_directory(tmp_path: Path) -> None:
    old = trained(PAIR)
    save_model(old, tmp_path / "one")
    pair().save(tmp_path / "one")
    start = read_start(tmp_path / "one")
    assert (start.settings, start.tokenizer, start.source) == (PAIR, pair(), str(tmp_path / "one"))
    model: Any = regard.build(PAIR, dtype=torch.float64).eval()
    warm_start(model, start, pair())
    assert torch.equal(answers(model), answers(old))
    two = TokenizerPair(words(), words(["<unk>", "x"]))
    save_model(old, tmp_path / "two")
    two.save(tmp_path / "two")
    assert read_start(str(tmp_path / "two")).tokenizer == two
    save_model(trained(IMAGES), tmp_path / "images")
    assert read_start(tmp_path / "images").tokenizer is None


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    """Tokens by their names, a masked head by its name there, with a new token and a new head."""
    bert = BERT.model_copy(update={"heads": {"masked": Masked()}})
    for name, settings in {"gpt2": GPT2.changed({"output_bias": False}), "bert": bert}.items():
        old = trained(settings, torch.float32)
        write_pretrained(old, tmp_path / name)
        write_huggingface(words(), tmp_path / name)
        start = read_start(tmp_path / name)
        assert start.tokenizer is not None
        assert start.tokenizer.source == words()
        wider = settings.changed({"vocabulary": SIZE + 1})
        if isinstance(settings, Encoder):
            wider = wider.changed({"heads.topic.kind": "tagging"})
        new: Any = regard.build(wider).eval()
        found = warm_start(new, start, pair(extend(words(), ["<de>"])))
        assert torch.equal(new.embedding.tokens.weight[:SIZE], old.embedding.tokens.weight)
        assert torch.equal(states(new), states(old))
        heads = ("heads.topic.output.weight", "heads.topic.output.bias") if isinstance(settings, Encoder) else ()
        assert found.fresh == heads
