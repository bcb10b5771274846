"""Heads, each from its formula, over chosen tokens and over layouts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from packing_cases import pack
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from regard.blocks import settings as blocks
from regard.blocks.layout import Padded
from regard.errors import SettingsError
from regard.models import settings
from regard.models.build import build
from regard.models.families import Output, build_head
from regard.models.settings import Encoder, Spans

WIDTH, VOCABULARY = 6, 9
TIGHT = {"rtol": 0.0, "atol": 1e-12}
NORM = blocks.LayerNorm(eps=1e-3)


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(2, 4, WIDTH, dtype=torch.float64)


def built(head: settings.TextHead, tokens: nn.Embedding | None = None) -> Any:
    made = (
        build_head(head, Encoder(width=WIDTH, norm=NORM, attention=blocks.Attention(heads=1)), tokens).double().eval()
    )
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def test_output_scores(hidden: Tensor) -> None:
    tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
    for tied, bias, scale in itertools.product((None, tokens), (True, False), (None, 0.3)):
        output = Output(tied, VOCABULARY, WIDTH, bias, scale).double()
        for parameter in output.parameters():
            nn.init.normal_(parameter)
        weight = tokens.weight if output.weight is None else output.weight
        wanted = (hidden if scale is None else scale * hidden) @ weight.T
        assert_close(output(hidden), wanted + output.bias if bias else wanted, **TIGHT)


@pytest.mark.parametrize("tied", [True, False])
def test_masked_head(hidden: Tensor, tied: bool) -> None:
    """norm(gelu(dense(x))) against the embeddings, plus a bias (Devlin et al. 2019)."""
    tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
    head = built(settings.Masked(tied=tied), tokens)
    x = hidden @ head.dense.weight.T + head.dense.bias
    x = x * (1 + torch.erf(x / math.sqrt(2))) / 2
    x = functional.layer_norm(x, (WIDTH,), head.norm.weight, head.norm.bias, 1e-3)
    matrix = tokens.weight if tied else head.output.weight
    assert_close(head(hidden), x @ matrix.T + head.output.bias, **TIGHT)
    chosen = torch.tensor([[True, False, False, True], [False, True, False, False]])
    assert_close(head(hidden[chosen]), head(hidden)[chosen], **TIGHT)


def pooled_by_hand(rows: list[Tensor], kind: settings.PoolingKind) -> Tensor:
    return torch.stack([{"class": row[0], "mean": row.mean(0), "max": row.max(0).values}[kind] for row in rows])


def test_sequence_heads(hidden: Tensor) -> None:
    """Pool, then tanh(linear) if `dense` (BERT's pooler), then the logits."""
    ragged = [hidden[0], hidden[1, :3]]
    layouts = [
        ([hidden[0], hidden[1]], (hidden, None)),
        (ragged, (hidden, Padded.of(torch.tensor([4, 3])))),
        (ragged, (torch.cat(ragged), pack([[4], [3]], [None]).layouts[0])),
    ]
    kinds: tuple[settings.PoolingKind, ...] = ("class", "mean", "max")
    for kind, dense, (rows, given) in itertools.product(kinds, (True, False), layouts):
        chosen = {"pooling": kind, "dense": dense}
        heads = [
            built(settings.Pooling(**chosen)),
            built(settings.Classification(classes=5, **chosen)),
            built(settings.NextSentence(**chosen)),
        ]
        for head, classes in zip(heads, (WIDTH, 5, 2), strict=True):
            wanted = pooled_by_hand(rows, kind)
            if dense:
                wanted = torch.tanh(wanted @ head.pool.weight.T + head.pool.bias)
            if classes != WIDTH:
                wanted = wanted @ head.output.weight.T + head.output.bias
            assert_close(head(*given), wanted, **TIGHT)
            assert wanted.shape == (2, classes)
    assert built(settings.NextSentence()).pool is not None
    assert built(settings.Classification()).pool is None
    assert built(settings.Pooling()).pool is None


@pytest.mark.parametrize(("chosen", "classes"), [(settings.Tagging(classes=5), 5), (settings.Spans(), 2)])
def test_token_heads(hidden: Tensor, chosen: settings.TextHead, classes: int) -> None:
    head = built(chosen)
    wanted = hidden @ head.output.weight.T + head.output.bias
    assert_close(head(hidden), wanted, **TIGHT)
    assert_close(head(hidden.flatten(0, 1), pack([[4], [4]], [None]).layouts[0]), wanted.flatten(0, 1), **TIGHT)
    assert wanted.shape == (2, 4, classes)


@pytest.mark.parametrize("chosen", [settings.Tagging(dropout=0.5), settings.Classification(dropout=0.5)])
def test_dropout_comes_before_the_last_layer_and_only_in_training(hidden: Tensor, chosen: settings.TextHead) -> None:
    head = built(chosen)
    calm = built(chosen.model_copy(update={"dropout": 0.0}))
    calm.load_state_dict(head.state_dict())
    assert torch.equal(head(hidden), calm(hidden))
    with torch.no_grad():
        head.output.weight.zero_()
    head.train()
    assert torch.equal(head(hidden), head.output.bias.expand_as(head(hidden)))  # scores themselves are not dropped
    with torch.no_grad():
        head.output.weight.fill_(1.0)
    assert not torch.equal(head(hidden), head(hidden))


def test_refused_names_and_values() -> None:
    for name in ("", "a.b"):
        with pytest.raises(SettingsError, match=r"^heads: "):
            Encoder(heads={name: Spans()})
    with pytest.raises(SettingsError, match=r"^heads\.type: "):  # taken by PyTorch
        build(Encoder(width=8, depth=1, vocabulary=5, heads={"type": Spans()}), device="meta")
    with pytest.raises(SettingsError, match="'gpt2'"):
        build("gpt2")  # type: ignore[arg-type]
