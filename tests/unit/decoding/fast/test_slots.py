"""A running batch in fixed memory writes what the plain one writes, and its steps can be recorded."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from decoding_cases import END, ENDS, continuer, inputs
from torch.utils._python_dispatch import TorchDispatchMode

from regard.blocks import embedding, layout
from regard.blocks.settings import Attention, Dense, Gated, Learned, RmsNorm, Rotary, Sinusoidal
from regard.decoding.continuation import Continuation, Prefixes, Prompt
from regard.decoding.decode import decode
from regard.decoding.fast.graphs import Work
from regard.decoding.fast.slots import SlotMemory, Slots, TokenChoice
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Ends, Greedy, Rules, Sampling
from regard.models.build import build
from regard.models.families import Decoder
from regard.models.settings import Decoder as DecoderSettings

VOCABULARY = 12
SEARCHES = [
    Greedy(),
    Sampling(seed=3),
    Sampling(temperature=2.0, top_k=4, seed=1),
    Sampling(temperature=2.0, top_p=0.8, min_p=0.05),
    Sampling(temperature=1.5, top_k=5, top_p=0.9),
]
PENALTIES = Rules(repetition=1.3, frequency=0.4, presence=0.2)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Recorder:
    """Stands in for CUDA graphs: a step runs twice while it is recorded, and its memory must stay in place."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, work: Work) -> Work:
        self.recorded += 1
        memory = work.func.__self__  # type: ignore[attr-defined]
        work()
        where = [each.data_ptr() for each in memory.tensors()]

        def play() -> None:
            work()
            assert [each.data_ptr() for each in memory.tensors()] == where

        return play


def texts(model: Decoder, slots: bool, limit: int | None = None, slide: bool = False) -> tuple[list[Any], int]:
    """Rows with different searches, of which two join at every step; tokens and log-probabilities."""
    batch, recorder = Continuation(model, limit, Prefixes(), slots=slots), Recorder()
    if batch.slots is not None:
        batch.slots.record = recorder
    waiting = [
        Prompt(prompt[:-1] or [3], 5 + 3 * number, search, rules, frozenset([END]), number, slide=slide)
        for rules in (Rules(), PENALTIES)
        for number, (prompt, search) in enumerate(zip(inputs(5, VOCABULARY), SEARCHES, strict=True))
    ]
    rows, chances = [], dict[Any, list[float]]()
    while waiting or batch.rows:
        rows += batch.add(waiting[:2])
        waiting = waiting[2:]
        for row, written in batch.step():
            chances.setdefault(row, []).extend(each.chance for each in written)
    return [(row.tokens, row.finish, chances[row]) for row in rows], recorder.recorded


@pytest.mark.parametrize(("limit", "slide"), [(None, False), (14, False), (12, True)])
def test_rows_are_written_as_in_the_plain_batch(limit: int | None, slide: bool) -> None:
    """Tokens, ends, and log-probabilities; with rows that join and leave, and contexts that are full."""
    model = continuer(VOCABULARY)
    plain, _ = texts(model, False, limit, slide)
    found, recorded = texts(model, True, limit, slide)
    assert recorded > 0
    assert_equal(found, plain)
    assert {finish for _, finish, _ in found} == {"stop", "length"}


def assert_equal(found: list[Any], plain: list[Any]) -> None:
    """Tokens and finish exactly, log-probabilities nearly."""
    for (tokens, finish, chances), (others, end, theirs) in zip(found, plain, strict=True):
        assert (tokens, finish) == (others, end)
        assert chances == pytest.approx(theirs)


def test_other_prompts_are_not_recorded_again() -> None:
    model, recorder = continuer(VOCABULARY), Recorder()
    for length in (1, 5, 30, 100):
        batch = Continuation(model, slots=True)
        assert batch.slots is not None
        batch.slots.record = recorder
        batch.add([Prompt([2] * length, 20 + length, Sampling(top_k=3), sample=length)])
        while batch.rows:
            batch.step()
        assert recorder.recorded == 1
    batch = Continuation(model, slots=True)
    batch.slots = Slots(batch.reader.model, math.inf, recorder)
    batch.add([Prompt([2] * 300, 2, Sampling(top_k=3))])
    batch.step()
    assert recorder.recorded == 2  # a longer memory


def test_a_prompt_that_is_left_can_be_read_again() -> None:
    """The cache of a row that ends is kept for later prompts; alternatives and n-grams take the plain way."""
    model, prefixes = continuer(VOCABULARY), Prefixes()
    prompt = [int(token) for token in torch.randint(2, VOCABULARY, (20,), generator=torch.Generator().manual_seed(1))]
    written = []
    for slots in (True, False):
        batch = Continuation(model, prefixes=prefixes if slots else None, slots=slots)
        rows = batch.add(
            [
                Prompt(prompt, 8, keep=True),
                Prompt(prompt, 8, alternatives=2),
                Prompt(prompt, 8, rules=Rules(ngram=2)),
            ]
        )
        while batch.rows:
            batch.step()
        again = batch.add([Prompt(rows[0].tokens, 5)])
        while batch.rows:
            batch.step()
        written.append([row.tokens for row in [*rows, *again]])
    assert written[0] == written[1]
    assert max(len(tokens) for tokens, _ in prefixes.known) == 27


