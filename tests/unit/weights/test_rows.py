"""A start with another vocabulary: rows follow their tokens, and new ones begin near the mean."""

from __future__ import annotations

import pytest
import torch
from adopt_cases import (
    GPT2,
    PAIR,
    SIZE,
    TEXT,
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
from regard.models.settings import ModelSettings
from regard.text.tokenizer import TokenizerPair
from regard.weights.adopt import adopt

# -------------------------------------------------------------------------------------------------------- vocabularies


@by_text_family
def test_new_tokens_leave_the_others_alone(settings: ModelSettings) -> None:
    old, more = trained(settings), extend(words(), ["<de>", "<fr>"])
    new, found, _ = adopted(settings.changed({"vocabulary": SIZE + 2}), old, (pair(), pair(more)))
    assert torch.equal(states(new), states(old))
    parameters = dict(new.named_parameters())
    assert found.fitted
    for name, parameter in old.named_parameters():
        assert torch.equal(parameters[name][: len(parameter)], parameter), name
    # Perhaps not bit for bit, on any machine: a wider product may add up in another order.
    assert_close(answers(new)[..., :SIZE], answers(old), rtol=0, atol=1e-13)
    assert set(found.fitted.values()) == {f"{SIZE} tokens taken, 2 new, near the mean of the old"}


def test_a_new_token_takes_no_more_than_an_average_share() -> None:
    """The score of the mean row is the mean of the scores, and an exponential of a mean is below the mean of them."""
    old, more = trained(GPT2), extend(words(), ["<de>", "<fr>"])
    new, *_ = adopted(GPT2.changed({"vocabulary": SIZE + 2}), old, (pair(), pair(more)))
    assert_close(answers(new)[..., SIZE], answers(old).mean(-1), rtol=0, atol=0.1)
    assert answers(new).softmax(-1)[..., SIZE:].max() < 1 / SIZE
    rows = new.embedding.tokens.weight
    mean, deviation = rows[:SIZE].mean(0), rows[:SIZE].std(0)
    assert not torch.equal(rows[SIZE], rows[SIZE + 1])
    assert ((rows[SIZE:] - mean).abs() < 0.1 * deviation).all()
    assert_close(new.output.bias[SIZE:], old.output.bias.mean().expand(2))


def test_new_rows_are_drawn_from_the_seed_alone() -> None:
    old, tokens = trained(GPT2), (pair(), pair(extend(words(), ["<de>"])))
    settings = GPT2.changed({"vocabulary": SIZE + 1})
    rows = [adopted(settings, old, tokens, seed=seed)[0].embedding.tokens.weight[-1] for seed in (0, 0, 1)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_the_random_state_of_a_run_does_not_depend_on_its_start() -> None:
    old, model = trained(GPT2), regard.build(GPT2.changed({"vocabulary": SIZE + 1}))
    state = torch.random.get_rng_state()
    adopt(model, start_of(old, pair()), pair(extend(words(), ["<de>"])))
    assert torch.equal(torch.random.get_rng_state(), state)


@by_text_family
def test_another_order_gives_the_same_answers_in_that_order(settings: ModelSettings) -> None:
    old = trained(settings)
    order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(5))
    shuffled = words([WORDS[i] for i in order.tolist()])
    new, found, _ = adopted(settings, old, (pair(), pair(shuffled)))
    place = torch.argsort(order)
    assert_close(answers(new, place[TEXT]), answers(old)[..., order], rtol=0, atol=1e-13)
    assert not torch.equal(order, torch.arange(SIZE))
    assert set(found.fitted.values()) == {f"{SIZE} tokens taken"}


def test_fewer_tokens() -> None:
    old, kept = trained(GPT2), words([*WORDS[:4], "n", "a", "new"])
    new, found, _ = adopted(GPT2.changed({"vocabulary": 7}), old, (pair(), pair(kept)))
    rows = [0, 1, 2, 3, WORDS.index("n"), WORDS.index("a")]
    assert torch.equal(new.embedding.tokens.weight[:6], old.embedding.tokens.weight[rows])
    assert torch.equal(new.output.bias[:6], old.output.bias[rows])
    assert found.fitted == dict.fromkeys(
        ["embedding.tokens.weight", "output.bias"], "6 tokens taken, 1 new, near the mean of the old, 14 left behind"
    )
    assert found.text().splitlines()[1:] == [f"{name}: {how}" for name, how in found.fitted.items()]


def test_a_special_token_takes_the_row_of_its_role() -> None:
    """Under another name, or where another role stands for it; a role that the old one lacks is new."""
    old = trained(GPT2)
    other = words(["[PAD]", "[CLS]", "<mask>", *WORDS[3:]], pad="[PAD]", class_token="[CLS]", mask="<mask>")
    new, *_ = adopted(GPT2, old, (pair(), pair(other)))
    rows, old_rows = new.embedding.tokens.weight, old.embedding.tokens.weight
    assert torch.equal(rows[[0, 1, 4]], old_rows[[0, 1, 4]])
    assert not torch.equal(rows[2], old_rows[2])


def test_rows_without_a_token() -> None:
    """A vocabulary is often rounded up: what no token uses keeps its place, and a new token does not take it over."""
    settings = GPT2.changed({"vocabulary": SIZE + 4})
    old, more = trained(settings), extend(words(), ["<de>"])
    new, found, _ = adopted(settings, old, (pair(), pair(more)))
    rows, old_rows = new.embedding.tokens.weight, old.embedding.tokens.weight
    assert torch.equal(rows[:SIZE], old_rows[:SIZE])
    assert torch.equal(rows[SIZE + 1 :], old_rows[SIZE + 1 :])
    assert ((rows[SIZE] - old_rows[:SIZE].mean(0)).abs() < 0.1 * old_rows.std(0)).all()
    assert found.fitted["output.bias"] == f"{SIZE + 3} tokens taken, 1 new, near the mean of the old"


def test_two_vocabularies() -> None:
    """Each side by its own tokenizers; where tokens came only on one side, the other is copied."""
    separate = PAIR.changed({"tied": ["target", "output"], "target_vocabulary": 7})
    targets = ["<pad>", "<s>", "</s>", "<unk>", "x", "y", "z"]
    old = trained(separate)
    settings = separate.changed({"target_vocabulary": 8})
    tokens = TokenizerPair(words(), words(targets)), TokenizerPair(words(), words(["z", *targets[:6], "new"]))
    new, found, _ = adopted(settings, old, tokens)
    assert torch.equal(new.source.tokens.weight, old.source.tokens.weight)
    assert torch.equal(new.target.tokens.weight[:7], old.target.tokens.weight[[6, 0, 1, 2, 3, 4, 5]])
    assert set(found.fitted) == {"target.tokens.weight", "output.bias"}


def test_three_tied_matrices_stay_one() -> None:
    old, more = trained(PAIR), extend(words(), ["<de>"])
    new, found, _ = adopted(PAIR.changed({"vocabulary": SIZE + 1}), old, (pair(), pair(more)))
    assert new.source.tokens.weight is new.target.tokens.weight
    assert list(found.fitted) == ["source.tokens.weight", "output.bias"]
    before = answers(new)
    with torch.no_grad():
        new.source.tokens.weight.mul_(2)
        new.output.bias.mul_(2)
        hidden = new.states(TEXT, new.encode(TEXT))
    expected = hidden @ new.target.tokens.weight.T + new.output.bias
    assert_close(answers(new), expected)
    assert not torch.equal(answers(new), before)


def test_tied_sides_need_one_tokenizer() -> None:
    two = TokenizerPair(words(), words([*WORDS[:-1], "other"]))
    assert message(lambda: adopted(PAIR, trained(PAIR), (pair(), two))) == (
        "model.tied (source, target, output) needs one tokenizer for source and target, and there are two; "
        'set text.shared=true, or model.tied=["target", "output"]'
    )


# ------------------------------------------------------------------------------------------ without both tokenizers


def test_rows_of_as_many_tokens_are_copied_and_it_is_said() -> None:
    old = trained(GPT2)
    for tokens in ((None, None), (pair(), None), (None, pair())):
        new, found, _ = adopted(GPT2, old, tokens)
        assert torch.equal(answers(new), answers(old))
        assert found.notes == (UNCOMPARED,)
        assert found.text().splitlines()[-1] == UNCOMPARED


@pytest.mark.parametrize("size", [SIZE - 3, SIZE + 3])
def test_rows_by_number_where_ids_are_said_to_agree(size: int) -> None:
    old = trained(GPT2)
    new, found, _ = adopted(GPT2.changed({"vocabulary": size}), old, same_ids=True)
    common = min(size, SIZE)
    assert torch.equal(new.embedding.tokens.weight[:common], old.embedding.tokens.weight[:common])
    new_or_lost = "3 left behind" if size < SIZE else "3 new, near the mean of the old"
    assert found.fitted["output.bias"] == f"{common} tokens taken, {new_or_lost}"
    assert found.notes == ()


def test_another_size_is_refused() -> None:
    settings, old = GPT2.changed({"vocabulary": 23}), trained(GPT2)
    rest = (
        ", so that rows cannot be matched to tokens; give the tokenizer, or say same_ids=True if tokens of both have "
        "the same ids"
    )
    assert message(lambda: adopted(settings, old, (pair(), None))) == (
        f"model.vocabulary is 23 here and 20 in runs/old, and no tokenizer was given for the model{rest}"
    )
    assert message(lambda: adopted(settings, old, (None, pair()))) == (
        f"model.vocabulary is 23 here and 20 in runs/old, and runs/old holds no tokenizer.json{rest}"
    )


def test_a_vocabulary_too_small_for_the_tokenizer() -> None:
    more = pair(extend(words(), ["<de>"]))
    assert message(lambda: adopted(GPT2, trained(GPT2), (pair(), more))) == (
        "model.vocabulary (20) has no row for each of the tokenizer's 21; set it to 21"
    )
