"""Starting from other weights: what is copied, adapted, left fresh and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models
from torch import Tensor, nn
from torch.testing import assert_close

import regard
from regard.blocks.settings import Attention, Dense, Learned, LinearScaling, Normal, Rotary
from regard.errors import WeightsError
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    Masked,
    ModelSettings,
    Spans,
    Tagging,
    Vision,
)
from regard.text.settings import Role
from regard.text.tokenizer import Tokenizer, TokenizerPair, write_huggingface
from regard.weights.directory import save_model
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.warm_start import Start, read_start, warm_start

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnop"]
SIZE = len(WORDS)
TEXT = torch.tensor([[1, 5, 9, 17, 3, 2], [1, 4, 8, 19, 12, 2]])
SMALL: dict[str, Any] = {"width": 16, "depth": 2, "attention": Attention(heads=2), "initial": Normal()}
PLAIN = {**SMALL, "vocabulary": SIZE}
GPT2 = Decoder(**PLAIN, norm_place="pre", position=Learned(length=8), output_bias=True)
BERT = Encoder(
    **PLAIN,
    ffn=Dense(activation="gelu"),
    position=Learned(length=8),
    embedding_norm=True,
    segments=2,
    heads={"words": Masked(), "mood": Classification(classes=3, dense=True)},
)
PAIR = EncoderDecoder(**PLAIN, position=Learned(length=8), output_bias=True)
IMAGES = Vision(**SMALL, image=(8, 12), patch=4, heads={"digits": Classification(classes=5)})
TEXT_FAMILIES: list[ModelSettings] = [GPT2, BERT, PAIR]
UNCOMPARED = "token ids are assumed to be the same: without both tokenizers they cannot be compared"


def words(tokens: list[str] = WORDS, **other: str) -> Tokenizer:
    """A tokenizer with these tokens in this order."""
    inner = tokenizers.Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    names: dict[Role, str] = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>", **other}
    return Tokenizer(inner, {role: token for role, token in names.items() if token in tokens})


def pair(tokenizer: Tokenizer | None = None) -> TokenizerPair:
    return TokenizerPair.of(tokenizer or words())


def extended(*extra: str) -> TokenizerPair:
    """The tokenizer with further special tokens at the end of its vocabulary."""
    inner = tokenizers.Tokenizer.from_str(words().json)
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in extra])
    roles: dict[Role, str] = {role: words().token(number) for role, number in words().roles.items()}
    return pair(Tokenizer(inner, roles, extra, words().settings))


def trained(settings: ModelSettings, dtype: torch.dtype = torch.float64) -> Any:
    """Stands for a trained model: every parameter has values of its own."""
    torch.manual_seed(1)
    model = regard.build(settings, dtype=dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def start_of(model: Any, tokenizer: TokenizerPair | None = None) -> Start:
    return Start(model.settings, dict(model.named_parameters()), tokenizer, "runs/old")


def adopted(
    settings: ModelSettings,
    old: Any,
    there: TokenizerPair | None = None,
    here: TokenizerPair | None = None,
    seed: int = 0,
) -> tuple[Any, list[str], dict[str, Tensor]]:
    """A model that has taken from `old`, the report, and the model's initial values."""
    model: Any = regard.build(settings, dtype=torch.float64).eval()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return model, warm_start(model, start_of(old, there), here, seed), before


@torch.no_grad()
def answers(model: Any, ids: Tensor = TEXT) -> Tensor:
    """Scores over the vocabulary."""
    if isinstance(model.settings, Encoder):
        return model.heads["words"](model(ids))
    return model(ids, ids) if isinstance(model.settings, EncoderDecoder) else model(ids)


@torch.no_grad()
def states(model: Any, ids: Tensor = TEXT) -> Tensor:
    """The last hidden states, on which nothing over the vocabulary but the embeddings has an influence."""
    if isinstance(model.settings, Encoder):
        return model(ids)
    return model.states(ids, model.encode(ids)) if isinstance(model.settings, EncoderDecoder) else model.states(ids)


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(WeightsError) as caught:
        action()
    return str(caught.value)


def test_the_same_settings_give_the_same_answers() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        new, report, _ = adopted(settings, old, pair(), pair())
        assert torch.equal(answers(new), answers(old))
        assert report == [f"{len(dict(old.named_parameters()))} tensors copied from runs/old"]
        for tokens in ((None, None), (pair(), None), (None, pair())):
            new, report, _ = adopted(settings, old, *tokens)
            assert torch.equal(answers(new), answers(old))
            assert report[1:] == [UNCOMPARED]
    old = trained(IMAGES)
    new, report, _ = adopted(IMAGES, old)
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    assert torch.equal(new.heads["digits"](new(images)), old.heads["digits"](old(images)))
    assert len(report) == 1


