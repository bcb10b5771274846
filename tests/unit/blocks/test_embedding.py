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
from regard.blocks.image_positions import build_grid_position
from regard.blocks.layout import Padded, pack
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


# ------------------------------------------------------------------------------------------------------------- text


def test_tokens_alone(tokens: Tensor) -> None:
    made = embedding()
    out = made(tokens, Padded(2, 3))
    for b in range(2):
        for t in range(3):
            assert torch.equal(out[b, t], made.tokens.weight[tokens[b, t]])


def test_the_paper_multiplies_tokens_by_the_root_of_the_width_and_positions_not(tokens: Tensor) -> None:
    made = embedding(settings.Learned(length=4), scaled=True)
    wanted = made.tokens.weight[tokens] * math.sqrt(WIDTH) + made.position.weight[:3]
    assert_close(made(tokens, Padded(2, 3)), wanted, rtol=0, atol=1e-12)


def test_segments_are_added(tokens: Tensor) -> None:
    made = embedding(segments=2)
    segments = torch.tensor([[0, 1, 1], [0, 0, 1]])
    wanted = made.tokens.weight[tokens] + made.segments.weight[segments]
    assert_close(made(tokens, Padded(2, 3), segments), wanted, rtol=0, atol=1e-12)


def test_without_segments_every_token_is_of_the_first(tokens: Tensor) -> None:
    made = embedding(segments=2)
    layout = Padded(2, 3)
    assert torch.equal(made(tokens, layout), made(tokens, layout, torch.zeros_like(tokens)))
    assert not torch.equal(made(tokens, layout), embedding()(tokens, layout))


def test_the_norm_follows_the_whole_sum(tokens: Tensor) -> None:
    """As in BERT: norm(token + segment + position)."""
    made = embedding(settings.Learned(length=4), norm=settings.LayerNorm(eps=1e-3), segments=2)
    total = made.tokens.weight[tokens] + made.segments.weight[0] + made.position.weight[:3]
    wanted = functional.layer_norm(total, (WIDTH,), made.norm.weight, made.norm.bias, 1e-3)
    assert_close(made(tokens, Padded(2, 3)), wanted, rtol=0, atol=1e-12)


def test_dropout_falls_on_the_sum_in_training_alone() -> None:
    made = embedding(dropout=0.25)
    nn.init.ones_(made.tokens.weight)
    tokens = torch.zeros(50, 40, dtype=torch.long)
    out = made(tokens, Padded(50, 40))
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs((out == 0).double().mean().item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / out.numel())
    assert torch.equal(made.eval()(tokens, Padded(50, 40)), torch.ones(50, 40, WIDTH, dtype=torch.float64))


@pytest.mark.parametrize(
    "position", [settings.Learned(length=5), settings.Sinusoidal(), settings.Sinusoidal(order="halves")]
)
def test_packed_tokens_start_anew_in_each_sequence(position: settings.TextPosition) -> None:
    made = embedding(position, scaled=True, segments=2)
    sequences = [[4], [], [1, 2, 3, 9], [7, 7]]
    packing = pack([[len(s)] for s in sequences], [5])
    layout = packing.layouts[0]
    tokens = torch.zeros(layout.tokens, dtype=torch.long)
    segments = torch.zeros_like(tokens)
    for s, sequence in zip(packing.sequences, sequences, strict=True):
        start = int(layout.offsets_S1[s])
        tokens[start : start + len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        segments[start : start + len(sequence)] = len(sequence) % 2
    out = made(tokens, layout, segments)
    for s, sequence in zip(packing.sequences, sequences, strict=True):
        start = int(layout.offsets_S1[s])
        alone = torch.tensor([sequence], dtype=torch.long)
        wanted = made(alone, Padded(1, len(sequence)), torch.full_like(alone, len(sequence) % 2))
        assert_close(out[start : start + len(sequence)], wanted[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("number", [-1, 10])
def test_a_token_that_the_embedding_does_not_have(number: int) -> None:
    with pytest.raises(InputError) as caught:
        embedding()(torch.tensor([[3, number, 4]]), Padded(1, 3))
    assert str(caught.value) == (
        f"token {number} is out of range: the model has indices from 0 to 9; "
        "use the tokenizer that the model was trained with"
    )


def test_the_edges_of_the_range_and_no_numbers_at_all_pass() -> None:
    check_range(torch.tensor([0, 9]), 10, "token")
    check_range(torch.tensor([], dtype=torch.long), 10, "token")


# ----------------------------------------------------------------------------------------------------------- images


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


def test_image_dropout_falls_in_training_alone() -> None:
    made = patches(True, settings.NoPosition(), dropout=0.5)
    images = torch.randn(20, 2, 4, 6, dtype=torch.float64)
    whole = made.eval()(images)
    out = made.train()(images)
    kept = out != 0
    assert 0 < (~kept).sum() < out.numel()
    assert_close(out[kept], 2 * whole[kept])


@pytest.mark.parametrize("shape", [(1, 3, 4, 6), (2, 4, 6), (1, 1, 2, 4, 6)])
def test_images_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        patches(True, settings.NoPosition())(torch.zeros(shape, dtype=torch.float64))
    assert str(caught.value) == f"images have shape {list(shape)}, expected [batch, 2, height, width]"


@pytest.mark.parametrize("size", [(5, 6), (4, 7), (1, 1)])
def test_images_that_cannot_be_cut(size: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="not multiples of patch"):
        patches(True, settings.NoPosition())(torch.zeros(1, 2, *size, dtype=torch.float64))


def test_numbers_that_are_not_whole() -> None:
    with pytest.raises(InputError, match=r"token indices have dtype torch.float32"):
        check_range(torch.ones(2), 5, "token")
