"""Tiny models whose distributions are peaked, and decoding spelled out without caches, batches or tensors' tricks."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from regard.blocks.settings import Attention, Dense, StateAttention
from regard.decoding.settings import Ends
from regard.models.build import build
from regard.models.families import Decoder, EncoderDecoder
from regard.models.settings import Convolutional, Recurrent
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import EncoderDecoder as EncoderDecoderSettings

Every = dict[tuple[int, ...], float]

START, END = 0, 1
ENDS = Ends(START, END)


def translator(vocabulary: int = 6, seed: int = 4, dtype: torch.dtype = torch.float64) -> EncoderDecoder:
    settings = EncoderDecoderSettings(
        vocabulary=vocabulary,
        width=8,
        depth=1,
        attention=Attention(heads=2),
        ffn=Dense(hidden=12),
        tied=(),  # or each token would be likeliest to follow itself
    )
    return _peaked(build(settings), seed, dtype)


def recurrent(vocabulary: int = 6, seed: int = 5, dtype: torch.dtype = torch.float64) -> EncoderDecoder:
    torch.manual_seed(seed)  # of the biases, which are not zero
    attention = StateAttention(score="additive")
    settings = Recurrent(vocabulary=vocabulary, width=8, depth=1, decoder_depth=2, tied=(), attention=attention)
    return _peaked(build(settings), seed, dtype)


def convolutional(vocabulary: int = 6, seed: int = 4, dtype: torch.dtype = torch.float64) -> EncoderDecoder:
    torch.manual_seed(seed)
    return _peaked(build(Convolutional(vocabulary=vocabulary, width=8, depth=1, tied=())), seed, dtype)


def continuer(vocabulary: int = 6, seed: int = 4, dtype: torch.dtype = torch.float64) -> Decoder:
    settings = DecoderSettings(
        vocabulary=vocabulary, width=8, depth=1, attention=Attention(heads=2), ffn=Dense(hidden=12), tied=False
    )
    return _peaked(build(settings), seed, dtype)


def _peaked(model: nn.Module, seed: int, dtype: torch.dtype) -> nn.Module:
    """Weights large enough that tokens differ in chance, and the end comes now and then."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                scale = 1.0 if "tokens" in name else 2.0 * parameter.shape[-1] ** -0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return model.to(dtype).eval()


def inputs(count: int, vocabulary: int = 6, longest: int = 7, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(2, vocabulary) for _ in range(draw.randint(1, longest))] + [END] for _ in range(count)]


@torch.no_grad()
def next_chances(model: nn.Module, source: list[int], written: list[int]) -> Tensor:
    """Log-probabilities of the next token, from a whole pass over one sequence."""
    if isinstance(model, EncoderDecoder):
        return model(torch.tensor([source]), torch.tensor([[START, *written]]))[0, -1].log_softmax(-1)
    return model(torch.tensor([[*source, *written]]))[0, -1].log_softmax(-1)


@functools.cache
def every_sequence(family: Callable[..., nn.Module], place: int, vocabulary: int, longest: int) -> Every:
    """The log-probability of every sequence that ends, or is cut at `longest`, for one of the inputs."""
    model, source = family(vocabulary), inputs(place + 1, vocabulary)[place]
    found = {}
    open_ = {(): 0.0}
    for step in range(1, longest + 1):
        grown = {}
        for tokens, score in open_.items():
            chances = next_chances(model, source, list(tokens)).tolist()
            for token in range(vocabulary):
                (found if token == END or step == longest else grown)[(*tokens, token)] = score + chances[token]
        open_ = grown
    return found


def contains(word: tuple[int, ...], tokens: list[int]) -> bool:
    return any(tuple(tokens[i : i + len(word)]) == word for i in range(len(tokens)))
