"""Every cell of the support table that runs on a CPU, over random shapes, against an oracle written in NumPy.

All layouts are held against the same oracle, sequence by sequence; so packed equals padded and cached equals full.
"""

from __future__ import annotations

import attention_cases as cases
import attention_support as support
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from regard.blocks.kernels import use_backend

CELLS = [cell for cell in support.cells() if cell.backend in ("reference", "sdpa")]
WHOLE = [cell for cell in CELLS if cell.layout != "cached"]
CACHED = [cell for cell in CELLS if cell.layout == "cached"]
seeds = st.integers(0, 10_000)
few = hypothesis_settings(max_examples=4)


def by_cell(cells: list[support.Cell]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "cell", cells, ids=lambda c: f"{c.layout}-{c.rule}-{c.position}-{c.backend}".replace(" ", "")
    )


def problem_of(cell: support.Cell, seed: int) -> cases.Problem:
    return cases.random_problem(cell.layout, cell.rule, cell.position, seed)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_no_kind_is_empty_on_the_plain_backends(backend: str) -> None:
    served = [cell for cell in CELLS if cell.backend == backend]
    assert {cell.rule for cell in served} == set(support.RULES)
    assert {cell.position for cell in served} == set(support.POSITIONS)
    assert {cell.layout for cell in served} == set(support.LAYOUTS)


@by_cell(WHOLE)
@given(seed=seeds)
@few
def test_equals_the_definition(cell: support.Cell, seed: int) -> None:
    problem = problem_of(cell, seed)
    with use_backend(cell.backend):
        result = cases.run(problem)
    for got, wanted in zip(result.queries.take(result.out), cases.expected(problem), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=0, atol=1e-10)


@by_cell([cell for cell in WHOLE if cell.backend == "sdpa"])
@given(seed=seeds)
@few
def test_float32_stays_near_the_definition(cell: support.Cell, seed: int) -> None:
    problem = problem_of(cell, seed)
    wanted = cases.expected(problem)
    with use_backend(cell.backend):
        result = cases.run(problem.to("cpu", torch.float32))
    for got, exact in zip(result.queries.take(result.out), wanted, strict=True):
        np.testing.assert_allclose(
            got.detach().numpy(), exact, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(exact).max(initial=0))
        )


@by_cell(CACHED)
@given(seed=seeds, kind=st.sampled_from(["growing", "fixed", "windowed"]))
@few
def test_cached_equals_the_definition(cell: support.Cell, seed: int, kind: str) -> None:
    problem = problem_of(cell, seed)
    if kind == "windowed" and problem.window is None:
        kind = "growing"
    with use_backend(cell.backend), torch.no_grad():
        result = cases.run_cached(problem, kind)
    for got, wanted in zip(result, cases.expected(problem), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=0, atol=1e-10)


@by_cell(WHOLE)
@given(seed=seeds)
@few
def test_no_gradient_from_a_forbidden_position(cell: support.Cell, seed: int) -> None:
    problem = problem_of(cell, seed)
    with use_backend(cell.backend):
        result = cases.run(problem)
    tokens = [(s, i) for s, n in enumerate(problem.lengths) for i in range(n)]
    if not tokens:
        return
    s, i = tokens[seed % len(tokens)]
    result.out[result.queries.cells[s][i]].sum().backward()
    gradient = result.keys.tensor.grad
    allowed = torch.zeros(gradient.shape[:-1], dtype=torch.bool)
    for j, cell_of_key in enumerate(result.keys.cells[s]):
        allowed[cell_of_key] = cases.sees(problem, s, i, j)
    seen = allowed.clone()
    if not problem.rule.cross:
        allowed[result.queries.cells[s][i]] = True  # its own query
    assert torch.all(gradient[~allowed] == 0), "a forbidden position leaks"
    assert torch.all(gradient[seen].abs().sum(-1) > 0), "a visible position has no influence"


@by_cell(WHOLE)
@given(seed=seeds)
@few
def test_padding_and_batch_order_change_nothing(cell: support.Cell, seed: int) -> None:
    problem = problem_of(cell, seed)
    with use_backend(cell.backend), torch.no_grad():
        result = cases.run(problem)
        junk = cases.run(problem, junk=-50.0)
        before = result.queries.take(result.out)
        for got, wanted in zip(junk.queries.take(junk.out), before, strict=True):
            assert torch.equal(got, wanted)
        order = list(range(len(problem.lengths)))[::-1]
        problem.sequences = [problem.sequences[s] for s in order]
        problem.sources = [problem.sources[s] for s in order]
        problem.lengths = [problem.lengths[s] for s in order]
        problem.prefixes = None if problem.prefixes is None else [problem.prefixes[s] for s in order]
        turned = cases.run(problem)
        for got, s in zip(turned.queries.take(turned.out), order, strict=True):
            torch.testing.assert_close(got, before[s], rtol=0, atol=1e-12)


@by_cell([cell for cell in WHOLE if cell.layout != "full"])
@given(seed=seeds)
@few
def test_what_sees_nothing_gets_zero_and_finite_gradients(cell: support.Cell, seed: int) -> None:
    problem = problem_of(cell, seed)
    # An empty sequence beside others: its padding, or, across, its queries, see nothing.
    if problem.rule.cross:
        problem.sources[0] = problem.sources[0][:0]
    elif problem.layout == "ragged":
        problem.sequences[0] = problem.sequences[0][:0]
        problem.lengths[0] = 0
        problem.prefixes = None if problem.prefixes is None else [0, *problem.prefixes[1:]]
    # The output projection alone is left: zero in, its bias out.
    with use_backend(cell.backend):
        result = cases.run(problem)
    nothing = torch.zeros(cases.WIDTH, dtype=torch.float64)
    nothing = nothing if problem.attention.out.bias is None else problem.attention.out.bias
    if problem.rule.cross:
        for cell_of_query in result.queries.cells[0]:
            assert torch.equal(result.out[cell_of_query], nothing)
    elif problem.layout == "ragged":
        padding = result.queries.layout.real(torch.device("cpu"))
        assert torch.equal(result.out[~padding], nothing.expand(int((~padding).sum()), -1))
    result.out.square().sum().backward()
    for leaf in (result.queries.tensor, result.keys.tensor, *problem.attention.parameters()):
        assert leaf.grad is None or bool(torch.isfinite(leaf.grad).all())


@pytest.mark.parametrize("layout", ["full", "ragged", "packed"])
@pytest.mark.parametrize("position", ["none", "alibi", "rotary", "transformer-xl"])
@given(seed=seeds, cap=st.floats(0.5, 30))
@few
def test_soft_cap_equals_the_definition(layout: str, position: str, seed: int, cap: float) -> None:
    problem = cases.random_problem(layout, "causal", position, seed)
    problem.attention.soft_cap = cap
    result = cases.run(problem)
    for got, wanted in zip(result.queries.take(result.out), cases.expected(problem, cap), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=0, atol=1e-10)