def test_settings_of_training_may_differ() -> None:
    old = trained(GPT2.changed({"layer_scale": 0.1}))
    changes = {"dropout": 0.3, "attention.dropout": 0.1, "ffn.dropout": 0.2, "stochastic_depth": 0.1}
    changes |= {"initial.kind": "xavier", "layer_scale": 0.5, "attention.head_size": 8, "ffn.hidden": 64}  # type: ignore[dict-item]
    new, report, _ = adopted(GPT2.changed(changes), old)
    assert torch.equal(answers(new), answers(old))
    assert report[1:] == [UNCOMPARED]


def test_settings_that_training_adapts_to() -> None:
    plain = Decoder(**PLAIN, position=Rotary())
    settings = plain.changed({"position.base": 50_000.0, "attention.window": 4})
    settings = settings.model_copy(update={"position": Rotary(base=50_000.0, scaling=LinearScaling(factor=2.0))})
    _, report, _ = adopted(settings, trained(plain), pair(), pair())
    keys = ["attention.window is 4 and was none", "position.base is 50000.0 and was 10000.0"]
    keys += ["position.scaling.kind is linear and was none", "position.scaling.factor is 2.0 and was none"]
    assert [note.partition(":")[0] for note in report[1:]] == keys


def test_compiled_models_dtypes_parameters_and_the_random_state() -> None:
    old, new = trained(GPT2), regard.build(GPT2, dtype=torch.float64).eval()
    warm_start(torch.compile(new, backend="eager"), start_of(old))
    before = answers(old)
    assert torch.equal(answers(new), before)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.zero_()
    assert torch.equal(answers(old), before), "nothing is shared"
    old = trained(PAIR)
    for dtype in (torch.bfloat16, torch.float32):
        model: Any = regard.build(PAIR.changed({"vocabulary": SIZE + 1, "position.length": 9}), dtype=dtype)
        model.encoder[0].ffn.up.weight.requires_grad_(False)
        parameters = {name: (parameter, parameter.requires_grad) for name, parameter in model.named_parameters()}
        state = torch.random.get_rng_state()
        warm_start(model, start_of(old, pair()), extended("<de>"))
        assert torch.equal(torch.random.get_rng_state(), state)
        for name, parameter in model.named_parameters():
            assert parameter is parameters[name][0]
            assert (parameter.requires_grad, parameter.dtype) == (parameters[name][1], dtype)
        assert torch.equal(model.source.tokens.weight[:SIZE], old.source.tokens.weight.to(dtype))
        assert torch.equal(model.target.position.weight[:8], old.target.position.weight.to(dtype))


def test_heads_that_are_new_or_of_other_kinds_and_classes() -> None:
    old = trained(BERT)
    settings = BERT.model_copy(update={"heads": {"topic": Classification(classes=4, dense=True)}})
    new, report, before = adopted(settings, old, pair(), pair())
    assert torch.equal(states(new), states(old))
    assert all(torch.equal(value, before[name]) for name, value in new.named_parameters() if name.startswith("heads"))
    assert report[1:] == [
        "new: heads.topic.pool, heads.topic.output",
        "not used: heads.words.dense, heads.words.norm, heads.words.output, heads.mood.pool, heads.mood.output",
    ]
    # The pooler fits and is copied; logits of other classes start fresh, and so do heads of another kind.
    new, report, before = adopted(BERT.changed({"heads.mood.classes": 7}), old, pair(), pair())
    assert torch.equal(new.heads["mood"].pool.weight, old.heads["mood"].pool.weight)
    assert torch.equal(new.heads["mood"].output.weight, before["heads.mood.output.weight"])
    assert report[1:] == ["new: heads.mood.output", "not used: heads.mood.output"]
    spans, tags = (Encoder(**PLAIN, heads={"it": head}) for head in (Spans(), Tagging(classes=2)))
    assert adopted(spans, trained(tags), pair(), pair())[1][1:] == ["new: heads.it.output", "not used: heads.it.output"]


def test_more_and_fewer_positions_and_an_offset() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        new, report, before = adopted(settings.changed({"position.length": 11}), old, pair(), pair())
        assert torch.equal(answers(new), answers(old))
        tables = [name for name in before if name.endswith("position.weight")]
        assert report[1:] == [f"{name}: 8 of 8 positions copied, 3 new" for name in tables]
        for name in tables:
            assert torch.equal(dict(new.named_parameters())[name][8:], before[name][8:])
    old = trained(GPT2)
    new, report, _ = adopted(GPT2.changed({"position.length": 6}), old, pair(), pair())
    assert torch.equal(answers(new), answers(old))
    assert report[1:] == ["embedding.position.weight: 6 of 8 positions copied, 0 new"]
    # With an offset of 2, row 2 is position 0, as in RoBERTa.
    old = trained(GPT2.changed({"position.offset": 2}))
    assert torch.equal(answers(adopted(GPT2, old, pair(), pair())[0]), answers(old))
    longer, *_ = adopted(GPT2.changed({"position": {"offset": 2, "length": 9}}), old, pair(), pair())
    assert torch.equal(longer.embedding.position.weight[:10], old.embedding.position.weight)


