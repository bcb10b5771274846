"""Texts of Hugging Face decoders, token by token as `transformers` writes them; chat prompts as it renders them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from hub_directories import write_gpt2, write_llama

import regard
from regard.use.generator import Generator

pytestmark = pytest.mark.slow

CHAT = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nHelp.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}{% endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{ '<|im_start|>assistant\n' }}\n{%- endif %}"
)


@pytest.mark.parametrize("write", [write_gpt2, write_llama])
def test_greedy_text_and_penalties(write, tmp_path: Path) -> None:
    directory = write(tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    model = regard.load(directory, "cpu")
    assert isinstance(model, Generator)
    for prompt in ("a dog runs through the snow", "the", "ein Hund"):
        ids = torch.tensor([model.ids(prompt)])
        for ours, other in (
            ({}, {}),
            ({"repetition": 1.3, "ngram": 3}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3}),
        ):
            config = transformers.GenerationConfig(
                do_sample=False, max_new_tokens=20, pad_token_id=0, eos_token_id=list(model.frame.ends), **other
            )
            found = theirs.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            expected = [token for token in found[0, ids.shape[1] :].tolist() if token not in model.frame.ends]
            for draft in (None, "lookup"):
                text = model.generate(prompt, tokens=20, temperature=0.0, details=True, draft=draft, **ours)
                assert text.ids == expected


def test_chat_prompts(tmp_path: Path) -> None:
    directory = write_gpt2(tmp_path / "model")
    stated = directory / "tokenizer_config.json"
    table = json.loads(stated.read_text("utf-8")) if stated.is_file() else {}
    stated.write_text(json.dumps(table | {"chat_template": CHAT}), encoding="utf-8")
    model = regard.load(directory, "cpu")
    assert isinstance(model, Generator)
    theirs = transformers.GPT2Tokenizer.from_pretrained(directory)
    talk = [
        {"role": "user", "content": " Hello "},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "é"},
    ]
    for messages in (talk[:1], talk):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert model.chat_prompt(messages) == expected
