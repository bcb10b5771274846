"""Models written for CTranslate2: its scores and its translations are ours."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from text_cases import CORPUS
from torch import nn

import regard
from regard.blocks.settings import (
    Attention,
    Dense,
    Gated,
    LayerNorm,
    Learned,
    LinearScaling,
    NoPosition,
    Relative,
    RmsNorm,
    Rotary,
    Sinusoidal,
)
from regard.decoding.decode import decode, score
from regard.decoding.settings import Absolute, Beam, Ends, Power, Rules
from regard.models.settings import EncoderDecoder
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.ctranslate2 import write_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs the extra `ctranslate2`")

FIRST = 5
"""Tokens before this one have roles."""

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"norm_place": "pre"},
    "no final norm": {"norm_place": "pre", "final_norm": False, "output_scale": 0.1},
    "biases": {"attention": Attention(heads=4), "output_bias": True},
    "one bias": {"attention": Attention(heads=4, bias=False, output_bias=True), "ffn": Dense(bias=False)},
    "gelu": {"ffn": Dense(activation="gelu")},
    "gelu-tanh": {"ffn": Dense(activation="gelu-tanh")},
    "silu": {"ffn": Dense(activation="silu")},
    "gated": {"ffn": Gated()},
    "gated, biases": {"ffn": Gated(activation="gelu", bias=True)},
    "halves": {"position": Sinusoidal(order="halves", base=500.0)},
    "learned": {"position": Learned(length=64), "embedding_scale": False},
    "learned, offset": {"position": Learned(length=64, offset=2), "embedding_norm": True},
    "no position": {"position": NoPosition()},
    "relative": {"position": Relative(buckets=8, longest=12), "output_scale": 0.3},
    "rotary": {"position": Rotary(), "norm": RmsNorm(), "norm_place": "pre"},
    "rotary in turn": {"position": Rotary(order="interleaved", base=300.0, fraction=0.5)},
    "rotary stretched": {"position": Rotary(scaling=LinearScaling(factor=3.0))},
    "rms norm from one": {"norm": RmsNorm(unit_offset=True, eps=1e-3)},
    "layer norm without bias": {"norm": LayerNorm(bias=False, eps=1e-2)},
    "untied": {"tied": ()},
    "output tied": {"tied": ("target", "output")},
    "embeddings tied": {"tied": ("source", "target")},
    "source and output tied": {"tied": ("source", "output")},
    "larger heads": {"attention": Attention(heads=4, head_size=16, scale=0.2)},
    "fewer key heads": {"attention": Attention(heads=4, kv_heads=2)},
    "unequal depths": {"depth": 3, "decoder_depth": 1},
}


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return TokenizerPair.of(train_tokenizer(Bpe(size=200), CORPUS))


def make(tokenizers: TokenizerPair, **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    source, target = tokenizers.sizes
    plain: dict[str, Any] = {"vocabulary": source, "target_vocabulary": target, "width": 32, "depth": 2}
    plain |= {"attention": Attention(heads=4, bias=False), "embedding_scale": True}
    model = regard.build(EncoderDecoder(**plain | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms that differ from where they start, or a missing one would not be noticed.
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def sentences(count: int, size: int, seed: int) -> list[list[int]]:
    drawn = random.Random(seed)
    return [[drawn.randrange(FIRST, size) for _ in range(drawn.randrange(1, 20))] for _ in range(count)]


class Theirs:
    """Their translator, with our numbers for tokens."""

    def __init__(self, model: nn.Module, tokenizers: TokenizerPair, directory: Path) -> None:
        write_ctranslate2(model, tokenizers, directory)
        self.pair = tokenizers
        self.translator = ctranslate2.Translator(
            str(directory), compute_type="float32", inter_threads=1, intra_threads=1
        )
        target = tokenizers.target
        self.ends = Ends(target.role("start"), target.role("end"))

    def sources(self, sources: list[list[int]]) -> list[list[str]]:
        return [[self.pair.source.token(number) for number in ids] for ids in sources]

    def targets(self, targets: list[list[int]]) -> list[list[str]]:
        return [[self.pair.target.token(number) for number in ids] for ids in targets]

    def framed(self, sources: list[list[int]]) -> list[list[int]]:
        """As our models read them; theirs adds the end itself."""
        return [[*ids, self.pair.source.role("end")] for ids in sources]


def assert_same_scores(model: nn.Module, tokenizers: TokenizerPair, directory: Path) -> None:
    theirs = Theirs(model, tokenizers, directory)
    sources, targets = (sentences(12, size, seed) for seed, size in enumerate(tokenizers.sizes))
    found = theirs.translator.score_batch(theirs.sources(sources), theirs.targets(targets))
    expected = score(model, theirs.framed(sources), targets, theirs.ends)
    for each, ours in zip(found, expected, strict=True):
        assert each.log_probs == pytest.approx(ours, abs=1e-4)


def test_given_translations_have_the_same_scores(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    larger = {"vocabulary": tokenizers.source.size + 7, "target_vocabulary": None}
    for name, changes in (VARIANTS | {"larger than the tokenizer": larger}).items():
        assert_same_scores(make(tokenizers, **changes), tokenizers, tmp_path / name)


def test_two_vocabularies(tmp_path: Path) -> None:
    pair = TokenizerPair(train_tokenizer(Bpe(size=150), CORPUS[::2]), train_tokenizer(Bpe(size=180), CORPUS[1::2]))
    assert pair.sizes[0] != pair.sizes[1]
    assert_same_scores(make(pair, tied=("target", "output")), pair, tmp_path)
    assert {"source_vocabulary.json", "target_vocabulary.json"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beam_search_finds_the_same(alpha: float, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    """Their length penalty is our `Power`, and they stop at the first ones that end, as many as there are beams."""
    model = make(tokenizers, output_bias=True)
    with torch.no_grad():
        model.output.bias[tokenizers.target.role("end")] += 3  # so that a good part of the translations end
    theirs = Theirs(model, tokenizers, tmp_path)
    sources = sentences(200, tokenizers.source.size, 2)
    found = theirs.translator.translate_batch(
        theirs.sources(sources),
        beam_size=5,
        num_hypotheses=3,
        length_penalty=alpha,
        max_decoding_length=20,
        min_decoding_length=0,
        return_scores=True,
        max_batch_size=32,
    )
    search = Beam(size=5, nbest=3, length=Power(alpha=alpha), stop="first")
    ours = decode(model, theirs.framed(sources), theirs.ends, search, Rules(longest=Absolute(tokens=20)))
    assert 20 < sum(row[0].finished for row in ours) < 180
    best = [theirs.targets([row[0].tokens])[0] for row in ours]
    differing = [place for place, each in enumerate(found) if each.hypotheses[0] != best[place]]
    # Where the best two are as good as each other, either may be found first.
    assert all(ours[place][0].score - ours[place][1].score < 1e-4 for place in differing)
    assert len(differing) <= 1
    for each, row in zip(found, ours, strict=True):
        assert each.scores[0] == pytest.approx(row[0].score, abs=1e-4)