def test_another_image_size() -> None:
    """The old model resizes its positions for larger images; the new one has them in that size."""
    old = trained(IMAGES)
    new, report, _ = adopted(IMAGES.changed({"image": [16, 20]}), old)
    images = torch.randn(2, 3, 16, 20, dtype=torch.float64)
    assert_close(new(images), old(images), rtol=0, atol=1e-13)
    assert report[1:] == ["embedding.position.weight: resized from 2 × 3 to 4 × 5 patches"]
    assert torch.equal(new.embedding.position.first, old.embedding.position.first)


def test_new_tokens_do_not_change_the_others() -> None:
    for settings in TEXT_FAMILIES:
        old = trained(settings)
        new, report, _ = adopted(settings.changed({"vocabulary": SIZE + 2}), old, pair(), extended("<de>", "<fr>"))
        assert torch.equal(states(new), states(old))
        parameters = dict(new.named_parameters())
        for name, parameter in old.named_parameters():
            assert torch.equal(parameters[name][: len(parameter)], parameter), name
        # Not to the bit: a wider product may sum in another order.
        assert_close(answers(new)[..., :SIZE], answers(old), rtol=0, atol=1e-13)
        assert all(f": {SIZE} of {SIZE} rows copied, 2 new" in line for line in report[1:])


def test_a_new_token_gets_at_most_an_average_probability() -> None:
    """The logit of the mean row is the mean of the logits, and the exponential of a mean is below the mean of them."""
    old, settings = trained(GPT2), GPT2.changed({"vocabulary": SIZE + 2})
    drawn = [adopted(settings, old, pair(), extended("<de>", "<fr>"), seed)[0] for seed in (0, 0, 1)]
    new, rows = drawn[0], [each.embedding.tokens.weight for each in drawn]
    assert_close(answers(new)[..., SIZE], answers(old).mean(-1), rtol=0, atol=0.1)
    assert answers(new).softmax(-1)[..., SIZE:].max() < 1 / SIZE
    assert ((rows[0][SIZE:] - rows[0][:SIZE].mean(0)).abs() < 0.1 * rows[0][:SIZE].std(0)).all()
    assert_close(new.output.bias[SIZE:], old.output.bias.mean().expand(2))
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0][-1], rows[2][-1])
    assert not torch.equal(rows[0][-1], rows[0][-2])


def test_other_orders_fewer_tokens_and_roles() -> None:
    for settings in [*TEXT_FAMILIES, BERT.changed({"heads.words.tied": False})]:
        old = trained(settings)
        order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(5))
        shuffled = words([WORDS[i] for i in order.tolist()])
        new, report, _ = adopted(settings, old, pair(), pair(shuffled))
        assert_close(answers(new, torch.argsort(order)[TEXT]), answers(old)[..., order], rtol=0, atol=1e-13)
        assert all(f": {SIZE} of {SIZE} rows copied, 0 new" in line for line in report[1:])
    old = trained(GPT2)
    new, report, _ = adopted(GPT2.changed({"vocabulary": 7}), old, pair(), pair(words([*WORDS[:4], "n", "a", "new"])))
    rows = [0, 1, 2, 3, WORDS.index("n"), WORDS.index("a")]
    assert torch.equal(new.embedding.tokens.weight[:6], old.embedding.tokens.weight[rows])
    assert torch.equal(new.output.bias[:6], old.output.bias[rows])
    assert "embedding.tokens.weight: 6 of 20 rows copied, 1 new" in report[1]
    # A special token under another name, or of a similar role, takes the row of its role; without one it is new.
    other = words(["[PAD]", "[CLS]", "<mask>", *WORDS[3:]], pad="[PAD]", class_token="[CLS]", mask="<mask>")
    new, *_ = adopted(GPT2, old, pair(), pair(other))
    same = (new.embedding.tokens.weight == old.embedding.tokens.weight).all(1)
    assert same.nonzero()[:, 0].tolist() == [0, 1, *range(3, SIZE)]


