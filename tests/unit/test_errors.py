"""Input that a model cannot take: each error names what it was given, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from regard.blocks.kernels import use_backend
from regard.blocks.layout import Packed, Padded, layout_of, pack
from regard.blocks.settings import Attention, Learned
from regard.blocks.visibility import Visibility
from regard.errors import InputError, RegardError
from regard.models.build import build
from regard.models.settings import Decoder, Encoder, Vision

SMALL = {"width": 8, "depth": 1, "attention": Attention(heads=2)}


def message(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        action()
    return str(caught.value)


def test_an_input_error_is_a_value_error_of_ours() -> None:
    assert issubclass(InputError, RegardError)
    assert issubclass(InputError, ValueError)


# ------------------------------------------------------------------------------------------------------------- tokens


def test_a_sequence_beyond_the_learned_positions() -> None:
    model = build(Decoder(**SMALL, vocabulary=5, position=Learned(length=4)))
    expected = (
        "a sequence of 6 tokens is beyond the 4 learned positions; shorten it, or train with a larger position.length, "
        'or choose a position.kind without an end, such as "rotary"'
    )
    assert message(lambda: model(torch.zeros(1, 6, dtype=torch.long))) == expected


def test_decoding_step_by_step_beyond_the_learned_positions() -> None:
    model = build(Decoder(**SMALL, vocabulary=5, position=Learned(length=4))).eval()
    cache = model.new_cache(batch=1)
    model(torch.zeros(1, 4, dtype=torch.long), cache=cache)
    text = message(lambda: model(torch.zeros(1, 1, dtype=torch.long), cache=cache))
    assert text.startswith("a sequence of 5 tokens is beyond the 4 learned positions; ")


@pytest.mark.parametrize("token", [-1, 5])
def test_a_token_out_of_range(token: int) -> None:
    model = build(Decoder(**SMALL, vocabulary=5))
    assert message(lambda: model(torch.tensor([[0, token, 1]]))) == (
        f"token {token} is out of range: the model has 5, from 0 to 4; "
        "use the tokenizer that the model was trained with"
    )


def test_a_segment_out_of_range() -> None:
    model = build(Encoder(**SMALL, vocabulary=5, segments=2))
    tokens = torch.zeros(1, 2, dtype=torch.long)
    text = message(lambda: model(tokens, segments=torch.tensor([[0, 2]])))
    assert text.startswith("segment 2 is out of range: the model has 2, from 0 to 1; ")


# ------------------------------------------------------------------------------------------------------------- images


def test_an_image_of_other_channels() -> None:
    model = build(Vision(**SMALL, image=(8, 8), patch=4))
    assert message(lambda: model(torch.zeros(1, 1, 8, 8))) == (
        "images of shape [1, 1, 8, 8] do not fit; give [batch, 3, height, width]"
    )


def test_an_image_that_cannot_be_cut() -> None:
    model = build(Vision(**SMALL, image=(8, 8), patch=4))
    assert message(lambda: model(torch.zeros(1, 3, 8, 10))) == (
        "images of 8 × 10 pixels cannot be cut into patches of 4; resize or crop them"
    )


# ------------------------------------------------------------------------------------------------------------ layouts


def test_tokens_that_do_not_fit_their_layout() -> None:
    assert message(lambda: layout_of(torch.zeros(2, 3), Padded(2, 4))) == (
        "tokens of shape [2, 3] do not fit a layout of shape [2, 4]; pad or pack them as the layout says"
    )
    assert message(lambda: layout_of(torch.zeros(3), None)) == (
        "tokens of shape [3] need a layout; give [batch, time], or [tokens] with a Packed one"
    )


def test_rows_that_sequences_do_not_fit() -> None:
    assert message(lambda: Packed(7, torch.tensor([0, 7]), longest=7, width=4)) == (
        "tokens (7) must be a multiple of width (4); fill up the last row"
    )
    assert message(lambda: pack([[3], [5]], widths=[4])) == (
        "a sequence of 5 tokens is longer than a row (4); widen the rows"
    )


def test_queries_and_keys_that_do_not_match() -> None:
    assert message(lambda: Visibility(Padded(2, 3), pack([[3], [3]], widths=[None]).layouts[0])) == (
        "queries and keys must both be padded or both be packed; pack or pad the other side"
    )
    assert message(lambda: Visibility(Padded(2, 3), Padded(1, 3))) == (
        "queries hold 2 sequences and keys 1; each needs its partner"
    )


# ------------------------------------------------------------------------------------------------- backends and caches


def test_a_backend_that_does_not_exist_or_cannot_serve() -> None:
    def unknown() -> None:
        with use_backend("flash"):  # type: ignore[arg-type]
            pass

    assert message(unknown) == "attention backend (flash) is not known; choose one of reference, sdpa, flex, varlen"
    model = build(Decoder(width=8, depth=1, attention=Attention(heads=2, soft_cap=30.0), vocabulary=5))

    def refused() -> None:
        with use_backend("sdpa"):
            model(torch.zeros(1, 2, dtype=torch.long))

    assert message(refused) == (
        "attention backend sdpa cannot serve this call: it has no soft cap; choose another backend"
    )


def test_caches_that_cannot_hold_what_they_are_given() -> None:
    model = build(Decoder(**SMALL, vocabulary=5)).eval()
    assert message(lambda: model.new_cache(1, "fixed")) == (
        "a fixed cache needs a capacity; give the largest number of tokens it shall hold"
    )
    assert message(lambda: model.new_cache(1, "windowed")) == (
        "a windowed cache needs attention.window, or tokens would be lost; choose another kind"
    )
    fixed = model.new_cache(1, "fixed", capacity=2)
    assert message(lambda: model(torch.zeros(1, 3, dtype=torch.long), cache=fixed)) == (
        "3 tokens are beyond the cache's capacity (2); make it larger, or growing"
    )
    growing = model.new_cache(1)
    assert message(lambda: model(torch.zeros(2, 3, dtype=torch.long), cache=growing)) == (
        "a cache takes padded batches of 1 rows from place 0; make a new cache"
    )
