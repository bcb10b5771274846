"""A converted translator: transformers reads its directory, texts go in, and what comes out is what ours writes."""

from __future__ import annotations

from pathlib import Path

import torch
from text_cases import CORPUS
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import regard
from regard.blocks.settings import Attention
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Ends, Power, Rules
from regard.models.settings import EncoderDecoder
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.convert import convert
from regard.weights.directory import save_model


def test_transformers_translates_the_same(tmp_path: Path) -> None:
    pair = TokenizerPair.of(train_tokenizer(Bpe(size=150), CORPUS))
    settings = EncoderDecoder(
        vocabulary=pair.source.size, width=32, depth=2, attention=Attention(heads=4, bias=False), embedding_scale=True
    )
    torch.manual_seed(1)
    ours = regard.build(settings).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_model(ours, tmp_path / "run")
    pair.save(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "theirs", "huggingface")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
    theirs = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs").eval()
    texts = CORPUS[:6]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    assert [
        ids[: int(mask.sum())].tolist() for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ] == (pair.inputs(texts))
    found = theirs.generate(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        num_beams=4,
        length_penalty=0.6,
        early_stopping=False,
        max_new_tokens=12,
    )
    search = Beam(size=4, length=Power(alpha=0.6), stop="best")
    ends = Ends(pair.target.role("start"), pair.target.role("end"))
    expected = decode(ours, pair.inputs(texts), ends, search, Rules(longest=Absolute(tokens=12)))
    assert tokenizer.batch_decode(found, skip_special_tokens=True) == (
        pair.target.decode_batch([row[0].tokens for row in expected])
    )
