"""Directories as they are on the Hub (pickled weights, older tokenizer files) give what transformers gives."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import hub_directories as hub
import pytest
import sentencepiece
import torch
import transformers
from hub_directories import TEXTS

import regard
from regard.errors import InputError
from regard.text.tokenizer import TokenizerPair
from regard.use.translator import Translator
from regard.weights.convert import convert

pytestmark = pytest.mark.slow
PROBES = [*TEXTS, *hub.SENTENCES["de"], "Über-natürlich: naïve café № ½ ﬁ", "  two  spaces ", "x\ty", "中文 and ▁ mark"]


def theirs(kind: Any, directory: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers recommends sacremoses, and says that *.bin is old
        return kind.from_pretrained(directory)


def opened(directory: Path) -> Translator:
    model = regard.load(directory, "cpu")
    assert isinstance(model, Translator)
    return model


def generated(model: Any, inputs: list[list[int]]) -> list[list[int]]:
    """Without the start, and from the end on nothing."""
    rows = [model.generate(torch.tensor([ids]))[0].tolist()[1:] for ids in inputs]
    end = model.generation_config.eos_token_id
    return [row[: row.index(end)] if end in row else row for row in rows]


def test_a_directory_like_opus_mt(tmp_path: Path) -> None:
    directory = hub.write_opus(tmp_path / "opus", codes=(">>fr<<", ">>de<<"))
    tokenizer = theirs(transformers.MarianTokenizer, directory)
    model = theirs(transformers.MarianMTModel, directory).eval()
    ours = opened(directory)
    assert ours.inputs(PROBES) == [tokenizer(text)["input_ids"] for text in PROBES]
    target = ours.tokenizers.target
    assert target.ids(PROBES, end=True) == [tokenizer(text_target=text)["input_ids"] for text in PROBES]
    assert any(target.role("unknown") in ids for ids in target.ids(PROBES))
    expected = generated(model, ours.inputs(TEXTS))
    assert [ours.decode(ids) for ids in ours.inputs(TEXTS)] == expected
    assert len({tuple(row) for row in expected}) == len(TEXTS)
    # Words with unknown pieces are kept as they are by default, not translated.
    assert ours.translate(TEXTS, keep=False) == [tokenizer.decode(row, skip_special_tokens=True) for row in expected]
    plain = generated(model, ours.inputs([">>fr<< A bird", "A bird"]))
    assert [ours.decode(ids) for ids in ours.inputs([">>fr<< A bird", "A bird"])] == plain
    assert plain[0] != plain[1]


def test_texts_through_opus_mt_with_all_defaults(tmp_path: Path) -> None:
    for seed in range(3):
        directory = hub.write_opus(tmp_path / f"opus{seed}", drop=0, seed=seed)
        tokenizer = theirs(transformers.MarianTokenizer, directory)
        model = theirs(transformers.MarianMTModel, directory).eval()
        expected = [model.generate(**tokenizer(text, return_tensors="pt"))[0] for text in TEXTS]
        assert opened(directory).translate(TEXTS) == tokenizer.batch_decode(expected, skip_special_tokens=True)


def test_t5_with_a_sentencepiece_model_and_shards(tmp_path: Path) -> None:
    directory = hub.write_t5(tmp_path / "t5")
    pieces = sentencepiece.SentencePieceProcessor(str(directory / "spiece.model"))
    ours = opened(directory)
    assert ours.inputs(PROBES) == [[*pieces.encode(text), 1] for text in PROBES]
    assert ours.tokenizers.source.id("<extra_id_0>") == 99
    assert ours.tokenizers.source.id("<extra_id_9>") == 90
    expected = generated(theirs(transformers.T5ForConditionalGeneration, directory).eval(), ours.inputs(TEXTS))
    assert [ours.decode(ids) for ids in ours.inputs(TEXTS)] == expected
    known = [[token for token in row if 2 < token < 90] for row in expected]
    assert ours.translate(TEXTS) == [pieces.decode(row) for row in known]


def test_bart_with_merges(tmp_path: Path) -> None:
    directory = hub.write_bart(tmp_path / "bart")
    tokenizer = theirs(transformers.BartTokenizer, directory)
    ours = opened(directory)
    assert ours.inputs(PROBES) == [tokenizer(text)["input_ids"] for text in PROBES]
    expected = generated(theirs(transformers.BartForConditionalGeneration, directory).eval(), ours.inputs(TEXTS))
    assert [ours.decode(ids) for ids in ours.inputs(TEXTS)] == expected
    assert ours.translate(TEXTS) == [tokenizer.decode(row, skip_special_tokens=True) for row in expected]


@torch.no_grad()
def test_gpt2_bert_and_llama(tmp_path: Path) -> None:
    gpt2, bert, llama = (
        hub.write_gpt2(tmp_path / "gpt2"),
        hub.write_bert(tmp_path / "bert"),
        hub.write_llama(tmp_path / "llama"),
    )
    cased = hub.write_bert(tmp_path / "cased", do_lower_case=False, strip_accents=False)
    pieces = sentencepiece.SentencePieceProcessor(str(llama / "tokenizer.model"))
    cases: list[tuple[Path, Any, Any]] = [
        (gpt2, theirs(transformers.GPT2Tokenizer, gpt2), transformers.GPT2LMHeadModel),
        (bert, theirs(transformers.BertTokenizer, bert), transformers.BertForMaskedLM),
        (cased, theirs(transformers.BertTokenizer, cased), transformers.BertForMaskedLM),
        (llama, lambda text: {"input_ids": [1, *pieces.encode(text)]}, transformers.LlamaForCausalLM),
    ]
    for directory, tokenize, kind in cases:
        ours = regard.load(directory, "cpu")
        assert ours.tokenizers is not None
        for text in PROBES:
            assert ours.tokenizers.source.encode(text).ids == tokenize(text)["input_ids"], (directory, text)
        ids = torch.tensor([ours.tokenizers.source.encode(TEXTS[0]).ids])
        hidden = ours.network(ids)
        logits = ours.network.heads["masked"](hidden) if kind is transformers.BertForMaskedLM else hidden
        assert torch.allclose(logits, theirs(kind, directory).eval()(ids).logits, atol=1e-4)


def test_tokenizers_survive_a_file(tmp_path: Path) -> None:
    """What a run saves reads as the files of the Hub."""
    for write in (hub.write_opus, hub.write_t5, hub.write_bart, hub.write_llama):
        pair = TokenizerPair.load(write(tmp_path / write.__name__))
        (tmp_path / "saved").mkdir(exist_ok=True)
        pair.save(tmp_path / "saved")
        again = TokenizerPair.load(tmp_path / "saved")
        assert again == pair
        assert again.sizes == pair.sizes
        assert again.joint is pair.joint is True
        assert again.source.ids(PROBES) == pair.source.ids(PROBES)


def test_generation_that_is_not_supported(tmp_path: Path) -> None:
    directory = hub.write_t5(tmp_path / "t5")
    for content in ({"num_beam_groups": 2}, {"length_penalty": "much"}, {"num_beams": 0}, {"early_stopping": []}):
        hub.write_json(directory / "generation_config.json", {"decoder_start_token_id": 0, **content})
        with pytest.raises(regard.errors.WeightsError, match=next(iter(content))):
            regard.load(directory, "cpu")


@torch.no_grad()
def test_a_classifier_takes_single_texts_and_pairs(tmp_path: Path) -> None:
    directory = hub.write_bert(tmp_path / "bert")
    inputs = [("the small house", "the old river"), ("a green bird",)]
    for labels in (1, 2, 3):
        config = transformers.BertConfig.from_pretrained(directory, num_labels=labels)
        theirs = transformers.BertForSequenceClassification(config).eval()
        hub.write_weights(theirs, directory)
        tokenizer = transformers.BertTokenizer.from_pretrained(directory)
        model = regard.load(directory, "cpu")
        lines = model.predict(["\t".join(texts) for texts in inputs])
        assert lines == model.predict([list(texts) for texts in inputs])
        for texts, found in zip(inputs, lines, strict=True):
            logits = theirs(**tokenizer(*texts, return_tensors="pt")).logits[0]
            if labels == 1:
                assert found == {"number": pytest.approx(float(logits), abs=2e-6)}
            else:
                shares = {f"LABEL_{i}": share for i, share in enumerate(logits.softmax(-1).tolist())}
                assert found["probabilities"] == pytest.approx(shares, abs=2e-6)
        with pytest.raises(InputError, match=r"inputs\[0\] has 3 texts"):
            model.predict(["a\tb\tc"])
    hub.write_weights(theirs, directory, problem_type="multi_label_classification")
    config = json.loads((directory / "config.json").read_text())
    hub.write_json(directory / "config.json", {**config, "id2label": dict.fromkeys("012", "x")})
    convert(directory, tmp_path / "ours", "regard")  # a run could not read equal names
    convert(tmp_path / "ours", tmp_path / "again", "huggingface")
    for place in (directory, tmp_path / "ours", tmp_path / "again"):
        with pytest.raises(InputError, match=r"several labels \(problem_type\)"):
            regard.load(place, "cpu").predict(["a"])