def test_rows_without_a_token() -> None:
    """A vocabulary is often rounded up: unused rows keep their place, and a new token does not take one over."""
    settings = GPT2.changed({"vocabulary": SIZE + 4})
    old = trained(settings)
    new, report, _ = adopted(settings, old, pair(), extended("<de>"))
    rows, old_rows = new.embedding.tokens.weight, old.embedding.tokens.weight
    assert torch.equal(rows[:SIZE], old_rows[:SIZE])
    assert torch.equal(rows[SIZE + 1 :], old_rows[SIZE + 1 :])
    assert ((rows[SIZE] - old_rows[:SIZE].mean(0)).abs() < 0.1 * old_rows.std(0)).all()
    assert f"{SIZE + 3} of {SIZE + 4} rows copied, 1 new" in report[1]


def test_two_vocabularies() -> None:
    """Each side by its own tokenizers; a side without changes is copied."""
    separate = PAIR.changed({"tied": ["target", "output"], "target_vocabulary": 7})
    targets = ["<pad>", "<s>", "</s>", "<unk>", "x", "y", "z"]
    old = trained(separate)
    tokens = TokenizerPair(words(), words(targets)), TokenizerPair(words(), words(["z", *targets[:6], "new"]))
    new, report, _ = adopted(separate.changed({"target_vocabulary": 8}), old, *tokens)
    assert torch.equal(new.source.tokens.weight, old.source.tokens.weight)
    assert torch.equal(new.target.tokens.weight[:7], old.target.tokens.weight[[6, 0, 1, 2, 3, 4, 5]])
    assert {line.partition(":")[0] for line in report[1:]} == {"target.tokens.weight", "output.bias"}
    # Three tied matrices stay one.
    new, *_ = adopted(PAIR.changed({"vocabulary": SIZE + 1}), trained(PAIR), pair(), extended("<de>"))
    assert new.source.tokens.weight is new.target.tokens.weight
    with torch.no_grad():
        new.source.tokens.weight.mul_(2)
        hidden = new.states(TEXT, new.encode(TEXT))
    assert_close(answers(new), hidden @ new.target.tokens.weight.T + new.output.bias)


def test_what_cannot_be_adapted() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"width": 32, "ffn.hidden": 64, "attention.head_size": 8}, "model.width=16,"),
        ({"depth": 3}, "depth is 3 here and 2 there; set model.depth=2,"),
        ({"tied": False}, "model.tied=true,"),
        ({"position.kind": "rotary"}, "model.position.kind=learned,"),
        ({"layer_scale": 0.1}, "model.layer_scale=none,"),
        ({"attention.bias": False}, "model.attention.bias=true, model.attention.output_bias=true,"),
    ]
    old = trained(GPT2)
    for changes, remedy in cases:
        model = regard.build(GPT2.changed(changes))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        assert remedy in refused(lambda model=model: warm_start(model, start_of(old)))  # type: ignore[misc]
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert "set model.kind=decoder," in refused(lambda: adopted(BERT, old))
    plain = Decoder(**PLAIN)  # the base of sinusoids is not learned again
    other = plain.changed({"position.base": 20_000.0})
    assert "position.base is 20000.0 here" in refused(lambda: adopted(other, trained(plain)))
    wider, two = GPT2.changed({"vocabulary": 23}), TokenizerPair(words(), words([*WORDS[:-1], "other"]))
    assert "the model has no tokenizer" in refused(lambda: adopted(wider, old, pair(), None))
    assert "runs/old has no tokenizer.json" in refused(lambda: adopted(wider, old, None, pair()))
    assert "model.vocabulary (20) is smaller" in refused(lambda: adopted(GPT2, old, pair(), extended("<de>")))
    assert "text.shared=true" in refused(lambda: adopted(PAIR, trained(PAIR), pair(), two))


def test_directories(tmp_path: Path) -> None:
    old = trained(PAIR)
    save_model(old, tmp_path / "one")
    pair().save(tmp_path / "one")
    start = read_start(tmp_path / "one")
    assert (start.settings, start.tokenizer, start.source) == (PAIR, pair(), str(tmp_path / "one"))
    model: Any = regard.build(PAIR, dtype=torch.float64).eval()
    warm_start(model, start, pair())
    assert torch.equal(answers(model), answers(old))
    save_model(trained(IMAGES), tmp_path / "images")
    assert read_start(tmp_path / "images").tokenizer is None
    # Hugging Face: a masked head by its name there, with a new token and a new head.
    settings = BERT.model_copy(update={"heads": {"masked": Masked()}})
    old = trained(settings, torch.float32)
    write_pretrained(old, tmp_path / "bert")
    write_huggingface(words(), tmp_path / "bert")
    model = regard.build(settings.changed({"vocabulary": SIZE + 1, "heads.topic.kind": "tagging"})).eval()
    report = warm_start(model, read_start(tmp_path / "bert"), extended("<de>"))
    assert torch.equal(states(model), states(old))
    assert torch.equal(model.heads["masked"].dense.weight, old.heads["masked"].dense.weight)
    assert report[-1] == "new: heads.topic.output"
