"""Every cell of the support table that runs on a CPU: what is derived there reproduces what the kernel gave.

The recorder refuses weights that do not; here they are also held against who may see whom, by definition.
"""

from __future__ import annotations

import attention_cases as cases
import attention_support as support
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from regard.blocks.kernels import use_backend
from regard.blocks.layout import Packed
from regard.blocks.recording import Recorder, Recording, recorded_by

CELLS = [cell for cell in support.cells() if cell.backend in ("reference", "sdpa")]
NAME = ".weights"
"""An attention by itself has no place in a model."""


def by_cell(cached: bool) -> pytest.MarkDecorator:
    cells = [cell for cell in CELLS if (cell.layout == "cached") is cached]
    return pytest.mark.parametrize(
        "cell", cells, ids=lambda c: f"{c.layout}-{c.rule}-{c.position}-{c.backend}".replace(" ", "")
    )


def listening(problem: cases.Problem) -> tuple[Recording, Recorder]:
    seen = Recording([NAME], grad=False, limit=2**30)
    return seen, Recorder(problem.attention, seen, {})


@by_cell(cached=False)
@given(seed=st.integers(0, 10_000))
@hypothesis_settings(max_examples=3)
def test_a_token_looks_at_what_it_sees(cell: support.Cell, seed: int) -> None:
    problem = cases.random_problem(cell.layout, cell.rule, cell.position, seed)
    seen, recorder = listening(problem)
    with use_backend(cell.backend), recorded_by(recorder):
        result = cases.run(problem)
    weights_RHQK = seen[NAME]
    assert isinstance(weights_RHQK, torch.Tensor)
    packed = isinstance(result.queries.layout, Packed)
    for s, (mine, theirs) in enumerate(zip(result.queries.cells, result.keys.cells, strict=True)):
        for i, query in enumerate(mine):
            (row, q), keys = (query, theirs) if not packed else (divmod(query[0], weights_RHQK.shape[2]), theirs)
            columns = [key[0] % weights_RHQK.shape[3] if packed else key[1] for key in keys]
            looked = set(weights_RHQK[row, :, q].sum(0).nonzero()[:, 0].tolist())
            assert looked == {k for j, k in enumerate(columns) if cases.sees(problem, s, i, j)}
            total = 1.0 if looked else 0.0
            assert torch.allclose(weights_RHQK[row, :, q].sum(-1), torch.tensor(total, dtype=torch.float64))


@by_cell(cached=True)
@given(seed=st.integers(0, 10_000))
@hypothesis_settings(max_examples=2)
def test_every_step_with_a_cache(cell: support.Cell, seed: int) -> None:
    problem = cases.random_problem(cell.layout, cell.rule, cell.position, seed)
    seen, recorder = listening(problem)
    for kind in ("growing", "fixed", *(["windowed"] if problem.window else [])):
        with use_backend(cell.backend), recorded_by(recorder), torch.no_grad():
            cases.run_cached(problem, kind)
    assert len(seen.events) >= 2
    for weights_BHQK in seen.calls(NAME):
        total = weights_BHQK.sum(-1)
        assert bool(((total - 1).abs() < 1e-9).logical_or(total == 0).all())
