"""Every cell of the support table that runs on a CPU: derived weights match the kernel's output.

The recorder raises if they do not; here they are also compared with the definition of visibility.
"""

from __future__ import annotations

import attention_cases as cases
import attention_support as support
import torch

from regard.blocks.kernels import use_backend
from regard.blocks.layout import Packed
from regard.blocks.recording import Recorder, Recording, recorded_by

NAME = ".weights"
"""An attention module without a model has no path."""


def test_weights_of_every_cell() -> None:
    for cell in support.cells():
        if cell.backend in ("reference", "sdpa"):
            for seed in range(2):
                try:
                    _check(cell, cases.random_problem(cell.layout, cell.rule, cell.position, seed))
                except Exception as error:
                    error.add_note(f"in {cell}, seed {seed}")
                    raise


def _check(cell: support.Cell, problem: cases.Problem) -> None:
    recording = Recording([NAME])
    with use_backend(cell.backend), recorded_by(Recorder(problem.attention, recording)):
        if cell.layout == "cached":
            for fixed in (False, True):
                with torch.no_grad():
                    cases.run_cached(problem, fixed)
        else:
            result = cases.run(problem)
    assert recording.events
    for weights_RHQK in recording.calls(NAME):
        total = weights_RHQK.sum(-1)
        if problem.attention.sinks is None:
            assert bool(((total - 1).abs() < 1e-9).logical_or(total == 0).all())
        else:
            assert bool((total < 1 + 1e-9).all())
    if cell.layout == "cached":
        return
    (weights_RHQK,) = recording.calls(NAME)
    packed = isinstance(result.queries.layout, Packed)
    for s, (own, theirs) in enumerate(zip(result.queries.cells, result.keys.cells, strict=True)):
        for i, query in enumerate(own):
            row, q = divmod(query[0], weights_RHQK.shape[2]) if packed else query
            columns = [key[0] % weights_RHQK.shape[3] if packed else key[1] for key in theirs]
            seen = set(weights_RHQK[row, :, q].sum(0).nonzero()[:, 0].tolist())
            assert seen == {k for j, k in enumerate(columns) if cases.sees(problem, s, i, j)}
