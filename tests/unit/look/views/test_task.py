"""Task view: what transformers' heads give for the same text or pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hub_directories as hub
import pytest
import torch
import transformers
from torch.testing import assert_close

import regard
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views import views_of
from regard.look.views.task import task_of

QUESTION, CONTEXT = "where is the house", "The small house stands near the old river."
KINDS = {
    "classification": ("SequenceClassification", 3),
    "number": ("SequenceClassification", 1),
    "tagging": ("TokenClassification", 4),
    "spans": ("QuestionAnswering", 2),
    "masked": ("MaskedLM", 2),
}


def opened(directory: Path, kind: str) -> tuple[Study, Any, Any]:
    hub.write_bert(directory)
    name, labels = KINDS[kind]
    config = transformers.BertConfig.from_pretrained(directory, num_labels=labels)
    theirs = getattr(transformers, f"BertFor{name}")(config).eval()
    hub.write_weights(theirs, directory)
    return Study(regard.load(directory, "cpu")), theirs, transformers.BertTokenizer.from_pretrained(directory)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    study, theirs, tokenizer = opened(tmp_path / "bert", kind)
    assert "task" in views_of(study)
    text = "the [MASK] house stands near the [MASK]" if kind == "masked" else QUESTION
    run = study.run(Input(text, CONTEXT))
    encoded = tokenizer(text, CONTEXT, return_tensors="pt")
    assert run.sides["encoder"].ids == encoded["input_ids"][0].tolist()
    found = task_of(study, run)
    assert found["segments"] == encoded["token_type_ids"][0].tolist()
    [head] = found["heads"]
    out = theirs(**encoded)
    if kind == "spans":
        start, end = (logits[0].softmax(-1) for logits in (out.start_logits, out.end_logits))
        assert_close(torch.tensor([head["start"], head["end"]]), torch.stack([start, end]), atol=1e-5, rtol=0)
        [answer] = study.loaded.predict([(QUESTION, CONTEXT)])
        assert head["text"] == answer["answer"]
        return
    shares = out.logits.softmax(-1)
    if kind == "number":
        assert head["number"] == pytest.approx(float(out.logits), abs=1e-5)
    elif kind == "classification":
        wanted = {f"LABEL_{i}": share for i, share in enumerate(shares[0].tolist())}
        assert dict(head["classes"]) == pytest.approx(wanted, abs=1e-5)
        assert head["pooling"] == "class"
    elif kind == "masked":
        places = (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten().tolist()
        assert [place for place, _ in head["masks"]] == places
        for place, best in head["masks"]:
            assert [share for _, share in best] == pytest.approx(shares[0, place].topk(5).values.tolist(), abs=1e-5)
    else:
        tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        firsts = [i for i, token in enumerate(tokens) if not token.startswith(("##", "["))]
        assert [place for place, *_ in head["tags"]] == firsts
        for place, tag, share in head["tags"]:
            assert (tag, share) == (
                f"LABEL_{int(shares[0, place].argmax())}",
                pytest.approx(float(shares[0, place].max()), abs=1e-5),
            )


def test_one_text_without_a_mask_and_models_without_heads(tmp_path: Path) -> None:
    study, _, _ = opened(tmp_path / "bert", "masked")
    found = task_of(study, study.run(Input("the house")))
    assert found == {
        "segments": [0] * len(found["segments"]),
        "heads": [{"name": "masked", "kind": "masked", "masks": []}],
    }
    assert "task" not in views_of(Study(regard.load(hub.write_gpt2(tmp_path / "gpt2"), "cpu")))
