"""regard.record: names, calls and steps, what is kept, what is refused."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import decoding_cases
import family_cases as cases
import pytest
import torch
from decoding_cases import ENDS
from torch import Tensor, nn
from torch.testing import assert_close

import regard
from regard.blocks import recording as taps
from regard.blocks import settings as blocks
from regard.blocks.layers import set_recompute
from regard.blocks.recording import names_of
from regard.decoding.decode import decode
from regard.decoding.fast import FastPaths, select
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Beam, Ends, Greedy, Rules
from regard.models.build import build
from regard.models.cpu import is_prepared, is_watched, prepared

FAMILIES = [*cases.FAMILIES]


def fresh(family: str, **changes: Any) -> Any:
    return cases.unsettled(build(cases.FAMILIES[family](**changes)))


@torch.no_grad()
def run(model: Any, batch: int = 2, source: int = 5, target: int = 4, seed: int = 0) -> Tensor:
    """A whole pass, with all heads."""
    generator = torch.Generator().manual_seed(seed)
    kind = model.settings.kind
    if kind == "vision":
        hidden = model(torch.randn(batch, 2, 8, 12, generator=generator))
        return torch.cat([head(hidden).flatten() for head in model.heads.values()])
    tokens = [torch.randint(0, cases.VOCABULARY, (batch, n), generator=generator) for n in (source, target)]
    if kind == "encoder-decoder":
        return model(*tokens)
    out = model(tokens[1])
    return torch.cat([head(out).flatten() for head in model.heads.values()]) if kind == "encoder" else out


@pytest.mark.parametrize("changes", [{}, {"norm_place": "pre", "position": blocks.NoPosition()}], ids=["post", "pre"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_of_the_table_is_heard_and_no_other(family: str, changes: dict[str, Any]) -> None:
    model = fresh(family, **changes)
    plain = run(model)
    with regard.record(model, "*") as seen:
        assert torch.equal(run(model), plain), "recording changes nothing"
    assert seen.names() == list(names_of(model))
    for name, tap in names_of(model).items():
        assert seen[name].dim() in (len(tap.sizes), len(tap.sizes) + (tap.name == "positions")), name


def test_the_stream_is_the_sum_of_what_is_added_to_it() -> None:
    model = fresh("decoder", norm_place="pre")
    with regard.record(model, "*.residual", "*.out", "embedding.*", "output.logits") as seen:
        logits = run(model)
    assert_close(seen["decoder.residual"], seen["embedding.tokens"] + seen["embedding.positions"])
    stream = seen["decoder.residual"]
    for i in range(2):
        stream = stream + seen[f"decoder.{i}.attention.out"]
        assert_close(stream, seen[f"decoder.{i}.attention.residual"])
        stream = stream + seen[f"decoder.{i}.ffn.out"]
        assert_close(stream, seen[f"decoder.{i}.residual"])
    assert_close(seen["decoder.out"], model.decoder.norm(stream).detach())
    assert_close(seen["output.logits"], logits)


def test_unknown_names_and_models_are_refused() -> None:
    model = fresh("encoder-decoder")
    for pattern, near in (
        ("decoder.0.cros.weights", "decoder.0.cross.weights"),
        ("decoder.*.cross.weight", "decoder.*.cross.weights"),
        ("source.embedding", "source.tokens"),
    ):
        for patterns, edit in (([pattern], {}), (["*.weights"], {pattern: torch.relu})):
            with pytest.raises(regard.InputError) as caught:
                regard.record(model, *patterns, edit=edit).__enter__()
            assert f"called {pattern} (did you mean {near}?)" in str(caught.value)
    for other, message in ((model, "needs a pattern"), (nn.Linear(2, 2), "a Linear cannot"), ("de-en", "a str cannot")):
        with pytest.raises(regard.InputError, match=message):
            regard.record(other, *([] if other is model else "*")).__enter__()
    with regard.record(model, "*.residual") as seen:
        with pytest.raises(regard.InputError, match="has no value yet"):
            seen["encoder.0.residual"]
        run(model)
    assert "encoder.0.residual" in seen
    assert "encoder.0.out" not in seen
    with pytest.raises(regard.InputError, match=r"residul was not recorded \(did you mean encoder.0.residual"):
        seen["encoder.0.residul"]


def test_one_call_is_a_tensor_and_several_are_a_list() -> None:
    model, name = fresh("encoder"), "encoder.1.residual"
    with regard.record(model, name, "encoder.out") as seen:
        run(model)
    assert seen[name].shape == (2, 4, 16)
    assert [tensor.shape for tensor in seen.calls(name)] == [(2, 4, 16)]
    with regard.record(model, name) as seen:
        run(model, batch=1)
        run(model, batch=3)
    assert [len(tensor) for tensor in seen[name]] == [1, 3]
    assert [(event.name, event.step) for event in seen.events] == [(name, None), (name, None)]


def test_values_are_ordinary_copies() -> None:
    """Not what a later call may write into, no inference tensors, no graph."""
    model = fresh("decoder").bfloat16()
    with regard.record(model, "*.residual") as seen:
        with torch.inference_mode():
            run(model)
        model(torch.tensor([[1, 2, 3]]))
    for value in (value for name in seen for value in seen.calls(name)):
        assert (value.dtype, value.device.type, value.requires_grad) == (torch.float32, "cpu", False)
        assert not value.is_inference()
        assert not value._is_view()


def test_after_the_block_no_one_listens_even_if_it_failed() -> None:
    model = fresh("decoder")
    spoiled = {"decoder.1.residual": lambda x: x[0]}
    with pytest.raises(regard.InputError), regard.record(model, "*", edit=spoiled) as seen:
        run(model)
    count = len(seen.events)
    run(model)
    assert len(seen.events) == count > 0
    assert taps.current_recorders() == ()


def test_more_than_the_limit_is_refused_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("decoder")
    monkeypatch.setattr("regard.blocks.recording.derive", None)  # not even begun
    with pytest.raises(regard.RecordError) as caught, regard.record(model, "*.weights", limit=500):
        run(model, batch=2, target=4)
    assert "limit (4.66e-07 GiB) exceeded: decoder.0.attention.weights" in str(caught.value)
    with regard.record(model, "decoder.*residual", limit=1280) as seen, pytest.raises(regard.RecordError):
        run(model, batch=2, target=4)
    assert len(seen.events) == 2
    monkeypatch.undo()
    model, rules = decoding_cases.continuer(), Rules(longest=Absolute(tokens=30))
    with regard.record(model, "*.weights", limit=2000) as seen, pytest.raises(regard.RecordError):
        decode(model, [[2, 3]], Ends(ENDS.start, None), rules=rules)
    assert 5 < len(seen.events) < 30, "decoding is counted as it grows"


@pytest.mark.parametrize("position", cases.TEXT_POSITIONS)
@torch.no_grad()
def test_step_by_step_as_at_once(position: str) -> None:
    """The weights of step t are row t of a pass over the whole."""
    model = fresh("encoder-decoder", position=cases.TEXT_POSITIONS[position])
    source, target = cases.padded(cases.sentences([3, 5], 1)), torch.tensor(cases.sentences([6, 6], 2))
    with regard.record(model, "decoder.*.weights", "decoder.*.residual") as whole:
        model(source.tokens, target, source.layout)
    memory = model.encode(source.tokens, source.layout)
    cache = model.new_cache(2)
    with regard.record(model, "decoder.*.weights", "decoder.*.residual") as seen:
        for new in target.split(1, dim=1):
            model.output(model.states(new, memory, source.layout, cache=cache))
    for name in whole:
        events = seen.events_of(name)
        assert [event.step for event in events] == [*range(6)]
        for t, event in enumerate(events):
            row = whole[name][:, t : t + 1] if name.endswith("residual") else whole[name][:, :, t : t + 1]
            value = event.value[..., : row.shape[-1]]
            assert not event.value[..., row.shape[-1] :].any()
            assert_close(value, row[..., : value.shape[-1]], rtol=0, atol=1e-5)
            assert not row[..., value.shape[-1] :].any()


@pytest.mark.parametrize("search", [Greedy(), Beam(size=3), Beam(size=2, coverage=0.2)])
@pytest.mark.parametrize("fixed", [None, True])
def test_a_search_is_heard_at_every_step(search: Greedy | Beam, fixed: bool | None) -> None:
    """Neither prepared nor shared ways are taken, and what is written stays the same."""
    model, given = decoding_cases.translator(dtype=torch.float32), decoding_cases.inputs(1)
    rules = Rules(longest=Absolute(tokens=9))
    plain = decode(model, given, ENDS, search, rules, fixed=fixed)
    with regard.record(model, "decoder.*.cross.weights", "output.logits", "encoder.out") as seen:
        heard = decode(model, given, ENDS, search, rules, fixed=fixed)
    assert [[each.tokens for each in row] for row in heard] == [[each.tokens for each in row] for row in plain]
    events = seen.events_of("decoder.0.cross.weights")
    steps = len(heard[0][0].tokens)
    assert len(seen.events_of("encoder.out")) == 1
    assert seen.events_of("encoder.out")[0].step is None
    assert [event.step for event in events] == [*range(len(events))]
    assert len(events) >= steps
    beams = search.size if isinstance(search, Beam) else 1
    assert [event.value.shape[:3] for event in events[:2]] == [(1, 2, 1), (1, 2, beams)]
    assert all(event.value.count_nonzero(-1).unique().tolist() == [len(given[0])] for event in events)
    assert len(seen.calls("output.logits")) == len(events)


def test_a_recorded_model_counts_as_watched() -> None:
    model, other = decoding_cases.translator(dtype=torch.float32), decoding_cases.translator(dtype=torch.float32)
    assert is_prepared(SearchModel(model, ENDS).model)
    with regard.record(model, "*.weights"):
        assert is_watched(model)
        assert not is_watched(other)
        assert SearchModel(model, ENDS).model is model
        assert is_prepared(SearchModel(other, ENDS).model)
        assert select(model, Beam(), Rules(), fixed=True) == FastPaths(fixed=True), "nothing is replayed"
    assert not is_watched(model)


@pytest.mark.parametrize("numbers", ["float32", "int8"])
def test_a_prepared_model_is_recorded_as_it_is(numbers: Any) -> None:
    model = prepared(fresh("encoder-decoder").eval(), numbers)
    with regard.record(model, "*") as seen:
        plain = run(model)
    assert seen.names() == list(names_of(model))
    assert torch.equal(seen["output.logits"], plain)


def test_recomputed_activations_are_heard_once() -> None:
    model = fresh("decoder").train()
    set_recompute(model, True)
    with regard.record(model, "*.residual") as seen:
        model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert len(seen.events) == len(seen)


def test_two_models_at_once_and_one_only_once() -> None:
    first, second = fresh("decoder"), fresh("encoder")
    silent = {"decoder.0.*.weights": torch.zeros_like}
    with (
        regard.record(first, "*.residual", "decoder.0.*.heads", edit=silent) as one,
        regard.record(second, "*.residual", "encoder.0.*.heads") as two,
    ):
        run(second)
        run(first)
        cache = first.new_cache(1)
        first(torch.tensor([[1]]), cache=cache)
        with pytest.raises(regard.InputError, match="already being recorded"):
            regard.record(first, "*").__enter__()
        assert is_watched(first)
        assert is_watched(second)
    assert {name.split(".")[0] for name in one} == {"decoder"}
    assert {name.split(".")[0] for name in two} == {"encoder"}
    assert [event.step for event in one.events_of("decoder.1.residual")] == [None, 0]
    assert not one.calls("decoder.0.attention.heads")[0].any()
    assert two["encoder.0.attention.heads"].any()


def test_threads_and_tasks_do_not_hear_each_other() -> None:
    model, seen, barrier = fresh("decoder"), {}, threading.Barrier(2)

    def listen(number: int) -> None:
        with regard.record(model, "decoder.out") as heard:
            barrier.wait()
            for _ in range(number):
                run(model, batch=number)
            barrier.wait()
        seen[number] = heard

    threads = [threading.Thread(target=listen, args=(number,)) for number in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {number: [len(x) for x in heard.calls("decoder.out")] for number, heard in seen.items()}
    assert counts == {1: [1], 3: [3, 3, 3]}

    async def task(batch: int) -> list[int]:
        with regard.record(model, "decoder.out") as heard:
            for _ in range(3):
                run(model, batch=batch)
                await asyncio.sleep(0)
        return [len(x) for x in heard.calls("decoder.out")]

    async def both() -> list[list[int]]:
        return await asyncio.gather(task(1), task(2))

    with ThreadPoolExecutor(1) as pool:  # browser tests leave a running event loop in this thread
        assert pool.submit(asyncio.run, both()).result() == [[1, 1, 1], [2, 2, 2]]