def test_a_row_with_a_larger_top_k_leaves() -> None:
    model, written = continuer(VOCABULARY), []
    for slots in (True, False):
        batch = Continuation(model, slots=slots)
        rows = batch.add([Prompt([2, 3], 5 * size, Sampling(top_k=size)) for size in (10, 9, 5, 3)][::-1])
        rows += batch.add([Prompt([2, 3], 2, Sampling(top_k=11))])
        while batch.rows:
            batch.step()
        written.append([row.written for row in rows])
    assert written[0] == written[1]


class Silent(TorchDispatchMode):
    """Refuses what a GPU cannot record: to read a number, or to copy one from the host."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function.__name__.split(".")[0] not in ("item", "_local_scalar_dense", "nonzero", "lift_fresh")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("position", [Sinusoidal(), Learned(length=40), Rotary()])
def test_a_step_asks_the_host_nothing(position: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(DecoderSettings(vocabulary=9, width=8, depth=1, attention=Attention(heads=2), position=position))
    memory = SlotMemory(SearchModel(model.eval(), Ends()), 3, 40, Recorder())
    for module in (layout, embedding):  # which read indices where that costs nothing
        monkeypatch.setattr(module, "readable", lambda tensor: False)
    with torch.inference_mode(), Silent():
        for choice in (TokenChoice(), TokenChoice(4, True, True, True), TokenChoice(0)):
            memory._step(SearchModel(model, Ends()), choice)


def small(name: str, dtype: torch.dtype) -> Decoder:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "gpt2": {"position": Learned(length=600), "ffn": Dense(activation="gelu-tanh"), "norm_place": "pre"},
        "llama": {
            "position": Rotary(),
            "ffn": Gated(),
            "norm": RmsNorm(),
            "norm_place": "pre",
            "attention": Attention(heads=4, kv_heads=2, bias=False),
        },
        "other": {"attention": Attention(heads=4, window=20)},
    }[name]
    settings = {"vocabulary": 500, "width": 128, "depth": 2, "attention": Attention(heads=4), "tied": False} | given
    model = build(DecoderSettings(**settings), "cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert isinstance(model, Decoder)
    return model.to(dtype).eval()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("name", ["gpt2", "llama", "other"])
def test_a_gpu_writes_the_same_text(name: str, rows: int) -> None:
    """In float32: greedy tokens, and samples of a seed."""
    model, draw = small(name, torch.float32), torch.Generator().manual_seed(rows)
    given = [torch.randint(500, (5 + 40 * row % 97,), generator=draw).tolist() for row in range(rows)]
    rules = Rules(longest=Absolute(tokens=60))
    for search in (Greedy(), Sampling(top_k=20, temperature=0.7, seed=2), Sampling(top_k=9, top_p=0.9), Sampling()):
        found, plain = (decode(model, given, Ends(), search, rules, fixed=fixed) for fixed in (None, False))
        assert [row[0].tokens for row in found] == [row[0].tokens for row in plain]
        for (mine,), (its,) in zip(found, plain, strict=True):
            assert mine.token_scores == pytest.approx(its.token_scores, abs=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rows", [1, 4, 20])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_kernels_are_near_the_model_in_16_bits(name: str, rows: int) -> None:
    from regard.decoding.fast.graphs import GraphRecorder

    model = small(name, torch.bfloat16)
    memory = SlotMemory(SearchModel(model, Ends()), rows, 256, GraphRecorder())
    assert memory.fused is not None
    with torch.inference_mode():
        tokens = torch.randint(500, (70, rows, 1), device="cuda")
        for place, token_S1 in enumerate(tokens):
            memory.cache.place_B1.fill_(place)
            scores_SV = memory.fused.scores(model, token_S1[:, 0])
        expected_SV = model.float()(tokens[..., 0].T)[:, -1]
    error = (scores_SV - expected_SV).square().mean().sqrt() / expected_SV.square().mean().sqrt()
    assert error < 0.03


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_draws_by_the_chances() -> None:
    """Chi-squared of the second token among the ten likeliest, over 20,000 rows."""
    model, count = small("gpt2", torch.float32), 20_000
    prompt = [3, 4, 5]
    batch = Continuation(model)
    for start in range(0, count, 64):
        batch.add([Prompt(prompt, 1, Sampling(top_k=10, seed=7), sample=start + row) for row in range(64)])
    drawn = Counter()
    while batch.rows:
        for _, written in batch.step():
            drawn.update(each.token for each in written)
    with torch.inference_mode():
        scores = model(torch.tensor([prompt], device="cuda"))[0, -1].double()
    best = scores.topk(10)
    total = sum(drawn.values())
    statistic = sum(
        (drawn[token] - total * share) ** 2 / (total * share)
        for token, share in zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True)
    )
    assert set(drawn) <= set(best.indices.tolist())
    assert statistic < 33  # 9 degrees of freedom: exceeded once in ten thousand


@pytest.mark.gpu
@needs_gpu
def test_rows_join_and_leave_on_a_gpu() -> None:
    model = continuer(VOCABULARY).cuda()
    for limit, slide in ((None, False), (12, True)):
        assert_equal(texts(model, True, limit, slide)[0], texts(model, False, limit, slide)[0])
    assert decode(model, [[2, 3]], ENDS)[0][0].tokens == decode(model, [[2, 3]], ENDS, fixed=False)[0][0].tokens
