"""transformers' `generate` and ours on the same weights: peaked random models, so that ends come and lengths vary."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_cases import random_model
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
)

from regard.decoding.settings import Ends, Hypothesis

PAD, END = 0, 1
VOCABULARY = 40
TIE = 1e-4
"""Scores that are nearer than this are a tie, which rounding may decide."""


_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "tie_word_embeddings": False,  # or each token would be likeliest to follow itself
}


def marian(seed: int = 4) -> PreTrainedModel:
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "activation_function": "relu"}
    ends = {"decoder_start_token_id": PAD, "forced_eos_token_id": None}
    config = MarianConfig(**_SHARED, **heads, **ends, encoder_layers=2)
    return _peaked(random_model(MarianMTModel, config, seed), end=4.0)


def bart(seed: int = 6) -> PreTrainedModel:
    heads = {"encoder_attention_heads": 3, "decoder_attention_heads": 3}
    ends = {"decoder_start_token_id": END, "forced_eos_token_id": END, "forced_bos_token_id": None, "bos_token_id": 3}
    config = BartConfig(**_SHARED, **heads, **ends, encoder_layers=1)
    return _peaked(random_model(BartForConditionalGeneration, config, seed), end=1.5)


def gpt2(seed: int = 0) -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=24,
        n_layer=2,
        n_head=4,
        n_positions=64,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
        tie_word_embeddings=False,
    )
    return _peaked(random_model(GPT2LMHeadModel, config, seed))


def _peaked(model: PreTrainedModel, end: float = 0.0) -> PreTrainedModel:
    """Larger output scores, an end that is likelier than chance, and no padding among the written tokens."""
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight.mul_(2.5)
        weight[END].mul_(1.6)
        weight[PAD] = 0.0
        bias = getattr(model, "final_logits_bias", None)
        if bias is not None:
            bias[0, PAD] = -30.0
            bias[0, END] = end
        for name, tensor in model.named_parameters():
            if name.endswith(("shared.weight", "embed_tokens.weight", "wte.weight")):
                tensor.mul_(6.0)  # so that tokens matter more than their places
            elif "encoder_attn.q_proj.weight" in name or "encoder_attn.out_proj.weight" in name:
                tensor.mul_(4.0)  # so that each step looks at a few tokens of the source, and this decides
            elif "norm.bias" in name and not name.startswith("transformer"):
                tensor.zero_()  # or the same few tokens would be likely everywhere
    return model


def sources(count: int, seed: int = 0, longest: int = 12) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(1, longest))] + [END] for _ in range(count)]


@dataclass(frozen=True)
class Theirs:
    """What `generate` wrote for one input, without start, padding and end."""

    tokens: list[int]
    score: float | None


@torch.no_grad()
def generate(model: PreTrainedModel, inputs: list[list[int]], beams: int, **options: Any) -> list[list[Theirs]]:
    """Their hypotheses of each input; inputs are padded on the side that `generate` asks for."""
    longest, alone = max(map(len, inputs)), not model.config.is_encoder_decoder
    pad, end = model.config.pad_token_id, model.config.eos_token_id
    rows = [[pad] * (longest - len(row)) + row if alone else row + [pad] * (longest - len(row)) for row in inputs]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in inputs]
    out = model.generate(
        input_ids=torch.tensor(rows),
        attention_mask=torch.tensor(mask if alone else [row[::-1] for row in mask]),
        num_beams=beams,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    skip = longest if alone else 1
    each = options.get("num_return_sequences", 1)
    scores = [None] * len(out.sequences) if beams == 1 else out.sequences_scores.tolist()
    found = [
        Theirs(_cut(row[skip:], pad, end), score) for row, score in zip(out.sequences.tolist(), scores, strict=True)
    ]
    return [found[i : i + each] for i in range(0, len(found), each)]


def _cut(tokens: list[int], pad: int, end: int) -> list[int]:
    ends = [i for i, token in enumerate(tokens) if token in (end, pad)]
    return tokens[: ends[0]] if ends else tokens


@dataclass(frozen=True)
class Agreement:
    """How two lists of hypotheses compare."""

    inputs: int
    equal: int
    ties: int
    """Inputs whose tokens differ where scores are less than `TIE` apart."""
    apart: float
    """The largest difference of scores where tokens are equal."""

    @property
    def unexplained(self) -> int:
        return self.inputs - self.equal - self.ties


def compare(ours: list[list[Hypothesis]], theirs: list[list[Theirs]]) -> Agreement:
    equal, ties, apart = 0, 0, 0.0
    for own, other in zip(ours, theirs, strict=True):
        gaps = [abs(a.score - b.score) for a, b in zip(own, other, strict=True) if b.score is not None]
        if [each.tokens for each in own] == [each.tokens for each in other]:
            equal += 1
            apart = max([apart, *gaps])
        elif gaps and max(gaps) < TIE:
            ties += 1
    return Agreement(len(ours), equal, ties, apart)


def ends_of(model: PreTrainedModel) -> Ends:
    return Ends(getattr(model.config, "decoder_start_token_id", None), END)
