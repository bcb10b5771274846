"""Small models of each family, trained as it were, to start others from; tokenizers of single letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models
from torch import Tensor, nn

import regard
from regard.blocks.settings import Attention, Dense, Learned, Normal
from regard.errors import RegardError, WeightsError
from regard.models.settings import (
    Classification,
    Decoder,
    Encoder,
    EncoderDecoder,
    Masked,
    ModelSettings,
    Vision,
)
from regard.text.settings import Role
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.weights.warm_start import Start, WarmStart, warm_start

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnop"]
SIZE = len(WORDS)
TEXT = torch.tensor([[1, 5, 9, 17, 3, 2], [1, 4, 8, 19, 12, 2]])
PLAIN: dict[str, Any] = {
    "width": 16,
    "depth": 2,
    "attention": Attention(heads=2),
    "vocabulary": SIZE,
    "initial": Normal(),
}

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
IMAGES = Vision(
    **{key: value for key, value in PLAIN.items() if key != "vocabulary"},
    image=(8, 12),
    patch=4,
    heads={"digits": Classification(classes=5)},
)


def words(tokens: list[str] = WORDS, **other: str) -> Tokenizer:
    """A tokenizer with these tokens in this order."""
    inner = tokenizers.Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    names: dict[Role, str] = {"pad": "<pad>", "start": "<s>", "end": "</s>", "unknown": "<unk>", **other}
    return Tokenizer(inner, {role: token for role, token in names.items() if token in tokens})


def pair(tokenizer: Tokenizer | None = None) -> TokenizerPair:
    return TokenizerPair.of(tokenizer or words())


def trained(settings: ModelSettings, dtype: torch.dtype = torch.float64, seed: int = 1) -> Any:
    """Stands for a trained model: every parameter has values of its own."""
    torch.manual_seed(seed)
    model = regard.build(settings, dtype=dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def start_of(model: Any, tokenizer: TokenizerPair | None = None) -> Start:
    return Start(model.settings, dict(model.named_parameters()), tokenizer, "runs/old")


def adopted(
    settings: ModelSettings,
    old: Any,
    tokenizers: tuple[TokenizerPair | None, TokenizerPair | None] = (None, None),
    **options: Any,
) -> tuple[Any, WarmStart, dict[str, Tensor]]:
    """A model that has taken from `old`, what was said, and what it was before."""
    model: Any = regard.build(settings, dtype=torch.float64).eval()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    found = warm_start(model, start_of(old, tokenizers[0]), tokenizers[1], **options)
    return model, found, before


def answers(model: Any, ids: Tensor = TEXT) -> Tensor:
    """Scores over the vocabulary."""
    with torch.no_grad():
        if isinstance(model.settings, Encoder):
            return model.heads["words"](model(ids))
        return model(ids, ids) if isinstance(model.settings, EncoderDecoder) else model(ids)


def states(model: Any, ids: Tensor = TEXT) -> Tensor:
    """The last hidden states, on which nothing over the vocabulary but the embeddings has an influence."""
    with torch.no_grad():
        if isinstance(model.settings, Encoder):
            return model(ids)
        return model.states(ids, model.encode(ids)) if isinstance(model.settings, EncoderDecoder) else model.states(ids)


def message(action: Callable[[], object], kind: type[RegardError] = WeightsError) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


TEXT_FAMILIES: list[ModelSettings] = [GPT2, BERT, PAIR]
UNCOMPARED = "token ids are assumed to be the same: without both tokenizers they cannot be compared"


def extend(tokenizer: Tokenizer, extra: list[str]) -> Tokenizer:
    """The tokenizer with further special tokens at the end of its vocabulary."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.json)
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in extra])
    roles: dict[Role, str] = {role: tokenizer.token(number) for role, number in tokenizer.roles.items()}
    return Tokenizer(inner, roles, [*tokenizer.extra, *extra], tokenizer.settings)
