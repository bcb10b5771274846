"""Embeddings: what is added to what, and patches as pieces cut out of an image by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from regard.blocks import settings
from regard.blocks.embedding import PatchEmbedding, TextEmbedding, check_range
from regard.blocks.layout import Padded
from regard.blocks.positions import build_grid_position
from regard.errors import InputError

WIDTH = 6


def embedding(
    position: settings.TextPosition | None = None,
    scaled: bool = False,
    norm: settings.Norm | None = None,
    dropout: float = 0.0,
    segments: int = 0,
) -> TextEmbedding:
    position = settings.NoPosition() if position is None else position
    made = TextEmbedding(nn.Embedding(10, WIDTH), position, scaled, norm, dropout, segments).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


@pytest.fixture
def tokens() -> Tensor:
    return torch.tensor([[1, 5, 9], [0, 5, 2]])


def test_the_sum_of_tokens_segments_and_positions(tokens: Tensor) -> None:
    layout, segments = Padded(2, 3), torch.tensor([[0, 1, 1], [0, 0, 1]])
    made = embedding()
    assert torch.equal(made(tokens, layout), made.tokens.weight[tokens])
    made = embedding(settings.Learned(length=4), scaled=True)  # the paper scales tokens, not positions
    wanted = made.tokens.weight[tokens] * math.sqrt(WIDTH) + made.position.weight[:3]
    assert_close(made(tokens, layout), wanted, rtol=0, atol=1e-12)
    made = embedding(segments=2)
    wanted = made.tokens.weight[tokens] + made.segments.weight[segments]
    assert_close(made(tokens, layout, segments), wanted, rtol=0, atol=1e-12)
    assert torch.equal(made(tokens, layout), made(tokens, layout, torch.zeros_like(tokens)))
    # As in BERT: norm(token + segment + position).
    made = embedding(settings.Learned(length=4), norm=settings.LayerNorm(eps=1e-3), segments=2)
    total = made.tokens.weight[tokens] + made.segments.weight[0] + made.position.weight[:3]
    wanted = functional.layer_norm(total, (WIDTH,), made.norm.weight, made.norm.bias, 1e-3)
    assert_close(made(tokens, layout), wanted, rtol=0, atol=1e-12)


def test_dropout_falls_on_the_sum_in_training_alone() -> None:
    made = embedding(dropout=0.25)
    nn.init.ones_(made.tokens.weight)
    tokens = torch.zeros(50, 40, dtype=torch.long)
    out = made(tokens, Padded(50, 40))
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs((out == 0).double().mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / out.numel())
    assert torch.equal(made.eval()(tokens, Padded(50, 40)), torch.ones(50, 40, WIDTH, dtype=torch.float64))


def test_indices_outside_of_the_embedding() -> None:
    for index in (-1, 10):
        with pytest.raises(InputError, match=f"token {index} is out of range: the model has indices from 0 to 9"):
            embedding()(torch.tensor([[3, index, 4]]), Padded(1, 3))
    with pytest.raises(InputError, match=r"token indices have dtype torch\.float32"):
        check_range(torch.ones(2), 5, "token")
    with pytest.raises(InputError, match=r"segment 2 .*\b1\b"):
        embedding(segments=2)(torch.tensor([[3, 4]]), Padded(1, 2), torch.tensor([[0, 2]]))
    check_range(torch.tensor([0, 9]), 10, "token")
    check_range(torch.tensor([], dtype=torch.long), 10, "token")


def patches(class_token: bool, position: settings.ImagePosition, dropout: float = 0.0) -> PatchEmbedding:
    """Of images of 4 × 6 pixels with 2 channels, in patches of 2."""
    grid = build_grid_position(position, (2, 3), WIDTH, 4, class_token)
    made = PatchEmbedding(2, 2, WIDTH, grid, dropout).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def cut(images: Tensor, made: PatchEmbedding) -> np.ndarray:
    """`[B, P, D]`: each patch cut out, laid into a vector and multiplied by a matrix."""
    matrix, bias = made.patches.weight.detach().numpy().reshape(WIDTH, -1), made.patches.bias.detach().numpy()
    array = images.numpy()
    rows, columns = images.shape[-2] // 2, images.shape[-1] // 2
    pieces = [array[:, :, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2] for y in range(rows) for x in range(columns)]
    return np.stack([piece.reshape(len(array), -1) @ matrix.T + bias for piece in pieces], axis=1)


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("size", [(4, 6), (2, 2), (6, 4)])
def test_patches_are_cut_row_by_row_and_projected(class_token: bool, size: tuple[int, int]) -> None:
    made = patches(class_token, settings.NoPosition())
    images = torch.randn(3, 2, *size, dtype=torch.float64)
    out = made(images)
    assert made.grid(images) == (size[0] // 2, size[1] // 2)
    np.testing.assert_allclose(out[:, int(class_token) :].detach().numpy(), cut(images, made), rtol=1e-10)
    if class_token:
        assert torch.equal(out[:, 0], made.class_token.expand(3, WIDTH))
    else:
        assert made.class_token is None


def test_positions_are_added_to_class_token_and_patches() -> None:
    made = patches(True, settings.Learned2d())
    images = torch.randn(3, 2, 4, 6, dtype=torch.float64)
    out = made(images)
    assert_close(out[:, 0], (made.class_token + made.position.first).expand(3, WIDTH), rtol=0, atol=1e-12)
    wanted = cut(images, made) + made.position.weight.detach().numpy()
    np.testing.assert_allclose(out[:, 1:].detach().numpy(), wanted, rtol=1e-10)


def test_images_that_do_not_fit() -> None:
    made = patches(True, settings.NoPosition())
    for shape in ((1, 3, 4, 6), (2, 4, 6), (1, 1, 2, 4, 6)):
        with pytest.raises(InputError, match=r"expected \[batch, 2, height, width\]"):
            made(torch.zeros(shape, dtype=torch.float64))
    for size in ((5, 6), (4, 7), (1, 1)):
        with pytest.raises(InputError, match="not multiples of patch"):
            made(torch.zeros(1, 2, *size, dtype=torch.float64))
