"""Instruction tuning: what counts in the loss, prompts as at inference, templates, bad conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import regard
from regard.data.batches import Share
from regard.errors import InputError
from regard.models.build import build
from regard.tasks.instruct import TEMPLATE, InstructTask
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.text.chat import chat_parts, render_chat
from regard.training.report import Display

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does the cat say?"},
    {"role": "assistant", "content": "meow"},
    {"role": "user", "content": "And the dog?"},
    {"role": "assistant", "content": "woof"},
]


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    rows = [CHAT, CHAT[:3], CHAT[1:3]]
    lines = [json.dumps({"messages": each}) for each in rows]
    bad = [{"messages": [{"role": "robot", "content": "x"}]}, {"messages": 3}, {"messages": CHAT[:2]}, {"text": "x"}]
    (folder / "chat.jsonl").write_text("\n".join([*lines, *map(json.dumps, bad)]) + "\n", encoding="utf-8")
    (folder / "pairs.tsv").write_text("What does the cat say?\tmeow\n", encoding="utf-8")
    return {
        "task": "instruct",
        "data": {"kind": "chat", "root": str(folder), "train": ["chat.jsonl"], "hold_out": 0.0},
        "text": {"kind": "bytes"},
        "model": {"kind": "decoder", "width": 16, "depth": 1, "attention": {"heads": 2}, "dropout": 0.0},
        "train": {"steps": 2, "tokens": 1_024, "directory": str(folder / "run")},
        **changes,
    }


def prepared(given: dict[str, Any]) -> InstructTask:
    task = prepare_job(make_job("job", given, {}), torch.device("cpu"))
    assert isinstance(task, InstructTask)
    return task


@torch.no_grad()
def test_only_answers_count(tmp_path: Path) -> None:
    """Against the cross-entropy of each byte that the template writes as an answer, one conversation at a time."""
    for layout in ("padded", "packed"):
        given = recipe(tmp_path)
        task = prepared({**given, "train": {**given["train"], "layout": layout}})
        torch.manual_seed(0)
        model = build(task.model).double()
        [step] = task.batches("train", Share()).once()
        losses = [task.loss(model, batch) for batch in step.batches]
        tokenizer = task.tokenizers.source
        expected, count = 0.0, 0
        for messages in (CHAT, CHAT[:3], CHAT[1:3]):
            ids, answers = [tokenizer.role("start")], [False]
            for message in messages:
                name = f"{message['role'].capitalize()}:\n"
                answer = message["role"] == "assistant"
                body = [*tokenizer.ids([message["content"]])[0], *([tokenizer.role("end")] if answer else [])]
                for part, counts in (
                    (tokenizer.ids([name])[0], False),
                    (body, answer),
                    (tokenizer.ids(["\n"])[0], answer),
                ):
                    ids += part
                    answers += [counts] * len(part)
            tokens, counted = torch.tensor([ids]), torch.tensor(answers)[1:]
            each = functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none")
            expected, count = expected + float(each[counted].sum()), count + int(counted.sum())
        assert sum(float(loss.weight) for loss in losses) == count
        assert sum(float(loss.total) for loss in losses) == pytest.approx(expected, rel=1e-6)


def test_parts_are_the_whole_text(tmp_path: Path) -> None:
    tokenizer = prepared(recipe(tmp_path)).tokenizers.source
    parts = chat_parts(TEMPLATE, CHAT, tokenizer)
    assert "".join(text for text, _ in parts) == render_chat(TEMPLATE, CHAT, tokenizer, "it", answer=False)
    assert [text for text, answer in parts if answer] == ["meow</s>\n", "woof</s>\n"]
    latest = "{{ messages[-1].content }}"  # earlier messages are gone
    silent = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"  # and here answers
    for template in (latest, silent):
        with pytest.raises(InputError, match=r"task\.template"):
            chat_parts(template, CHAT, tokenizer)


def test_a_pair_is_a_conversation_and_bad_ones_are_counted(tmp_path: Path) -> None:
    given = recipe(tmp_path)
    data = {"kind": "parallel-tsv", "root": str(tmp_path), "train": ["pairs.tsv"], "hold_out": 0.0}
    both = [prepared(given), prepared({**given, "data": data})]
    chats, pairs = (task.data.examples["train"].store for task in both)
    assert chats.about["examples"] == 3
    reasons = " ".join(chats.about["skipped"])
    for part in ("role", "not a list", "no answer", "no key messages"):
        assert part in reasons
    assert list(pairs.values("text")) == list(chats.values("text")[chats.offsets("text")[2] :])


def test_the_last_answer_has_an_end(tmp_path: Path) -> None:
    """Also if the template does not write it."""
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    template += "{% if add_generation_prompt %}assistant: {% endif %}"
    task = prepared(recipe(tmp_path, task={"kind": "instruct", "template": template}))
    store, tokenizer = task.data.examples["train"].store, task.tokenizers.source
    offsets, values, end = store.offsets("text"), store.values("text"), tokenizer.size + tokenizer.role("end")
    assert [int(values[stop - 1]) for stop in offsets[1:]] == [end] * 3
    assert int((values == end).sum()) == 3


@pytest.mark.slow
def test_a_run_has_its_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    template += "{% if add_generation_prompt %}<assistant>{% endif %}"
    given = recipe(tmp_path, task={"kind": "instruct", "template": template})
    quiet = Display(quiet=True)
    run = regard.train(given, device="cpu", display=quiet)
    model = regard.load(run.directory, "cpu")
    assert isinstance(model, regard.Generator)
    asked = [{"role": "user", "content": "hello"}]
    prompt = model.chat_prompt(asked)
    assert prompt == "<user>hello</s><assistant>"
    task = prepared(given)
    assert model.ids(prompt, special=True) == task.prompts(["hello"])[0]
    train = {**given["train"], "start": str(run.directory), "directory": str(tmp_path / "second")}
    second = regard.train({**given, "task": "instruct", "train": train, "text": {}, "model": {}}, display=quiet)
    other = regard.load(second.directory, "cpu")
    assert isinstance(other, regard.Generator)
    assert other.chat_prompt(asked) == prompt
    assert len(other.predict(["hello"])) == 1
    with pytest.raises(InputError, match=r"inputs\[0\] has an empty text"):
        other.predict([" "])
