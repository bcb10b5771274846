"""The kernels of a decoder's step against the model's own forward, and those of the choice against the plain one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from decoding_cases import continuer
from fused_cases import DEVICE, INTERPRETED, needs_triton

from regard.blocks.cache import SlotCache
from regard.blocks.settings import Attention, Dense, Gated, Learned, NoPosition, RmsNorm, Rotary
from regard.decoding.continuation import Prompt
from regard.decoding.fast.slots import SlotMemory, TokenChoice, _values, top_k
from regard.decoding.model import SearchModel
from regard.decoding.settings import Ends, Greedy, Sampling
from regard.models.build import build
from regard.models.families import Decoder
from regard.models.settings import Decoder as DecoderSettings

pytestmark = needs_triton

PLAIN: dict[str, dict[str, Any]] = {
    "gpt2": {"position": Learned(length=160), "ffn": Dense(hidden=200, activation="gelu-tanh"), "tied": True},
    "llama": {
        "position": Rotary(),
        "norm": RmsNorm(),
        "ffn": Gated(hidden=64),
        "attention": Attention(heads=4, kv_heads=2, head_size=16, bias=False),
    },
    "halves": {"position": Rotary(order="halves"), "ffn": Dense(hidden=300, activation="relu2")},
    "plain": {"position": NoPosition(), "ffn": Dense(activation="gelu")},
}
OTHERS: dict[str, dict[str, Any]] = {
    "post": {"norm_place": "post"},
    "window": {"attention": Attention(heads=3, head_size=16, window=9)},
    "normed": {"attention": Attention(heads=3, head_size=16, qk_norm=RmsNorm())},
    "capped": {"output_soft_cap": 3.0},
}


def model_of(name: str, dtype: torch.dtype = torch.float32) -> Decoder:
    torch.manual_seed(0)
    given = {"vocabulary": 50, "width": 48, "depth": 2, "attention": Attention(heads=3, head_size=16)}
    given |= {"norm_place": "pre", "tied": False} | (PLAIN | OTHERS)[name]
    model = build(DecoderSettings(**given))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    assert isinstance(model, Decoder)
    return model.to(DEVICE, dtype).eval()


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
def test_which_models_are_plain(name: str) -> None:
    from regard.decoding.fast.triton_decoder import reads

    assert reads(model_of(name)) is (name in PLAIN)


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("name", PLAIN)
def test_a_step_is_that_of_the_model(name: str, rows: int) -> None:
    """In float32 against float64, and in 16 bits; rows have positions of their own. New keys and values are stored."""
    from regard.decoding.fast.triton_decoder import DecoderStep

    dtypes = [(torch.float32, 1e-5), (torch.float16 if INTERPRETED else torch.bfloat16, 0.03)]
    for dtype, bound in dtypes:
        model, exact = model_of(name, dtype), model_of(name, dtype).double()
        one = model.decoder[0].attention
        caches = [SlotCache(2, rows, *one.cached_sizes, next(each.parameters()), 160) for each in (model, exact)]
        place_B1 = torch.randint(0, 150, (rows, 1), device=DEVICE)
        place_B1[0], place_B1[-1] = 0 if rows > 1 else 37, 140
        for layer, other in zip(caches[0].layers, caches[1].layers, strict=True):
            other.k_BCGE.copy_(layer.k_BCGE.normal_())
            other.v_BCGV.copy_(layer.v_BCGV.normal_())
        for cache in caches:
            cache.place_B1.copy_(place_B1)
        token_S = torch.randint(0, 50, (rows,), device=DEVICE)
        with torch.inference_mode():
            expected_SV = exact(token_S[:, None], cache=caches[1])[:, 0]
            found_SV = DecoderStep(model, caches[0]).scores(model, token_S).double()
        assert (found_SV - expected_SV).abs().max() < bound * expected_SV.abs().max()
        for layer, other in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.allclose(layer.k_BCGE.double(), other.k_BCGE, atol=20 * bound, rtol=bound)
            assert torch.allclose(layer.v_BCGV.double(), other.v_BCGV, atol=20 * bound, rtol=bound)


def searches(kind: str, rows: int) -> list[Greedy | Sampling]:
    draw = random.Random(rows)
    if kind == "greedy":
        return [Greedy()] * rows
    if kind == "mixed":
        return [Sampling(temperature=1.3, top_k=draw.choice([1, 5, 50])) if i % 2 else Greedy() for i in range(rows)]
    return [
        Sampling(top_k=draw.choice([3, 20, 64]), top_p=draw.choice([0.3, 0.8, 1.0]), min_p=draw.choice([0, 0.05]))
        for _ in range(rows)
    ]


@pytest.mark.parametrize("kind", ["greedy", "mixed", "filtered"])
@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(12, "float32"), (50, "float16"), (5000, "bfloat16"), (70_000, "float32")]
)
def test_a_choice_is_the_plain_one(vocabulary: int, dtype: str, kind: str) -> None:
    """Tokens, log-probabilities and the state of the slots; 16 bits give many equal scores."""
    from regard.decoding.fast import triton_choice

    rows, model = 5, SearchModel(continuer(dtype=torch.float32).to(DEVICE), Ends())
    model.vocabulary = vocabulary
    torch.manual_seed(vocabulary)
    prompts = [Prompt([1], 5, search) for search in searches(kind, rows)]
    choice = TokenChoice.of(prompts, vocabulary)
    scores_SV = (2 * torch.randn(rows, vocabulary, device=DEVICE)).to(getattr(torch, dtype))
    assert triton_choice.chooses(choice, scores_SV.dtype)
    assert not triton_choice.chooses(TokenChoice.of([*prompts, Prompt([1], 5, Sampling())], 100), scores_SV.dtype)
    uniform_SC = torch.rand(rows, 16, dtype=torch.float64, device=DEVICE)
    memories = [SlotMemory(model, rows, 16, lambda work: work) for _ in range(2)]
    for memory in memories:
        memory.uniform_SC.copy_(uniform_SC)
        memory.live_S.fill_(True)
        memory.live_S[1] = False
        memory.left_S.copy_(torch.tensor([5, 5, 1, 5, 5]))
        memory.ends_SE[3, 2] = scores_SV[3].argmax()
        memory.cache.place_B1.copy_(torch.arange(rows)[:, None])
        for row, prompt in enumerate(prompts):
            sampled = isinstance(prompt.search, Sampling)
            memory.top_k_S[row] = top_k(prompt.search, vocabulary)
            memory.values_S6[row] = torch.tensor(_values(prompt))
            memory.uniform_SC[row] *= int(sampled)
    plain, fast = memories
    with torch.inference_mode():
        plain.write(scores_SV.float(), choice)
        triton_choice.write_tokens(fast, scores_SV, choice)
    assert torch.equal(plain.out_2TS[0], fast.out_2TS[0])
    assert torch.allclose(plain.out_2TS[1], fast.out_2TS[1], atol=1e-5)
    for name in ("token_S", "left_S", "live_S", "step_1"):
        assert torch.equal(getattr(plain, name), getattr(fast, name)), name
    assert torch.equal(plain.cache.place_B1, fast.cache.place_B1)
