"""The cache: each beam sees exactly the keys that it descends from, by a diary kept as plain lists."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch
from packing_cases import pack

from regard.blocks.cache import Cache
from regard.blocks.layout import Padded
from regard.blocks.settings import Alibi, Learned, Rotary
from regard.blocks.settings import Attention as AttentionSettings
from regard.errors import InputError
from regard.models.build import build
from regard.models.settings import Decoder, EncoderDecoder

CPU = torch.device("cpu")
SMALL = {"width": 8, "depth": 2, "vocabulary": 11, "attention": AttentionSettings(heads=2)}


@pytest.mark.parametrize("fixed", [False, True])
def test_a_beam_sees_what_it_descends_from(fixed: bool) -> None:
    """Prompts of different lengths, beams that branch and end, inputs that leave, columns that are dropped."""
    for seed in range(6):
        draw = random.Random(seed)
        inputs, beams, steps = draw.randint(1, 3), draw.randint(1, 3), 30
        lengths = [draw.randint(1, 4) for _ in range(inputs)]
        cache = Cache(2, inputs, 1, (1, 2), torch.zeros(0).double(), None, steps if fixed else None, beams)
        diary = [[[float(100 * b + t) for t in range(n)]] for b, n in enumerate(lengths)]
        cache.plan(Padded.of(torch.tensor(lengths), 4))
        cache.commit()
        prompt = torch.tensor([[row[0][t] if t < len(row[0]) else -1.0 for t in range(4)] for row in diary]).double()
        for layer in cache.layers:
            layer.append(prompt[..., None, None], prompt[..., None, None].expand(-1, -1, 1, 2))
        for step in range(steps):
            chosen = [[draw.randrange(len(row)) for _ in range(beams)] for row in diary]
            before, left = len(diary[0]), list(range(len(diary)))
            if step % 7 == 6 and len(diary) > 1:
                left.pop(draw.randrange(len(left)))
            rows = torch.tensor([b * before + each for b in left for each in chosen[b]])
            cache.select(rows, torch.tensor(left) if len(left) < len(diary) else None)
            diary = [[list(diary[b][each]) for each in chosen[b]] for b in left]
            new = torch.rand(len(left), beams, dtype=torch.float64)
            queries, keys = cache.plan(Padded(len(left), beams))
            cache.commit()
            for b, row in enumerate(diary):
                for each, written in enumerate(row):
                    assert int(queries.places(CPU)[b, each]) == len(written)
                    written.append(float(new[b, each]))
            for layer in cache.layers:
                k, v = layer.append(new[..., None, None], new[..., None, None].expand(-1, -1, 1, 2))
                for b, row in enumerate(diary):
                    for each, written in enumerate(row):
                        seen = cache.mask[b, each].nonzero()[:, 0].tolist()
                        found = {int(keys.places(CPU)[b, c]): float(k[b, c]) for c in seen}
                        assert [found[place] for place in sorted(found)] == written
                        assert [float(v[b, c, 0, 1]) for c in seen] == [float(k[b, c]) for c in seen]
        if fixed:
            assert len({x.data_ptr() for x in cache.tensors() if x.numel()}) == 4 + 2 * 2
        else:
            assert cache.columns < 4 + steps * beams or beams == 1


def test_batches_that_do_not_fit() -> None:
    cache = build(Decoder(**SMALL)).new_cache(2)
    places = Padded(2, 1, places_BT=torch.zeros(2, 1))
    for layout in (Padded(3, 1), places, pack([[1], [1]], [None]).layouts[0]):
        with pytest.raises(InputError, match="padded batches of 2 rows"):
            cache.plan(layout)
    cache = build(Decoder(**SMALL)).new_cache(2, steps=8)
    cache.plan(Padded(2, 4))
    cache.commit()
    with pytest.raises(InputError, match="3 tokens in each row"):
        cache.plan(Padded(2, 3))


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    model = build(Decoder(**SMALL, position=Learned(length=6))).eval()
    tokens = torch.arange(12).reshape(2, 6) % 11
    cache = model.new_cache(2)
    with pytest.raises(InputError, match=r"token 60 is out of range"):
        model(tokens[:, :5] + 50, cache=cache)
    assert torch.allclose(model(tokens[:, :5], cache=cache), model(tokens[:, :5]), atol=1e-6)
    with pytest.raises(InputError, match="token 61 is out of range"):
        model(tokens[:, 5:] + 56, cache=cache)
    assert torch.allclose(model(tokens[:, 5:], cache=cache), model(tokens)[:, 5:], atol=1e-6)
    with pytest.raises(InputError, match=r"7 tokens exceeds position\.length"):
        model(tokens[:, :1], cache=cache)


def test_a_source_that_does_not_fit_leaves_the_cache_as_it_was() -> None:
    model = build(EncoderDecoder(**SMALL)).eval()
    source, target = torch.arange(6).reshape(2, 3), torch.arange(8).reshape(2, 4)
    memory, cache = model.encode(source), model.new_cache(2)
    with pytest.raises(InputError, match="queries have 2 sequences and keys 1"):
        model.output(model.states(target, memory[:1], cache=cache))
    assert torch.allclose(model.output(model.states(target, memory, cache=cache)), model(source, target), atol=1e-6)


@pytest.mark.parametrize("position", [Rotary(), Learned(length=64), Alibi()])
@pytest.mark.parametrize("window", [None, 5])
def test_several_tokens_forgotten_ones_and_joined_rows(position: Any, window: int | None) -> None:
    """Rows that read, forget, join and leave in any order have the logits of one pass over their tokens."""
    attention = AttentionSettings(heads=4, kv_heads=2, window=window)
    model = build(Decoder(**SMALL | {"attention": attention}, position=position)).double().eval()
    draw = random.Random(1)
    rows: list[list[int]] = [[], []]
    cache = model.new_cache(2, 64)
    for _ in range(24):
        counts = [draw.randint(1, 4) for _ in rows]
        fresh = [[draw.randrange(11) for _ in range(count)] for count in counts]
        padded = torch.tensor([[*row, *[0] * (max(counts) - len(row))] for row in fresh])
        logits = model(padded, Padded.of(torch.tensor(counts), max(counts)), cache)
        for place, count in enumerate(counts):
            rows[place] = [*rows[place], *fresh[place]]
            whole = model(torch.tensor([rows[place]]))[0, -count:]
            assert torch.allclose(logits[place, :count], whole, atol=1e-10)
        removed = [draw.randrange(min(5, len(row))) for row in rows]
        cache.forget(torch.tensor(removed))
        rows = [row[: len(row) - count] for row, count in zip(rows, removed, strict=True)]
        if draw.random() < 0.5:
            chosen = [draw.randrange(len(rows)) for _ in range(draw.randint(1, 4))]
            kept = [draw.randint(0, min(len(rows[old]), 40)) for old in chosen]
            cache = Cache.joined([(cache, old, length) for old, length in zip(chosen, kept, strict=True)])
            rows = [rows[old][:length] for old, length in zip(chosen, kept, strict=True)]


def test_memory_is_freed_without_the_collector() -> None:
    """A server makes a new cache whenever rows join; a cycle would keep the memory of old ones for long."""
    gc.disable()
    try:
        cache = Cache(2, 1, 2, (4, 4), torch.zeros(1))
        left = weakref.ref(cache)
        cache = Cache.joined([(cache, 0, 0)])
        assert left() is None
    finally:
        gc.enable()


def test_many_further_tokens() -> None:
    """More queries than batched products serve: the states are those of the whole sequence."""
    torch.manual_seed(0)
    model = build(Decoder(vocabulary=30, width=16, depth=2, attention=AttentionSettings(heads=2))).double().eval()
    tokens_BT = torch.randint(30, (1, 60))
    cache = model.new_cache(1)
    with torch.inference_mode():
        whole_BTD = model.states(tokens_BT)
        parts = [model.states(part, cache=cache) for part in tokens_BT.split([5, 50, 5], dim=1)]
    assert torch.cat(parts, dim=1).allclose(whole_BTD, atol=1e-12)
