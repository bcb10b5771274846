"""Caches: whatever the kind, the keys to attend to are those that were given, in a diary kept as plain lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.blocks.cache import CacheKind, CacheShape, CrossCache, RowCache
from regard.blocks.layers import Attention
from regard.blocks.layout import Padded, pack
from regard.blocks.settings import Attention as AttentionSettings
from regard.blocks.settings import Learned
from regard.blocks.visibility import Visibility
from regard.errors import InputError
from regard.models.build import build
from regard.models.settings import Decoder, EncoderDecoder

CPU = torch.device("cpu")


def cache_of(kind: CacheKind, batch: int, capacity: int, layers: int = 1) -> RowCache:
    return RowCache(kind, CacheShape(layers, batch, heads=1, head_size=1, value_size=2), capacity, CPU, torch.float64)


def full(cache: RowCache, time: int) -> tuple[Tensor, Tensor]:
    """One call with rows of the same length through the first layer; numbers that were never used before."""
    cache.plan(Padded(cache.batch, time))
    cache.commit()
    k, v = torch.rand(cache.batch, time, 1, 1).double(), torch.rand(cache.batch, time, 1, 2).double()
    return cache.layers[0].append(k, v)


@given(
    kind=st.sampled_from(["growing", "fixed", "windowed"]),
    ragged=st.booleans(),
    calls=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6),
    capacity=st.integers(1, 5),
)
def test_keys_are_those_that_were_given(
    kind: CacheKind, ragged: bool, calls: list[tuple[int, int, int]], capacity: int
) -> None:
    """Two rows, two layers. Cell c of a row holds what its place says, and every place that may be seen is there."""
    times = [max(call) for call in calls]
    cache = cache_of(kind, batch=2, capacity=sum(times) if kind == "fixed" else capacity, layers=2)
    diary: list[list[float]] = [[], []]
    number = 0.0
    for call, time in zip(calls, times, strict=True):
        lengths = call[:2] if ragged else (time, time)
        before = [len(row) for row in diary]
        given_ = torch.full((2, time, 1, 1), -1.0, dtype=torch.float64)  # −1 in the padding
        for row, length in enumerate(lengths):
            for t in range(length):
                number += 1
                given_[row, t] = number
                diary[row].append(number)
        queries, keys = cache.plan(Padded(2, time, torch.tensor(lengths) if ragged else None))
        cache.commit()
        places_q, places_k = queries.places(CPU).expand(2, -1), keys.places(CPU).expand(2, -1)
        for row, length in enumerate(lengths):
            own = [before[row] + t if t < length else -1 for t in range(time)]
            assert places_q[row].tolist() == own
            assert queries.longest > max(own)
        for layer in cache.layers:
            k, v = layer.append(given_, torch.cat([given_, -given_], dim=-1))
            assert k.shape == (2, keys.time, 1, 1)
            for row in range(2):
                held = {place: cell for cell, place in enumerate(places_k[row].tolist()) if place >= 0}
                least = max(before[row] - capacity, 0) if kind == "windowed" else 0
                assert sorted(held) == list(range(least, len(diary[row])))
                assert keys.longest > max(held, default=-1)
                for place, cell in held.items():
                    assert k[row, cell].item() == diary[row][place]
                    assert v[row, cell].flatten().tolist() == [diary[row][place], -diary[row][place]]


def test_a_growing_cache_doubles() -> None:
    cache = cache_of("growing", batch=2, capacity=4)
    capacities = []
    for time in (3, 1, 1, 3, 1, 20):
        full(cache, time)
        capacities.append(cache.capacity)
        assert cache.layers[0].k_BCGE.shape[1] == cache.capacity
    assert capacities == [4, 4, 8, 8, 16, 32]


def test_a_growing_cache_makes_room_for_a_long_call() -> None:
    cache = cache_of("growing", batch=2, capacity=4)
    full(cache, 11)
    assert cache.capacity == 11


def test_a_growing_cache_of_full_rows_shows_no_empty_cell() -> None:
    cache = cache_of("growing", batch=2, capacity=16)
    for seen in (1, 2, 3):
        k, v = full(cache, 1)
        assert k.shape[1] == v.shape[1] == seen


def test_a_fixed_cache_keeps_its_shape_and_its_memory() -> None:
    cache = cache_of("fixed", batch=2, capacity=5)
    memory = cache.layers[0].k_BCGE.data_ptr()
    shapes = {full(cache, 1)[0].shape for _ in range(5)}
    assert shapes == {(2, 5, 1, 1)}
    assert cache.layers[0].k_BCGE.data_ptr() == memory


def test_a_fixed_cache_that_is_full() -> None:
    cache = cache_of("fixed", batch=2, capacity=5)
    full(cache, 3)
    with pytest.raises(InputError) as caught:
        cache.plan(Padded(2, 3))
    assert "capacity (5)" in str(caught.value)


def test_a_call_that_was_refused_changes_nothing() -> None:
    cache = cache_of("fixed", batch=2, capacity=5)
    full(cache, 3)
    with pytest.raises(InputError):
        cache.plan(Padded(2, 3))
    queries, _ = cache.plan(Padded(2, 2))
    assert queries.places(CPU).tolist() == [[3, 4], [3, 4]]


def test_a_windowed_cache_never_grows() -> None:
    cache = cache_of("windowed", batch=2, capacity=3)
    for _ in range(10):
        k, _ = full(cache, 1)
        assert k.shape[1] == 3 + 1
        assert cache.layers[0].k_BCGE.shape[1] == 3


@pytest.mark.parametrize(
    "layout",
    [
        Padded(3, 1),
        Padded(2, 1, start=4),
        Padded(2, 1, places_BT=torch.zeros(2, 1)),
        pack([[1], [1]], [None]).layouts[0],
    ],
    ids=["another batch", "another place", "out of order", "packed"],
)
def test_a_batch_that_does_not_fit(layout: Padded) -> None:
    with pytest.raises(InputError, match="padded batches of 2 rows"):
        cache_of("growing", batch=2, capacity=4).plan(layout)


SMALL = {"width": 8, "depth": 2, "vocabulary": 5}


def test_a_windowed_cache_needs_a_window() -> None:
    for model in (Decoder(**SMALL), EncoderDecoder(**SMALL)):
        with pytest.raises(InputError, match=r"needs attention\.window"):
            build(model).new_cache(batch=1, kind="windowed")


def test_a_windowed_cache_holds_a_window_at_least() -> None:
    model = build(Decoder(**SMALL, attention=AttentionSettings(heads=2, window=6)))
    assert [model.new_cache(1, "windowed", capacity=n).capacity for n in (None, 2, 9)] == [6, 6, 9]


def test_a_fixed_cache_needs_a_capacity() -> None:
    with pytest.raises(InputError, match="needs a capacity"):
        build(EncoderDecoder(**SMALL)).new_cache(batch=1, kind="fixed")


def test_a_models_cache_has_its_shapes() -> None:
    attention = AttentionSettings(heads=4, kv_heads=2, head_size=3, value_size=5)
    model = build(EncoderDecoder(**SMALL, attention=attention, decoder_depth=3), dtype=torch.float64)
    cache = model.new_cache(batch=7, kind="fixed", capacity=9)
    assert len(cache.layers) == len(cache.cross) == 3
    for layer in cache.layers:
        assert layer.k_BCGE.shape == (7, 9, 2, 3)
        assert layer.v_BCGV.shape == (7, 9, 2, 5)
        assert layer.k_BCGE.dtype == torch.float64


def test_a_cross_cache_projects_the_memory_once() -> None:
    attention = Attention(AttentionSettings(heads=2), width=8)
    cache, calls = CrossCache(), []
    attention.k.register_forward_hook(lambda *_: calls.append("k"))
    memory = torch.randn(2, 4, 8)
    for _ in range(3):
        x, seeing = torch.randn(2, 1, 8), Visibility(Padded(2, 1), Padded(2, 4))
        with_cache = attention(x, seeing, memory=memory, cache=cache)
        calls_so_far = len(calls)
        assert torch.equal(with_cache, attention(x, seeing, memory=memory))
        assert calls_so_far == len(calls) - 1
    assert len(calls) == 1 + 3


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    model = build(Decoder(vocabulary=11, width=8, depth=1, attention=AttentionSettings(heads=2))).eval()
    tokens = torch.arange(8).reshape(2, 4)
    cache = model.new_cache(2)
    with pytest.raises(InputError, match=r"token 57 is out of range"):
        model(tokens + 50, cache=cache)
    assert torch.allclose(model(tokens, cache=cache), model(tokens), atol=1e-6)


def test_a_call_beyond_the_positions_leaves_the_cache_as_it_was() -> None:
    settings = Decoder(
        vocabulary=11, width=8, depth=2, attention=AttentionSettings(heads=2), position=Learned(length=6)
    )
    model, tokens = build(settings).eval(), torch.arange(6)[None]
    cache = model.new_cache(1)
    model(tokens[:, :4], cache=cache)
    with pytest.raises(InputError, match=r"8 tokens exceeds position\.length"):
        model(tokens[:, :4], cache=cache)
    assert torch.allclose(model(tokens[:, 4:], cache=cache), model(tokens)[:, 4:], atol=1e-6)


def test_a_source_that_does_not_fit_leaves_the_cache_as_it_was() -> None:
    model = build(EncoderDecoder(vocabulary=11, width=8, depth=1, attention=AttentionSettings(heads=2))).eval()
    source, target = torch.arange(6).reshape(2, 3), torch.arange(8).reshape(2, 4)
    memory, cache = model.encode(source), model.new_cache(2)
    with pytest.raises(InputError, match="queries have 2 sequences and keys 1"):
        model.decode(target, memory[:1], cache=cache)
    assert torch.allclose(model.decode(target, memory, cache=cache), model(source, target), atol=1e-6)


def test_a_prefix_must_come_whole() -> None:
    model = build(Decoder(vocabulary=11, width=8, depth=1, attention=AttentionSettings(heads=2))).eval()
    tokens = torch.arange(8).reshape(2, 4)
    with pytest.raises(InputError) as caught:
        model(tokens[:, :2], cache=model.new_cache(2), prefix=torch.tensor([1, 3]))
    assert "prefix (3) of row 1" in str(caught.value)


def test_caches_that_cannot_be_made() -> None:
    model = build(Decoder(vocabulary=11, width=8, depth=1, attention=AttentionSettings(heads=2)))
    with pytest.raises(InputError, match=r"cache kind \(ring\) is not known; choose one of growing, fixed, windowed"):
        model.new_cache(2, "ring")
    with pytest.raises(InputError, match=r"capacity \(0\) must be at least 1"):
        model.new_cache(2, "fixed", 0)


def test_what_the_encoder_said_is_chosen_apart() -> None:
    cache = CrossCache()
    cache.select(torch.tensor([1]))  # nothing to choose from yet
    k, v = cache.get(lambda: (torch.arange(3.0), torch.arange(3.0) + 10))
    cache.select(torch.tensor([2, 0]))
    again = cache.get(lambda: (k, v))
    assert [each.tolist() for each in again] == [[2.0, 0.0], [12.0, 10.0]]
