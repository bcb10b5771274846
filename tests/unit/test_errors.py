"""Input that a model cannot take raises an InputError that names the value and the limit."""

from __future__ import annotations

import re

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


def tokens(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def test_an_input_error_is_a_value_error_of_ours() -> None:
    assert issubclass(InputError, RegardError)
    assert issubclass(InputError, ValueError)


def test_sequences_beyond_the_learned_positions() -> None:
    model = build(Decoder(**SMALL, vocabulary=5, position=Learned(length=4))).eval()
    with pytest.raises(InputError, match=r"6 tokens.*position\.length \(4\)"):
        model(tokens(1, 6))
    cache = model.new_cache(batch=1)
    model(tokens(1, 4), cache=cache)
    with pytest.raises(InputError, match=r"5 tokens.*position\.length \(4\)"):
        model(tokens(1, 1), cache=cache)


def test_tokens_and_segments_out_of_range() -> None:
    model = build(Decoder(**SMALL, vocabulary=5))
    for token in (-1, 5):
        with pytest.raises(InputError, match=rf"token {token} .*\b4\b"):
            model(torch.tensor([[0, token, 1]]))
    with pytest.raises(InputError, match=r"segment 2 .*\b1\b"):
        build(Encoder(**SMALL, vocabulary=5, segments=2))(tokens(1, 2), segments=torch.tensor([[0, 2]]))


def test_images_that_do_not_fit() -> None:
    model = build(Vision(**SMALL, image=(8, 8), patch=4))
    with pytest.raises(InputError, match=re.escape("[1, 1, 8, 8]")):
        model(torch.zeros(1, 1, 8, 8))
    with pytest.raises(InputError, match=r"8 × 10 .*\b4\b"):
        model(torch.zeros(1, 3, 8, 10))


def test_layouts_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"\[2, 3\].*\[2, 4\]"):
        layout_of(torch.zeros(2, 3), Padded(2, 4))
    with pytest.raises(InputError, match=r"\[3\].*Packed"):
        layout_of(torch.zeros(3), None)
    with pytest.raises(InputError, match=r"tokens \(7\).*width \(4\)"):
        Packed(7, torch.tensor([0, 7]), longest=7, width=4)
    with pytest.raises(InputError, match=r"5 tokens.*\(4\)"):
        pack([[3], [5]], widths=[4])
    with pytest.raises(InputError, match="queries and keys"):
        Visibility(Padded(2, 3), pack([[3], [3]], widths=[None]).layouts[0])
    with pytest.raises(InputError, match=r"queries .*2 .*keys .*1"):
        Visibility(Padded(2, 3), Padded(1, 3))


def test_backends_that_do_not_exist_or_cannot_serve() -> None:
    with pytest.raises(InputError, match=r"\(flash\).*reference, sdpa, bmm, flex, varlen"), use_backend("flash"):  # type: ignore[arg-type]
        pass
    model = build(Decoder(width=8, depth=1, attention=Attention(heads=2, soft_cap=30.0), vocabulary=5))
    with pytest.raises(InputError, match=r"sdpa.*soft cap"), use_backend("sdpa"):
        model(tokens(1, 2))


def test_caches_that_cannot_hold_their_input() -> None:
    model = build(Decoder(**SMALL, vocabulary=5)).eval()
    cache = model.new_cache(1)
    model(tokens(1, 3), cache=cache)
    with pytest.raises(InputError, match=r"2 tokens.*one at a time"):
        model(tokens(1, 2), cache=cache)
    with pytest.raises(InputError, match="cache"):
        model(tokens(2, 3), cache=model.new_cache(1))
