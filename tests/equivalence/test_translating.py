"""A Hugging Face directory translates texts as transformers does with it: tokenizer, frame, search and all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tiny_translator import TEXTS, write_translator
from transformers import MarianMTModel, PreTrainedTokenizerFast

from regard.use.model import load
from regard.use.translator import Translator
from regard.weights.convert import convert


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    convert(write_translator(place / "ours", both=False), place / "theirs", "huggingface")
    return place / "theirs"


def test_texts_come_out_as_theirs(place: Path) -> None:
    draw = random.Random(1)
    words = " ".join(TEXTS).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(30)]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
    model = MarianMTModel.from_pretrained(place).eval()
    expected = []
    for text in texts:
        read = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        written = model.generate(**read, num_beams=4, length_penalty=1.0, early_stopping=False, max_new_tokens=9)
        expected.append(tokenizer.decode(written[0], skip_special_tokens=True))
    ours = load(place, "cpu")
    assert isinstance(ours, Translator)
    found = ours.translate(
        texts,
        beam=4,
        length={"kind": "power", "alpha": 1.0},
        stop="best",
        rules={"longest": {"kind": "absolute", "tokens": 9}},
    )
    assert found == expected
