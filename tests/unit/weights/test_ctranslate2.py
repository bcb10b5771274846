"""What cannot be written for CTranslate2 is refused before anything is written, by the setting's name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from text_cases import CORPUS

import regard
from regard.blocks.settings import Alibi, Attention, Dense, RmsNorm, Rotary, TransformerXL, YarnScaling
from regard.errors import WeightsError
from regard.models.settings import Decoder, EncoderDecoder
from regard.text.settings import Bpe, SpecialTokens
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.ctranslate2 import refuse_inexpressible, vocabulary, write

INEXPRESSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"ffn": Dense(activation="relu2")}, "ffn.activation is relu2 and only relu, gelu, gelu-tanh, silu"),
    "sandwich": ({"norm_place": "sandwich"}, "norm_place is sandwich and only pre and post"),
    "final norm": ({"final_norm": True}, "final_norm is True and only norm_place pre"),
    "layer scale": ({"layer_scale": 0.1}, "layer_scale is 0.1 and only none"),
    "value size": ({"attention": Attention(heads=2, value_size=4)}, r"attention.value_size is 4 and only head_size"),
    "norm of queries": ({"attention": Attention(heads=2, qk_norm=RmsNorm())}, "attention.qk_norm is rms and only none"),
    "soft cap": ({"attention": Attention(heads=2, soft_cap=5.0)}, "attention.soft_cap is 5.0 and only none"),
    "window": ({"attention": Attention(heads=2, window=3)}, "attention.window is 3 and only none"),
    "alibi": ({"position": Alibi()}, "position.kind is alibi and only sinusoidal, learned"),
    "transformer-xl": ({"position": TransformerXL()}, "position.kind is transformer-xl"),
    "yarn": (
        {"position": Rotary(scaling=YarnScaling(factor=2.0, original_length=64))},
        "position.scaling.kind is yarn and only linear",
    ),
}


def settings(**changes: Any) -> EncoderDecoder:
    return EncoderDecoder(**{"vocabulary": 100, "width": 16, "depth": 1, "attention": Attention(heads=2)} | changes)


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return TokenizerPair.of(train_tokenizer(Bpe(size=100), CORPUS))


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_cannot_be_expressed(name: str) -> None:
    changes, told = INEXPRESSIBLE[name]
    with pytest.raises(WeightsError, match=rf"cannot be written for ctranslate2: {told}"):
        refuse_inexpressible(settings(**changes))


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(WeightsError, match=r"norm_place is sandwich .*; position\.kind is alibi"):
        refuse_inexpressible(settings(norm_place="sandwich", position=Alibi()))


def test_a_model_of_another_kind(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    model = regard.build(Decoder(vocabulary=100, width=16, depth=1, attention=Attention(heads=2)))
    with pytest.raises(WeightsError, match=r"model\.kind \(decoder\) cannot be written for ctranslate2; only encoder-"):
        write(model, tokenizers, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_extra_is_missing(tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(WeightsError, match=r"ctranslate2 is not installed; run: pip install 'regard\[ctranslate2\]'"):
        write(regard.build(settings()), tokenizers, tmp_path)


def test_an_old_version(tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(__version__="4.6.0"))
    with pytest.raises(WeightsError, match=r"ctranslate2 4\.6\.0 is too old, 4\.7 is needed; run: pip install 'ctrans"):
        write(regard.build(settings()), tokenizers, tmp_path)


def test_tokens_beyond_the_tokenizers_have_names_of_their_own(tokenizers: TokenizerPair) -> None:
    tokenizer = tokenizers.source
    tokens = vocabulary(tokenizer, tokenizer.size + 2)
    assert tokens[tokenizer.role("end")] == tokenizer.token(tokenizer.role("end"))
    assert len(set(tokens)) == tokenizer.size + 2


def test_a_tokenizer_of_another_model(tokenizers: TokenizerPair) -> None:
    size = tokenizers.source.size
    with pytest.raises(WeightsError, match=rf"the tokenizer has {size} tokens and the model {size - 1}; give"):
        vocabulary(tokenizers.source, size - 1)


def test_two_ends(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="needs the extra `ctranslate2`")
    other = train_tokenizer(Bpe(size=100, special=SpecialTokens(end="[END]")), CORPUS)
    model = regard.build(settings(tied=()))
    with pytest.raises(WeightsError, match=r"the end tokens of the two tokenizers \(</s> and \[END\]\) differ"):
        write(model, TokenizerPair(tokenizers.source, other), tmp_path)
